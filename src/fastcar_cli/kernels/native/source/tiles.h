// Products of weight rows with one or two inputs, a tile. They are bound by how fast a core reads weights from memory.
// So with each cache line that is multiplied, the line a fixed distance ahead is prefetched: in the same row or, past
// its end, in the row that is multiplied next.
#pragma once
#include "formats.h"

namespace {

// Cache lines between a prefetch and its use, over all rows of a tile: enough to be on their way while memory answers.
constexpr int64_t PREFETCH_LINES = 128;
// In bytes: quantised inputs of a tile that stay in the L1 cache while weight rows pass by one at a time, and rows that
// are long enough for that.
constexpr int64_t L1_INPUTS = 32 << 10, LONG_ROW = 1 << 10;

// Bytes from a cache line to the one to prefetch: `near` before line `split` of a row, `far` from there on.
struct PrefetchDistance {
    int64_t split, near, far;
};

constexpr int64_t ceil_div(int64_t n, int64_t size) { return (n + size - 1) / size; }
inline int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }

// Bytes of n inputs as products read them: quantised, with their scales, where the format needs that.
template <class Format>
constexpr int64_t bytes_of_inputs(int64_t n) {
    return ceil_div(n, Format::block_inputs) * int64_t(Format::input_bytes + Format::input_scales * sizeof(float));
}

// Into the L2 cache, as some cores can wait for far fewer lines on their way to the L1 cache. With PREFETCH_ONCE, for
// Zen 5, into the L1 cache and no other.
inline void prefetch(const char* at) {
#if defined(PREFETCH_ONCE)
    __builtin_prefetch(at, 0, 0);
#else
    __builtin_prefetch(at, 0, 2);
#endif
}

// Writes the lane sums of R vectors to y.
template <int R>
INLINE void store_lane_sums(const Float4* all, float* y) {
    int j = 0;
    for (; j + 4 <= R; j += 4) {
        Float4 four = four_lane_sums(all[j], all[j + 1], all[j + 2], all[j + 3]);
        memcpy(y + j, &four, sizeof four);
    }
    for (; j < R; j++) y[j] = lane_sum_of_four(all[j]);
}

// y[i y_step + j] = row j of w times input i, for R rows of n weights, `row` bytes apart, and N inputs. The order of
// additions does not depend on R and N. x is zero up to a multiple of the weights in a cache line.
template <class Format, int R, int N, bool prefetches = true>
INLINE void dot(const char* w, int64_t row, int64_t n, PrefetchDistance ahead, const float* x, int64_t x_step, float* y,
                int64_t y_step) {
    constexpr int line_weights = CACHE_LINE / Format::size, vectors = line_weights / LANES, P = Format::sums;
    Floats sums[R][N][P] = {};
    auto multiply_line = [&](const char* at, int64_t step, const float* in) __attribute__((always_inline)) {
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v++) {
            Floats inputs[N];
            for (int i = 0; i < N; i++) inputs[i] = load(in + i * x_step + v * LANES);
            for (int j = 0; j < R; j++) {
                Floats weights = Format::widen(at + j * step + v * LANES * Format::size);
                for (int i = 0; i < N; i++) sums[j][i][v % P] += weights * inputs[i];
            }
        }
    };
    auto multiply_lines = [&](int64_t begin, int64_t end, int64_t distance) __attribute__((always_inline)) {
        for (int64_t c = begin; c < end; c++) {
            for (int j = 0; j < R && prefetches; j++) prefetch(w + j * row + c * CACHE_LINE + distance);
            multiply_line(w + c * CACHE_LINE, row, x + c * line_weights);
        }
    };
    int64_t lines = n / line_weights, split = min(ahead.split, lines);
    multiply_lines(0, split, ahead.near);
    multiply_lines(split, lines, ahead.far);
    if (int64_t tail = n % line_weights) {
        char last[R * CACHE_LINE] = {};
        for (int j = 0; j < R; j++)
            memcpy(last + j * CACHE_LINE, w + j * row + lines * CACHE_LINE, tail * Format::size);
        multiply_line(last, CACHE_LINE, x + lines * line_weights);
    }
    for (int i = 0; i < N; i++) {
        Floats all[R];
        for (int j = 0; j < R; j++) {
            all[j] = sums[j][i][0];
            for (int p = 1; p < P; p++) all[j] += sums[j][i][p];
        }
        Float4 folded[R];
        for (int j = 0; j < R; j++) folded[j] = fold_to_four(all[j]);
        store_lane_sums<R>(folded, y + i * y_step);
    }
}

template <int N>
struct Count {
    static constexpr int count = N;
};

// Weights from some row on, and their scales; `row` and `scale_row` are the bytes from one row to the next.
struct Weights {
    const char* at;
    int64_t row;
    const char* scales;
    int64_t scale_row;
    Weights from_row(int64_t o) const { return {at + o * row, row, scales + o * scale_row, scale_row}; }
};

// What is prefetched while weights are read in the order in which they are stored: those `rows` rows on, and where
// these would lie past `end`, the ones another `jump` bytes on.
struct ReadOrder {
    const char* end;
    int64_t rows, jump;
    INLINE void prefetch_for(const char* at, int64_t row, int64_t bytes) const {
        const char* to = at + rows * row;
        if (to >= end) to += jump;
        for (int64_t k = 0; k < bytes; k += CACHE_LINE) prefetch(to + k);
    }
};

// As above for integer weights and quantised inputs. Of the R rows, S are read side by side. As many weights are
// prefetched in the order in which they are stored, whatever S is: a core reads one long piece of memory much faster
// than several side by side.
template <class Format, int R, int N, int S>
INLINE void dot_quantised(Weights w, int64_t n, ReadOrder order, QuantisedInputs x, float* y, int64_t y_step) {
    constexpr int64_t block = Format::block_bytes, weight_scales = Format::weight_scale_bytes;
    int64_t blocks = n / Format::block_inputs, tail = n % Format::block_inputs;
    Float4 folded[N][R];
    for (int64_t k = 0; k < R * w.scale_row; k += CACHE_LINE) prefetch(w.scales + order.rows * w.scale_row + k);
#pragma GCC unroll 1
    for (int j = 0; j < R; j += S) {
        Weights rows = w.from_row(j);
        Floats sums[S][N] = {};
        auto multiply_block = [&](auto full, int64_t c) __attribute__((always_inline)) {
            order.prefetch_for(rows.at + S * c * block, w.row, S * (full.count ? block : w.row - c * block));
            for (int k = 0; k < S; k++) {
                Weights from = rows.from_row(k);
                auto unpacked = Format::template unpack<full.count, 1>(from.at + c * block, 0,
                                                                       from.scales + c * weight_scales, 0, tail);
                for (int i = 0; i < N; i++) {
                    QuantisedInputs input = x.from<Format>(c, i);
                    Format::multiply_block(unpacked, input.integers, input.scales, &sums[k][i]);
                }
            }
        };
        for (int64_t c = 0; c < blocks; c++) multiply_block(Count<1>{}, c);
        if (tail) multiply_block(Count<0>{}, blocks);
        for (int i = 0; i < N; i++)
            for (int k = 0; k < S; k++) folded[i][j + k] = fold_to_four(sums[k][i]);
    }
    for (int i = 0; i < N; i++) store_lane_sums<R>(folded[i], y + i * y_step);
}

// Calls f(tile, r) for all rows of inputs from r on, with tiles of N rows, then N / 2, down to 1.
template <int N, class F>
INLINE void for_input_tiles(int64_t rows, int64_t r, F f) {
    for (; r + N <= rows; r += N) f(Count<N>{}, r);
    if constexpr (N > 1) for_input_tiles<N / 2>(rows, r, f);
}

// Multiplies weight rows first to last, R at a time, with all inputs, up to N at a time. Past the last row the weights
// at `read_next` are prefetched.
template <class Format, int R, int N>
__attribute__((noinline)) void multiply_rows(Weights w, int64_t n, int64_t first, int64_t last, const char* read_next,
                                             FloatInputs x, int64_t rows, float* y, int64_t y_step) {
    constexpr int64_t lines_ahead = PREFETCH_LINES / R;
    int64_t lines = w.row / CACHE_LINE, groups = 0, within = 0;
    if (lines) groups = lines_ahead / lines, within = lines_ahead % lines;
    int64_t to_read_next = read_next - (w.at + last * w.row), o = first;
    auto multiply = [&](auto tile_rows, PrefetchDistance ahead) __attribute__((always_inline)) {
        for_input_tiles<N>(rows, 0, [&](auto tile, int64_t r) __attribute__((always_inline)) {
            dot<Format, tile_rows.count, tile.count>(w.at + o * w.row, w.row, n, ahead, x.at + r * x.step, x.step,
                                                     y + r * y_step + o, y_step);
        });
    };
    for (; o + R <= last; o += R) {
        int64_t left = (last - o) / R - 1;
        PrefetchDistance ahead{lines - within, groups * R * w.row + within * CACHE_LINE,
                               (groups + 1) * R * w.row + (within - lines) * CACHE_LINE};
        if (groups > left) ahead.near += to_read_next;
        if (groups + 1 > left) ahead.far += to_read_next;
        multiply(Count<R>{}, ahead);
    }
    for (; o < last; o++) multiply(Count<1>{}, {lines, 0, 0});
}

// As above for quantised inputs. Long weight rows are read one at a time where the inputs stay in the L1 cache; else
// the rows of a tile side by side, which share the loads of inputs.
template <class Format, int R, int N>
__attribute__((noinline)) void multiply_rows(Weights w, int64_t n, int64_t first, int64_t last, const char* read_next,
                                             QuantisedInputs x, int64_t rows, float* y, int64_t y_step) {
    const char* end = w.at + last * w.row;
    int64_t lines = w.row / CACHE_LINE + 1, o = first;
    auto multiply = [&](auto tile_rows, auto side) __attribute__((always_inline)) {
        constexpr int T = decltype(tile_rows)::count, S = decltype(side)::count;
        // At least PREFETCH_LINES ahead.
        ReadOrder order{end, S + (lines < PREFETCH_LINES ? ceil_div(PREFETCH_LINES - lines, lines) : 0),
                        read_next - end};
        for (; o + T <= last; o += T)
            for_input_tiles<N>(rows, 0, [&](auto tile_inputs, int64_t r) __attribute__((always_inline)) {
                dot_quantised<Format, T, tile_inputs.count, S>(w.from_row(o), n, order, x.from<Format>(0, r),
                                                               y + r * y_step + o, y_step);
            });
    };
    if (w.row >= LONG_ROW && N * bytes_of_inputs<Format>(n) <= L1_INPUTS) multiply(Count<R>{}, Count<1>{});
    // What is left.
    multiply(Count<R>{}, Count<R>{});
    multiply(Count<1>{}, Count<1>{});
}

}  // namespace
