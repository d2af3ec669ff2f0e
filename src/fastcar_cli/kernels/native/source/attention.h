// Attention of one query a head over keys and values where they lie.
#pragma once
#include "products.h"

namespace {

constexpr long TILE = 32;
constexpr float LOW = -1e30f;

// Keys and values in int8, each row with a scale of its own.
struct Cached8 {
    static constexpr int size = 1, sums = 1, one = 8;
    static Floats widen(const char* at) {
        return __builtin_convertvector(__builtin_convertvector(load_as<Bytes>(at), Ints), Floats);
    }
    static float read(const char* at) { return float(*reinterpret_cast<const int8_t*>(at)); }
};

// f(format of keys and values, format of aligned keys): int8 has aligned keys of either float format.
template <class F>
inline void with_caches(int64_t format, int64_t aligned, F f) {
    with_cache_format(aligned, [&](auto as) {
        if (format == aligned)
            f(as, as);
        else
            f(Cached8{}, as);
    });
}

// Keys and values of one head: `slots` rows of d numbers from these addresses on, their scales in int8 (else null), and
// which of them may be seen (null: all). `next` is what will be read after them.
struct Seen {
    const char *keys, *values, *next;
    const float *key_scales, *value_scales;
    const uint8_t* mask;
    long slots;
};

// out += sum of p[s] times row s, `B` vectors of each.
template <class Format, int B>
INLINE void add_columns(const char* rows, long row, long count, long ahead, const float* p, float* out) {
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

// Queries of the heads that share keys, scaled, and what is summed up for each: its values, weights (a sum a lane) and
// highest score, in state [heads, 2 LANES].
struct Queries {
    Rows query, total;
    float* state;
    long count;
};

// e^(p - top) in place, for `count` of TILE scores with the mask (null: all are seen), the rest 0; their sum is added to
// `mass`. Where a score is above `top`, top rises, and mass and the d numbers of `sums` shrink to fit it.
inline void weigh(float* p, long count, const uint8_t* mask, float* sums, long d, Floats& mass, float& top) {
    constexpr int vectors = TILE / LANES;
    for (long i = count; i < TILE; i++) p[i] = LOW;
    if (mask)
        for (long i = 0; i < count; i++) p[i] = mask[i] ? p[i] : LOW;
    Floats most = load(p);
    for (int v = 1; v < vectors; v++) {
        Floats other = load(p + v * LANES);
        most = most > other ? most : other;
    }
    float peak = top;
    for (int k = 0; k < LANES; k++) peak = peak > most[k] ? peak : most[k];
    if (peak > top) {
        Floats shrink = exp(broadcast(top - peak));
        mass *= shrink;
        for (long k = 0; k < d; k++) sums[k] *= shrink[0];
        top = peak;
    }
    for (int v = 0; v < vectors; v++) {
        Floats scores = load(p + v * LANES), weights = exp(scores - top);
        weights = scores == LOW ? Floats{} : weights;
        store(p + v * LANES, weights);
        mass += weights;
    }
}

// Softmax attention of every query into its total. Slots are taken TILE at a time, and what was summed up is scaled
// whenever a higher score is met (Milakov and Gimelshein, 2018, arXiv:1805.02867). Keys ask for the values of their
// slots, values for the keys of the next tile.
template <class Format>
void attend(const Seen& seen, const Queries& queries, long d) {
    constexpr int R = Format::one;
    long row = d * Format::size;
    for (long g = 0; g < queries.count; g++) {
        memset(queries.total[g], 0, 4 * d);
        memset(queries.state + 2 * g * LANES, 0, 4 * LANES);
        queries.state[(2 * g + 1) * LANES] = LOW;
    }
    for (long s = 0; s < seen.slots; s += TILE) {
        const char *keys = seen.keys + s * row, *values = seen.values + s * row;
        long count = least(TILE, seen.slots - s);
        const char* next = s + TILE < seen.slots ? keys + TILE * row : seen.next;
        for (long g = 0; g < queries.count; g++) {
            float p[TILE], *mass = queries.state + 2 * g * LANES, *top = mass + LANES;
            const float* query = queries.query[g];
            Ahead ahead{pieces(row, LINE), g ? 0 : values - keys, 0};
            long i = 0;
            for (; i + R <= count; i += R) dot<Format, R, 1>(keys + i * row, row, d, ahead, query, 0, p + i, 0);
            for (; i < count; i++) dot<Format, 1, 1>(keys + i * row, row, d, ahead, query, 0, p + i, 0);
            if (seen.key_scales)
                for (i = 0; i < count; i++) p[i] *= seen.key_scales[s + i];
            Floats weight = load(mass);
            weigh(p, count, seen.mask ? seen.mask + s : nullptr, queries.total[g], d, weight, *top);
            store(mass, weight);
            if (seen.value_scales)
                for (i = 0; i < count; i++) p[i] *= seen.value_scales[s + i];
            add_rows<Format>(values, d, count, g ? 0 : next - values, p, queries.total[g]);
        }
    }
    for (long g = 0; g < queries.count; g++) {
        float mass = total(load(queries.state + 2 * g * LANES));
        for (long k = 0; k < d; k++) queries.total[g][k] /= mass;
    }
}

}  // namespace
