// What integer products need of an instruction set: for each operation a block for each set.
#pragma once
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "structs.h"
#include "vectors.h"

namespace {

typedef int16_t Int16s __attribute__((vector_size(4 * LANES)));
typedef uint8_t Uint8s __attribute__((vector_size(4 * LANES)));

// `sums` with the products of a and b added, two neighbouring ones to each lane.
INLINE Ints add_pair_products(Ints sums, Int16s a, Int16s b) {
#if defined(__AVX512VNNI__)
    return bit_cast<Ints>(_mm512_dpwssd_epi32(bit_cast<__m512i>(sums), bit_cast<__m512i>(a), bit_cast<__m512i>(b)));
#elif defined(__AVXVNNI__)
    return bit_cast<Ints>(_mm256_dpwssd_avx_epi32(bit_cast<__m256i>(sums), bit_cast<__m256i>(a), bit_cast<__m256i>(b)));
#elif defined(__AVX512BW__)
    return sums + bit_cast<Ints>(_mm512_madd_epi16(bit_cast<__m512i>(a), bit_cast<__m512i>(b)));
#elif defined(__AVX2__)
    return sums + bit_cast<Ints>(_mm256_madd_epi16(bit_cast<__m256i>(a), bit_cast<__m256i>(b)));
#elif defined(__SSE2__)
    return sums + bit_cast<Ints>(_mm_madd_epi16(bit_cast<__m128i>(a), bit_cast<__m128i>(b)));
#elif defined(__aarch64__)
    return sums + vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b));
#else
    Ints x = bit_cast<Ints>(a), y = bit_cast<Ints>(b);
    return sums + (x << 16 >> 16) * (y << 16 >> 16) + (x >> 16) * (y >> 16);
#endif
}

// The first `bytes` bytes at an address, then zeros.
template <class V>
INLINE V load_part(const char* at, int64_t bytes) {
    int64_t count = bytes < 0 ? 0 : bytes < int64_t(sizeof(V)) ? bytes : int64_t(sizeof(V));
#if defined(__AVX512BW__)
    uint64_t mask = count < 64 ? (uint64_t(1) << count) - 1 : ~uint64_t(0);
    if constexpr (sizeof(V) == 64) return bit_cast<V>(_mm512_maskz_loadu_epi8(mask, at));
    if constexpr (sizeof(V) == 32) return bit_cast<V>(_mm256_maskz_loadu_epi8(__mmask32(mask), at));
#endif
    V v = {};
    memcpy(&v, at, count);
    return v;
}

// int8 weights are multiplied a block of CACHE_LINE at a time, with as many inputs, codes of 16 bits.
// - store_codes(codes, out) stores a block's codes in the order in which they meet weights.
// - Bytes are a register of weights, unpacked by widen_bytes. BYTE_ROWS: weight rows whose blocks fit the registers.
// - ByteSums are sums of products, in each lane those of four neighbouring weights of every register. first_sums(bytes)
//   begin those of a block's registers, add_products(sums, bytes, x, v) adds those of register v with the codes at x,
//   total(sums) are the sums as integers.
constexpr int BYTE_REGISTERS = CACHE_LINE / sizeof(Int16s);
#if defined(__ARM_FEATURE_DOTPROD)
// The upper bytes of the codes come first, then the lower ones, from 0 to 255. Without USDOT, which multiplies those
// with signed weights, 127 less each is stored.
constexpr int BYTE_ROWS = 4;
typedef int8x16_t Bytes;
struct ByteSums {
    int32x4_t high, low;
};
INLINE Bytes widen_bytes(Int16s both) { return bit_cast<Bytes>(both); }
#if defined(__ARM_FEATURE_MATMUL_INT8)
constexpr int LOW_BITS = 0;
INLINE ByteSums first_sums(const Bytes*) { return {vdupq_n_s32(0), vdupq_n_s32(0)}; }
INLINE int32x4_t add_low(int32x4_t sums, Bytes w, Bytes x) { return vusdotq_s32(sums, bit_cast<uint8x16_t>(x), w); }
INLINE Ints total(ByteSums sums) { return vaddq_s32(vshlq_n_s32(sums.high, 8), sums.low); }
#else
constexpr int LOW_BITS = 0x7F;
INLINE ByteSums first_sums(const Bytes* w) {
    ByteSums sums{vdupq_n_s32(0), vdupq_n_s32(0)};
    for (int v = 0; v < BYTE_REGISTERS; v++) sums.low = vdotq_s32(sums.low, w[v], vdupq_n_s8(-127));
    return sums;
}
INLINE int32x4_t add_low(int32x4_t sums, Bytes w, Bytes x) { return vdotq_s32(sums, w, x); }
INLINE Ints total(ByteSums sums) { return vsubq_s32(vshlq_n_s32(sums.high, 8), sums.low); }
#endif
inline void store_codes(const uint16_t* codes, char* out) {
    for (int k = 0; k < CACHE_LINE; k++) out[k] = char(codes[k] >> 8), out[CACHE_LINE + k] = char(codes[k] ^ LOW_BITS);
}
INLINE void add_products(ByteSums& sums, Bytes w, const char* x, int v) {
    sums.high = vdotq_s32(sums.high, w, load_as<Bytes>(x + 16 * v));
    sums.low = add_low(sums.low, w, load_as<Bytes>(x + CACHE_LINE + 16 * v));
}
#elif defined(__aarch64__)
constexpr int BYTE_ROWS = 2;
struct Bytes {
    int16x8_t low, high;
};
struct ByteSums {
    int32x4_t of[4];
};
inline void store_codes(const uint16_t* codes, char* out) { memcpy(out, codes, 2 * CACHE_LINE); }
INLINE Bytes widen_bytes(Int16s both) {
    auto bytes = bit_cast<int8x16_t>(both);
    return {vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes)};
}
INLINE ByteSums first_sums(const Bytes*) { return ByteSums{}; }
INLINE void add_products(ByteSums& sums, const Bytes& w, const char* x, int v) {
    auto low = load_as<int16x8_t>(x + 32 * v), high = load_as<int16x8_t>(x + 32 * v + 16);
    sums.of[0] = vmlal_s16(sums.of[0], vget_low_s16(w.low), vget_low_s16(low));
    sums.of[1] = vmlal_high_s16(sums.of[1], w.low, low);
    sums.of[2] = vmlal_s16(sums.of[2], vget_low_s16(w.high), vget_low_s16(high));
    sums.of[3] = vmlal_high_s16(sums.of[3], w.high, high);
}
INLINE Ints total(const ByteSums& sums) {
    return vpaddq_s32(vpaddq_s32(sums.of[0], sums.of[1]), vpaddq_s32(sums.of[2], sums.of[3]));
}
#else
// The even ones come first, as weights are widened in pairs.
constexpr int BYTE_ROWS = LANES / 4;
struct Bytes {
    Int16s even, odd;
};
typedef Ints ByteSums;
inline void store_codes(const uint16_t* codes, char* out) {
    auto to = reinterpret_cast<uint16_t*>(out);
    for (int k = 0; k < CACHE_LINE; k++) to[k % 2 * (CACHE_LINE / 2) + k / 2] = codes[k];
}
INLINE Bytes widen_bytes(Int16s both) { return {Int16s(both << 8 >> 8), Int16s(both >> 8)}; }
INLINE ByteSums first_sums(const Bytes*) { return ByteSums{}; }
INLINE void add_products(ByteSums& sums, const Bytes& w, const char* x, int v) {
    Int16s even = load_as<Int16s>(x + v * sizeof(Int16s)), odd = load_as<Int16s>(x + CACHE_LINE + v * sizeof(Int16s));
    sums = add_pair_products(add_pair_products(sums, w.even, even), w.odd, odd);
}
INLINE Ints total(ByteSums sums) { return sums; }
#endif

// int4 weights are multiplied GROUPS groups of 32 at a time, as many as a register has lanes. Group g is summed in
// first_lane(g).
// - to_input_order(lines) moves the bytes of weights into the order of the quantised inputs.
// - input_offset(g, k) is where the inputs k to k + RUN - 1 of half a group g are stored, as bytes from the block's
//   start.
// - scales_by_lane(scales) are float16 scales of weights, each in the lane of its group.
// - GroupSums are sums of products, each in the lane of its group. first_sums(scales) begin them;
//   add_products<first, last>(sums, low, high, x, y) adds the products of the registers first to last of low with x and
//   of high with y; low and high hold 0 to 15, x and y are signed.
// - scaled(sums, scales, weight_scales) are the sums times both scales, in units of the inputs' row. `scales` are those
//   of LANES groups of inputs and LANES corrections, which take off what the 8 added to each weight makes:
//   scale_word(n) and correction(n, sum) for a scale of n units and the sum of a group's inputs.
constexpr int GROUPS = LANES;
typedef uint16_t Scales __attribute__((vector_size(2 * GROUPS)));
#if defined(__AVX2__)
constexpr int RUN = 4;
constexpr int64_t REGISTER_GROUPS = LANES / 4;
// A block fills four registers, with 16 bytes of each group. After the four registers and their 32-bit words are
// transposed, all bytes of a lane belong to one group, so that no sums across lanes are needed.
inline int64_t first_lane(int64_t g) { return g % REGISTER_GROUPS * 4 + g / REGISTER_GROUPS; }
inline int64_t input_offset(int64_t g, int64_t k) { return k / 4 * int64_t(sizeof(Uint8s)) + 4 * first_lane(g); }
#if defined(__AVX512F__)
typedef __m512i Register;
#define INTRINSIC(name) _mm512_##name
#else
typedef __m256i Register;
#define INTRINSIC(name) _mm256_##name
#endif
INLINE void to_input_order(Uint8s* lines) {
    Register four[4], low[2], high[2];
    for (int v = 0; v < 4; v++) four[v] = bit_cast<Register>(lines[v]);
    for (int k = 0; k < 2; k++) {
        low[k] = INTRINSIC(unpacklo_epi32)(four[2 * k], four[2 * k + 1]);
        high[k] = INTRINSIC(unpackhi_epi32)(four[2 * k], four[2 * k + 1]);
    }
    lines[0] = bit_cast<Uint8s>(INTRINSIC(unpacklo_epi64)(low[0], low[1]));
    lines[1] = bit_cast<Uint8s>(INTRINSIC(unpackhi_epi64)(low[0], low[1]));
    lines[2] = bit_cast<Uint8s>(INTRINSIC(unpacklo_epi64)(high[0], high[1]));
    lines[3] = bit_cast<Uint8s>(INTRINSIC(unpackhi_epi64)(high[0], high[1]));
}
INLINE Floats scales_by_lane(Scales scales) {
#if defined(__AVX512F__)
    Floats f = bit_cast<Floats>(_mm512_cvtph_ps(bit_cast<__m256i>(scales)));
    return __builtin_shufflevector(f, f, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
#else
    Floats f = bit_cast<Floats>(_mm256_cvtph_ps(bit_cast<__m128i>(scales)));
    return __builtin_shufflevector(f, f, 0, 2, 4, 6, 1, 3, 5, 7);
#endif
}
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define SUMS_IN_32_BITS
#if defined(__AVX512VNNI__)
#define ADD_PRODUCTS _mm512_dpbusd_epi32
#else
#define ADD_PRODUCTS _mm256_dpbusd_avx_epi32
#endif
typedef Ints GroupSums;
INLINE Ints add_line(Ints sums, Uint8s weights, const char* x) {
    return bit_cast<Ints>(ADD_PRODUCTS(bit_cast<Register>(sums), bit_cast<Register>(weights), load_as<Register>(x)));
}
#else
// No sum of 16 bits is above 8 * 2 * 15 * 127. The multiplication that adds two sums of 16 bits to one of 32 multiplies
// with the scale too, a whole multiple of the unit.
typedef Int16s GroupSums;
INLINE GroupSums first_sums(const char*) { return GroupSums{}; }
INLINE GroupSums add_line(GroupSums sums, Uint8s weights, const char* x) {
    return sums + bit_cast<Int16s>(INTRINSIC(maddubs_epi16)(bit_cast<Register>(weights), load_as<Register>(x)));
}
INLINE int32_t scale_word(int32_t n) { return n << 16 | n; }
INLINE int32_t correction(int32_t n, int32_t sum) { return -8 * n * sum; }
INLINE Floats scaled(GroupSums sums, const char* scales, Floats weight_scales) {
    Ints corrections = load_as<Ints>(scales + sizeof(Ints));
    Ints products = add_pair_products(corrections, sums, load_as<Int16s>(scales));
    return __builtin_convertvector(products, Floats) * weight_scales;
}
#endif
template <int first, int last>
INLINE GroupSums add_products(GroupSums sums, const Uint8s* low, const Uint8s* high, const char* x, const char* y) {
    for (int64_t v = first; v < last; v++) {
        sums = add_line(sums, low[v], x + v * int64_t(sizeof(Register)));
        sums = add_line(sums, high[v], y + v * int64_t(sizeof(Register)));
    }
    return sums;
}
#else
#define SUMS_IN_32_BITS
constexpr int RUN = 16;
// Four float16 numbers as float32.
#if defined(__aarch64__)
INLINE Floats scales_by_lane(Scales scales) { return vcvt_f32_f16(bit_cast<float16x4_t>(scales)); }
#else
INLINE Floats scales_by_lane(Scales scales) {
    Ints word = __builtin_convertvector(bit_cast<Uint16s>(scales), Ints);
    // The exponent has another bias. Subnormal numbers come out right; infinity and NaN come out as 2^16 and more.
    Floats size = bit_cast<Floats>((word & 0x7FFF) << 13) * 0x1p112f;
    Ints infinite = (size >= 65536.0f) & 0x7F800000;
    return bit_cast<Floats>(bit_cast<Ints>(size) | infinite | (word & 0x8000) << 16);
}
#endif
inline int64_t first_lane(int64_t g) { return g; }
inline int64_t input_offset(int64_t g, int64_t) { return 16 * g; }
INLINE void to_input_order(Uint8s*) {}
typedef Ints GroupSums;
template <int first, int last>
INLINE Ints add_products(Ints sums, const Uint8s* low, const Uint8s* high, const char* x, const char* y) {
    static_assert(first == 0 && last == GROUPS, "one register for each group");
#if defined(__aarch64__)
    auto one = [&](int g) {
        auto a = bit_cast<int8x16_t>(low[g]), b = bit_cast<int8x16_t>(high[g]);
        auto c = load_as<int8x16_t>(x + 16 * g), d = load_as<int8x16_t>(y + 16 * g);
#if defined(__ARM_FEATURE_DOTPROD)
        return vdotq_s32(vdotq_s32(vdupq_n_s32(0), a, c), b, d);
    };
    return sums + vpaddq_s32(vpaddq_s32(one(0), one(1)), vpaddq_s32(one(2), one(3)));
#else
        int16x8_t products = vmlal_high_s8(vmull_s8(vget_low_s8(a), vget_low_s8(c)), a, c);
        return vmlal_high_s8(vmlal_s8(products, vget_low_s8(b), vget_low_s8(d)), b, d);
    };
    // No sum of 16 bits, of half a group, is above 16 * 15 * 128.
    return vpadalq_s16(sums, vpaddq_s16(vpaddq_s16(one(0), one(1)), vpaddq_s16(one(2), one(3))));
#endif
#else
    auto even = [](Uint8s v) { return bit_cast<Int16s>(v) << 8 >> 8; };
    auto odd = [](Uint8s v) { return bit_cast<Int16s>(v) >> 8; };
    auto one = [&](int g) {
        Uint8s c = load_as<Uint8s>(x + 16 * g), d = load_as<Uint8s>(y + 16 * g);
        Ints products = add_pair_products(add_pair_products(Ints{}, even(low[g]), even(c)), odd(low[g]), odd(c));
        return add_pair_products(add_pair_products(products, even(high[g]), even(d)), odd(high[g]), odd(d));
    };
    auto both = [](Ints a, Ints b) {
        return __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
    };
    Ints a = both(one(0), one(1)), b = both(one(2), one(3));
    return sums + __builtin_shufflevector(a, b, 0, 1, 4, 5) + __builtin_shufflevector(a, b, 2, 3, 6, 7);
#endif
}
#endif
#if defined(SUMS_IN_32_BITS)
INLINE Ints first_sums(const char* scales) { return load_as<Ints>(scales + sizeof(Ints)); }
INLINE int32_t scale_word(int32_t n) { return bit_cast<int32_t>(float(n)); }
INLINE int32_t correction(int32_t, int32_t sum) { return -8 * sum; }
INLINE Floats scaled(Ints sums, const char* scales, Floats weight_scales) {
    return __builtin_convertvector(sums, Floats) * (weight_scales * load_as<Floats>(scales));
}
#endif

}  // namespace
