// Attention to keys and values in int8: queries and softmax weights are coded in 16 bits, and their products with a
// tile are summed in int32, exactly, so that sums do not depend on how many queries share the pass.
#pragma once
#include "attention.h"

namespace {

// Slots of a tile, and the most queries that share a widened tile.
constexpr int64_t INT8_SLOTS = 64, SHARING = 32;

// Keys and values of one head: rows of d numbers in int8, each with a scale, its largest magnitude over 127, less a
// mean, a row of d floats. next: what is read after them, to be prefetched.
struct Int8Cache {
    const char *keys, *values, *next;
    const float *key_scales, *value_scales, *key_mean, *value_mean;
};

// Interleaves the numbers of two vectors, within each 128 bits of them.
INLINE Uint16s interleave_low(Uint16s a, Uint16s b) {
#if defined(__AVX512F__)
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 8, 24, 9, 25, 10, 26, 11, 27);
#elif defined(__AVX2__)
    return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
#else
    return __builtin_shufflevector(a, b, 0, 4, 1, 5);
#endif
}
INLINE Uint16s interleave_high(Uint16s a, Uint16s b) {
#if defined(__AVX512F__)
    return __builtin_shufflevector(a, b, 4, 20, 5, 21, 6, 22, 7, 23, 12, 28, 13, 29, 14, 30, 15, 31);
#elif defined(__AVX2__)
    return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
    return __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
}

// A vector of pairs of int8 as pairs of int16.
INLINE Ints widen_pairs(Uint16s pairs) {
    typedef int8_t Bytes __attribute__((vector_size(2 * LANES)));
    return bit_cast<Ints>(__builtin_convertvector(bit_cast<Bytes>(pairs), Int16s));
}

// PAIRS pairs of int8 of a row and, where a vector has room for them, those of the row PAIRS rows on.
constexpr int PAIRS = LANES < 8 ? LANES : 8;
INLINE Uint16s load_pairs(const char* at, int64_t row) {
#if defined(__AVX512F__)
    typedef uint16_t Half __attribute__((vector_size(2 * PAIRS)));
    return __builtin_shufflevector(load_as<Half>(at), load_as<Half>(at + PAIRS * row), 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10,
                                   11, 12, 13, 14, 15);
#else
    return load_as<Uint16s>(at);
#endif
}

// tile[j][s] = numbers 2 j and 2 j + 1 of row s, for INT8_SLOTS rows of d numbers, a multiple of 2 LANES.
inline void widen_keys(const char* rows, int64_t d, int32_t* tile) {
    for (int64_t s = 0; s < INT8_SLOTS; s += LANES) {
        for (int64_t k = 0; k < d; k += 2 * PAIRS) {
            Uint16s block[PAIRS];
            for (int i = 0; i < PAIRS; i++) block[i] = load_pairs(rows + (s + i) * d + k, d);
            for (int stage = 1; stage < PAIRS; stage *= 2) {
                Uint16s next[PAIRS];
                for (int i = 0; i < PAIRS / 2; i++) {
                    next[2 * i] = interleave_low(block[i], block[i + PAIRS / 2]);
                    next[2 * i + 1] = interleave_high(block[i], block[i + PAIRS / 2]);
                }
                for (int i = 0; i < PAIRS; i++) block[i] = next[i];
            }
            for (int i = 0; i < PAIRS; i++) {
                Ints wide = widen_pairs(block[i]);
                memcpy(tile + (k / 2 + i) * INT8_SLOTS + s, &wide, sizeof wide);
            }
        }
    }
}

// tile[j][k] = number k of rows 2 j and 2 j + 1, else as above.
inline void widen_values(const char* rows, int64_t d, int32_t* tile) {
    for (int64_t s = 0; s < INT8_SLOTS; s += 2) {
        for (int64_t k = 0; k < d; k += LANES) {
            auto numbers = [&](int64_t row) {
                return __builtin_convertvector(load_as<Int8s>(rows + row * d + k), Ints);
            };
            Ints pairs = (numbers(s) & 0xFFFF) | numbers(s + 1) << 16;
            memcpy(tile + s / 2 * d + k, &pairs, sizeof pairs);
        }
    }
}

// Calls finish(q, c, sums) for rows q of x and vectors of columns from c on of the tile: with the sums over j < `pairs`
// of the products of x[q][j] and tile[j][c], both pairs of int16. Meanwhile `bytes` bytes from `next` on are
// prefetched.
template <class F>
INLINE void multiply_tile(const int32_t* tile, int64_t columns, int64_t pairs, const int32_t* x, int64_t x_step,
                          int64_t rows, const char* next, int64_t bytes, F finish) {
    const char* end = next + bytes;
    for_input_tiles<4>(rows, 0, [&](auto side, int64_t r) __attribute__((always_inline)) {
        constexpr int Q = decltype(side)::count;
        int64_t c = 0;
        auto multiply = [&](auto vectors) __attribute__((always_inline)) {
            constexpr int V = decltype(vectors)::count;
            for (; c + V * LANES <= columns; c += V * LANES) {
                Ints sums[Q][V] = {};
                for (int64_t j = 0; j < pairs; j++) {
                    for (int v = 0; v < V; v += 2)
                        if (next < end) prefetch(next), next += CACHE_LINE;
                    for (int q = 0; q < Q; q++) {
                        Int16s pair = bit_cast<Int16s>(Ints{} + x[(r + q) * x_step + j]);
                        for (int v = 0; v < V; v++)
                            sums[q][v] = add_pair_products(sums[q][v], pair,
                                                           load_as<Int16s>(tile + j * columns + c + v * LANES));
                    }
                }
                for (int q = 0; q < Q; q++)
                    for (int v = 0; v < V; v++)
                        finish(r + q, c + v * LANES, __builtin_convertvector(sums[q][v], Floats));
            }
        };
        if (WIDE) multiply(Count<4>{});
        multiply(Count<2>{});
        multiply(Count<1>{});
    });
}

// n numbers, a multiple of LANES, coded as integers up to `largest`; returns their scale.
inline float code(const float* x, int64_t n, float largest, int16_t* out) {
    float scale = quantisation_scale(x, n, largest), factor = scale > 0 ? 1 / scale : 0;
    for (int64_t k = 0; k < n; k += LANES) {
        Uint16s v = __builtin_convertvector(scale_and_round(x + k, factor), Uint16s);
        memcpy(out + k, &v, sizeof v);
    }
    return scale;
}

// A query whose numbers are coded, `scale` times an integer each; `weight_scale` is that of its weights of a tile.
struct CodedQuery {
    const Seen* seen;
    float *output, *state, scale, weight_scale;
};

// As `attend` in attention.h. The cache must be the first that queries meet, as its means are added to all scores and
// weights so far.
inline void attend(const Int8Cache& cache, const Seen* seen, const Queries& queries, int64_t d) {
    constexpr int64_t slot_pairs = INT8_SLOTS / 2;
    int64_t columns = ceil_div(d, 2 * LANES) * 2 * LANES, pairs = columns / 2, total = queries.inputs * queries.groups;
    // Such that no sum of d products exceeds 32 bits.
    float largest = float(min(32767, INT32_MAX / (127 * d)));
    int64_t tile_bytes = 4 * slot_pairs * columns, codes_bytes = 4 * SHARING * pairs;
    auto memory = static_cast<char*>(__builtin_alloca(tile_bytes + codes_bytes + INT8_SLOTS * columns + CACHE_LINE));
    memory += CACHE_LINE - uintptr_t(memory) % CACHE_LINE;
    auto tile = reinterpret_cast<int32_t*>(memory), codes = reinterpret_cast<int32_t*>(memory + tile_bytes);
    char* padded = memory + tile_bytes + codes_bytes;
    for (int64_t begin = 0, count; begin < total; begin += count) {
        count = min(SHARING, total - begin);
        CodedQuery coded[SHARING];
        int64_t slots = 0;
        for (int64_t q = 0; q < count; q++) {
            int64_t i = (begin + q) / queries.groups, n = i * queries.heads + (begin + q) % queries.groups;
            float scale = code(queries.query[n], columns, largest, reinterpret_cast<int16_t*>(codes + q * pairs));
            coded[q] = {seen + i, queries.output[n], queries.state_of(n), scale, 0};
            slots = seen[i].slots > slots ? seen[i].slots : slots;
        }
        for (int64_t s = 0; s < slots; s += INT8_SLOTS) {
            int64_t rows = min(INT8_SLOTS, slots - s), bytes = INT8_SLOTS * d;
            bool last = s + INT8_SLOTS >= slots;
            const char *keys = cache.keys + s * d, *values = cache.values + s * d;
            const char* next_keys = last ? cache.next : keys + bytes;
            const char* next_values = last ? cache.next + bytes : values + bytes;
            // Rows and numbers that a tile lacks are zeros.
            auto whole = [&](const char* at) {
                if (rows == INT8_SLOTS && d == columns) return at;
                memset(padded, 0, INT8_SLOTS * columns);
                for (int64_t r = 0; r < rows; r++) memcpy(padded + r * columns, at + r * d, d);
                return static_cast<const char*>(padded);
            };
            float key_scales[INT8_SLOTS] = {}, value_scales[INT8_SLOTS] = {}, p[SHARING][INT8_SLOTS];
            memcpy(key_scales, cache.key_scales + s, 4 * rows);
            memcpy(value_scales, cache.value_scales + s, 4 * rows);
            widen_keys(whole(keys), columns, tile);
            multiply_tile(tile, INT8_SLOTS, pairs, codes, pairs, count, next_keys, bytes,
                          [&](int64_t q, int64_t k, Floats sums) {
                              store(p[q] + k, sums * (load(key_scales + k) * coded[q].scale));
                          });
            int32_t weights[SHARING][slot_pairs];
            for (int64_t q = 0; q < count; q++) {
                auto& [sees, output, state, scale, weight_scale] = coded[q];
                int64_t shown = sees->slots > s ? min(INT8_SLOTS, sees->slots - s) : 0;
                Floats sum = load(state);
                add_to_softmax<INT8_SLOTS>(p[q], shown, sees->mask ? sees->mask + s : nullptr, output, d, sum,
                                           state[LANES]);
                store(state, sum);
            }
            // In a loop of its own, so that the next query begins while this one's sums over lanes are on their way.
            for (int64_t q = 0; q < count; q++) {
                for (int64_t k = 0; k < INT8_SLOTS; k += LANES) {
                    Floats unscaled = load(p[q] + k);
                    store(p[q] + k, unscaled > 0.0f ? unscaled * load(value_scales + k) : Floats{});
                }
                coded[q].weight_scale = code(p[q], INT8_SLOTS, 32767, reinterpret_cast<int16_t*>(weights[q]));
            }
            widen_values(whole(values), columns, tile);
            multiply_tile(tile, columns, slot_pairs, weights[0], slot_pairs, count, next_values, bytes,
                          [&](int64_t q, int64_t k, Floats sums) {
                              store(coded[q].output + k, load(coded[q].output + k) + sums * coded[q].weight_scale);
                          });
        }
    }
    // The mean of the keys adds the same to every score so far, that of the values once as much as all weights are.
    queries.for_each([&](int64_t i, int64_t n) {
        if (!seen[i].slots) return;
        float *weight_sum = queries.state_of(n), *top = weight_sum + LANES, of_mean;
        dot<Float32, 1, 1>(reinterpret_cast<const char*>(cache.key_mean), 4 * d, d, PrefetchDistance{0, 0, 0},
                           queries.query[n], 0, &of_mean, 0);
        *top += of_mean;
        float weights = lane_sum(load(weight_sum));
        for (int64_t k = 0; k < d; k++) queries.output[n][k] += weights * cache.value_mean[k];
    });
}

}  // namespace
