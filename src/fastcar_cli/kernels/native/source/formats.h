// Number formats of weights and caches: one struct a format says how to widen it to float32, or how to multiply its
// integers, and how its products are laid out. A new format is one struct and one line of `with_format`, and its number
// in structs.py.
#pragma once
#include "integers.h"

namespace {

// Of 32 vector registers, not 16, the sums of more rows find room, and inputs wider than the first cache are drawn from
// the second less often.
constexpr bool WIDE = LANES == 16;

// size: bytes of a number. sums: partial sums of a product, in the registers of one row and one input, so that no
// product waits for the one before. one, two, four: rows of weights that share the loads of so many inputs; their sums
// fit the registers. `four` is for coded inputs only.
struct Float32 {
    typedef float Input;
    static constexpr bool coded = false;
    static constexpr int size = 4, sums = WIDE ? 1 : 2, one = WIDE ? 8 : 4, two = WIDE ? 8 : 2;
    static long bytes(long n) { return n * size; }
    static long scale_bytes(long) { return 0; }
    static Floats widen(const char* at) { return load_as<Floats>(at); }
    static float read(const char* at) { return load_as<float>(at); }
    static void write(char* at, float x) { memcpy(at, &x, 4); }
};

struct BFloat16 {
    typedef float Input;
    static constexpr bool coded = false;
    static constexpr int size = 2, sums = WIDE ? 1 : 2, one = WIDE ? 8 : 4, two = WIDE ? 8 : 2;
    static long bytes(long n) { return n * size; }
    static long scale_bytes(long) { return 0; }
    static Floats widen(const char* at) {
        return bits<Floats>(__builtin_convertvector(load_as<Halves>(at), Ints) << 16);
    }
    static float read(const char* at) { return bits<float>(uint32_t(load_as<uint16_t>(at)) << 16); }
    // To nearest, ties to even; a NaN stays one.
    static void write(char* at, float x) {
        uint32_t word = bits<uint32_t>(x);
        uint32_t rounded = (word + 0x7FFF + (word >> 16 & 1)) >> 16;
        uint16_t half = uint16_t(x != x ? word >> 16 | 0x40 : rounded);
        memcpy(at, &half, 2);
    }
};

// f(format) for the format of a number.
template <class F>
inline void with_format(int64_t format, F f) {
    if (format == 0) f(Float32{});
    if (format == 1) f(BFloat16{});
    if (format == 2) f(Int8{});
    if (format == 3) f(Int4{});
}

// As `with_format`, for the formats of caches.
template <class F>
inline void with_cache_format(int64_t format, F f) {
    if (format == 0) f(Float32{});
    if (format == 1) f(BFloat16{});
}

}  // namespace
