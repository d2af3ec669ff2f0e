// Attention of one query per head. Keys and values are read in place, in the KV cache.
#pragma once
#include "products.h"

namespace {

// Slots whose scores are computed together.
constexpr long TILE_SLOTS = 32;
// Score of a slot that is masked.
constexpr float MASKED = -1e30f;

// Keys and values in int8. Each row has a scale: its largest magnitude over `largest`.
struct CachedInt8 {
    static constexpr int size = 1, sums = 1, one = 8;
    static constexpr float largest = 127;
    static long bytes(long d) { return d; }
    static void write(char* row, long, long k, int number) { row[k] = char(number); }
    static Floats widen(const char* at) {
        return __builtin_convertvector(__builtin_convertvector(load_as<Int8s>(at), Ints), Floats);
    }
    static float read(const char* at) { return float(*reinterpret_cast<const int8_t*>(at)); }
};

// As above in 12 bits. A row of d numbers is d bytes with the upper 8 bits of each, then d / 2 bytes with the lower 4:
// of these, byte k holds the bits of number k in its lower half and of number d / 2 + k in its upper half. Numbers must
// be written in order, from the first on.
struct CachedInt12 {
    static constexpr int one = WIDE ? 8 : 4;
    static constexpr float largest = 2047;
    static long bytes(long d) { return d + d / 2; }
    static void write(char* row, long d, long k, int number) {
        char& lower = row[d + k % (d / 2)];
        row[k] = char(number >> 4);
        lower = char(k < d / 2 ? number & 15 : lower | (number & 15) << 4);
    }
    // Number k of each half of a row; with vectors also the numbers that follow it.
    INLINE static void widen(const char* row, long half, long k, Floats& first, Floats& second) {
        Ints lower = __builtin_convertvector(load_as<Int8s>(row + 2 * half + k), Ints);
        Ints a = __builtin_convertvector(load_as<Int8s>(row + k), Ints);
        Ints b = __builtin_convertvector(load_as<Int8s>(row + half + k), Ints);
        first = __builtin_convertvector(a << 4 | (lower & 15), Floats);
        second = __builtin_convertvector(b << 4 | (lower >> 4 & 15), Floats);
    }
    static void widen(const char* row, long half, long k, float& first, float& second) {
        int lower = row[2 * half + k];
        first = float(int8_t(row[k]) * 16 + (lower & 15));
        second = float(int8_t(row[half + k]) * 16 + (lower >> 4 & 15));
    }
};

// Calls f(format of keys and values, format of aligned keys). Beside quantised keys the aligned keys are floats.
template <class F>
inline void with_caches(int64_t format, int64_t aligned, F f) {
    with_cache_format(aligned, [&](auto floats) {
        if (format == aligned)
            f(floats, floats);
        else if (format == 2)
            f(CachedInt8{}, floats);
        else
            f(CachedInt12{}, floats);
    });
}

// The KV cache of one head: `slots` rows of d numbers each at `keys` and `values`. The scales are null where the rows
// are floats. mask: which slots are attended to (null: all). next: what is read after this head, to be prefetched.
struct HeadCache {
    const char *keys, *values, *next;
    const float *key_scales, *value_scales;
    const uint8_t* mask;
    long slots;
};

// p[s] = row s times query, for `count` rows of d numbers. With each cache line the one `ahead` bytes on is prefetched.
template <class Format>
INLINE void score_rows(Format, const char* rows, long d, long count, long ahead, const float* query, float* p) {
    constexpr int R = Format::one;
    long row = d * Format::size, s = 0;
    PrefetchDistance near{ceil_div(row, CACHE_LINE), ahead, 0};
    for (; s + R <= count; s += R) dot<Format, R, 1>(rows + s * row, row, d, near, query, 0, p + s, 0);
    for (; s < count; s++) dot<Format, 1, 1>(rows + s * row, row, d, near, query, 0, p + s, 0);
}

template <int R>
INLINE void dot_int12(const char* rows, long d, long ahead, const float* query, float* p) {
    long half = d / 2, row = CachedInt12::bytes(d), k = 0, prefetched = 0;
    Floats sums[R] = {}, first, second;
    for (; k + LANES <= half; k += LANES) {
        for (; prefetched * half < (k + LANES) * R * row; prefetched += CACHE_LINE) prefetch(rows + prefetched + ahead);
        Floats a = load(query + k), b = load(query + half + k);
        for (int j = 0; j < R; j++) {
            CachedInt12::widen(rows + j * row, half, k, first, second);
            sums[j] += first * a;
            sums[j] += second * b;
        }
    }
    Float4 folded[R];
    for (int j = 0; j < R; j++) folded[j] = fold_to_four(sums[j]);
    store_lane_sums<R>(folded, p);
    for (; k < half; k++)
        for (int j = 0; j < R; j++) {
            float a, b;
            CachedInt12::widen(rows + j * row, half, k, a, b);
            p[j] += a * query[k] + b * query[half + k];
        }
}
INLINE void score_rows(CachedInt12, const char* rows, long d, long count, long ahead, const float* query, float* p) {
    constexpr int R = CachedInt12::one;
    long row = CachedInt12::bytes(d), s = 0;
    for (; s + R <= count; s += R) dot_int12<R>(rows + s * row, d, ahead, query, p + s);
    for (; s < count; s++) dot_int12<1>(rows + s * row, d, ahead, query, p + s);
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
inline void add_weighted_rows(Format, const char* rows, long d, long count, long ahead, const float* p, float* out) {
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

template <int B>
INLINE void add_weighted_columns_int12(const char* rows, long k, long d, long count, long ahead, const float* p,
                                       float* out) {
    long half = d / 2, row = CachedInt12::bytes(d);
    Floats low[B], high[B], first, second;
    for (int b = 0; b < B; b++) low[b] = load(out + k + b * LANES), high[b] = load(out + half + k + b * LANES);
    for (long s = 0; s < count; s++) {
        for (long at = k ? row : 0; at < row; at += CACHE_LINE) prefetch(rows + s * row + at + ahead);
        for (int b = 0; b < B; b++) {
            CachedInt12::widen(rows + s * row, half, k + b * LANES, first, second);
            low[b] += p[s] * first;
            high[b] += p[s] * second;
        }
    }
    for (int b = 0; b < B; b++) store(out + k + b * LANES, low[b]), store(out + half + k + b * LANES, high[b]);
}
inline void add_weighted_rows(CachedInt12, const char* rows, long d, long count, long ahead, const float* p,
                              float* out) {
    long half = d / 2, row = CachedInt12::bytes(d), k = 0;
    for (; k + 4 * LANES <= half; k += 4 * LANES) add_weighted_columns_int12<4>(rows, k, d, count, ahead, p, out);
    for (; k + LANES <= half; k += LANES) add_weighted_columns_int12<1>(rows, k, d, count, ahead, p, out);
    for (; k < half; k++)
        for (long s = 0; s < count; s++) {
            float a, b;
            CachedInt12::widen(rows + s * row, half, k, a, b);
            out[k] += p[s] * a;
            out[half + k] += p[s] * b;
        }
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

// Softmax attention of every query, to its output. Slots are processed TILE_SLOTS at a time, and the sums so far are
// scaled down whenever a higher score is met (online softmax: Milakov and Gimelshein, 2018, arXiv:1805.02867). While
// the keys of a tile are read its values are prefetched, while the values are read the keys of the next tile.
template <class Format>
void attend(const HeadCache& cache, const Queries& queries, long d) {
    long row = Format::bytes(d);
    for (long g = 0; g < queries.count; g++) {
        memset(queries.output[g], 0, 4 * d);
        memset(queries.state + 2 * g * LANES, 0, 4 * LANES);
        queries.state[(2 * g + 1) * LANES] = MASKED;
    }
    for (long s = 0; s < cache.slots; s += TILE_SLOTS) {
        const char *keys = cache.keys + s * row, *values = cache.values + s * row;
        long count = min(TILE_SLOTS, cache.slots - s);
        const char* next = s + TILE_SLOTS < cache.slots ? keys + TILE_SLOTS * row : cache.next;
        for (long g = 0; g < queries.count; g++) {
            float p[TILE_SLOTS], *weight_sum = queries.state + 2 * g * LANES, *top = weight_sum + LANES;
            score_rows(Format{}, keys, d, count, g ? 0 : values - keys, queries.query[g], p);
            if (cache.key_scales)
                for (long i = 0; i < count; i++) p[i] *= cache.key_scales[s + i];
            Floats sum = load(weight_sum);
            add_to_softmax(p, count, cache.mask ? cache.mask + s : nullptr, queries.output[g], d, sum, *top);
            store(weight_sum, sum);
            if (cache.value_scales)
                for (long i = 0; i < count; i++) p[i] *= cache.value_scales[s + i];
            add_weighted_rows(Format{}, values, d, count, g ? 0 : next - values, p, queries.output[g]);
        }
    }
    for (long g = 0; g < queries.count; g++) {
        float weight_sum = lane_sum(load(queries.state + 2 * g * LANES));
        for (long k = 0; k < d; k++) queries.output[g][k] /= weight_sum;
    }
}

}  // namespace
