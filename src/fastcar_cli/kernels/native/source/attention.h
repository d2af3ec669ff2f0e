// Attention of one query a head over keys and values where they lie.
#pragma once
#include "products.h"

namespace {

constexpr long TILE = 16;
constexpr float LOW = -1e30f;

// Keys and values of one head: `slots` rows of d numbers from these addresses on, and which of them may be seen (null:
// all). `next` is what will be read after them.
struct Seen {
    const char *keys, *values, *next;
    const uint8_t* mask;
    long slots;
};

// out += sum of p[s] times row s, `B` vectors of each.
template <class Format, int B>
inline void add_columns(const char* rows, long row, long count, long ahead, const float* p, float* out) {
    constexpr int width = B * LANES * Format::size;
    Floats sums[B];
    for (int b = 0; b < B; b++) sums[b] = load(out + b * LANES);
    for (long s = 0; s < count; s++) {
        const char* at = rows + s * row;
        for (int k = 0; k < width; k += LINE) ask_for(at + k + ahead);
        for (int b = 0; b < B; b++) sums[b] += p[s] * Format::widen(at + b * LANES * Format::size);
    }
    for (int b = 0; b < B; b++) store(out + b * LANES, sums[b]);
}

// out += sum of p[s] times row s of d numbers; `ahead` bytes on from each line, one is asked for.
template <class Format>
inline void add_rows(const char* rows, long d, long count, long ahead, const float* p, float* out) {
    long row = d * Format::size, k = 0;
    for (; k + 8 * LANES <= d; k += 8 * LANES)
        add_columns<Format, 8>(rows + k * Format::size, row, count, ahead, p, out + k);
    for (; k + 4 * LANES <= d; k += 4 * LANES)
        add_columns<Format, 4>(rows + k * Format::size, row, count, ahead, p, out + k);
    for (; k + LANES <= d; k += LANES)
        add_columns<Format, 1>(rows + k * Format::size, row, count, ahead, p, out + k);
    for (; k < d; k++)
        for (long s = 0; s < count; s++) out[k] += p[s] * Format::read(rows + s * row + k * Format::size);
}

// Queries of the heads that share keys: query and total [heads, step], state [heads, 2]. The query is scaled.
struct Queries {
    Rows query, total;
    float* state;
    long count;
};

// Softmax attention of every query into its total. Slots are taken TILE at a time, and what was summed up is scaled
// whenever a higher score is met (Milakov and Gimelshein, 2018, arXiv:1805.02867). Keys ask for the values of their
// slots, values for the keys of the next tile.
template <class Format>
void attend(const Seen& seen, const Queries& queries, long d) {
    long row = d * Format::size;
    for (long g = 0; g < queries.count; g++) {
        memset(queries.total[g], 0, 4 * d);
        queries.state[2 * g] = LOW;
        queries.state[2 * g + 1] = 0;
    }
    for (long s = 0; s < seen.slots; s += TILE) {
        const char *keys = seen.keys + s * row, *values = seen.values + s * row;
        long count = least(TILE, seen.slots - s);
        const char* next = s + TILE < seen.slots ? keys + TILE * row : seen.next;
        for (long g = 0; g < queries.count; g++) {
            float p[TILE] = {}, &top = queries.state[2 * g], &mass = queries.state[2 * g + 1];
            const float* query = queries.query[g];
            Ahead ahead{row / LINE, g ? 0 : values - keys, 0};
            long i = 0;
            for (; i + 8 <= count; i += 8) dot<Format, 8, 1>(keys + i * row, row, d, ahead, query, 0, p + i, 0);
            for (; i < count; i++) dot<Format, 1, 1>(keys + i * row, row, d, ahead, query, 0, p + i, 0);
            const uint8_t* mask = seen.mask ? seen.mask + s : nullptr;
            float peak = top;
            for (long i = 0; i < count; i++) {
                if (mask && !mask[i]) p[i] = LOW;
                if (p[i] > peak) peak = p[i];
            }
            float* sums = queries.total[g];
            if (peak > top) {
                float shrink = exp(top - peak);
                mass *= shrink;
                for (long k = 0; k < d; k++) sums[k] *= shrink;
                top = peak;
            }
            combine(p, p, TILE, [&](Floats a, Floats) { return exp(a - top); });
            for (long i = 0; i < count; i++) {
                if (mask && !mask[i]) p[i] = 0;
                mass += p[i];
            }
            add_rows<Format>(values, d, count, g ? 0 : next - values, p, sums);
        }
    }
    for (long g = 0; g < queries.count; g++)
        for (long k = 0; k < d; k++) queries.total[g][k] /= queries.state[2 * g + 1];
}

}  // namespace
