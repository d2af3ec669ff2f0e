// Formats of weights that are integers, and their products. Inputs are coded as integers too, groups of them with a
// scale each; a group's products add up in int32, and with the scales in float32.
//
// Codes fill 128 bytes for each line of weights, in the order in which the weights of a line are unpacked; a row's
// scales stand behind its codes.
#pragma once
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "vectors.h"

namespace {

typedef int16_t Words __attribute__((vector_size(4 * LANES)));
typedef uint8_t Octets __attribute__((vector_size(4 * LANES)));

constexpr int CODES = 128;

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

// sums, to the lanes of each of a line's four groups (as `spread` has them) its products of low with x and of high with
// y added, 16 each; low and high hold 0 to 15, x and y are signed.
INLINE Ints groups_of(Ints sums, const Octets* low, const Octets* high, const char* x, const char* y) {
#if defined(__AVX512F__)
    __m512i a = bits<__m512i>(low[0]), b = bits<__m512i>(high[0]), c = load_as<__m512i>(x), d = load_as<__m512i>(y);
#if defined(__AVX512VNNI__)
    return bits<Ints>(_mm512_dpbusd_epi32(_mm512_dpbusd_epi32(bits<__m512i>(sums), a, c), b, d));
#else
    Words products = bits<Words>(_mm512_maddubs_epi16(a, c)) + bits<Words>(_mm512_maddubs_epi16(b, d));
    return pairs(sums, products, Words{} + 1);
#endif
#elif defined(__AVX2__)
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
#else
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
#endif
}

// Four numbers of float16, over and over.
INLINE Floats halves(const char* at) {
#if defined(__AVX512F__)
    return bits<Floats>(_mm512_cvtph_ps(_mm256_set1_epi64x(load_as<int64_t>(at))));
#elif defined(__F16C__)
    return bits<Floats>(_mm256_cvtph_ps(_mm_set1_epi64x(load_as<int64_t>(at))));
#else
    Ints word = __builtin_convertvector(load_as<Halves>(at), Ints);
    // The exponent has another bias; numbers below the normal ones come out right, and infinity and NaN as 2^16 and more.
    Floats size = bits<Floats>((word & 0x7FFF) << 13) * 0x1p112f;
    Ints more = (size >= 65536.0f) & 0x7F800000;
    return bits<Floats>(bits<Ints>(size) | more | (word & 0x8000) << 16);
#endif
}

// The numbers of four groups, which come over and over, in the lanes of their groups: LANES / 4 each, LANE_STEP apart.
#if defined(__AVX512F__)
INLINE Floats spread(Floats f) {
    return __builtin_shufflevector(f, f, 0, 0, 0, 0, 5, 5, 5, 5, 10, 10, 10, 10, 15, 15, 15, 15);
}
constexpr long LANE_STEP = 1;
inline long first_lane(long g) { return 4 * g; }
#elif defined(__AVX2__)
INLINE Floats spread(Floats f) { return __builtin_shufflevector(f, f, 0, 2, 0, 2, 5, 7, 5, 7); }
constexpr long LANE_STEP = 2;
inline long first_lane(long g) { return g % 2 * 4 + g / 2; }
#else
INLINE Floats spread(Floats f) { return f; }
constexpr long LANE_STEP = 1;
inline long first_lane(long g) { return g; }
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
    static constexpr int numbers = LINE, group = LINE, scales = 1, scale_line = 0;
    static constexpr int one = 4, two = 2, four = 1;
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

    // The next line of R rows with the codes of N inputs.
    template <int R, int N>
    static INLINE void line(const char* at, long row, const char*, long, const char* x, const char* scale, long xstep,
                            Floats (&sums)[R][N]) {
        constexpr int vectors = LINE / sizeof(Words);
        for (int j = 0; j < R; j++) {
            Words even[vectors], odd[vectors];
            for (int v = 0; v < vectors; v++) {
                Words both = load_as<Words>(at + j * row + v * sizeof(Words));
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
// and the high half. Inputs are coded in 8 bits, in groups of 32; the first halves of a line's four groups come first.
struct Int4 {
    typedef char Input;
    static constexpr bool coded = true;
    static constexpr int numbers = 2 * LINE, group = 32, groups = 4, scales = 2 * LANES, scale_line = 2 * groups;
    static constexpr int one = LANES == 16 ? 2 : 1, two = one, four = 1;
    static long bytes(long n) { return n / 2; }
    static long scale_bytes(long n) { return n / group * 2; }

    // The g-th group of a line. A line has the scales in the lanes of their groups, and then, in one lane of each group,
    // what its products begin with: less what the 8 in each weight will add.
    static void encode(const float* x, char* codes, float* scale, long g) {
        float found = scale_of<group>(x, 127), factor = found > 0 ? 1 / found : 0;
        Ints sum = {};
        for (int k = 0; k < group; k += LANES) {
            Ints v = round(x + k, factor);
            sum += v;
            Bytes b = __builtin_convertvector(v, Bytes);
            memcpy(codes + k / 16 * LINE + g * 16 + k % 16, &b, sizeof b);
        }
        for (int k = 0; k < LANES / groups; k++) scale[first_lane(g) + k * LANE_STEP] = found;
        int32_t begin = 0;
        for (int k = 0; k < LANES; k++) begin -= 8 * sum[k];
        memcpy(scale + LANES + first_lane(g), &begin, sizeof begin);
    }

    template <int R, int N>
    static INLINE void line(const char* at, long row, const char* scale, long scale_row, const char* x,
                            const char* given, long xstep, Floats (&sums)[R][N]) {
        constexpr int vectors = LINE / (4 * LANES);
        for (int j = 0; j < R; j++) {
            Floats own = spread(halves(scale + j * scale_row));
            Octets low[vectors], high[vectors];
            for (int v = 0; v < vectors; v++) {
                Octets both = load_as<Octets>(at + j * row + v * sizeof(Octets));
                low[v] = both & 15;
                high[v] = both >> 4;
            }
            for (int i = 0; i < N; i++) {
                const char* codes = x + i * xstep;
                Floats scales = own * load_as<Floats>(given + i * xstep);
                Ints products = load_as<Ints>(given + i * xstep + sizeof(Floats));
                products = groups_of(products, low, high, codes, codes + LINE);
                sums[j][i] += __builtin_convertvector(products, Floats) * scales;
            }
        }
    }
};

}  // namespace
