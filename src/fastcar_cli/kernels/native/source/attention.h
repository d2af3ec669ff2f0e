// Attention of one query a head over keys and values where they lie.
#pragma once
#include "products.h"

namespace {

constexpr long TILE = 32;
constexpr float LOW = -1e30f;

// Keys and values in int8, each row with a scale of its own, the size of its largest number over `largest`.
struct Cached8 {
    static constexpr int size = 1, sums = 1, one = 8;
    static constexpr float largest = 127;
    static long bytes(long d) { return d; }
    static void write(char* row, long, long k, int number) { row[k] = char(number); }
    static Floats widen(const char* at) {
        return __builtin_convertvector(__builtin_convertvector(load_as<Bytes>(at), Ints), Floats);
    }
    static float read(const char* at) { return float(*reinterpret_cast<const int8_t*>(at)); }
};

// Likewise in 12 bits. A row of d is d bytes with the upper 8 of each number, then d / 2 with the lower 4: byte k those
// of number k in its lower half, of number d / 2 + k in its upper one. Numbers are written from the first on.
struct Cached12 {
    static constexpr int one = WIDE ? 8 : 4;
    static constexpr float largest = 2047;
    static long bytes(long d) { return d + d / 2; }
    static void write(char* row, long d, long k, int number) {
        char& lower = row[d + k % (d / 2)];
        row[k] = char(number >> 4);
        lower = char(k < d / 2 ? number & 15 : lower | (number & 15) << 4);
    }
    // Number k of each half of a row, with vectors what follows it too.
    INLINE static void widen(const char* row, long half, long k, Floats& first, Floats& second) {
        Ints lower = __builtin_convertvector(load_as<Bytes>(row + 2 * half + k), Ints);
        Ints a = __builtin_convertvector(load_as<Bytes>(row + k), Ints);
        Ints b = __builtin_convertvector(load_as<Bytes>(row + half + k), Ints);
        first = __builtin_convertvector(a << 4 | (lower & 15), Floats);
        second = __builtin_convertvector(b << 4 | (lower >> 4 & 15), Floats);
    }
    static void widen(const char* row, long half, long k, float& first, float& second) {
        int lower = row[2 * half + k];
        first = float(int8_t(row[k]) * 16 + (lower & 15));
        second = float(int8_t(row[half + k]) * 16 + (lower >> 4 & 15));
    }
};

// f(format of keys and values, format of aligned keys): beside whole numbers those are of either float format.
template <class F>
inline void with_caches(int64_t format, int64_t aligned, F f) {
    with_cache_format(aligned, [&](auto as) {
        if (format == aligned)
            f(as, as);
        else if (format == 2)
            f(Cached8{}, as);
        else
            f(Cached12{}, as);
    });
}

// Keys and values of one head: `slots` rows of d numbers from these addresses on, the scales of whole ones (else null),
// and which of them may be seen (null: all). `next` is what will be read after them.
struct Seen {
    const char *keys, *values, *next;
    const float *key_scales, *value_scales;
    const uint8_t* mask;
    long slots;
};

// p[s] = row s times query, for `count` rows of d numbers; `ahead` bytes on from each line, one is asked for.
template <class Format>
INLINE void scores(Format, const char* rows, long d, long count, long ahead, const float* query, float* p) {
    constexpr int R = Format::one;
    long row = d * Format::size, s = 0;
    Ahead near{pieces(row, LINE), ahead, 0};
    for (; s + R <= count; s += R) dot<Format, R, 1>(rows + s * row, row, d, near, query, 0, p + s, 0);
    for (; s < count; s++) dot<Format, 1, 1>(rows + s * row, row, d, near, query, 0, p + s, 0);
}

template <int R>
INLINE void dot12(const char* rows, long d, long ahead, const float* query, float* p) {
    long half = d / 2, row = Cached12::bytes(d), k = 0, asked = 0;
    Floats sums[R] = {}, first, second;
    for (; k + LANES <= half; k += LANES) {
        for (; asked * half < (k + LANES) * R * row; asked += LINE) ask_for(rows + asked + ahead);
        Floats a = load(query + k), b = load(query + half + k);
        for (int j = 0; j < R; j++) {
            Cached12::widen(rows + j * row, half, k, first, second);
            sums[j] += first * a;
            sums[j] += second * b;
        }
    }
    Four quarters[R];
    for (int j = 0; j < R; j++) quarters[j] = quarter(sums[j]);
    put_totals<R>(quarters, p);
    for (; k < half; k++)
        for (int j = 0; j < R; j++) {
            float a, b;
            Cached12::widen(rows + j * row, half, k, a, b);
            p[j] += a * query[k] + b * query[half + k];
        }
}
INLINE void scores(Cached12, const char* rows, long d, long count, long ahead, const float* query, float* p) {
    constexpr int R = Cached12::one;
    long row = Cached12::bytes(d), s = 0;
    for (; s + R <= count; s += R) dot12<R>(rows + s * row, d, ahead, query, p + s);
    for (; s < count; s++) dot12<1>(rows + s * row, d, ahead, query, p + s);
}

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
inline void add_rows(Format, const char* rows, long d, long count, long ahead, const float* p, float* out) {
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

template <int B>
INLINE void add_columns12(const char* rows, long k, long d, long count, long ahead, const float* p, float* out) {
    long half = d / 2, row = Cached12::bytes(d);
    Floats low[B], high[B], first, second;
    for (int b = 0; b < B; b++) low[b] = load(out + k + b * LANES), high[b] = load(out + half + k + b * LANES);
    for (long s = 0; s < count; s++) {
        for (long at = k ? row : 0; at < row; at += LINE) ask_for(rows + s * row + at + ahead);
        for (int b = 0; b < B; b++) {
            Cached12::widen(rows + s * row, half, k + b * LANES, first, second);
            low[b] += p[s] * first;
            high[b] += p[s] * second;
        }
    }
    for (int b = 0; b < B; b++) store(out + k + b * LANES, low[b]), store(out + half + k + b * LANES, high[b]);
}
inline void add_rows(Cached12, const char* rows, long d, long count, long ahead, const float* p, float* out) {
    long half = d / 2, row = Cached12::bytes(d), k = 0;
    for (; k + 4 * LANES <= half; k += 4 * LANES) add_columns12<4>(rows, k, d, count, ahead, p, out);
    for (; k + LANES <= half; k += LANES) add_columns12<1>(rows, k, d, count, ahead, p, out);
    for (; k < half; k++)
        for (long s = 0; s < count; s++) {
            float a, b;
            Cached12::widen(rows + s * row, half, k, a, b);
            out[k] += p[s] * a;
            out[half + k] += p[s] * b;
        }
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
    long row = Format::bytes(d);
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
            scores(Format{}, keys, d, count, g ? 0 : values - keys, queries.query[g], p);
            if (seen.key_scales)
                for (long i = 0; i < count; i++) p[i] *= seen.key_scales[s + i];
            Floats weight = load(mass);
            weigh(p, count, seen.mask ? seen.mask + s : nullptr, queries.total[g], d, weight, *top);
            store(mass, weight);
            if (seen.value_scales)
                for (long i = 0; i < count; i++) p[i] *= seen.value_scales[s + i];
            add_rows(Format{}, values, d, count, g ? 0 : next - values, p, queries.total[g]);
        }
    }
    for (long g = 0; g < queries.count; g++) {
        float mass = total(load(queries.state + 2 * g * LANES));
        for (long k = 0; k < d; k++) queries.total[g][k] /= mass;
    }
}

}  // namespace
