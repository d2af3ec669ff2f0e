// The codes of a position: the depth transformer (LayerNorm, attention over the depths so far, GELU), a depth at a time,
// and a draw from each depth's logits.
#pragma once
#include "attention.h"
#include "sampling.h"

namespace {

struct DepthWorkspace {
    Inputs first, later, normed, attended, wide;
    Rows state, q, k, v, branch, query, total, logits;
    float* top;
    Candidate* candidates;
    long bytes;

    DepthWorkspace(const Depth& d, char* memory) {
        Scratch scratch{memory};
        long items = d.rows * d.heads, head = d.width / d.heads;
        first = scratch.inputs(d.rows, d.first.inputs);
        later = scratch.inputs(d.rows, d.later.inputs);
        normed = scratch.inputs(d.rows, d.width);
        attended = scratch.inputs(d.rows, d.width);
        Rows* const as_wide_as_state[] = {&state, &q, &k, &v, &branch};
        for (Rows* rows : as_wide_as_state) *rows = scratch.rows(d.rows, d.width);
        wide = scratch.inputs(d.rows, d.blocks_count ? d.blocks[0].up.outputs : 0);
        query = scratch.rows(items, head);
        total = scratch.rows(items, head);
        logits = scratch.rows(d.rows, d.classes.outputs);
        top = scratch.floats(2 * LANES * items);
        candidates = reinterpret_cast<Candidate*>(scratch.floats(d.classes.outputs * sizeof(Candidate) / 4));
        bytes = scratch.used;
    }
};

inline void copy(const float* from, long step, Rows to, long rows, long n) {
    for (long r = 0; r < rows; r++) memcpy(to[r], from + r * step, 4 * n);
}

// Logits of a depth in w.logits, from w.first at depth 0 and from w.later after it.
void depth_step(Team& team, const Depth& d, const DepthWorkspace& w, long position) {
    long rows = d.rows, width = d.width, head = width / d.heads;
    if (!d.first.weight) {
        product(team, d.classes, w.first, rows, w.logits, [](long, long) {});
        return;
    }
    const Matrix& into = position ? d.later : d.first;
    const Inputs& given = position ? w.later : w.first;
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
            Seen seen{at(keys), at(values), at(keys), nullptr, nullptr, nullptr, position + 1};
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
    product(team, d.classes, w.normed, rows, w.logits, [](long, long) {});
}

// 0, or the depth from 1 on of a code that can't be drawn, as a logit is NaN or infinite, or that was given and is none.
int64_t draw(const Depth* depth, const Draw* asked) {
    const Depth& d = *depth;
    const Draw& a = *asked;
    Team team(d.threads);
    DepthWorkspace w(d, static_cast<char*>(d.scratch));
    bool guided = a.sampling.guidance != 1;
    long videos = guided ? d.rows / 2 : d.rows, codes = d.classes.outputs, wide = d.later.inputs;
    float guidance = float(a.sampling.guidance);
    copy(a.hidden, d.first.inputs, w.first, d.rows, d.first.inputs);
    for (long v = 0; v < videos; v++) memset(a.latent + v * wide, 0, 4 * wide);
    for (long position = 0; position < d.depth; position++) {
        // Logits that nobody wants are left out where nothing later depends on them.
        if (d.first.weight || !a.given || a.logits) depth_step(team, d, w, position);
        for (long v = 0; v < videos; v++) {
            float* logits = w.logits[v];
            if (guided)
                combine(logits, w.logits[videos + v], codes, [&](Floats c, Floats u) { return u + guidance * (c - u); });
            if (a.logits) memcpy(a.logits + (position * videos + v) * codes, logits, 4 * codes);
            long at = (v * a.tokens + a.index) * d.depth + position;
            int64_t code = a.given ? a.given[at] : sample(logits, codes, a.uniforms[at], a.sampling, w.candidates);
            if (code < 0 || code >= codes) return position + 1;
            a.codes[at] = code;
            float* latent = a.latent + v * wide;
            add(latent, d.books[position] + code * wide, wide);
            for (long r = v; r < d.rows; r += videos) memcpy(w.later[r], latent, 4 * wide);
        }
    }
    return 0;
}

int64_t depth_bytes(const Depth* d) { return DepthWorkspace(*d, nullptr).bytes; }

}  // namespace
