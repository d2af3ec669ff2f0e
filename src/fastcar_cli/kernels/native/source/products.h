// Products of rows of weights with one or two inputs.
//
// What bounds a decode step is how fast a core draws weights from memory, so with each line that is worked on the one
// a fixed way ahead is asked for: in the same row, and behind its end in the row that is worked on next.
#pragma once
#include "formats.h"
#include "structs.h"
#include "team.h"

namespace {

constexpr long AHEAD_LINES = 40;
// Rows of a decode pass, at most.
constexpr long MOST_ROWS = 1024;

// Bytes from a line to the one to ask for: `near` before line `split` of a row, `far` from there on.
struct Ahead {
    long split, near, far;
};

inline void ask_for(const char* at) { __builtin_prefetch(at, 0, 3); }

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
        int j = 0;
        for (; j + 4 <= R; j += 4) {
            Four four = totals(all[j], all[j + 1], all[j + 2], all[j + 3]);
            memcpy(y + i * ystep + j, &four, sizeof four);
        }
        for (; j < R; j++) y[i * ystep + j] = total(all[j]);
    }
}

template <class Format, int R>
INLINE void dots(const char* w, long row, long n, Ahead ahead, const float* x, long xstep, long rows, float* y,
                 long ystep) {
    long r = 0;
    for (; r + 2 <= rows; r += 2) dot<Format, R, 2>(w, row, n, ahead, x + r * xstep, xstep, y + r * ystep, ystep);
    if (r < rows) dot<Format, R, 1>(w, row, n, ahead, x + r * xstep, xstep, y + r * ystep, ystep);
}

// Rows first to last of w, R at a time; behind the last the weights at `then` are asked for.
template <class Format, int R>
void rows_of(const char* w, long row, long n, long first, long last, const char* then, const float* x, long xstep,
             long rows, float* y, long ystep) {
    long lines = row / LINE, groups = 0, within = 0;
    if (lines) groups = AHEAD_LINES / lines, within = AHEAD_LINES % lines;
    long beyond = then - (w + last * row);
    long o = first;
    for (; o + R <= last; o += R) {
        long left = (last - o) / R - 1;
        Ahead ahead{lines - within, groups * R * row + within * LINE,
                    (groups + 1) * R * row + (within - lines) * LINE};
        if (groups > left) ahead.near += beyond;
        if (groups + 1 > left) ahead.far += beyond;
        dots<Format, R>(w + o * row, row, n, ahead, x, xstep, rows, y + o, ystep);
    }
    for (; o < last; o++) dots<Format, 1>(w + o * row, row, n, Ahead{lines, 0, 0}, x, xstep, rows, y + o, ystep);
}

// Rows of numbers for products: each begins on a cache line and ends in zeros.
struct Rows {
    float* at;
    long step;
    float* operator[](long r) const { return at + r * step; }
};

// Outputs first to last of m x + bias for the first `rows` rows of x, to the same places of y.
inline void multiply(const Matrix& m, long first, long last, const char* then, Rows x, long rows, Rows y) {
    with_format(m.format, [&](auto format) {
        using Format = decltype(format);
        auto w = static_cast<const char*>(m.weight);
        long row = m.inputs * Format::size;
        if (!then) then = w + last * row;
        if (rows == 1)
            rows_of<Format, Format::one>(w, row, m.inputs, first, last, then, x.at, x.step, rows, y.at, y.step);
        else
            rows_of<Format, Format::two>(w, row, m.inputs, first, last, then, x.at, x.step, rows, y.at, y.step);
    });
    for (long r = 0; r < rows; r++) {
        float* out = y[r];
        if (m.scale)
            for (long o = first; o < last; o++) out[o] *= m.scale[o];
        if (m.bias)
            for (long o = first; o < last; o++) out[o] += m.bias[o];
    }
}

inline const char* row_at(const Matrix& m, long o) {
    static constexpr int sizes[] = {Float32::size, BFloat16::size, Int8::size};
    return static_cast<const char*>(m.weight) + o * m.inputs * sizes[m.format];
}

// Outputs of a product that are worth a claim, few enough that no member waits long for the last; a multiple of the rows
// that share loads.
inline long chunk_of(const Matrix& m, const Team& team) {
    constexpr long bytes = 256 << 10, chunks = 8, most_rows = 8;
    long row = row_at(m, 1) - row_at(m, 0), size = m.outputs;
    if (team.members > 1) {
        size = m.outputs / (chunks * team.members);
        if (size > bytes / row) size = bytes / row;
        size = size < most_rows ? most_rows : size / most_rows * most_rows;
    }
    return size;
}

inline long pieces(long n, long size) { return (n + size - 1) / size; }
inline long least(long a, long b) { return a < b ? a : b; }

// y = m x + bias, shared; then(first, last) follows each chunk.
template <class Then>
void product(Team& team, const Matrix& m, Rows x, long rows, Rows y, Then then) {
    long size = chunk_of(m, team);
    share(team, pieces(m.outputs, size), [&](long i) {
        long first = i * size, last = least(first + size, m.outputs);
        multiply(m, first, last, nullptr, x, rows, y);
        then(first, last);
    });
}

// Three products of the same inputs in one stage.
inline void products(Team& team, const Matrix* const m[3], Rows x, long rows, const Rows y[3]) {
    long sizes[3], ends[3], chunks = 0;
    for (int k = 0; k < 3; k++) {
        sizes[k] = chunk_of(*m[k], team);
        chunks += pieces(m[k]->outputs, sizes[k]);
        ends[k] = chunks;
    }
    share(team, chunks, [&](long i) {
        int k = (i >= ends[0]) + (i >= ends[1]);
        long first = (i - (k ? ends[k - 1] : 0)) * sizes[k];
        multiply(*m[k], first, least(first + sizes[k], m[k]->outputs), nullptr, x, rows, y[k]);
    });
}

// y = silu(gate x) * (up x); z is overwritten.
inline void gated_product(Team& team, const Matrix& gate, const Matrix& up, Rows x, long rows, Rows y, Rows z) {
    long size = chunk_of(up, team);
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
};

}  // namespace
