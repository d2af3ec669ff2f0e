// Attention of some queries to the keys and values of a head, which are read in place, in the KV cache.
#pragma once
#include "products.h"

namespace {

// Slots of a tile, whose scores are computed together, and queries whose weighted values are summed side by side.
constexpr int64_t TILE_SLOTS = 32, SIDE_BY_SIDE = LANES == 16 ? 8 : 4;
// Fewer queries save less by transposed keys than transposing costs; and numbers of the longest key that is transposed.
constexpr int64_t FROM_QUERIES = 8, MOST_TRANSPOSED = 128;
// Score of a slot that is masked.
constexpr float MASKED = -1e30f;

// Keys and values of one head: rows of d numbers each. next: what is read after them, to be prefetched.
struct HeadCache {
    const char *keys, *values, *next;
};

// What an input attends to: the first `slots` slots that mask shows (null: all).
struct Seen {
    int64_t slots;
    const uint8_t* mask;
};

// p[q][s] = row s times query q, for rows s to `count` of d numbers and Q queries, `step` floats apart. If it
// prefetches, with each cache line the one `ahead` bytes after it.
template <class Format, int Q, bool prefetches>
INLINE void score_rows(const char* rows, int64_t d, int64_t count, int64_t ahead, const float* query, int64_t step,
                       float (*p)[TILE_SLOTS], int64_t s = 0) {
    // As many rows as the registers hold sums of.
    constexpr int R = Q == 1 ? Format::one : (WIDE ? 4 : 2) / Format::sums;
    int64_t row = d * Format::size;
    PrefetchDistance near{ceil_div(row, CACHE_LINE), ahead, 0};
    for (; s + R <= count; s += R)
        dot<Format, R, Q, prefetches>(rows + s * row, row, d, near, query, step, *p + s, TILE_SLOTS);
    for (; s < count; s++) dot<Format, 1, Q, prefetches>(rows + s * row, row, d, near, query, step, *p + s, TILE_SLOTS);
}

// out[q] += the sum of p[q][s] times row s from `begin` on to `end`, for Q queries and B vectors of each row.
template <class Format, int B, int Q, bool prefetches>
INLINE void add_weighted_columns(const char* rows, int64_t row, int64_t begin, int64_t end, int64_t ahead,
                                 const float (*p)[TILE_SLOTS], float* const* out, int64_t k) {
    constexpr int width = B * LANES * Format::size;
    Floats sums[Q][B];
    for (int q = 0; q < Q; q++)
        for (int b = 0; b < B; b++) sums[q][b] = load(out[q] + k + b * LANES);
    for (int64_t s = begin; s < end; s++) {
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

// out[q] += the sum of p[q][s] times row s of d numbers, from `begin` on to `end`, with prefetches as above.
template <class Format, int Q, bool prefetches>
INLINE void add_weighted_rows(const char* rows, int64_t d, int64_t begin, int64_t end, int64_t ahead,
                              const float (*p)[TILE_SLOTS], float* const* out) {
    int64_t row = d * Format::size, k = 0;
    auto add_columns = [&](auto vectors) __attribute__((always_inline)) {
        constexpr int B = decltype(vectors)::count;
        for (; k + B * LANES <= d; k += B * LANES)
            add_weighted_columns<Format, B, Q, prefetches>(rows, row, begin, end, ahead, p, out, k);
    };
    // As many vectors as the registers hold sums of.
    constexpr int most = WIDE && Q == 4 ? 4 : 8 / Q;
    add_columns(Count<most>{});
    if constexpr (most > 4) add_columns(Count<4>{});
    if constexpr (most > 2) add_columns(Count<2>{});
    if constexpr (most > 1) add_columns(Count<1>{});
    for (; k < d; k++)
        for (int q = 0; q < Q; q++)
            for (int64_t s = begin; s < end; s++)
                out[q][k] += p[q][s] * Format::read(rows + s * row + k * Format::size);
}

// Transposes LANES rows: interleaves the numbers of rows i and i + LANES / 2, log2(LANES) times.
INLINE void transpose(Floats* rows) {
    for (int stage = 1; stage < LANES; stage *= 2) {
        Floats next[LANES];
        for (int i = 0; i < LANES / 2; i++) {
            Floats a = rows[i], b = rows[i + LANES / 2];
#if defined(__AVX512F__)
            next[2 * i] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            next[2 * i + 1] =
                __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif defined(__AVX2__)
            next[2 * i] = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
            next[2 * i + 1] = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
            next[2 * i] = __builtin_shufflevector(a, b, 0, 4, 1, 5);
            next[2 * i + 1] = __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
        }
        for (int i = 0; i < LANES; i++) rows[i] = next[i];
    }
}

// tile[k][s] = number k of row s, for `count` rows of d numbers, a multiple of LANES; rows from `count` on are zeros.
// With each cache line the one `ahead` bytes after it is prefetched.
template <class Format>
void transpose_tile(const char* rows, int64_t d, int64_t count, int64_t ahead, float (*tile)[TILE_SLOTS]) {
    int64_t row = d * Format::size;
    for (int64_t s = 0; s < TILE_SLOTS; s += LANES)
        for (int64_t k = 0; k < d; k += LANES) {
            Floats block[LANES];
            for (int i = 0; i < LANES; i++) {
                const char* at = rows + (s + i) * row + k * Format::size;
                block[i] = s + i < count ? Format::widen(at) : Floats{};
                if (s + i < count && k * Format::size % CACHE_LINE == 0) prefetch(at + ahead);
            }
            transpose(block);
            for (int i = 0; i < LANES; i++) store(tile[k + i] + s, block[i]);
        }
}

// The sum over lanes first, first + step, ... of sum(lane), in the order of fold_to_four and lane_sum_of_four.
template <int first, int step, class F>
INLINE auto sum_in_order(F sum) {
    if constexpr (2 * step > LANES)
        return sum(first);
    else {
        auto a = sum_in_order<first, 2 * step>(sum), b = sum_in_order<first + step, 2 * step>(sum);
        return a + b;
    }
}

// p[q][s] = row s of the tile times query q, for Q queries of d numbers. A lane has a slot of its own, so no sum is
// over lanes; the order of additions is still that of `dot`, on which scores must not depend.
template <class Format, int d, int Q>
INLINE void score_tile(const float (*tile)[TILE_SLOTS], const float* const* query, float (*p)[TILE_SLOTS]) {
    constexpr int P = Format::sums, V = 2, parts = d / LANES;
    struct Sums {
        Floats of[Q][V];
        INLINE Sums operator+(const Sums& other) const {
            Sums all;
            for (int q = 0; q < Q; q++)
                for (int v = 0; v < V; v++) all.of[q][v] = of[q][v] + other.of[q][v];
            return all;
        }
    };
    for (int64_t s = 0; s < TILE_SLOTS; s += V * LANES) {
        // Lanes l, l + LANES / 2, then l + LANES / 4 and so on; of the last four lanes, 0 and 2 before 1 and 3.
        Sums all = sum_in_order<0, 1>([&](int lane) __attribute__((always_inline)) {
            Sums sums[P] = {};
#pragma GCC unroll 32
            for (int part = 0; part < parts; part++) {
                const float* numbers = tile[lane + part * LANES] + s;
                for (int q = 0; q < Q; q++)
                    for (int v = 0; v < V; v++)
                        sums[part % P].of[q][v] += load(numbers + v * LANES) * query[q][lane + part * LANES];
            }
            for (int part = 1; part < P; part++) sums[0] = sums[0] + sums[part];
            return sums[0];
        });
        for (int q = 0; q < Q; q++)
            for (int v = 0; v < V; v++) store(p[q] + s + v * LANES, all.of[q][v]);
    }
}

// The widths that `score_tile` is compiled for. Without AVX-512 longer keys gain nothing: sums across lanes weigh less.
inline bool can_transpose(int64_t d) { return d == 32 || (LANES == 16 && (d == 64 || d == MOST_TRANSPOSED)); }

template <class Format, int Q>
INLINE void score_tile(int64_t d, const float (*tile)[TILE_SLOTS], const float* const* query, float (*p)[TILE_SLOTS]) {
    if (d == 32)
        score_tile<Format, 32, Q>(tile, query, p);
    else if (LANES == 16 && d == 64)
        score_tile<Format, 64, Q>(tile, query, p);
    else if (LANES == 16)
        score_tile<Format, MOST_TRANSPOSED, Q>(tile, query, p);
}

// Scaled queries of the heads that share a KV head, `groups` for each of some inputs, `heads` rows from one input to
// the next, and the softmax so far of each: output is the weighted sum of values; state [2 LANES] holds the sum of
// weights (one for each lane), then the highest score.
struct Queries {
    Rows query, output;
    float* state;
    int64_t groups, inputs, heads;
    float* state_of(int64_t n) const { return state + 2 * n * LANES; }
    // Calls f(i, n) for every input i and the row n of each of its queries.
    template <class F>
    void for_each(F f) const {
        for (int64_t i = 0; i < inputs; i++)
            for (int64_t n = i * heads; n < i * heads + groups; n++) f(i, n);
    }
};

// Turns `count` scores p into softmax weights e^(p - top) and adds them to `weight_sum`; masked slots (mask may be
// null) and those from `count` to `slots` get 0. If a score is above `top`, top rises to it, and weight_sum and the
// d numbers of `output` are scaled down to the new top.
template <int64_t slots = TILE_SLOTS>
inline void add_to_softmax(float* p, int64_t count, const uint8_t* mask, float* output, int64_t d, Floats& weight_sum,
                           float& top) {
    constexpr int vectors = slots / LANES;
    Floats maxima = broadcast(MASKED), scores[vectors];
    Ints lane, seen[vectors];
    for (int k = 0; k < LANES; k++) lane[k] = k;
    uint8_t shown[slots] = {};
    if (mask) memcpy(shown, mask, count);
    for (int v = 0; v < vectors; v++) {
        seen[v] = lane + v * LANES < int(count);
        if (mask) seen[v] &= __builtin_convertvector(load_as<Int8s>(shown + v * LANES), Ints) != 0;
        scores[v] = seen[v] ? load(p + v * LANES) : MASKED;
        maxima = maxima > scores[v] ? maxima : scores[v];
    }
    float peak = lane_maximum(maxima);
    if (peak > top) {
        Floats shrink = exp(broadcast(top - peak));
        weight_sum *= shrink;
        for (int64_t k = 0; k < d; k++) output[k] *= shrink[0];
        top = peak;
    }
    for (int v = 0; v < vectors; v++) {
        Floats weights = exp(scores[v] - top);
        weights = seen[v] ? weights : Floats{};
        store(p + v * LANES, weights);
        weight_sum += weights;
    }
}

inline void begin_attention(const Queries& queries, int64_t d) {
    queries.for_each([&](int64_t, int64_t n) {
        memset(queries.output[n], 0, 4 * d);
        memset(queries.state_of(n), 0, 4 * LANES);
        queries.state_of(n)[LANES] = MASKED;
    });
}

// What `attend` is given where all keys and values are written.
struct NothingDue {
    static bool due(int64_t, int64_t) { return false; }
    static void write(int64_t) {}
};

// Adds the keys and values of `cache` to the softmax of every query, as far as its input sees them. Slots are processed
// a tile at a time, which all queries read from the L1 cache, and the sums so far are scaled down whenever a higher
// score is met (online softmax: Milakov and Gimelshein, 2018, arXiv:1805.02867). While the keys of a tile are read its
// values are prefetched, while the values are read the keys of the next tile. Where appends.due(i, s) for the tile from
// slot s on, appends.write(i) writes the key and value of input i, after the queries of the inputs before it and before
// its own.
template <class Format, class Appends = NothingDue>
void attend(const HeadCache& cache, const Seen* seen, const Queries& queries, int64_t d, Appends appends = {}) {
    int64_t row = d * Format::size, slots = 0;
    for (int64_t i = 0; i < queries.inputs; i++) slots = seen[i].slots > slots ? seen[i].slots : slots;
    bool transposes = queries.inputs * queries.groups >= FROM_QUERIES && can_transpose(d);
    alignas(CACHE_LINE) float tile[MOST_TRANSPOSED][TILE_SLOTS];
    for (int64_t s = 0; s < slots; s += TILE_SLOTS) {
        const char *keys = cache.keys + s * row, *values = cache.values + s * row;
        const char* next = s + TILE_SLOTS < slots ? keys + TILE_SLOTS * row : cache.next;
        auto transpose_keys = [&] {
            if (transposes) transpose_tile<Format>(keys, d, min(TILE_SLOTS, slots - s), values - keys, tile);
        };
        transpose_keys();
        // Additions to one sum wait for each other, so queries are collected until enough can be summed side by side:
        // four, or eight of transposed keys with AVX-512.
        struct {
            int64_t input, row, count;  // count: how many slots of the tile the query sees
        } waiting[SIDE_BY_SIDE];
        int64_t held = 0;
        // The first queries that read the tile fetch what is read next.
        bool prefetches = true;
        auto add_tile = [&](auto size, int64_t first) {
            constexpr int Q = decltype(size)::count, pair = Q > 1 ? 2 : 1;
            float p[Q][TILE_SLOTS], *out[Q];
            const float* query[Q];
            for (int q = 0; q < Q; q++) query[q] = queries.query[waiting[first + q].row];
            for (int q = 0; q < Q && transposes; q += pair) score_tile<Format, pair>(d, tile, query + q, p + q);
            // How many slots all of these queries see, and whether they lie evenly apart.
            int64_t all_see = waiting[first].count, step = query[Q > 1] - query[0];
            bool evenly = true;
            for (int q = 1; q < Q; q++) {
                all_see = min(all_see, waiting[first + q].count);
                evenly = evenly && query[q] == query[0] + q * step;
            }
            if (Q <= 4 && !transposes) {
                int64_t together = evenly ? all_see : 0;
                if (prefetches)
                    score_rows<Format, Q, true>(keys, d, together, values - keys, query[0], step, p);
                else
                    score_rows<Format, Q, false>(keys, d, together, 0, query[0], step, p);
                for (int q = 0; q < Q && Q > 1; q++)
                    score_rows<Format, 1, false>(keys, d, waiting[first + q].count, 0, query[q], 0, p + q, together);
            }
            for (int q = 0; q < Q; q++) {
                auto [i, n, count] = waiting[first + q];
                const uint8_t* mask = seen[i].mask;
                out[q] = queries.output[n];
                float *weight_sum = queries.state_of(n), *top = weight_sum + LANES;
                Floats sum = load(weight_sum);
                add_to_softmax(p[q], count, mask ? mask + s : nullptr, out[q], d, sum, *top);
                store(weight_sum, sum);
            }
            if (prefetches)
                add_weighted_rows<Format, Q, true>(values, d, 0, all_see, next - values, p, out);
            else
                add_weighted_rows<Format, Q, false>(values, d, 0, all_see, 0, p, out);
            for (int q = 0; q < Q && Q > 1; q++)
                add_weighted_rows<Format, 1, false>(values, d, all_see, waiting[first + q].count, 0, p + q, out + q);
            prefetches = false;
        };
        auto add_waiting = [&] {
            int64_t first = 0;
            auto add = [&](auto size) {
                for (; first + size.count <= held; first += size.count) add_tile(size, first);
            };
            if (LANES == 16 && transposes) add(Count<SIDE_BY_SIDE>{});
            add(Count<4>{});
            add(Count<1>{});
            held = 0;
        };
        queries.for_each([&](int64_t i, int64_t n) {
            int64_t count = min(TILE_SLOTS, seen[i].slots - s);
            if (count <= 0) return;
            if (n == i * queries.heads && appends.due(i, s)) {
                add_waiting();
                appends.write(i);
                transpose_keys();
            }
            if (held == SIDE_BY_SIDE) add_waiting();
            waiting[held++] = {i, n, count};
        });
        add_waiting();
    }
}

// Writes what queries attended to, those of input i side by side in row i of `to`.
inline void end_attention(const Queries& queries, int64_t d, Rows to) {
    queries.for_each([&](int64_t i, int64_t n) {
        float weight_sum = lane_sum(load(queries.state_of(n))), *out = to[i] + (n - i * queries.heads) * d;
        for (int64_t k = 0; k < d; k++) out[k] = queries.output[n][k] / weight_sum;
    });
}

}  // namespace
