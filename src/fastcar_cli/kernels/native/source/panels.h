// Products of weight rows with many inputs, bound by arithmetic. Weight rows are multiplied a panel at a time, which
// the L2 cache holds while the next one is on its way, and inputs a segment of their length at a time, which the L1
// cache holds. Each output is summed in the same order as by tiles.h, so that it does not depend on the number of
// inputs.
#pragma once
#include "tiles.h"

namespace {

// The most inputs that share the reading of a panel. With AVX2 more share the unpacking of int8 weights, whose sums
// don't stay in registers anyway.
constexpr int64_t PANEL_INPUTS = 16;
template <class Format>
constexpr int64_t panel_inputs = LANES == 8 && Format::quantised && !Format::halves ? 64 : PANEL_INPUTS;
// The most weight rows of a panel, and bytes of it if these are enough rows: while it is multiplied, the next one is prefetched.
constexpr int64_t PANEL_ROWS = 32, PANEL_BYTES = 128 << 10;
// Bytes of a segment of all inputs.
constexpr int64_t SEGMENT_BYTES = 24 << 10;

// The largest part of n no larger than `most` so that all parts are about as large.
inline int64_t even_part(int64_t n, int64_t most) { return ceil_div(n, ceil_div(n, most)); }

// Calls f(Count<n>), for n of 1 to N.
template <int N, class F>
INLINE void with_count(int64_t n, F f) {
    if (n == N)
        f(Count<N>{});
    else if constexpr (N > 1)
        with_count<N - 1>(n, f);
}

// Adds the products of `blocks` blocks of R weight rows with N quantised inputs to sums [N][R], which are 0 if `fresh`
// whatever they hold and stay in registers. With each block as many bytes are prefetched from `next` on, unless null.
template <bool full, int R, int N, class Format>
INLINE void multiply_tile(Format, Weights w, int64_t blocks, int64_t tail, const char* next, QuantisedInputs x,
                          Floats* sums, bool fresh) {
    constexpr int64_t bytes = R * Format::block_bytes;
    Floats own[N][R] = {};
    if (!fresh) memcpy(own, sums, sizeof own);
    for (int64_t c = 0; c < blocks; c++) {
        for (int64_t k = 0; k < bytes && next; k += CACHE_LINE) prefetch(next + c * bytes + k);
        auto unpacked = Format::template unpack<full, R>(w.at + c * Format::block_bytes, w.row,
                                                         w.scales + c * Format::weight_scale_bytes, w.scale_row, tail);
        for (int i = 0; i < N; i++) {
            QuantisedInputs input = x.from<Format>(c, i);
            Format::multiply_block(unpacked, input.integers, input.scales, own[i]);
        }
    }
    memcpy(sums, own, sizeof own);
}

// As above for any number of inputs, to sums [inputs][R].
template <bool full, int R, class Format>
INLINE void multiply_segment(Format, Weights w, int64_t blocks, int64_t tail, const char* next, QuantisedInputs x,
                             int64_t inputs, Floats* sums, bool fresh) {
    if constexpr (Format::few > 0 && (R == 1 || Format::tiles))
        if (R > 1 || inputs <= Format::few) {
            int64_t most = even_part(inputs, Format::few);
            for (int64_t i = 0, n; i < inputs; i += n) {
                n = min(most, inputs - i);
                with_count<Format::few>(n, [&](auto count) __attribute__((always_inline)) {
                    multiply_tile<full, R, count.count>(Format{}, w, blocks, tail, i ? nullptr : next,
                                                        x.from<Format>(0, i), sums + i * R, fresh);
                });
            }
            return;
        }
    constexpr int64_t lines = R * Format::block_bytes / CACHE_LINE;
    // One line with each input and the rest before: after a burst of prefetches what is multiplied now comes late.
    auto prefetch_line = [&](int64_t c, int64_t i) __attribute__((always_inline)) {
        if (i < lines) prefetch(next + (c * lines + i) * CACHE_LINE);
    };
    auto multiply_block = [&](auto first, int64_t c) __attribute__((always_inline)) {
        for (int64_t k = inputs; k < lines; k++) prefetch_line(c, k);
        auto unpacked = Format::template unpack<full, R>(w.at + c * Format::block_bytes, w.row,
                                                         w.scales + c * Format::weight_scale_bytes, w.scale_row, tail);
        GroupSums products[Format::halves ? PANEL_INPUTS : 1][R];
        if constexpr (Format::halves)
            for (int64_t i = 0; i < inputs; i++) {
                prefetch_line(c, i);
                QuantisedInputs input = x.from<Format>(c, i);
                Format::template multiply_half<0>(unpacked, input.integers, input.scales, products[i], sums);
            }
        for (int64_t i = 0; i < inputs; i++) {
            if (!Format::halves) prefetch_line(c, i);
            QuantisedInputs input = x.from<Format>(c, i);
            Floats own[R] = {};
            if (!first.count) memcpy(own, sums + i * R, sizeof own);
            if constexpr (Format::halves)
                Format::template multiply_half<1>(unpacked, input.integers, input.scales, products[i], own);
            else
                Format::multiply_block(unpacked, input.integers, input.scales, own);
            memcpy(sums + i * R, own, sizeof own);
        }
    };
    if (fresh) multiply_block(Count<1>{}, 0);
    for (int64_t c = fresh; c < blocks; c++) multiply_block(Count<0>{}, c);
}

// Adds the products of `lines` cache lines of R weight rows with N inputs to sums [N][R]: of every P-th vector, so that
// the sums fit the registers.
template <int R, int N, int P, bool prefetches, class Format>
INLINE void multiply_lines(Format, const char* w, int64_t row, int64_t lines, const char* next, const float* x,
                           int64_t x_step, Floats* sums, bool fresh) {
    constexpr int line_weights = CACHE_LINE / Format::size, vectors = line_weights / LANES;
    Floats own[N][R] = {};
    if (!fresh) memcpy(own, sums, sizeof own);
    for (int64_t c = 0; c < lines; c++) {
        for (int j = 0; j < R && prefetches; j++) prefetch(next + (c * R + j) * CACHE_LINE);
        for (int v = 0; v < vectors; v += P) {
            Floats weights[R];
            for (int j = 0; j < R; j++)
                weights[j] = Format::widen(w + j * row + c * CACHE_LINE + v * LANES * Format::size);
            for (int i = 0; i < N; i++) {
                Floats input = load(x + i * x_step + c * line_weights + v * LANES);
                for (int j = 0; j < R; j++) own[i][j] += weights[j] * input;
            }
        }
    }
    memcpy(sums, own, sizeof own);
}

// As above for float inputs; sums [partial sums][inputs][R].
template <bool full, int R, class Format>
INLINE void multiply_segment(Format, Weights w, int64_t lines, int64_t tail, const char* next, FloatInputs x,
                             int64_t inputs, Floats* sums, bool fresh) {
    constexpr int P = Format::sums;
    char last[R * CACHE_LINE] = {};
    if (!full) {
        for (int j = 0; j < R; j++) memcpy(last + j * CACHE_LINE, w.at + j * w.row, tail * Format::size);
        w = {last, CACHE_LINE, nullptr, 0};
    }
    int64_t most = even_part(inputs, Format::most_inputs);
    for (int64_t i = 0, n; i < inputs; i += n) {
        n = min(most, inputs - i);
        with_count<Format::most_inputs>(n, [&](auto count) __attribute__((always_inline)) {
            auto multiply = [&](auto prefetches, int p) __attribute__((always_inline)) {
                multiply_lines<R, count.count, P, prefetches.count>(Format{}, w.at + p * LANES * Format::size, w.row,
                                                                    lines, next, x.at + i * x.step + p * LANES, x.step,
                                                                    sums + (p * inputs + i) * R, fresh);
            };
            if (i)
                multiply(Count<0>{}, 0);
            else
                multiply(Count<1>{}, 0);
            for (int p = 1; p < P; p++) multiply(Count<0>{}, p);
        });
    }
}

// Multiplies `outputs` weight rows of n weights, R at a time, with at most panel_inputs inputs. Meanwhile as many
// weights are prefetched from `next` on.
template <int R, class Format>
__attribute__((noinline)) void multiply_panel(Format, Weights w, int64_t n, int64_t outputs, const char* next,
                                              typename Format::Inputs x, int64_t inputs, float* y, int64_t y_step) {
    constexpr int P = Format::sums;
    Floats sums[PANEL_ROWS * panel_inputs<Format> * P];
    int64_t blocks = n / Format::block_inputs, tail = n % Format::block_inputs;
    auto segment = [&](auto full, int64_t c, int64_t count) __attribute__((always_inline)) {
        for (int64_t o = 0; o < outputs; o += R) {
            for (int64_t k = 0; k < R * w.scale_row && c == 0; k += CACHE_LINE)
                prefetch(w.scales + (outputs + o) * w.scale_row + k);
            multiply_segment<full.count, R>(
                Format{},
                Weights{w.at + o * w.row + c * Format::block_bytes, w.row,
                        w.scales + o * w.scale_row + c * Format::weight_scale_bytes, w.scale_row},
                count, tail, next, x.template from<Format>(c, 0), inputs, sums + o * inputs * P, !c);
            next += R * count * Format::block_bytes;
        }
    };
    int64_t most = SEGMENT_BYTES / (inputs * bytes_of_inputs<Format>(Format::block_inputs));
    if (blocks) most = even_part(blocks, most ? most : 1);
    for (int64_t c = 0; c < blocks; c += most) segment(Count<1>{}, c, min(most, blocks - c));
    if (tail) segment(Count<0>{}, blocks, 1);
    for (int64_t o = 0; o < outputs; o += R)
        for (int64_t i = 0; i < inputs; i++) {
            Float4 folded[R];
            for (int j = 0; j < R; j++) {
                Floats all = sums[o * inputs * P + i * R + j];
                for (int p = 1; p < P; p++) all += sums[(o * P + p * R) * inputs + i * R + j];
                folded[j] = fold_to_four(all);
            }
            store_lane_sums<R>(folded, y + i * y_step + o);
        }
}

// Whether products with so many inputs are made in panels: floats unless the L1 cache nearly holds them, two quantised
// inputs if it can't hold them, unless blocks are multiplied in halves.
template <class Format>
constexpr bool in_panels(int64_t n, int64_t inputs) {
    int64_t bytes = inputs * bytes_of_inputs<Format>(n);
    if (!Format::quantised) return inputs >= Format::from_inputs && bytes > 2 * L1_INPUTS;
    return inputs >= Format::from_inputs || (inputs == 2 && bytes > L1_INPUTS && !Format::halves);
}

// Multiplies weight rows first to last with all inputs. Past the last row the weights at `read_next` are prefetched.
template <class Format>
void multiply_panels(Weights w, int64_t n, int64_t first, int64_t last, const char* read_next,
                     typename Format::Inputs x, int64_t inputs, float* y, int64_t y_step) {
    // Each panel of floats reads all inputs again, from an L2 cache that with AVX-512 holds more rows.
    constexpr int R = Format::many, least = LANES == 16 && !Format::quantised ? 4 * R : R;
    int64_t size = PANEL_BYTES / w.row / R * R;
    size = even_part(last - first, size < least ? least : min(size, PANEL_ROWS));
    size = ceil_div(size, R) * R;
    for (int64_t o = first, count; o < last; o += count) {
        count = min(size, last - o);
        if (count > R) count = count / R * R;
        const char* next = o + count == last ? read_next : w.at + (o + count) * w.row;
        int64_t most = even_part(inputs, panel_inputs<Format>);
        for (int64_t i = 0; i < inputs; i += most) {
            auto multiply = [&](auto rows) {
                multiply_panel<rows.count>(Format{}, w.from_row(o), n, count, next, x.template from<Format>(0, i),
                                           min(most, inputs - i), y + i * y_step + o, y_step);
            };
            if (count % R || (inputs <= Format::few && !Format::tiles))
                multiply(Count<1>{});
            else
                multiply(Count<R>{});
        }
    }
}

}  // namespace
