// Drawing the codes of a token: the depth transformer (LayerNorm, attention over the depths so far, GELU) computes the
// logits of one depth after another, and a code is sampled from each.
#pragma once
#include "attention.h"
#include "sampling.h"

namespace {

struct DepthWorkspace {
    Inputs first, later, normed, attended, mlp_hidden;
    Rows state, q, k, v, branch, query, output, logits;
    float* softmax_state;
    Candidate* candidates;
    int64_t bytes;

    DepthWorkspace(const Depth& d, char* memory) {
        Scratch scratch{memory};
        int64_t items = d.rows * d.heads, head_width = d.width / d.heads;
        first = scratch.inputs(d.rows, d.first.inputs);
        later = scratch.inputs(d.rows, d.later.inputs);
        normed = scratch.inputs(d.rows, d.width);
        attended = scratch.inputs(d.rows, d.width);
        Rows* const state_sized[] = {&state, &q, &k, &v, &branch};
        for (Rows* rows : state_sized) *rows = scratch.rows(d.rows, d.width);
        mlp_hidden = scratch.inputs(d.rows, d.blocks_count ? d.blocks[0].up.outputs : 0);
        query = scratch.rows(items, head_width);
        output = scratch.rows(items, head_width);
        logits = scratch.rows(d.rows, d.classifier.outputs);
        softmax_state = scratch.floats(2 * LANES * items);
        // Members of the team sample side by side, each draw with candidates of its own.
        int64_t candidate_floats = d.rows * d.classifier.outputs * sizeof(Candidate) / 4;
        candidates = reinterpret_cast<Candidate*>(scratch.floats(candidate_floats));
        bytes = scratch.used;
    }
};

// Writes the logits of one depth to w.logits; the input is w.first at depth 0, w.later after it.
void depth_step(Team& team, const Depth& d, const DepthWorkspace& w, int64_t depth) {
    int64_t rows = d.rows, width = d.width, head_width = width / d.heads;
    if (!d.first.weight) {
        product(team, d.classifier, w.first, rows, w.logits);
        return;
    }
    const Matrix& map = depth ? d.later : d.first;
    const Inputs& input = depth ? w.later : w.first;
    product(team, map, input, rows, w.state, [&](int64_t first, int64_t last) {
        for (int64_t r = 0; r < rows; r++)
            add(w.state[r] + first, d.depth_embeddings + depth * width + first, last - first);
    });
    auto to_state = add_to(w.state, w.branch, rows);
    for (int64_t block = 0; block < d.blocks_count; block++) {
        const DepthBlock& b = d.blocks[block];
        for (int64_t r = 0; r < rows; r++) layer_norm(w.state[r], b.norm1, b.norm1_bias, width, w.normed[r]);
        products<3>(team, {&b.q, &b.k, &b.v}, w.normed, rows, {w.q, w.k, w.v});
        float scale = inverse_sqrt(float(head_width));
        for (int64_t i = 0; i < rows * d.heads; i++) {
            int64_t r = i / d.heads, h = i % d.heads;
            int64_t slot = ((block * rows + r) * d.heads + h) * d.depth * head_width;
            float *keys = d.keys + slot, *values = d.values + slot, *query = w.query[i];
            memcpy(keys + depth * head_width, w.k[r] + h * head_width, 4 * head_width);
            memcpy(values + depth * head_width, w.v[r] + h * head_width, 4 * head_width);
            for (int64_t k = 0; k < head_width; k++) query[k] = w.q[r][h * head_width + k] * scale;
            auto at = [](float* p) { return reinterpret_cast<const char*>(p); };
            Seen seen{depth + 1, nullptr};
            Queries queries{{query, 0}, {w.output[i], 0}, w.softmax_state + 2 * LANES * i, 1, 1, 1};
            begin_attention(queries, head_width);
            attend<Float32>({at(keys), at(values), at(keys)}, &seen, queries, head_width);
            end_attention(queries, head_width, {w.attended[r] + h * head_width, 0});
        }
        product(team, b.o, w.attended, rows, w.branch, to_state);
        for (int64_t r = 0; r < rows; r++) layer_norm(w.state[r], b.norm2, b.norm2_bias, width, w.normed[r]);
        product(team, b.up, w.normed, rows, w.mlp_hidden, [&](int64_t first, int64_t last) {
            for (int64_t r = 0; r < rows; r++)
                combine(w.mlp_hidden[r] + first, w.mlp_hidden[r] + first, last - first,
                        [](Floats a, Floats) { return gelu(a); });
        });
        product(team, b.down, w.mlp_hidden, rows, w.branch, to_state);
    }
    for (int64_t r = 0; r < rows; r++) layer_norm(w.state[r], d.norm, d.norm_bias, width, w.normed[r]);
    product(team, d.classifier, w.normed, rows, w.logits);
}

// Returns 0, or 1 + the depth at which sampling failed (a non-finite logit, or a given code out of range).
int64_t draw(const Depth* transformer, const Draw* request) {
    const Draw& a = *request;
    bool guided = a.sampling.guidance != 1;
    int64_t draws = a.videos * a.count;
    Depth d = *transformer;
    Team team(d.threads);
    // Laid out for the most rows, so that padding stays zero whatever the count.
    DepthWorkspace w(d, static_cast<char*>(d.scratch));
    d.rows = guided ? 2 * draws : draws;
    int64_t codes = d.classifier.outputs, code_width = d.later.inputs;
    float guidance = float(a.sampling.guidance);
    for (int64_t r = 0, n = d.first.inputs; r < d.rows; r++) memcpy(w.first[r], a.hidden + r * n, 4 * n);
    auto position = [&](int64_t n) { return (n / a.count * a.tokens + a.first[n / a.count] + n % a.count) * d.depth; };
    auto given = [&](int64_t n, int64_t depth) { return a.given ? a.given[position(n) + depth] : -1; };
    bool all_given = a.given;
    for (int64_t n = 0; n < draws; n++) {
        memset(a.latent + n * code_width, 0, 4 * code_width);
        all_given = all_given && given(n, 0) >= 0;
    }
    for (int64_t depth = 0; depth < d.depth; depth++) {
        // Skipped where nothing needs the logits: without a transformer, for given codes, if they are not returned.
        if (d.first.weight || !all_given || a.logits) depth_step(team, d, w, depth);
        bool failed = false;
        parallel_for(team, draws, [&](int64_t n) {
            float* logits = w.logits[n];
            if (guided)
                combine(logits, w.logits[draws + n], codes, [&](Floats c, Floats u) { return u + guidance * (c - u); });
            if (a.logits) memcpy(a.logits + (depth * draws + n) * codes, logits, 4 * codes);
            int64_t code = given(n, depth);
            if (code < 0)
                code = sample(logits, codes, a.uniforms[position(n) + depth], a.sampling, a.top_p[n],
                              w.candidates + n * codes);
            if (code < 0 || code >= codes) {
                __atomic_store_n(&failed, true, __ATOMIC_RELAXED);
                return;
            }
            a.codes[position(n) + depth] = code;
            float* latent = a.latent + n * code_width;
            add(latent, d.codebooks[depth] + code * code_width, code_width);
            for (int64_t r = n; r < d.rows; r += draws) memcpy(w.later[r], latent, 4 * code_width);
        });
        if (failed) return depth + 1;
    }
    return 0;
}

int64_t depth_bytes(const Depth* d) { return DepthWorkspace(*d, nullptr).bytes; }

}  // namespace
