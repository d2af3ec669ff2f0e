// Number formats of weights and caches. Each is a struct that says how to widen its numbers to float32, or how to
// multiply its integers, and how large the tiles of a product are. A new format is a struct, here or in a file such as
// integers.h, a place in `Formats`, and a row in formats.py at the same place.
#pragma once
#include "integers.h"

namespace {

// Rows of float inputs, `step` numbers apart.
struct FloatInputs {
    const float* at;
    int64_t step;
    template <class Format>
    INLINE FloatInputs from(int64_t block, int64_t row) const {
        return {at + block * Format::block_inputs + row * step, step};
    }
};

// What formats have in common whose numbers are floats of `bytes_each` bytes.
//
// row: its row of the table. size: bytes of a number. sums: partial sums for each weight row and input, so that no
// multiplication waits for the one before it. one, two: weight rows of a tile when 1 or 2 inputs share their loads.
// from_inputs: from how many inputs on panels are used, in which `many` weight rows share the loads of an input, of
// floats with `most_inputs` inputs at a time. The other constants are as in integers.h.
template <int bytes_each>
struct FloatFormat {
    typedef FloatInputs Inputs;
    static constexpr bool quantised = false, halves = false, tiles = false;
    static constexpr int size = bytes_each, sums = LANES == 16 ? 1 : 2, one = WIDE ? 8 : 4;
    static constexpr int two = WIDE ? 8 / sums : 2, many = WIDE ? 4 : 2, from_inputs = WIDE ? 3 : 5, most_inputs = 6;
    static constexpr int few = 0;
    static constexpr int block_inputs = CACHE_LINE / size, block_bytes = CACHE_LINE, input_bytes = 4 * block_inputs;
    static constexpr int input_scales = 0, weight_scale_bytes = 0;
    static int64_t bytes(int64_t n) { return n * size; }
    static int64_t scale_bytes(int64_t) { return 0; }
};

struct Float32 : FloatFormat<4> {
    static constexpr FormatRow row{"float32", 32, 0, 0};
    static Floats widen(const char* at) { return load_as<Floats>(at); }
    static float read(const char* at) { return load_as<float>(at); }
    static void write(char* at, float x) { memcpy(at, &x, 4); }
};

struct BFloat16 : FloatFormat<2> {
    static constexpr FormatRow row{"bfloat16", 16, 0, 0};
    static Floats widen(const char* at) {
        return bit_cast<Floats>(__builtin_convertvector(load_as<Uint16s>(at), Ints) << 16);
    }
    static float read(const char* at) { return bit_cast<float>(uint32_t(load_as<uint16_t>(at)) << 16); }
    // Rounds to nearest, ties to even; NaN stays NaN.
    static void write(char* at, float x) {
        uint32_t word = bit_cast<uint32_t>(x);
        uint32_t rounded = (word + 0x7FFF + (word >> 16 & 1)) >> 16;
        uint16_t half = uint16_t(x != x ? word >> 16 | 0x40 : rounded);
        memcpy(at, &half, 2);
    }
};

// A list of formats; a format's place in it is its number.
template <class... All>
struct FormatList {
    static constexpr int64_t count = sizeof...(All);
    static constexpr FormatRow rows[] = {All::row...};
    template <class F>
    static void for_each(F f) {
        (f(All{}), ...);
    }
    // Calls f(format) with the struct of this number.
    template <class F>
    static void with(int64_t number, F f) {
        int64_t i = 0;
        ((i++ == number ? f(All{}) : void()), ...);
    }
};

typedef FormatList<Float32, BFloat16, Int8, Int4> Formats;
typedef FormatList<Float32, BFloat16> CacheFormats;

}  // namespace
