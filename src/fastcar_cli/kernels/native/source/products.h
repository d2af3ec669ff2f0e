// Products of rows of weights with one or two inputs.
//
// What bounds a decode step is how fast a core draws weights from memory, so with each line that is worked on the one
// a fixed way ahead is asked for: in the same row, and behind its end in the row that is worked on next.
#pragma once
#include "formats.h"
#include "structs.h"
#include "team.h"

namespace {

// Of all rows that are worked on together: what is on its way to a core while memory answers.
constexpr long AHEAD_LINES = 128;
constexpr long ENOUGH_TO_CODE = 8192;
// Coded inputs that are worked on together where there are many rows: their sums fit the registers.
constexpr long TILE_ROWS = 4;
// Rows of a decode pass, at most.
constexpr long MOST_ROWS = 1024;

// Bytes from a line to the one to ask for: `near` before line `split` of a row, `far` from there on.
struct Ahead {
    long split, near, far;
};

inline long pieces(long n, long size) { return (n + size - 1) / size; }
inline long least(long a, long b) { return a < b ? a : b; }

// Into the second cache: some cores wait for far fewer lines on the way to the first.
inline void ask_for(const char* at) { __builtin_prefetch(at, 0, 2); }

// The sums of R vectors to y.
template <int R>
INLINE void put_totals(const Four* all, float* y) {
    int j = 0;
    for (; j + 4 <= R; j += 4) {
        Four four = totals(all[j], all[j + 1], all[j + 2], all[j + 3]);
        memcpy(y + j, &four, sizeof four);
    }
    for (; j < R; j++) y[j] = total_of_four(all[j]);
}

// y[i ystep + j] = row j of w times input i, for R rows of n numbers, `row` bytes apart, and N inputs. The sums are
// added up in the same order whatever R and N are. x is zero up to a multiple of a line's numbers.
template <class Format, int R, int N>
INLINE void dot(const char* w, long row, long n, Ahead ahead, const float* x, long xstep, float* y, long ystep) {
    constexpr int numbers = LINE / Format::size, vectors = numbers / LANES, P = Format::sums;
    Floats sums[R][N][P] = {};
    auto line = [&](const char* at, long step, const float* in) __attribute__((always_inline)) {
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v++) {
            Floats inputs[N];
            for (int i = 0; i < N; i++) inputs[i] = load(in + i * xstep + v * LANES);
            for (int j = 0; j < R; j++) {
                Floats weights = Format::widen(at + j * step + v * LANES * Format::size);
                for (int i = 0; i < N; i++) sums[j][i][v % P] += weights * inputs[i];
            }
        }
    };
    long lines = n / numbers, split = ahead.split < lines ? ahead.split : lines;
    for (long c = 0; c < split; c++) {
        for (int j = 0; j < R; j++) ask_for(w + j * row + c * LINE + ahead.near);
        line(w + c * LINE, row, x + c * numbers);
    }
    for (long c = split; c < lines; c++) {
        for (int j = 0; j < R; j++) ask_for(w + j * row + c * LINE + ahead.far);
        line(w + c * LINE, row, x + c * numbers);
    }
    if (long rest = n % numbers) {
        char last[R * LINE] = {};
        for (int j = 0; j < R; j++) memcpy(last + j * LINE, w + j * row + lines * LINE, rest * Format::size);
        line(last, LINE, x + lines * numbers);
    }
    for (int i = 0; i < N; i++) {
        Floats all[R];
        for (int j = 0; j < R; j++) {
            all[j] = sums[j][i][0];
            for (int p = 1; p < P; p++) all[j] += sums[j][i][p];
        }
        Four quarters[R];
        for (int j = 0; j < R; j++) quarters[j] = quarter(all[j]);
        put_totals<R>(quarters, y + i * ystep);
    }
}

// Weights from some row on: numbers and scales, and the bytes of a row of each.
struct Weights {
    const char* at;
    long row;
    const char* scales;
    long scale_row;
    Weights from(long o) const { return {at + o * row, row, scales + o * scale_row, scale_row}; }
};

// As above, for integers and coded inputs, `xstep` bytes apart. As many weights are asked for from `next` on, in the order
// in which they lie: four rows of 4 KiB side by side came at 20 GB/s to a Zen 4 core, one behind the other at 29.
template <class Format, int R, int N>
INLINE void dot_coded(Weights w, long n, Weights next, const char* x, long xstep, float* y, long ystep) {
    constexpr long block = Format::block, scale_block = Format::scale_block, given = Format::scales * sizeof(float);
    long blocks = n / Format::numbers, rest = n % Format::numbers;
    const char* scales = x + (blocks + (rest > 0)) * Format::codes;
    Floats sums[R][N] = {};
    auto ask = [&](long first, long last) __attribute__((always_inline)) {
        for (long k = R * first; k < R * last; k += LINE) ask_for(next.at + k);
    };
    for (long k = 0; k < R * w.scale_row; k += LINE) ask_for(next.scales + k);
    for (long c = 0; c < blocks; c++) {
        ask(c * block, (c + 1) * block);
        Format::template line<true>(w.at + c * block, w.row, w.scales + c * scale_block, w.scale_row, 0,
                                    x + c * Format::codes, scales + c * given, xstep, sums);
    }
    if (rest) {
        ask(blocks * block, w.row);
        Format::template line<false>(w.at + blocks * block, w.row, w.scales + blocks * scale_block, w.scale_row, rest,
                                     x + blocks * Format::codes, scales + blocks * given, xstep, sums);
    }
    for (int i = 0; i < N; i++) {
        Four quarters[R];
        for (int j = 0; j < R; j++) quarters[j] = quarter(sums[j][i]);
        put_totals<R>(quarters, y + i * ystep);
    }
}

template <int N>
struct Times {
    static constexpr int count = N;
};

// f(times, r) for rows of inputs from r on: N of them at a time, and what is left by halves.
template <int N, class F>
INLINE void by(long rows, long r, F f) {
    for (; r + N <= rows; r += N) f(Times<N>{}, r);
    if constexpr (N > 1) by<N / 2>(rows, r, f);
}

// Rows first to last of w, R at a time with N inputs; behind the last the weights at `then` are asked for.
template <class Format, int R, int N>
__attribute__((noinline)) void rows_of(Weights w, long n, long first, long last, const char* then, const float* x,
                                       long xstep, long rows, float* y, long ystep) {
    constexpr long ahead_lines = AHEAD_LINES / R;
    long lines = w.row / LINE, groups = 0, within = 0;
    if (lines) groups = ahead_lines / lines, within = ahead_lines % lines;
    long beyond = then - (w.at + last * w.row);
    long o = first;
    for (; o + R <= last; o += R) {
        long left = (last - o) / R - 1;
        Ahead ahead{lines - within, groups * R * w.row + within * LINE,
                    (groups + 1) * R * w.row + (within - lines) * LINE};
        if (groups > left) ahead.near += beyond;
        if (groups + 1 > left) ahead.far += beyond;
        by<N>(rows, 0, [&](auto times, long r) __attribute__((always_inline)) {
            dot<Format, R, times.count>(w.at + o * w.row, w.row, n, ahead, x + r * xstep, xstep, y + r * ystep + o,
                                        ystep);
        });
    }
    for (; o < last; o++)
        by<N>(rows, 0, [&](auto times, long r) __attribute__((always_inline)) {
            dot<Format, 1, times.count>(w.at + o * w.row, w.row, n, Ahead{lines, 0, 0}, x + r * xstep, xstep,
                                        y + r * ystep + o, ystep);
        });
}

// As above, for coded inputs.
template <class Format, int R, int N>
__attribute__((noinline)) void rows_of(Weights w, long n, long first, long last, const char* then, const char* x,
                                       long xstep, long rows, float* y, long ystep) {
    // Rows from the first that is worked on to the first that is asked for, AHEAD_LINES or more from each to its use.
    long lines = w.row / LINE + 1, far = R + (lines < AHEAD_LINES ? pieces(AHEAD_LINES - lines, lines) : 0);
    auto next = [&](long o) {
        Weights found = w.from(o + far);
        if (o + far >= last) found.at = then + (o + far - last) * w.row;
        return found;
    };
    long o = first;
    for (; o + R <= last; o += R)
        by<N>(rows, 0, [&](auto times, long r) __attribute__((always_inline)) {
            dot_coded<Format, R, times.count>(w.from(o), n, next(o), x + r * xstep, xstep, y + r * ystep + o, ystep);
        });
    for (; o < last; o++)
        by<N>(rows, 0, [&](auto times, long r) __attribute__((always_inline)) {
            dot_coded<Format, 1, times.count>(w.from(o), n, next(o), x + r * xstep, xstep, y + r * ystep + o, ystep);
        });
}

// Rows of numbers for products: each begins on a cache line and ends in zeros.
struct Rows {
    float* at;
    long step;
    float* operator[](long r) const { return at + r * step; }
};

// Rows of inputs as integers: `step` bytes apart, each begins on a cache line.
struct Codes {
    char* at;
    long step;
    char* operator[](long r) const { return at + r * step; }
};

// What products read: rows of n numbers, and where they are coded for weights that are integers.
struct Inputs : Rows {
    Codes codes;
    long n;
};

// Code row r of x for the weights of a format; what the last block has beyond it is zeros.
template <class Format>
void encode(const Inputs& x, long r) {
    constexpr long group = Format::group, groups = Format::numbers / group;
    long blocks = pieces(x.n, Format::numbers);
    char* codes = x.codes[r];
    float* scales = reinterpret_cast<float*>(codes + blocks * Format::codes);
    for (long g = 0; g < blocks * groups; g++) {
        const float* from = x[r] + g * group;
        float last[group] = {};
        long left = x.n - g * group;
        if (left < group) {
            if (left > 0) memcpy(last, from, 4 * left);
            from = last;
        }
        Format::encode(from, codes + g / groups * Format::codes, scales + g / groups * Format::scales, g % groups);
    }
}

// Before products of x with a matrix of this format.
inline void prepare(Team& team, int64_t format, const Inputs& x, long rows) {
    with_format(format, [&](auto f) {
        using Format = decltype(f);
        if constexpr (Format::coded) {
            auto one = [&](long r) { encode<Format>(x, r); };
            // Few are coded before a helper has seen that there is work.
            if (rows * x.n < ENOUGH_TO_CODE)
                for (long r = 0; r < rows; r++) one(r);
            else
                share(team, rows, one);
        }
    });
}

// Outputs first to last of m x + bias for the first `rows` rows of x, to the same places of y.
inline void multiply(const Matrix& m, long first, long last, const char* then, const Inputs& x, long rows, Rows y) {
    with_format(m.format, [&](auto format) {
        using Format = decltype(format);
        Weights w{static_cast<const char*>(m.weight), Format::bytes(m.inputs), static_cast<const char*>(m.scale),
                  Format::scale_bytes(m.inputs)};
        if (!then) then = w.at + last * w.row;
        auto all = [&](auto at, long step) {
            if (rows == 1)
                rows_of<Format, Format::one, 1>(w, m.inputs, first, last, then, at, step, rows, y.at, y.step);
            else if (!Format::coded || rows < TILE_ROWS)
                rows_of<Format, Format::two, 2>(w, m.inputs, first, last, then, at, step, rows, y.at, y.step);
            else if constexpr (Format::coded)
                for (long r = 0; r < rows; r += TILE_ROWS)
                    rows_of<Format, Format::four, TILE_ROWS>(w, m.inputs, first, last, then, at + r * step, step,
                                                     least(TILE_ROWS, rows - r), y[r], y.step);
        };
        if constexpr (Format::coded)
            all(static_cast<const char*>(x.codes.at), x.codes.step);
        else
            all(static_cast<const float*>(x.at), x.step);
    });
    auto scale = static_cast<const float*>(m.scale);
    bool scaled = m.format == 2;
    for (long r = 0; r < rows; r++) {
        float* out = y[r];
        if (scaled)
            for (long o = first; o < last; o++) out[o] *= scale[o];
        if (m.bias)
            for (long o = first; o < last; o++) out[o] += m.bias[o];
    }
}

inline const char* row_at(const Matrix& m, long o) {
    static constexpr int bits[] = {32, 16, 8, 4};
    return static_cast<const char*>(m.weight) + o * m.inputs * bits[m.format] / 8;
}

// Outputs of a product that are worth a claim, few enough that no member waits long for the last; a multiple of the rows
// that share loads.
inline long chunk_of(const Matrix& m, const Team& team, long rows) {
    constexpr long bytes = 256 << 10, chunks = 8, most_rows = 8;
    long row = row_at(m, 1) - row_at(m, 0), size = m.outputs;
    // Weights that many rows take in turn stay in the second cache.
    if (team.members > 1 || rows >= TILE_ROWS) {
        size = m.outputs / (chunks * team.members);
        if (size > bytes / row) size = bytes / row;
        size = size < most_rows ? most_rows : size / most_rows * most_rows;
    }
    return size;
}

// y = m x + bias, shared; then(first, last) follows each chunk.
template <class Then>
void product(Team& team, const Matrix& m, const Inputs& x, long rows, Rows y, Then then) {
    prepare(team, m.format, x, rows);
    long size = chunk_of(m, team, rows);
    share(team, pieces(m.outputs, size), [&](long i) {
        long first = i * size, last = least(first + size, m.outputs);
        multiply(m, first, last, nullptr, x, rows, y);
        then(first, last);
    });
}

// Three products of the same inputs in one stage, with matrices of one format.
inline void products(Team& team, const Matrix* const m[3], const Inputs& x, long rows, const Rows y[3]) {
    prepare(team, m[0]->format, x, rows);
    long sizes[3], ends[3], chunks = 0;
    for (int k = 0; k < 3; k++) {
        sizes[k] = chunk_of(*m[k], team, rows);
        chunks += pieces(m[k]->outputs, sizes[k]);
        ends[k] = chunks;
    }
    share(team, chunks, [&](long i) {
        int k = (i >= ends[0]) + (i >= ends[1]);
        long first = (i - (k ? ends[k - 1] : 0)) * sizes[k];
        multiply(*m[k], first, least(first + sizes[k], m[k]->outputs), nullptr, x, rows, y[k]);
    });
}

// y = silu(gate x) * (up x), with matrices of one format; z is overwritten.
inline void gated_product(Team& team, const Matrix& gate, const Matrix& up, const Inputs& x, long rows, Rows y, Rows z) {
    prepare(team, up.format, x, rows);
    long size = chunk_of(up, team, rows);
    share(team, pieces(up.outputs, size), [&](long i) {
        long first = i * size, last = least(first + size, up.outputs);
        multiply(up, first, last, row_at(gate, first), x, rows, y);
        multiply(gate, first, last, row_at(up, last), x, rows, z);
        for (long r = 0; r < rows; r++)
            combine(y[r] + first, z[r] + first, last - first, [](Floats a, Floats b) { return a * silu(b); });
    });
}

// Scratch memory, handed out in pieces that begin on a cache line. Without memory it only counts.
struct Scratch {
    char* memory;
    long used = 0;
    float* floats(long n) {
        long at = used;
        used += (4 * n + LINE - 1) / LINE * LINE;
        return memory ? reinterpret_cast<float*>(memory + at) : nullptr;
    }
    // A line of int8 holds 64 numbers, so rows end in zeros for every format. The odd line keeps rows out of each other's
    // way in the first cache.
    Rows rows(long count, long n) {
        long step = pieces(n, 64) * 64 + 16;
        return Rows{floats(count * step), step};
    }
    Inputs inputs(long count, long n) {
        Inputs x{rows(count, n), {nullptr, 0}, n};
        // Of the format with the most of either, codes of 16 bits and scales, in blocks of the largest.
        long bytes = pieces(n, Int4::numbers) * (2 * Int4::numbers + Int4::scales * 4) + LINE;
        x.codes = {reinterpret_cast<char*>(floats(count * bytes / 4)), bytes};
        return x;
    }
};

}  // namespace
