// Vectors of the instruction set that this file is compiled for, and the functions of elementwise steps. Those of
// <math.h> are not used: they are calls, and their results differ between systems.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
// Whether there are 32 vector registers instead of 16: the sums of more weight rows fit.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr bool WIDE = true;
#else
constexpr bool WIDE = false;
#endif

// One register of float32 or int32, and as many uint16 or int8 as it has lanes.
typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint16_t Uint16s __attribute__((vector_size(2 * LANES)));
typedef int8_t Int8s __attribute__((vector_size(LANES)));

// In bytes.
constexpr int CACHE_LINE = 64;

// For small functions of an inner loop, which a call would slow down.
#define INLINE __attribute__((always_inline)) inline

template <class V>
inline V load_as(const void* at) {
    V v;
    memcpy(&v, at, sizeof v);
    return v;
}
inline Floats load(const float* at) { return load_as<Floats>(at); }
inline void store(float* at, Floats v) { memcpy(at, &v, sizeof v); }
inline Floats broadcast(float x) { return x - Floats{}; }

template <class To, class From>
inline To bit_cast(From value) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &value, sizeof to);
    return to;
}

typedef float Float4 __attribute__((vector_size(16)));

// Combines the upper half of the lanes with the lower half by f until four lanes are left.
template <class F>
inline Float4 fold(Floats v, F f) {
#if defined(__AVX512F__)
    typedef float Float8 __attribute__((vector_size(32)));
    Float8 e = f(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
                 __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
    return f(__builtin_shufflevector(e, e, 0, 1, 2, 3), __builtin_shufflevector(e, e, 4, 5, 6, 7));
#elif defined(__AVX2__)
    return f(__builtin_shufflevector(v, v, 0, 1, 2, 3), __builtin_shufflevector(v, v, 4, 5, 6, 7));
#else
    return v;
#endif
}
inline Float4 fold_to_four(Floats v) {
    return fold(v, [](auto a, auto b) { return a + b; });
}

// The largest of all lanes.
inline float lane_maximum(Floats v) {
    auto larger = [](auto a, auto b) { return a > b ? a : b; };
    Float4 f = fold(v, larger);
    f = larger(f, __builtin_shufflevector(f, f, 2, 3, 2, 3));
    return larger(f[0], f[1]);
}

// The sum of all lanes.
inline float lane_sum_of_four(Float4 f) { return (f[0] + f[2]) + (f[1] + f[3]); }
inline float lane_sum(Floats v) { return lane_sum_of_four(fold_to_four(v)); }

// The lane sums of four vectors, each added in the same order as in `lane_sum`.
inline Float4 four_lane_sums(Float4 a, Float4 b, Float4 c, Float4 d) {
    auto pairs = [](Float4 x, Float4 y) {
        return __builtin_shufflevector(x, y, 0, 4, 1, 5) + __builtin_shufflevector(x, y, 2, 6, 3, 7);
    };
    Float4 low = pairs(a, b), high = pairs(c, d);
    return __builtin_shufflevector(low, high, 0, 1, 4, 5) + __builtin_shufflevector(low, high, 2, 3, 6, 7);
}

// e^x by range reduction and a polynomial of degree 5 (Cephes), for x up to 88 (x below -87 counts as -87). NaN stays.
inline Floats exp(Floats x) {
    x = x < -87.0f ? broadcast(-87.0f) : x;
    Floats shifted = x * 1.44269504f + 12582912.0f;
    Ints exponent = bit_cast<Ints>(shifted) - 0x4B400000;
    Floats z = shifted - 12582912.0f;
    Floats r = x - z * 0.693359375f + z * 2.12194440e-4f;
    Floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * bit_cast<Floats>((exponent + 127) << 23);
}
inline float exp(float x) { return exp(broadcast(x))[0]; }

// x / (1 + e^-x)
inline Floats silu(Floats x) { return x / (1.0f + exp(x < -87.0f ? broadcast(87.0f) : -x)); }

// x Phi(x), with the error function of Abramowitz and Stegun 7.1.26, exact to 1.5e-7.
inline Floats gelu(Floats x) {
    Floats size = bit_cast<Floats>(bit_cast<Ints>(x) & 0x7FFFFFFF);
    Floats z = size * 0.70710678f;
    Floats t = 1.0f / (1.0f + 0.3275911f * z);
    Floats p = 1.061405429f * t - 1.453152027f;
    p = (p * t + 1.421413741f) * t - 0.284496736f;
    Floats e = 1.0f - (p * t + 0.254829592f) * t * exp(-z * z);
    return 0.5f * (x + size * e);
}

// y[k] = f(y[k], z[k]) for k < n.
template <class F>
inline void combine(float* y, const float* z, int64_t n, F f) {
    int64_t k = 0;
    for (; k + LANES <= n; k += LANES) store(y + k, f(load(y + k), load(z + k)));
    if (k == n) return;
    float a[LANES] = {}, b[LANES] = {};
    memcpy(a, y + k, 4 * (n - k));
    memcpy(b, z + k, 4 * (n - k));
    store(a, f(load(a), load(b)));
    memcpy(y + k, a, 4 * (n - k));
}

inline void add(float* y, const float* z, int64_t n) {
    combine(y, z, n, [](Floats a, Floats b) { return a + b; });
}

// The sum of f(x[k]) for k < n; f(0) must be 0.
template <class F>
inline float sum(const float* x, int64_t n, F f) {
    Floats sums[4] = {};
    int64_t k = 0;
    for (; k + 4 * LANES <= n; k += 4 * LANES)
        for (int i = 0; i < 4; i++) sums[i] += f(load(x + k + i * LANES));
    for (; k < n; k += LANES) {
        float tail[LANES] = {};
        memcpy(tail, x + k, 4 * (n - k < LANES ? n - k : LANES));
        sums[0] += f(load(tail));
    }
    return lane_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

inline float inverse_sqrt(float x) {
    float square_root = __builtin_sqrtf(x);
    return 1.0f / square_root;
}

inline void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* out) {
    float squares = sum(x, n, [](Floats v) { return v * v; });
    float factor = inverse_sqrt(squares / float(n) + eps);
    for (int64_t k = 0; k < n; k++) out[k] = x[k] * factor * weight[k];
}

inline void layer_norm(const float* x, const float* weight, const float* bias, int64_t n, float* out) {
    float mean = sum(x, n, [](Floats v) { return v; }) / float(n);
    for (int64_t k = 0; k < n; k++) out[k] = x[k] - mean;
    float squares = sum(out, n, [](Floats v) { return v * v; });
    float factor = inverse_sqrt(squares / float(n) + 1e-5f);
    for (int64_t k = 0; k < n; k++) out[k] = out[k] * factor * weight[k] + bias[k];
}

}  // namespace
