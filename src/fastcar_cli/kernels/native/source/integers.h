// Products with weights in int8 and int4. Their inputs are quantised too, a group of them to integers with one scale.
// The products of a group are summed in int32, then scaled and summed in float32. Weights are multiplied a block at a
// time, which is unpacked into registers and may meet many inputs, stored in the order in which its weights are
// unpacked.
#pragma once
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "structs.h"
#include "vectors.h"

namespace {

// Quantised inputs of `count` rows: block by block the integers of all rows, so that those that meet the same weights
// are one piece of memory, then all scales likewise.
struct QuantisedInputs {
    const char *integers, *scales;
    int64_t count;
    template <class Format>
    INLINE QuantisedInputs from(int64_t block, int64_t row) const {
        int64_t k = block * count + row;
        return {integers + k * Format::input_bytes, scales + k * Format::input_scales * int64_t(sizeof(float)), count};
    }
};

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
// Four float16 numbers as float32, repeated to fill a register.
INLINE Floats float16s_to_floats(Scales scales) {
    Ints word = __builtin_convertvector(bit_cast<Uint16s>(scales), Ints);
    // The exponent has another bias. Subnormal numbers come out right; infinity and NaN come out as 2^16 and more.
    Floats size = bit_cast<Floats>((word & 0x7FFF) << 13) * 0x1p112f;
    Ints infinite = (size >= 65536.0f) & 0x7F800000;
    return bit_cast<Floats>(bit_cast<Ints>(size) | infinite | (word & 0x8000) << 16);
}
inline int64_t first_lane(int64_t g) { return g; }
inline int64_t input_offset(int64_t g, int64_t) { return 16 * g; }
INLINE void to_input_order(Uint8s*) {}
INLINE Floats scales_by_lane(Scales scales) { return float16s_to_floats(scales); }
typedef Ints GroupSums;
template <int first, int last>
INLINE Ints add_products(Ints sums, const Uint8s* low, const Uint8s* high, const char* x, const char* y) {
    static_assert(first == 0 && last == GROUPS, "one register for each group");
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

// The scale that quantises n numbers to integers up to `largest`; NaN where a number is NaN or infinite.
INLINE float quantisation_scale(const float* x, int64_t n, float largest) {
    Floats top = {}, nan_or_zero = {};
    for (int64_t k = 0; k < n; k += LANES) {
        Floats v = load(x + k), size = bit_cast<Floats>(bit_cast<Ints>(v) & 0x7FFFFFFF);
        top = size > top ? size : top;
        nan_or_zero += v * 0.0f;
    }
    float peak = lane_maximum(top);
    // The inverse of a smaller scale could overflow; such inputs count as 0.
    if (peak < 1e-30f) peak = 0;
    return peak / largest + lane_sum(nan_or_zero);
}

// The unit of a row of n inputs: the power of two of which their scale (see above) is at most 32,767.
inline float scale_unit(const float* x, int64_t n, float largest) {
    float smallest = quantisation_scale(x, n, largest) / 32767;
    uint32_t power = (bit_cast<uint32_t>(smallest) + 0x7FFFFF) & 0x7F800000;
    return bit_cast<float>(power) + (smallest - smallest);
}

// LANES numbers times `factor`, rounded to the nearest integer.
INLINE Ints scale_and_round(const float* x, float factor) {
    constexpr float magic = 12582912.0f;
    return bit_cast<Ints>(load(x) * factor + magic) - bit_cast<Ints>(broadcast(magic));
}

// One scale for each output, which `multiply` applies. Inputs are quantised to 16 bits. The even inputs of a block come
// first, as weights are widened in pairs.
//
// block_bytes, block_inputs: weights of a block. input_bytes, input_scales: quantised inputs and their scales for a
// block. weight_scale_bytes: scales of a block's weights. units: whether scales of inputs are multiples of a unit of
// their row. few: up to so many inputs meet one weight row at a time in panels, whose sums then stay in registers.
// halves: whether halves of blocks of `many` weight rows meet all inputs, as whole ones don't fit the registers.
struct Int8 {
    typedef QuantisedInputs Inputs;
    static constexpr FormatRow row{"int8", 8, 32, 0};
    static constexpr bool quantised = true;
    static constexpr int block_bytes = CACHE_LINE, block_inputs = CACHE_LINE, group_size = CACHE_LINE;
    static constexpr int input_bytes = 2 * CACHE_LINE, input_scales = 1, weight_scale_bytes = 0, sums = 1;
    static constexpr int one = 4, two = LANES == 16 ? 4 : 2, many = LANES / 4, from_inputs = 3, few = 4;
    static constexpr bool units = false, halves = false;
    static int64_t bytes(int64_t n) { return n; }
    static int64_t scale_bytes(int64_t) { return 0; }

    static void quantise(const float* x, char* out, float* scale, int64_t, float) {
        *scale = quantisation_scale(x, group_size, 32767);
        float factor = *scale > 0 ? 1 / *scale : 0;
        uint16_t integers[group_size];
        for (int k = 0; k < group_size; k += LANES) {
            Uint16s v = __builtin_convertvector(scale_and_round(x + k, factor), Uint16s);
            memcpy(integers + k, &v, sizeof v);
        }
        auto to = reinterpret_cast<uint16_t*>(out);
        for (int k = 0; k < group_size; k++) to[k % 2 * (group_size / 2) + k / 2] = integers[k];
    }

    // A block of R weight rows in registers.
    template <int R>
    struct Unpacked {
        static constexpr int vectors = CACHE_LINE / sizeof(Int16s);
        Int16s even[R][vectors], odd[R][vectors];
    };

    // Only the last block of a row may be partial: it has `tail` weights. `row` are the bytes from one row to the next.
    template <bool full, int R>
    static INLINE Unpacked<R> unpack(const char* weights, int64_t row, const char*, int64_t, int64_t tail) {
        Unpacked<R> w;
        for (int j = 0; j < R; j++)
            for (int v = 0; v < w.vectors; v++) {
                const char* at = weights + j * row + v * sizeof(Int16s);
                Int16s both = full ? load_as<Int16s>(at) : load_part<Int16s>(at, tail - v * int64_t(sizeof(Int16s)));
                w.even[j][v] = both << 8 >> 8;
                w.odd[j][v] = both >> 8;
            }
        return w;
    }

    // Adds the products of a block of R rows with quantised inputs to the sums of the rows.
    template <int R>
    static INLINE void multiply_block(const Unpacked<R>& w, const char* x, const char* scale, Floats* sums) {
        Ints products[R] = {};
        for (int v = 0; v < w.vectors; v++) {
            Int16s even = load_as<Int16s>(x + v * sizeof(Int16s));
            Int16s odd = load_as<Int16s>(x + CACHE_LINE + v * sizeof(Int16s));
            for (int j = 0; j < R; j++)
                products[j] = add_pair_products(add_pair_products(products[j], w.even[j][v], even), w.odd[j][v], odd);
        }
        for (int j = 0; j < R; j++) sums[j] += __builtin_convertvector(products[j], Floats) * load_as<float>(scale);
    }
};

// Groups of 32 weights with a float16 scale each. Byte k of a group holds weight k in its low half and weight 16 + k in
// its high half, each plus 8. Inputs are quantised to 8 bits in groups of 32, whose scales are multiples of a unit; the
// first halves of a block's groups come first.
struct Int4 {
    typedef QuantisedInputs Inputs;
    static constexpr FormatRow row{"int4", 4, 16, 32};
    static constexpr bool quantised = true;
    static constexpr int group_size = row.group, block_inputs = GROUPS * group_size, block_bytes = block_inputs / 2;
    static constexpr int input_bytes = block_inputs, input_scales = 2 * LANES, weight_scale_bytes = 2 * GROUPS;
    static constexpr int sums = 1, one = LANES == 16 ? 4 : 1, two = one, many = LANES == 4 ? 1 : 2;
    static constexpr bool units = true, halves = LANES == 8;
    static constexpr int from_inputs = 3, few = 0;
    static int64_t bytes(int64_t n) { return n / 2; }
    static int64_t scale_bytes(int64_t n) { return n / group_size * 2; }

    // Quantises group g of a block. `scale` gets, for each block, LANES scales in the lanes of their groups and then
    // LANES corrections.
    static void quantise(const float* x, char* out, float* scale, int64_t g, float unit) {
        // The multiple is NaN in a row of zeros and in one with a NaN.
        float multiple = quantisation_scale(x, group_size, 127) / unit;
        int32_t n = multiple > 0 ? int32_t(multiple) : 0;
        n += float(n) < multiple;
        float factor = n ? 1 / (float(n) * unit) : 0;
        Ints sums = {};
        int8_t integers[group_size];
        for (int k = 0; k < group_size; k += LANES) {
            Int8s b = __builtin_convertvector(scale_and_round(x + k, factor), Int8s);
            sums += __builtin_convertvector(b, Ints);  // a NaN's integer fits no byte, and its sum might overflow
            memcpy(integers + k, &b, sizeof b);
        }
        for (int k = 0; k < group_size; k += RUN)
            memcpy(out + k / 16 * (input_bytes / 2) + input_offset(g, k % 16), integers + k, RUN);
        int32_t sum = 0;
        for (int k = 0; k < LANES; k++) sum += sums[k];
        int32_t words[] = {scale_word(n), correction(n, sum)};
        for (int k = 0; k < 2; k++) memcpy(scale + k * LANES + first_lane(g), words + k, sizeof words[k]);
    }

    template <int R>
    struct Unpacked {
        static constexpr int vectors = block_bytes / (4 * LANES);
        Uint8s low[R][vectors], high[R][vectors];
        Floats scales[R];
    };

    // As in Int8. scales: of the weights, scale_row bytes from one row to the next.
    template <bool full, int R>
    static INLINE Unpacked<R> unpack(const char* weights, int64_t row, const char* scales, int64_t scale_row,
                                     int64_t tail) {
        Unpacked<R> w;
        for (int j = 0; j < R; j++) {
            const char *at = weights + j * row, *from = scales + j * scale_row;
            w.scales[j] = scales_by_lane(full ? load_as<Scales>(from) : load_part<Scales>(from, scale_bytes(tail)));
            Uint8s both[w.vectors];
            for (int64_t v = 0, size = sizeof(Uint8s); v < w.vectors; v++)
                both[v] =
                    full ? load_as<Uint8s>(at + v * size) : load_part<Uint8s>(at + v * size, bytes(tail) - v * size);
            to_input_order(both);
            for (int v = 0; v < w.vectors; v++) {
                w.low[j][v] = both[v] & 15;
                w.high[j][v] = both[v] >> 4;
            }
        }
        return w;
    }

    template <int R>
    static INLINE void multiply_block(const Unpacked<R>& w, const char* x, const char* scales, Floats* sums) {
        for (int j = 0; j < R; j++) {
            GroupSums products = first_sums(scales);
            products = add_products<0, Unpacked<R>::vectors>(products, w.low[j], w.high[j], x, x + input_bytes / 2);
            sums[j] += scaled(products, scales, w.scales[j]);
        }
    }

    // A half of it. In between, `products` [R] hold what the first half came to.
    template <int half, int R>
    static INLINE void multiply_half(const Unpacked<R>& w, const char* x, const char* scales, GroupSums* products,
                                     Floats* sums) {
        constexpr int size = Unpacked<R>::vectors / 2, first = half * size, last = first + size;
        for (int j = 0; j < R; j++) {
            GroupSums all = half ? products[j] : first_sums(scales);
            all = add_products<first, last>(all, w.low[j], w.high[j], x, x + input_bytes / 2);
            if (half)
                sums[j] += scaled(all, scales, w.scales[j]);
            else
                products[j] = all;
        }
    }
};

}  // namespace
