// One step of the depth transformer: LayerNorm, attention over the depths so far, GELU.
#pragma once
#include "attention.h"

namespace {

struct DepthWorkspace {
    Rows first, later, state, normed, q, k, v, attended, branch, wide, query, total, logits;
    float* top;
    long bytes;

    DepthWorkspace(const Depth& d, char* memory) {
        Scratch scratch{memory};
        long items = d.rows * d.heads, head = d.width / d.heads;
        first = scratch.rows(d.rows, d.first.inputs);
        later = scratch.rows(d.rows, d.later.inputs);
        Rows* const as_wide_as_state[] = {&state, &normed, &q, &k, &v, &attended, &branch};
        for (Rows* rows : as_wide_as_state) *rows = scratch.rows(d.rows, d.width);
        wide = scratch.rows(d.rows, d.blocks[0].up.outputs);
        query = scratch.rows(items, head);
        total = scratch.rows(items, head);
        logits = scratch.rows(d.rows, d.classes.outputs);
        top = scratch.floats(2 * LANES * items);
        bytes = scratch.used;
    }
};

inline void copy(const float* from, long step, Rows to, long rows, long n) {
    for (long r = 0; r < rows; r++) memcpy(to[r], from + r * step, 4 * n);
}

void depth_step(const Depth* depth, const float* x, int64_t position, float* logits) {
    const Depth& d = *depth;
    Team team(d.threads);
    DepthWorkspace w(d, static_cast<char*>(d.scratch));
    long rows = d.rows, width = d.width, head = width / d.heads;
    const Matrix& into = position ? d.later : d.first;
    Rows given = position ? w.later : w.first;
    copy(x, into.inputs, given, rows, into.inputs);
    product(team, into, given, rows, w.state, [&](long first, long last) {
        for (long r = 0; r < rows; r++) add(w.state[r] + first, d.place + position * width + first, last - first);
    });
    auto to_state = [&](long first, long last) {
        for (long r = 0; r < rows; r++) add(w.state[r] + first, w.branch[r] + first, last - first);
    };
    for (long block = 0; block < d.blocks_count; block++) {
        const DepthBlock& b = d.blocks[block];
        for (long r = 0; r < rows; r++) layer_norm(w.state[r], b.norm1, b.norm1_bias, width, w.normed[r]);
        const Matrix* const maps[] = {&b.q, &b.k, &b.v};
        const Rows mapped[] = {w.q, w.k, w.v};
        products(team, maps, w.normed, rows, mapped);
        float scale = inverse_root(float(head));
        for (long i = 0; i < rows * d.heads; i++) {
            long r = i / d.heads, h = i % d.heads;
            long cache = ((block * rows + r) * d.heads + h) * d.depth * head;
            float *keys = d.keys + cache, *values = d.values + cache, *query = w.query[i];
            memcpy(keys + position * head, w.k[r] + h * head, 4 * head);
            memcpy(values + position * head, w.v[r] + h * head, 4 * head);
            for (long k = 0; k < head; k++) query[k] = w.q[r][h * head + k] * scale;
            auto at = [](float* p) { return reinterpret_cast<const char*>(p); };
            Seen seen{at(keys), at(values), at(keys), nullptr, position + 1};
            attend<Float32>(seen, Queries{{query, 0}, {w.total[i], 0}, w.top + 2 * LANES * i, 1}, head);
            memcpy(w.attended[r] + h * head, w.total[i], 4 * head);
        }
        product(team, b.o, w.attended, rows, w.branch, to_state);
        for (long r = 0; r < rows; r++) layer_norm(w.state[r], b.norm2, b.norm2_bias, width, w.normed[r]);
        product(team, b.up, w.normed, rows, w.wide, [&](long first, long last) {
            for (long r = 0; r < rows; r++)
                combine(w.wide[r] + first, w.wide[r] + first, last - first, [](Floats a, Floats) { return gelu(a); });
        });
        product(team, b.down, w.wide, rows, w.branch, to_state);
    }
    for (long r = 0; r < rows; r++) layer_norm(w.state[r], d.norm, d.norm_bias, width, w.normed[r]);
    long codes = d.classes.outputs;
    product(team, d.classes, w.normed, rows, w.logits, [](long, long) {});
    for (long r = 0; r < rows; r++) memcpy(logits + r * codes, w.logits[r], 4 * codes);
}

int64_t depth_bytes(const Depth* d) { return DepthWorkspace(*d, nullptr).bytes; }

}  // namespace
