// Attention of some queries to the keys and values of a head, which are read in place, in the KV cache.
#pragma once
#include "products.h"

namespace {

// Slots whose scores are computed together, and queries whose values are.
constexpr long TILE_SLOTS = 32, SIDE_BY_SIDE = 4;
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

// Keys and values of one head: rows of d numbers each. Rows in int8 have scales and stand for what is added to a mean, a
// row of d floats; else scales and means are null. next: what is read after these keys and values, to be prefetched.
struct HeadCache {
    const char *keys, *values, *next;
    const float *key_scales = nullptr, *value_scales = nullptr, *key_mean = nullptr, *value_mean = nullptr;
};

// What an input attends to: the first `slots` slots, of them those that mask says (null: all).
struct Seen {
    long slots;
    const uint8_t* mask;
};

// p[s] = row s times query, for `count` rows of d numbers. If it prefetches, with each cache line the one `ahead` bytes on.
template <class Format, bool prefetches>
INLINE void score_rows(const char* rows, long d, long count, long ahead, const float* query, float* p) {
    constexpr int R = Format::one;
    long row = d * Format::size, s = 0;
    PrefetchDistance near{ceil_div(row, CACHE_LINE), ahead, 0};
    for (; s + R <= count; s += R) dot<Format, R, 1, prefetches>(rows + s * row, row, d, near, query, 0, p + s, 0);
    for (; s < count; s++) dot<Format, 1, 1, prefetches>(rows + s * row, row, d, near, query, 0, p + s, 0);
}

// out[q] += the sum of p[q][s] times row s, for Q queries and B vectors of each row.
template <class Format, int B, int Q, bool prefetches>
INLINE void add_weighted_columns(const char* rows, long row, long count, long ahead, const float (&p)[Q][TILE_SLOTS],
                                 float* const* out, long k) {
    constexpr int width = B * LANES * Format::size;
    Floats sums[Q][B];
    for (int q = 0; q < Q; q++)
        for (int b = 0; b < B; b++) sums[q][b] = load(out[q] + k + b * LANES);
    for (long s = 0; s < count; s++) {
        const char* at = rows + s * row + k * Format::size;
        for (int c = 0; c < width && prefetches; c += CACHE_LINE) prefetch(at + c + ahead);
        for (int b = 0; b < B; b++) {
            Floats values = Format::widen(at + b * LANES * Format::size);
            for (int q = 0; q < Q; q++) sums[q][b] += p[q][s] * values;
        }
    }
    for (int q = 0; q < Q; q++)
        for (int b = 0; b < B; b++) store(out[q] + k + b * LANES, sums[q][b]);
}

// out[q] += the sum of p[q][s] times row s of d numbers, with prefetches as above.
template <class Format, int Q, bool prefetches>
INLINE void add_weighted_rows(const char* rows, long d, long count, long ahead, const float (&p)[Q][TILE_SLOTS],
                              float* const* out) {
    long row = d * Format::size, k = 0;
    auto add_columns = [&](auto vectors) __attribute__((always_inline)) {
        constexpr int B = decltype(vectors)::count;
        for (; k + B * LANES <= d; k += B * LANES)
            add_weighted_columns<Format, B, Q, prefetches>(rows, row, count, ahead, p, out, k);
    };
    add_columns(Count<8 / Q>{});
    if constexpr (Q == 1) add_columns(Count<4>{});
    if constexpr (Q <= 2) add_columns(Count<2>{});
    add_columns(Count<1>{});
    for (; k < d; k++)
        for (int q = 0; q < Q; q++)
            for (long s = 0; s < count; s++) out[q][k] += p[q][s] * Format::read(rows + s * row + k * Format::size);
}

// Scaled queries of the heads that share a KV head, `groups` for each of some inputs, `heads` rows from one input to the
// next, and the softmax so far of each: output is the weighted sum of values; state [2 LANES] holds the sum of weights
// (one for each lane), then the highest score.
struct Queries {
    Rows query, output;
    float* state;
    long groups, inputs, heads;
    float* state_of(long n) const { return state + 2 * n * LANES; }
    // Calls f(i, n) for every input i and the row n of each of its queries.
    template <class F>
    void for_each(F f) const {
        for (long i = 0; i < inputs; i++)
            for (long n = i * heads; n < i * heads + groups; n++) f(i, n);
    }
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
    queries.for_each([&](long, long n) {
        memset(queries.output[n], 0, 4 * d);
        memset(queries.state_of(n), 0, 4 * LANES);
        queries.state_of(n)[LANES] = MASKED;
    });
}

// Appends nothing: what `attend` calls where no input has its key and value still to be written.
struct NothingDue {
    static bool due(long, long) { return false; }
    static void write(long) {}
};

// Adds the keys and values of `cache` to the softmax of every query, as far as its input sees them. Slots are processed
// TILE_SLOTS at a time, which all queries read from the L1 cache, and the sums so far are scaled down whenever a higher
// score is met (online softmax: Milakov and Gimelshein, 2018, arXiv:1805.02867). While the keys of a tile are read its
// values are prefetched, while the values are read the keys of the next tile. A cache with means must be the first: its
// scores and weights are those met so far. An input whose slot lies in a tile from slot s on, where appends.due(i, s),
// has its key and value written by appends.write(i) behind the queries of the inputs before it.
template <class Format, class Appends = NothingDue>
void attend(const HeadCache& cache, const Seen* seen, const Queries& queries, long d, Appends appends = {}) {
    long row = d * Format::size, slots = 0;
    for (long i = 0; i < queries.inputs; i++) slots = seen[i].slots > slots ? seen[i].slots : slots;
    for (long s = 0; s < slots; s += TILE_SLOTS) {
        const char *keys = cache.keys + s * row, *values = cache.values + s * row;
        const char* next = s + TILE_SLOTS < slots ? keys + TILE_SLOTS * row : cache.next;
        // Sums of weighted values wait for each other, so those of a few queries are made side by side.
        long held = 0, held_count = 0, inputs[SIDE_BY_SIDE], rows[SIDE_BY_SIDE];
        auto add_tile = [&](auto size, auto prefetches, long first) {
            constexpr int Q = decltype(size)::count;
            float p[Q][TILE_SLOTS], *out[Q];
            for (int q = 0; q < Q; q++) {
                long n = rows[first + q];
                const uint8_t* mask = seen[inputs[first + q]].mask;
                out[q] = queries.output[n];
                float *weight_sum = queries.state_of(n), *top = weight_sum + LANES;
                if (prefetches.count && !q)
                    score_rows<Format, true>(keys, d, held_count, values - keys, queries.query[n], p[q]);
                else
                    score_rows<Format, false>(keys, d, held_count, 0, queries.query[n], p[q]);
                if (cache.key_scales)
                    for (long k = 0; k < held_count; k++) p[q][k] *= cache.key_scales[s + k];
                Floats sum = load(weight_sum);
                add_to_softmax(p[q], held_count, mask ? mask + s : nullptr, out[q], d, sum, *top);
                store(weight_sum, sum);
                if (cache.value_scales)
                    for (long k = 0; k < held_count; k++) p[q][k] *= cache.value_scales[s + k];
            }
            add_weighted_rows<Format, Q, prefetches.count>(values, d, held_count, next - values, p, out);
        };
        bool prefetches = true;
        auto add_held = [&] {
            if (held == SIDE_BY_SIDE && !prefetches) add_tile(Count<SIDE_BY_SIDE>{}, Count<0>{}, 0), held = 0;
            for (long k = 0; k < held; k++) {
                if (prefetches)
                    add_tile(Count<1>{}, Count<1>{}, k);
                else
                    add_tile(Count<1>{}, Count<0>{}, k);
                prefetches = false;
            }
            held = 0;
        };
        queries.for_each([&](long i, long n) {
            long count = min(TILE_SLOTS, seen[i].slots - s);
            if (count <= 0) return;
            if (n == i * queries.heads && appends.due(i, s)) {
                add_held();
                appends.write(i);
            }
            if (count != held_count || held == SIDE_BY_SIDE || prefetches) add_held();
            held_count = count;
            inputs[held] = i;
            rows[held++] = n;
        });
        add_held();
    }
    // The mean of the keys adds the same to every score so far, that of the values once as much as all weights are.
    if (!cache.key_mean) return;
    queries.for_each([&](long i, long n) {
        if (!seen[i].slots) return;
        float *weight_sum = queries.state_of(n), *top = weight_sum + LANES, of_mean;
        dot<Float32, 1, 1>(reinterpret_cast<const char*>(cache.key_mean), 4 * d, d, PrefetchDistance{0, 0, 0},
                           queries.query[n], 0, &of_mean, 0);
        *top += of_mean;
        float weights = lane_sum(load(weight_sum));
        for (long k = 0; k < d; k++) queries.output[n][k] += weights * cache.value_mean[k];
    });
}

inline void end_attention(const Queries& queries, long d) {
    queries.for_each([&](long, long n) {
        float weight_sum = lane_sum(load(queries.state_of(n)));
        for (long k = 0; k < d; k++) queries.output[n][k] /= weight_sum;
    });
}

}  // namespace
