// Formats of weights that are integers, and their products. Inputs are coded as integers too, groups of them with a
// scale each; a group's products add up in int32, and with the scales in float32.
//
// Weights are worked on a block at a time; the codes of a block lie in the order in which its weights are unpacked, and
// a row's scales stand behind all its codes.
#pragma once
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "vectors.h"

namespace {

typedef int16_t Words __attribute__((vector_size(4 * LANES)));
typedef uint8_t Octets __attribute__((vector_size(4 * LANES)));

// sums, to each lane two neighbouring products added.
INLINE Ints pairs(Ints sums, Words a, Words b) {
#if defined(__AVX512VNNI__)
    return bits<Ints>(_mm512_dpwssd_epi32(bits<__m512i>(sums), bits<__m512i>(a), bits<__m512i>(b)));
#elif defined(__AVX512BW__)
    return sums + bits<Ints>(_mm512_madd_epi16(bits<__m512i>(a), bits<__m512i>(b)));
#elif defined(__AVX2__)
    return sums + bits<Ints>(_mm256_madd_epi16(bits<__m256i>(a), bits<__m256i>(b)));
#elif defined(__SSE2__)
    return sums + bits<Ints>(_mm_madd_epi16(bits<__m128i>(a), bits<__m128i>(b)));
#else
    Ints x = bits<Ints>(a), y = bits<Ints>(b);
    return sums + (x << 16 >> 16) * (y << 16 >> 16) + (x >> 16) * (y >> 16);
#endif
}

// The first `bytes` bytes from an address on, and zeros behind them.
template <class V>
INLINE V load_part(const char* at, long bytes) {
    long count = bytes < 0 ? 0 : bytes < long(sizeof(V)) ? bytes : long(sizeof(V));
#if defined(__AVX512BW__)
    uint64_t mask = count < 64 ? (uint64_t(1) << count) - 1 : ~uint64_t(0);
    if constexpr (sizeof(V) == 64) return bits<V>(_mm512_maskz_loadu_epi8(mask, at));
    if constexpr (sizeof(V) == 32) return bits<V>(_mm256_maskz_loadu_epi8(__mmask32(mask), at));
#endif
    V v = {};
    memcpy(&v, at, count);
    return v;
}

// How int4 weights are worked on: GROUPS of 32 at once. Their products end in lanes of their own, LANES / GROUPS of each,
// LANE_STEP apart, from first_lane(g) on. arrange(lines) puts bytes of weights into the order of the codes, where PLACED
// codes from number k on of half a group lie at place(g, k); spread(scales) has float16 scales in the lanes of their
// groups. groups_of(sums, low, high, x, y) adds to sums the products of low with x and of high with y; low and high hold
// 0 to 15, x and y are signed.
#if defined(__AVX512F__)
constexpr int GROUPS = 16, PLACED = 4;
typedef uint16_t Scales __attribute__((vector_size(2 * GROUPS)));
constexpr long LANE_STEP = 1;
// Group g lies in line g / 4 of a block. With lines and dwords transposed all bytes of a lane are of one group, and its
// products need not be added up across lanes.
inline long first_lane(long g) { return g % 4 * 4 + g / 4; }
inline long place(long g, long k) { return k / 4 * LINE + 4 * first_lane(g); }
INLINE void arrange(Octets* lines) {
    __m512i a = bits<__m512i>(lines[0]), b = bits<__m512i>(lines[1]), c = bits<__m512i>(lines[2]),
            d = bits<__m512i>(lines[3]);
    __m512i low[] = {_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d)};
    __m512i high[] = {_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d)};
    lines[0] = bits<Octets>(_mm512_unpacklo_epi64(low[0], low[1]));
    lines[1] = bits<Octets>(_mm512_unpackhi_epi64(low[0], low[1]));
    lines[2] = bits<Octets>(_mm512_unpacklo_epi64(high[0], high[1]));
    lines[3] = bits<Octets>(_mm512_unpackhi_epi64(high[0], high[1]));
}
INLINE Floats spread(Scales scales) {
    Floats f = bits<Floats>(_mm512_cvtph_ps(bits<__m256i>(scales)));
    return __builtin_shufflevector(f, f, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
}
INLINE Ints groups_of(Ints sums, const Octets* low, const Octets* high, const char* x, const char* y) {
#if defined(__AVX512VNNI__)
    for (int v = 0; v < 4; v++) {
        __m512i c = load_as<__m512i>(x + v * LINE), d = load_as<__m512i>(y + v * LINE);
        sums = bits<Ints>(_mm512_dpbusd_epi32(bits<__m512i>(sums), bits<__m512i>(low[v]), c));
        sums = bits<Ints>(_mm512_dpbusd_epi32(bits<__m512i>(sums), bits<__m512i>(high[v]), d));
    }
    return sums;
#else
    // No sum of 16 bits is above 8 * 2 * 15 * 127.
    Words products = {};
    for (int v = 0; v < 4; v++) {
        products += bits<Words>(_mm512_maddubs_epi16(bits<__m512i>(low[v]), load_as<__m512i>(x + v * LINE)));
        products += bits<Words>(_mm512_maddubs_epi16(bits<__m512i>(high[v]), load_as<__m512i>(y + v * LINE)));
    }
    return pairs(sums, products, Words{} + 1);
#endif
}
#else
constexpr int GROUPS = 4, PLACED = 16;
typedef uint16_t Scales __attribute__((vector_size(2 * GROUPS)));
inline long place(long g, long) { return 16 * g; }
INLINE void arrange(Octets*) {}
// Four numbers of float16, over and over.
INLINE Floats halves(Scales scales) {
#if defined(__F16C__)
    return bits<Floats>(_mm256_cvtph_ps(_mm_set1_epi64x(bits<int64_t>(scales))));
#else
    Ints word = __builtin_convertvector(bits<Halves>(scales), Ints);
    // The exponent has another bias; numbers below the normal ones come out right, and infinity and NaN as 2^16 and more.
    Floats size = bits<Floats>((word & 0x7FFF) << 13) * 0x1p112f;
    Ints more = (size >= 65536.0f) & 0x7F800000;
    return bits<Floats>(bits<Ints>(size) | more | (word & 0x8000) << 16);
#endif
}
#if defined(__AVX2__)
constexpr long LANE_STEP = 2;
inline long first_lane(long g) { return g % 2 * 4 + g / 2; }
INLINE Floats spread(Scales scales) {
    Floats f = halves(scales);
    return __builtin_shufflevector(f, f, 0, 2, 0, 2, 5, 7, 5, 7);
}
INLINE Ints groups_of(Ints sums, const Octets* low, const Octets* high, const char* x, const char* y) {
    auto two = [&](int v) __attribute__((always_inline)) {
        __m256i c = load_as<__m256i>(x + 32 * v), d = load_as<__m256i>(y + 32 * v);
        return bits<Ints>(bits<Words>(_mm256_maddubs_epi16(bits<__m256i>(low[v]), c)) +
                          bits<Words>(_mm256_maddubs_epi16(bits<__m256i>(high[v]), d)));
    };
    // Of groups 0 and 1, and of groups 2 and 3; no sum of 16 bits is above 4 * 2 * 15 * 127.
    Ints a = two(0), b = two(1);
    Words products = bits<Words>(__builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13)) +
                     bits<Words>(__builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15));
    return pairs(sums, products, Words{} + 1);
}
#else
constexpr long LANE_STEP = 1;
inline long first_lane(long g) { return g; }
INLINE Floats spread(Scales scales) { return halves(scales); }
INLINE Ints groups_of(Ints sums, const Octets* low, const Octets* high, const char* x, const char* y) {
    auto even = [](Octets v) { return bits<Words>(v) << 8 >> 8; };
    auto odd = [](Octets v) { return bits<Words>(v) >> 8; };
    auto one = [&](int g) {
        Octets c = load_as<Octets>(x + 16 * g), d = load_as<Octets>(y + 16 * g);
        Ints products = pairs(pairs(Ints{}, even(low[g]), even(c)), odd(low[g]), odd(c));
        return pairs(pairs(products, even(high[g]), even(d)), odd(high[g]), odd(d));
    };
    auto both = [](Ints a, Ints b) {
        return __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
    };
    Ints a = both(one(0), one(1)), b = both(one(2), one(3));
    return sums + __builtin_shufflevector(a, b, 0, 1, 4, 5) + __builtin_shufflevector(a, b, 2, 3, 6, 7);
}
#endif
#endif

// The scale of n numbers as integers up to `most`: NaN where one of them is NaN or infinite, so that what is computed
// with the group shows it.
template <int n>
INLINE float scale_of(const float* x, float most) {
    Floats top = {}, shown = {};
    for (int k = 0; k < n; k += LANES) {
        Floats v = load(x + k), size = bits<Floats>(bits<Ints>(v) & 0x7FFFFFFF);
        top = size > top ? size : top;
        shown += v * 0.0f;
    }
    float peak = 0;
    for (int k = 0; k < LANES; k++) peak = top[k] > peak ? top[k] : peak;
    // Smaller numbers have no factor; they are as good as 0.
    if (peak < 1e-30f) peak = 0;
    return peak / most + total(shown);
}

// LANES numbers by `factor`, to the nearest integer.
INLINE Ints round(const float* x, float factor) {
    constexpr float magic = 12582912.0f;
    return bits<Ints>(load(x) * factor + magic) - bits<Ints>(broadcast(magic));
}

// One scale an output, which is not applied here. Inputs are coded in 16 bits, as fast as in 8 where weights must be
// widened or made positive, and 256 times finer; those of even numbers come first, as weights are widened in pairs.
struct Int8 {
    typedef char Input;
    static constexpr bool coded = true;
    static constexpr int block = LINE, numbers = LINE, group = LINE, codes = 2 * LINE, scales = 1, scale_block = 0;
    static constexpr int one = 4, two = LANES == 16 ? 4 : 2, four = LANES == 16 ? 2 : 1;
    static long bytes(long n) { return n; }
    static long scale_bytes(long) { return 0; }

    static void encode(const float* x, char* codes, float* scale, long) {
        *scale = scale_of<group>(x, 32767);
        float factor = *scale > 0 ? 1 / *scale : 0;
        uint16_t all[group];
        for (int k = 0; k < group; k += LANES) {
            Halves v = __builtin_convertvector(round(x + k, factor), Halves);
            memcpy(all + k, &v, sizeof v);
        }
        auto to = reinterpret_cast<uint16_t*>(codes);
        for (int k = 0; k < group; k++) to[k % 2 * (group / 2) + k / 2] = all[k];
    }

    // The next block of R rows with the codes of N inputs; of the last one, which is not whole, `rest` numbers.
    template <bool whole, int R, int N>
    static INLINE void line(const char* at, long row, const char*, long, long rest, const char* x, const char* scale,
                            long xstep, Floats (&sums)[R][N]) {
        constexpr int vectors = LINE / sizeof(Words);
        for (int j = 0; j < R; j++) {
            Words even[vectors], odd[vectors];
            for (int v = 0; v < vectors; v++) {
                const char* from = at + j * row + v * sizeof(Words);
                Words both = whole ? load_as<Words>(from) : load_part<Words>(from, rest - v * long(sizeof(Words)));
                even[v] = both << 8 >> 8;
                odd[v] = both >> 8;
            }
            for (int i = 0; i < N; i++) {
                const char* codes = x + i * xstep;
                Ints products = {};
                for (int v = 0; v < vectors; v++) {
                    products = pairs(products, even[v], load_as<Words>(codes + v * sizeof(Words)));
                    products = pairs(products, odd[v], load_as<Words>(codes + LINE + v * sizeof(Words)));
                }
                sums[j][i] += __builtin_convertvector(products, Floats) * load_as<float>(scale + i * xstep);
            }
        }
    }
};

// Groups of 32 weights with a float16 scale each: byte k of a group holds its numbers k and 16 + k, plus 8, in the low
// and the high half. Inputs are coded in 8 bits, in groups of 32; the first halves of a block's groups come first.
struct Int4 {
    typedef char Input;
    static constexpr bool coded = true;
    static constexpr int group = 32, numbers = GROUPS * group, block = numbers / 2, codes = numbers;
    static constexpr int scales = 2 * LANES, scale_block = 2 * GROUPS;
    static constexpr int one = LANES == 16 ? 4 : 1, two = one, four = LANES == 16 ? 2 : 1;
    static long bytes(long n) { return n / 2; }
    static long scale_bytes(long n) { return n / group * 2; }

    // The g-th group of a block. A block has the scales in the lanes of their groups, and then, in one lane of each
    // group, what its products begin with: less what the 8 in each weight will add.
    static void encode(const float* x, char* to, float* scale, long g) {
        float found = scale_of<group>(x, 127), factor = found > 0 ? 1 / found : 0;
        Ints sum = {};
        int8_t all[group];
        for (int k = 0; k < group; k += LANES) {
            Ints v = round(x + k, factor);
            sum += v;
            Bytes b = __builtin_convertvector(v, Bytes);
            memcpy(all + k, &b, sizeof b);
        }
        for (int k = 0; k < group; k += PLACED)
            memcpy(to + k / 16 * (codes / 2) + place(g, k % 16), all + k, PLACED);
        for (int k = 0; k < LANES / GROUPS; k++) scale[first_lane(g) + k * LANE_STEP] = found;
        int32_t begin = 0;
        for (int k = 0; k < LANES; k++) begin -= 8 * sum[k];
        memcpy(scale + LANES + first_lane(g), &begin, sizeof begin);
    }

    template <bool whole, int R, int N>
    static INLINE void line(const char* at, long row, const char* scale, long scale_row, long rest, const char* x,
                            const char* given, long xstep, Floats (&sums)[R][N]) {
        // Rows that share the loads of codes; with few inputs their weights' registers are worth more.
        constexpr int vectors = block / (4 * LANES), P = N > 2 && R % 2 == 0 ? 2 : 1;
        for (int j = 0; j < R; j += P) {
            Floats own[P];
            Octets low[P][vectors], high[P][vectors];
            for (int p = 0; p < P; p++) {
                const char *from = at + (j + p) * row, *scales = scale + (j + p) * scale_row;
                own[p] = spread(whole ? load_as<Scales>(scales) : load_part<Scales>(scales, scale_bytes(rest)));
                Octets both[vectors];
                for (long v = 0, size = sizeof(Octets); v < vectors; v++)
                    both[v] = whole ? load_as<Octets>(from + v * size)
                                    : load_part<Octets>(from + v * size, bytes(rest) - v * size);
                arrange(both);
                for (int v = 0; v < vectors; v++) {
                    low[p][v] = both[v] & 15;
                    high[p][v] = both[v] >> 4;
                }
            }
            for (int i = 0; i < N; i++) {
                const char *in = x + i * xstep, *factors = given + i * xstep;
                for (int p = 0; p < P; p++) {
                    Ints products = load_as<Ints>(factors + sizeof(Floats));
                    products = groups_of(products, low[p], high[p], in, in + codes / 2);
                    sums[j + p][i] += __builtin_convertvector(products, Floats) * (own[p] * load_as<Floats>(factors));
                }
            }
        }
    }
};

}  // namespace
