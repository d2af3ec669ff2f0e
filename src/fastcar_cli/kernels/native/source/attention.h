// Attention of one query per head. Keys and values are read in place, in the KV cache.
#pragma once
#include "products.h"

namespace {

// Slots whose scores are computed together.
constexpr long TILE_SLOTS = 32;
// Score of a slot that is masked.
constexpr float MASKED = -1e30f;

// Keys and values in int8, each row with a scale: its largest magnitude over 127.
struct CachedInt8 {
    static constexpr int size = 1, sums = 1, one = 8;
    static Floats widen(const char* at) {
        return __builtin_convertvector(__builtin_convertvector(load_as<Int8s>(at), Ints), Floats);
    }
    static float read(const char* at) { return float(*reinterpret_cast<const int8_t*>(at)); }
};

// Keys and values of one head: `slots` rows of d numbers each. Rows in int8 have scales and stand for what is added to a
// mean, a row of d floats; else scales and means are null. mask: which slots are attended to (null: all). next: what is
// read after these keys and values, to be prefetched.
struct HeadCache {
    const char *keys, *values, *next;
    long slots;
    const uint8_t* mask = nullptr;
    const float *key_scales = nullptr, *value_scales = nullptr, *key_mean = nullptr, *value_mean = nullptr;
};

// p[s] = row s times query, for `count` rows of d numbers. With each cache line the one `ahead` bytes on is prefetched.
template <class Format>
INLINE void score_rows(const char* rows, long d, long count, long ahead, const float* query, float* p) {
    constexpr int R = Format::one;
    long row = d * Format::size, s = 0;
    PrefetchDistance near{ceil_div(row, CACHE_LINE), ahead, 0};
    for (; s + R <= count; s += R) dot<Format, R, 1>(rows + s * row, row, d, near, query, 0, p + s, 0);
    for (; s < count; s++) dot<Format, 1, 1>(rows + s * row, row, d, near, query, 0, p + s, 0);
}

// out += the sum of p[s] times row s, for B vectors of each row.
template <class Format, int B>
INLINE void add_weighted_columns(const char* rows, long row, long count, long ahead, const float* p, float* out) {
    constexpr int width = B * LANES * Format::size;
    Floats sums[B];
    for (int b = 0; b < B; b++) sums[b] = load(out + b * LANES);
    for (long s = 0; s < count; s++) {
        const char* at = rows + s * row;
        for (int k = 0; k < width; k += CACHE_LINE) prefetch(at + k + ahead);
        for (int b = 0; b < B; b++) sums[b] += p[s] * Format::widen(at + b * LANES * Format::size);
    }
    for (int b = 0; b < B; b++) store(out + b * LANES, sums[b]);
}

// out += the sum of p[s] times row s of d numbers. With each cache line the one `ahead` bytes on is prefetched.
template <class Format>
inline void add_weighted_rows(const char* rows, long d, long count, long ahead, const float* p, float* out) {
    long row = d * Format::size, k = 0;
    for (; k + 8 * LANES <= d; k += 8 * LANES)
        add_weighted_columns<Format, 8>(rows + k * Format::size, row, count, ahead, p, out + k);
    for (; k + 4 * LANES <= d; k += 4 * LANES)
        add_weighted_columns<Format, 4>(rows + k * Format::size, row, count, ahead, p, out + k);
    for (; k + LANES <= d; k += LANES)
        add_weighted_columns<Format, 1>(rows + k * Format::size, row, count, ahead, p, out + k);
    for (; k < d; k++)
        for (long s = 0; s < count; s++) out[k] += p[s] * Format::read(rows + s * row + k * Format::size);
}

// Scaled queries of the heads that share a KV head, and the softmax so far of each: output is the weighted sum of
// values; state [heads, 2 LANES] holds the sum of weights (one for each lane), then the highest score.
struct Queries {
    Rows query, output;
    float* state;
    long count;
};

// Turns `count` scores p into softmax weights e^(p - top) and adds them to `weight_sum`; masked slots (mask may be
// null) and those from `count` to TILE_SLOTS get 0. If a score is above `top`, top rises to it, and weight_sum and the
// d numbers of `output` are scaled down to the new top.
inline void add_to_softmax(float* p, long count, const uint8_t* mask, float* output, long d, Floats& weight_sum,
                           float& top) {
    constexpr int vectors = TILE_SLOTS / LANES;
    for (long i = count; i < TILE_SLOTS; i++) p[i] = MASKED;
    if (mask)
        for (long i = 0; i < count; i++) p[i] = mask[i] ? p[i] : MASKED;
    Floats maxima = load(p);
    for (int v = 1; v < vectors; v++) {
        Floats other = load(p + v * LANES);
        maxima = maxima > other ? maxima : other;
    }
    float peak = top;
    for (int k = 0; k < LANES; k++) peak = peak > maxima[k] ? peak : maxima[k];
    if (peak > top) {
        Floats shrink = exp(broadcast(top - peak));
        weight_sum *= shrink;
        for (long k = 0; k < d; k++) output[k] *= shrink[0];
        top = peak;
    }
    for (int v = 0; v < vectors; v++) {
        Floats scores = load(p + v * LANES), weights = exp(scores - top);
        weights = scores == MASKED ? Floats{} : weights;
        store(p + v * LANES, weights);
        weight_sum += weights;
    }
}

inline void begin_attention(const Queries& queries, long d) {
    for (long g = 0; g < queries.count; g++) {
        memset(queries.output[g], 0, 4 * d);
        memset(queries.state + 2 * g * LANES, 0, 4 * LANES);
        queries.state[(2 * g + 1) * LANES] = MASKED;
    }
}

// Adds the keys and values of `cache` to the softmax of every query. Slots are processed TILE_SLOTS at a time, and the
// sums so far are scaled down whenever a higher score is met (online softmax: Milakov and Gimelshein, 2018,
// arXiv:1805.02867). While the keys of a tile are read its values are prefetched, while the values are read the keys of
// the next tile. A cache with means must be the first: its scores and weights are those met so far.
template <class Format>
void attend(const HeadCache& cache, const Queries& queries, long d) {
    long row = d * Format::size;
    for (long s = 0; s < cache.slots; s += TILE_SLOTS) {
        const char *keys = cache.keys + s * row, *values = cache.values + s * row;
        long count = min(TILE_SLOTS, cache.slots - s);
        const char* next = s + TILE_SLOTS < cache.slots ? keys + TILE_SLOTS * row : cache.next;
        for (long g = 0; g < queries.count; g++) {
            float p[TILE_SLOTS], *weight_sum = queries.state + 2 * g * LANES, *top = weight_sum + LANES;
            score_rows<Format>(keys, d, count, g ? 0 : values - keys, queries.query[g], p);
            if (cache.key_scales)
                for (long i = 0; i < count; i++) p[i] *= cache.key_scales[s + i];
            Floats sum = load(weight_sum);
            add_to_softmax(p, count, cache.mask ? cache.mask + s : nullptr, queries.output[g], d, sum, *top);
            store(weight_sum, sum);
            if (cache.value_scales)
                for (long i = 0; i < count; i++) p[i] *= cache.value_scales[s + i];
            add_weighted_rows<Format>(values, d, count, g ? 0 : next - values, p, queries.output[g]);
        }
    }
    // The mean of the keys adds the same to every score so far, that of the values once as much as all weights are.
    for (long g = 0; g < queries.count && cache.key_mean; g++) {
        float *weight_sum = queries.state + 2 * g * LANES, *top = weight_sum + LANES, of_mean;
        dot<Float32, 1, 1>(reinterpret_cast<const char*>(cache.key_mean), 4 * d, d, PrefetchDistance{0, 0, 0},
                           queries.query[g], 0, &of_mean, 0);
        *top += of_mean;
        float weights = lane_sum(load(weight_sum));
        for (long k = 0; k < d; k++) queries.output[g][k] += weights * cache.value_mean[k];
    }
}

inline void end_attention(const Queries& queries, long d) {
    for (long g = 0; g < queries.count; g++) {
        float weight_sum = lane_sum(load(queries.state + 2 * g * LANES));
        for (long k = 0; k < d; k++) queries.output[g][k] /= weight_sum;
    }
}

}  // namespace
