// Number formats of weights and caches. Each is a struct that says how to widen its numbers to float32, or how to
// multiply its integers, and how large the tiles of a product are. A new format needs a struct, a line in `with_format`
// and its number in structs.py.
#pragma once
#include "integers.h"

namespace {

// With 32 vector registers instead of 16 the sums of more weight rows fit, and inputs that are larger than the L1 cache
// are read from the L2 cache less often.
constexpr bool WIDE = LANES == 16;

// size: bytes of a number. sums: partial sums for each weight row and input, so that no multiplication waits for the
// one before it. one, two, four: weight rows per tile when 1, 2 or 4 inputs share their loads. The sums of a tile fit
// the registers. `four` is for quantised inputs only.
struct Float32 {
    typedef float Input;
    static constexpr bool quantised = false;
    static constexpr int size = 4, sums = WIDE ? 1 : 2, one = WIDE ? 8 : 4, two = WIDE ? 8 : 2;
    static long bytes(long n) { return n * size; }
    static long scale_bytes(long) { return 0; }
    static Floats widen(const char* at) { return load_as<Floats>(at); }
    static float read(const char* at) { return load_as<float>(at); }
    static void write(char* at, float x) { memcpy(at, &x, 4); }
};

struct BFloat16 {
    typedef float Input;
    static constexpr bool quantised = false;
    static constexpr int size = 2, sums = WIDE ? 1 : 2, one = WIDE ? 8 : 4, two = WIDE ? 8 : 2;
    static long bytes(long n) { return n * size; }
    static long scale_bytes(long) { return 0; }
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

// Calls f(format) with the struct of a format's number.
template <class F>
inline void with_format(int64_t format, F f) {
    if (format == 0) f(Float32{});
    if (format == 1) f(BFloat16{});
    if (format == 2) f(Int8{});
    if (format == 3) f(Int4{});
}

// As `with_format`, for the float formats of caches.
template <class F>
inline void with_cache_format(int64_t format, F f) {
    if (format == 0) f(Float32{});
    if (format == 1) f(BFloat16{});
}

}  // namespace
