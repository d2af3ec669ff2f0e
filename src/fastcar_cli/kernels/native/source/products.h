// Linear maps of rows of inputs, shared by a team of threads.
#pragma once
#include "panels.h"
#include "team.h"

namespace {

// Fewer numbers are quantised by the leader alone, before a helper would have noticed the work.
constexpr int64_t MIN_SHARED_QUANTISE = 8192;

// Rows of float32; each begins on a cache line and ends in zeros.
struct Rows {
    float* at;
    int64_t step;
    float* operator[](int64_t r) const { return at + r * step; }
};

// Inputs of products: rows of n numbers, and memory for their quantised form, which integer weights need.
struct Inputs : Rows {
    char* quantised;
    int64_t n;
};

// Where the quantised form of `rows` rows of x lies. Units of the rows come last.
template <class Format>
struct QuantisedPlaces {
    char *integers, *scales;
    float* units;
    QuantisedPlaces(const Inputs& x, int64_t rows) {
        int64_t blocks = ceil_div(x.n, Format::block_inputs) * rows;
        integers = x.quantised;
        scales = integers + blocks * Format::input_bytes;
        units = reinterpret_cast<float*>(scales) + blocks * Format::input_scales;
    }
};

// Row r of x, of `rows`, quantised for weights of this format. The last block is filled up with zeros.
template <class Format>
void quantise(const Inputs& x, int64_t r, int64_t rows) {
    constexpr int64_t group = Format::group_size, groups = Format::block_inputs / group, bytes = Format::input_bytes;
    int64_t blocks = ceil_div(x.n, Format::block_inputs);
    QuantisedPlaces<Format> to(x, rows);
    float unit = 1;
    if (Format::units) to.units[r] = unit = scale_unit(x[r], x.n, 127);
    for (int64_t g = 0; g < blocks * groups; g++) {
        const float* from = x[r] + g * group;
        float last[group] = {};
        int64_t left = x.n - g * group;
        if (left < group) {
            if (left > 0) memcpy(last, from, 4 * left);
            from = last;
        }
        int64_t k = g / groups * rows + r;
        auto scale = reinterpret_cast<float*>(to.scales) + k * Format::input_scales;
        Format::quantise(from, to.integers + k * bytes, scale, g % groups, unit);
    }
}

// Quantises x where weights of this format need it; must be called before `multiply`.
inline void quantise_inputs(Team& team, int64_t format, const Inputs& x, int64_t rows) {
    Formats::with(format, [&](auto f) {
        using Format = decltype(f);
        if constexpr (Format::quantised) {
            auto one = [&](int64_t r) { quantise<Format>(x, r, rows); };
            if (rows * x.n < MIN_SHARED_QUANTISE)
                for (int64_t r = 0; r < rows; r++) one(r);
            else
                parallel_for(team, rows, one);
        }
    });
}

// Writes outputs first to last of m x + bias to y, for the first `rows` rows of x. Past the last output the weights at
// `read_next` are prefetched (null: those of the next output).
inline void multiply(const Matrix& m, int64_t first, int64_t last, const char* read_next, const Inputs& x, int64_t rows,
                     Rows y) {
    const float *row_scales = nullptr, *units = nullptr;
    Formats::with(m.format, [&](auto format) {
        using Format = decltype(format);
        Weights w{static_cast<const char*>(m.weight), Format::bytes(m.inputs), static_cast<const char*>(m.scale),
                  Format::scale_bytes(m.inputs)};
        if (!read_next) read_next = w.at + last * w.row;
        if (Format::row.scale_bits && !Format::row.group) row_scales = static_cast<const float*>(m.scale);
        auto all = [&](typename Format::Inputs from) {
            if (rows == 1)
                multiply_rows<Format, Format::one, 1>(w, m.inputs, first, last, read_next, from, rows, y.at, y.step);
            else if (!in_panels<Format>(m.inputs, rows))
                multiply_rows<Format, Format::two, 2>(w, m.inputs, first, last, read_next, from, rows, y.at, y.step);
            else
                multiply_panels<Format>(w, m.inputs, first, last, read_next, from, rows, y.at, y.step);
        };
        if constexpr (Format::quantised) {
            QuantisedPlaces<Format> from(x, rows);
            if (Format::units) units = from.units;
            all({from.integers, from.scales, rows});
        } else
            all({x.at, x.step});
    });
    for (int64_t r = 0; r < rows; r++) {
        float* out = y[r];
        if (units)
            for (int64_t o = first; o < last; o++) out[o] *= units[r];
        if (row_scales)
            for (int64_t o = first; o < last; o++) out[o] *= row_scales[o];
        if (m.bias)
            for (int64_t o = first; o < last; o++) out[o] += m.bias[o];
    }
}

inline const char* weight_row(const Matrix& m, int64_t o) {
    int64_t row = 0;
    Formats::with(m.format, [&](auto format) { row = decltype(format)::bytes(m.inputs); });
    return static_cast<const char*>(m.weight) + o * row;
}

// How many outputs of a product make a chunk: few enough that no member waits long for the last one, and a multiple of
// every tile's weight rows.
inline int64_t chunk_size(const Matrix& m, const Team& team) {
    constexpr int64_t bytes = 256 << 10, chunks = 8, tile_rows = 8;
    int64_t row = weight_row(m, 1) - weight_row(m, 0), size = m.outputs;
    if (team.members > 1) {
        size = m.outputs / (chunks * team.members);
        if (size > bytes / row) size = bytes / row;
        size = size < tile_rows ? tile_rows : size / tile_rows * tile_rows;
    }
    return size;
}

struct DoNothing {
    void operator()(int64_t, int64_t) const {}
};

// y[k] = m[k] x + bias for N matrices of one format, in one stage that the team shares; after_chunk(first, last) is
// called after each chunk of outputs.
template <int N, class AfterChunk = DoNothing>
void products(Team& team, const Matrix* const (&m)[N], const Inputs& x, int64_t rows, const Rows (&y)[N],
              AfterChunk after_chunk = {}) {
    quantise_inputs(team, m[0]->format, x, rows);
    int64_t sizes[N], begins[N + 1] = {};
    for (int k = 0; k < N; k++) {
        sizes[k] = chunk_size(*m[k], team);
        begins[k + 1] = begins[k] + ceil_div(m[k]->outputs, sizes[k]);
    }
    parallel_for(team, begins[N], [&](int64_t i) {
        int k = 0;
        while (i >= begins[k + 1]) k++;
        int64_t first = (i - begins[k]) * sizes[k], last = min(first + sizes[k], m[k]->outputs);
        multiply(*m[k], first, last, nullptr, x, rows, y[k]);
        after_chunk(first, last);
    });
}

// y = m x + bias, as above.
template <class AfterChunk = DoNothing>
void product(Team& team, const Matrix& m, const Inputs& x, int64_t rows, Rows y, AfterChunk after_chunk = {}) {
    products<1>(team, {&m}, x, rows, {y}, after_chunk);
}

// What adds each chunk of outputs in `branch` to the rows of x, for `product`.
inline auto add_to(Rows x, Rows branch, int64_t rows) {
    return [=](int64_t first, int64_t last) {
        for (int64_t r = 0; r < rows; r++) add(x[r] + first, branch[r] + first, last - first);
    };
}

// y = silu(gate x) * (up x); the matrices have one format, z is overwritten.
inline void gated_product(Team& team, const Matrix& gate, const Matrix& up, const Inputs& x, int64_t rows, Rows y,
                          Rows z) {
    quantise_inputs(team, up.format, x, rows);
    int64_t size = chunk_size(up, team);
    parallel_for(team, ceil_div(up.outputs, size), [&](int64_t i) {
        int64_t first = i * size, last = min(first + size, up.outputs);
        multiply(up, first, last, weight_row(gate, first), x, rows, y);
        multiply(gate, first, last, weight_row(up, last), x, rows, z);
        for (int64_t r = 0; r < rows; r++)
            combine(y[r] + first, z[r] + first, last - first, [](Floats a, Floats b) { return a * silu(b); });
    });
}

// Cache lines from one row to the next, of at least so many each, such that the same segment of several rows spreads
// over the sets of an L1 cache: every other row lies 42 lines further, of 64 sets.
inline int64_t spread(int64_t lines) { return lines < 21 ? lines + 1 : ceil_div(lines - 21, 32) * 32 + 21; }

// Hands out scratch memory; each piece begins on a cache line. Without memory it only counts the bytes.
struct Scratch {
    char* memory;
    int64_t used = 0;
    float* floats(int64_t n) {
        int64_t at = used;
        used += ceil_div(4 * n, CACHE_LINE) * CACHE_LINE;
        return memory ? reinterpret_cast<float*>(memory + at) : nullptr;
    }
    // A cache line of int8 holds 64 numbers, so rows end in zeros for every format.
    Rows rows(int64_t count, int64_t n) {
        int64_t step = spread(ceil_div(n, 64) * 4) * CACHE_LINE / 4;
        return Rows{floats(count * step), step};
    }
    Inputs inputs(int64_t count, int64_t n) {
        Inputs x{rows(count, n), nullptr, n};
        // Room for any format.
        int64_t bytes = 0;
        Formats::for_each([&](auto format) {
            using Format = decltype(format);
            if constexpr (Format::quantised) {
                int64_t needed = bytes_of_inputs<Format>(n) + 4;
                if (needed > bytes) bytes = needed;
            }
        });
        x.quantised = reinterpret_cast<char*>(floats(count * bytes / 4));
        return x;
    }
};

}  // namespace
