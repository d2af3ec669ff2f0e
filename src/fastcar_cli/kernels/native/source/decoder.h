// A decode pass: all decoder blocks on one token of every row.
#pragma once
#include "attention.h"

namespace {

struct Workspace {
    Inputs normed, attended, hidden;
    Rows q, k, v, branch, gate, query, output;
    float *softmax_state, *head_scores, *normed_row;
    long bytes;

    Workspace(const Decoder& d, char* memory) {
        Scratch scratch{memory};
        const Block& b = d.blocks[0];
        long items = d.rows * d.heads;
        normed = scratch.inputs(d.rows, d.width);
        q = scratch.rows(d.rows, b.q.outputs);
        k = scratch.rows(d.rows, b.k.outputs);
        v = scratch.rows(d.rows, b.v.outputs);
        attended = scratch.inputs(d.rows, b.q.outputs);
        branch = scratch.rows(d.rows, d.width);
        hidden = scratch.inputs(d.rows, b.up.outputs);
        gate = scratch.rows(d.rows, b.up.outputs);
        query = scratch.rows(items, d.head_width);
        output = scratch.rows(items, d.head_width);
        softmax_state = scratch.floats(2 * LANES * items);
        head_scores = scratch.floats(items);
        normed_row = scratch.floats(d.width);
        bytes = scratch.used;
    }
};

inline void rotate(const float* x, const float* cos, const float* sin, long d, float* out) {
    long half = d / 2;
    for (long j = 0; j < half; j++) {
        float a = x[j], b = x[half + j];
        out[j] = a * cos[j] - b * sin[j];
        out[half + j] = b * cos[half + j] + a * sin[half + j];
    }
}

template <class Format>
inline void write_row(Format, const float* x, long n, void* rows, float*, long row) {
    char* at = static_cast<char*>(rows) + row * n * Format::size;
    for (long k = 0; k < n; k++) Format::write(at + k * Format::size, x[k]);
}

// Quantised rows show NaN and infinity in their scale.
template <class Format>
inline void write_quantised(const float* x, long n, void* rows, float* scales, long row) {
    float most = 0;
    for (long k = 0; k < n; k++) {
        float size = __builtin_fabsf(x[k]);
        most = size <= most ? most : size;
        if (size != size) break;
    }
    float scale = scales[row] = most / Format::largest;
    float factor = scale > 1e-30f && most < __builtin_inff() ? 1 / scale : 0;
    char* at = static_cast<char*>(rows) + row * Format::bytes(n);
    for (long k = 0; k < n; k++) Format::write(at, n, k, int(__builtin_rintf(x[k] * factor)));
}
inline void write_row(CachedInt8, const float* x, long n, void* rows, float* scales, long row) {
    write_quantised<CachedInt8>(x, n, rows, scales, row);
}
inline void write_row(CachedInt12, const float* x, long n, void* rows, float* scales, long row) {
    write_quantised<CachedInt12>(x, n, rows, scales, row);
}

// Attention of the heads of row r that share KV head g: rotates their queries and the new key, writes key and value to
// the caches and, where `scored`, computes the heads' share of TAS.
template <class Format, class Aligned>
void attend_group(const Decoder& d, const Block& b, const Step& step, const Workspace& w, long r, long g, bool scored) {
    long n = d.head_width, groups = d.heads / d.kv_heads, first = g * groups, item = r * d.heads + first;
    long head = r * d.kv_heads + g, slots = step.length - d.start[r], bytes = Format::bytes(n);
    const float* cos = step.cos + (step.angle_rows == 1 ? 0 : r * n);
    const float* sin = step.sin + (step.angle_rows == 1 ? 0 : r * n);
    float* key = w.query[item];
    rotate(w.k[r] + g * n, cos, sin, n, key);
    write_row(Format{}, key, n, b.keys, b.key_scales, head * d.slots + step.slot);
    write_row(Aligned{}, key, n, b.aligned, nullptr, head * d.aligned_slots + step.aligned_to);
    write_row(Format{}, w.v[r] + g * n, n, b.values, b.value_scales, head * d.slots + step.slot);

    Queries queries{{w.query[item], w.query.step}, {w.output[item], w.output.step},
                    w.softmax_state + 2 * LANES * item, groups};
    float scale = inverse_sqrt(float(n));
    auto keys = static_cast<const char*>(b.keys) + head * d.slots * bytes;
    auto aligned =
        static_cast<const char*>(b.aligned) + (head * d.aligned_slots + step.aligned_from) * n * Aligned::size;
    for (long h = 0; h < groups; h++) {
        const float* q = w.q[r] + (first + h) * n;
        float* query = queries.query[h];
        rotate(q, cos, sin, n, query);
        if (scored) {
            if (d.released) memcpy(w.output[item + h], q, 4 * n);
            const float* tas_query = d.released ? w.output[item + h] : query;
            dot<Aligned, 1, 1>(aligned, n * Aligned::size, n, PrefetchDistance{0, 0, 0}, tas_query, 0,
                               w.head_scores + item + h, 0);
        }
        for (long k = 0; k < n; k++) query[k] *= scale;
    }
    long next = head + 1 < d.rows * d.kv_heads ? head + 1 : head;
    auto scales = [&](const float* all) { return all ? all + head * d.slots + d.start[r] : nullptr; };
    HeadCache cache{keys + d.start[r] * bytes,
                    static_cast<const char*>(b.values) + (head * d.slots + d.start[r]) * bytes,
                    static_cast<const char*>(b.keys) + (next * d.slots + d.start[next / d.kv_heads]) * bytes,
                    scales(b.key_scales), scales(b.value_scales),
                    step.mask ? step.mask + r * d.slots + d.start[r] : nullptr, slots};
    attend<Format>(cache, queries, n);
    for (long h = 0; h < groups; h++) memcpy(w.attended[r] + (first + h) * n, queries.output[h], 4 * n);
}

// The replay rule for one layer: writes the scores [rows] of this token and which rows replay.
inline void decide_replay(const Decoder& d, const Step& step, const Workspace& w, long layer, bool* replays) {
    float* scores = step.scores + layer * d.rows;
    for (long r = 0; r < d.rows; r++) {
        float score = 0;
        for (long h = 0; h < d.heads; h++) score += w.head_scores[r * d.heads + h];
        scores[r] = score / (__builtin_sqrtf(float(d.head_width)) * float(d.heads));
    }
    for (long r = 0, half = d.rows / 2; r < d.rows; r++) {
        long low = d.pairs ? r % half : r;
        float gated = d.pairs ? (scores[low] + scores[low + half]) / 2.0f : scores[r];
        replays[r] = step.thresholds && gated > step.thresholds[layer * d.rows + r];
        step.replayed[layer * d.rows + r] = replays[r];
    }
}

// The MLP branch of w.normed, to w.branch; after_chunk(first, last) is called after each chunk of outputs.
template <class AfterChunk>
void mlp(Team& team, const Block& b, const Workspace& w, long rows, AfterChunk after_chunk) {
    gated_product(team, b.gate, b.up, w.normed, rows, w.hidden, w.gate);
    product(team, b.down, w.hidden, rows, w.branch, after_chunk);
}

void decode(const Decoder* decoder, Step* request) {
    const Decoder& d = *decoder;
    const Step& step = *request;
    Team team(d.threads);
    Workspace w(d, static_cast<char*>(d.scratch));
    long rows = d.rows, width = d.width;
    // The rows whose MLP is computed, in the order of w.normed.
    long computing[MOST_ROWS];
    bool replays[MOST_ROWS];
    int64_t mlp_ns = 0;
    for (long layer = 0; layer < d.layers; layer++) {
        const Block& b = d.blocks[layer];
        bool scored = step.scores && (!step.scored || step.scored[layer]);
        for (long r = 0; r < rows; r++) rms_norm(step.x + r * width, b.norm1, width, float(d.eps), w.normed[r]);
        const Matrix* const maps[] = {&b.q, &b.k, &b.v};
        const Rows mapped[] = {w.q, w.k, w.v};
        products(team, maps, w.normed, rows, mapped);
        parallel_for(team, rows * d.kv_heads, [&](long i) {
            with_caches(d.cache_format, d.aligned_format, [&](auto format, auto aligned) {
                attend_group<decltype(format), decltype(aligned)>(d, b, step, w, i / d.kv_heads, i % d.kv_heads,
                                                                        scored);
            });
        });
        product(team, b.o, w.attended, rows, w.branch, [&](long first, long last) {
            for (long r = 0; r < rows; r++) add(step.x + r * width + first, w.branch[r] + first, last - first);
        });

        for (long r = 0; r < rows; r++) replays[r] = false;
        if (scored) decide_replay(d, step, w, layer, replays);
        int64_t mlp_start = monotonic_ns();
        long count = 0;
        for (long r = 0; r < rows; r++)
            if (!replays[r]) {
                rms_norm(step.x + r * width, b.norm2, width, float(d.eps), w.normed[count]);
                computing[count++] = r;
            }
        auto with_outputs = [&](auto format) {
            using Format = decltype(format);
            auto cached_output = [&](long r) {
                return static_cast<char*>(b.outputs) + (r * d.positions + step.position) * width * Format::size;
            };
            // A computed output is added as the replay cache holds it, rounded, so that its replay adds the same.
            auto add_cached = [&](long r, long first, long last) {
                const char* at = cached_output(r);
                for (long k = first; k < last; k++) step.x[r * width + k] += Format::read(at + k * Format::size);
            };
            for (long r = 0; r < rows; r++)
                if (replays[r]) add_cached(r, 0, width);
            if (count)
                mlp(team, b, w, count, [&](long first, long last) {
                    for (long n = 0; n < count; n++) {
                        char* at = cached_output(computing[n]);
                        for (long k = first; k < last; k++) Format::write(at + k * Format::size, w.branch[n][k]);
                        add_cached(computing[n], first, last);
                    }
                });
        };
        if (b.outputs)
            with_cache_format(d.output_format, with_outputs);
        else
            mlp(team, b, w, rows, [&](long first, long last) {
                for (long r = 0; r < rows; r++) add(step.x + r * width + first, w.branch[r] + first, last - first);
            });
        mlp_ns += monotonic_ns() - mlp_start;
    }
    request->mlp_ns = mlp_ns;
    for (long r = 0; r < rows; r++) {
        rms_norm(step.x + r * width, d.norm, width, float(d.eps), w.normed_row);
        memcpy(step.x + r * width, w.normed_row, 4 * width);
    }
}

int64_t decoder_bytes(const Decoder* d) { return Workspace(*d, nullptr).bytes; }

// Only norms and MLPs, each layer on the same x [rows, width]; y [rows, width] is what the last layer adds.
void mlps(const Decoder* decoder, const float* x, float* y, int64_t passes) {
    const Decoder& d = *decoder;
    Team team(d.threads);
    Workspace w(d, static_cast<char*>(d.scratch));
    for (long n = 0; n < passes * d.layers; n++) {
        const Block& b = d.blocks[n % d.layers];
        for (long r = 0; r < d.rows; r++) rms_norm(x + r * d.width, b.norm2, d.width, float(d.eps), w.normed[r]);
        mlp(team, b, w, d.rows, [](long, long) {});
    }
    for (long r = 0; r < d.rows; r++) memcpy(y + r * d.width, w.branch[r], 4 * d.width);
}

}  // namespace
