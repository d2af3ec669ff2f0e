// A decode pass: all decoder blocks on one or more tokens of every row.
#pragma once
#include "attention_integers.h"

namespace {

struct Workspace {
    Inputs normed, attended, hidden;
    Rows q, k, v, branch, gate, query, output;
    float *softmax_state, *head_scores, *normed_row;
    int64_t bytes;

    Workspace(const Decoder& d, char* memory) {
        Scratch scratch{memory};
        const Block& b = d.blocks[0];
        int64_t inputs = d.rows * d.most, items = inputs * d.heads;
        normed = scratch.inputs(inputs, d.width);
        q = scratch.rows(inputs, b.q.outputs);
        k = scratch.rows(inputs, b.k.outputs);
        v = scratch.rows(inputs, b.v.outputs);
        attended = scratch.inputs(inputs, b.q.outputs);
        branch = scratch.rows(inputs, d.width);
        hidden = scratch.inputs(inputs, b.up.outputs);
        gate = scratch.rows(inputs, b.up.outputs);
        query = scratch.rows(items, d.head_width);
        output = scratch.rows(items, d.head_width);
        softmax_state = scratch.floats(2 * LANES * items);
        head_scores = scratch.floats(items);
        normed_row = scratch.floats(d.width);
        bytes = scratch.used;
    }
};

inline void rotate(const float* x, const float* cos, const float* sin, int64_t d, float* out) {
    int64_t half = d / 2;
    for (int64_t j = 0; j < half; j++) {
        float a = x[j], b = x[half + j];
        out[j] = a * cos[j] - b * sin[j];
        out[half + j] = b * cos[half + j] + a * sin[half + j];
    }
}

// Queries of `inputs` inputs from `input` on, of the heads that share KV head g.
inline Queries queries_of(const Decoder& d, const Workspace& w, int64_t input, int64_t g, int64_t inputs) {
    int64_t groups = d.heads / d.kv_heads, item = input * d.heads + g * groups;
    float* state = w.softmax_state + 2 * LANES * item;
    return {{w.query[item], w.query.step}, {w.output[item], w.output.step}, state, groups, inputs, d.heads};
}

// What the heads of row r that share KV head g do in a pass.
template <class Format>
struct HeadGroup {
    const Decoder& d;
    const Block& b;
    const Step& step;
    const Workspace& w;
    int64_t r, g, n = d.head_width, groups = d.heads / d.kv_heads, head = r * d.kv_heads + g, bytes = n * Format::size;

    const At& place_of(int64_t i) const { return reinterpret_cast<const At*>(d.table)[step.tokens[r] + i]; }

    static void write_row(const float* x, int64_t n, void* rows, int64_t row) {
        char* at = static_cast<char*>(rows) + row * n * Format::size;
        for (int64_t k = 0; k < n; k++) Format::write(at + k * Format::size, x[k]);
    }

    // Row `from` of floats less their mean, to row `to` in int8; x [n] is overwritten. NaN and infinity show in the
    // scale.
    void write_int8(const void* rows, int64_t from, const float* means, float* x, void* older, float* scales,
                    int64_t to) const {
        const char* at = static_cast<const char*>(rows) + from * bytes;
        float most = 0;
        for (int64_t k = 0; k < n; k++) {
            x[k] = Format::read(at + k * Format::size) - means[head * n + k];
            float size = __builtin_fabsf(x[k]);
            // True of a NaN too, which then stays.
            if (!(size <= most) && most == most) most = size;
        }
        float scale = scales[to] = most / 127;
        float factor = scale > 1e-30f && most < __builtin_inff() ? 1 / scale : 0;
        auto out = static_cast<int8_t*>(older) + to * n;
        for (int64_t k = 0; k < n; k++) out[k] = int8_t(int(__builtin_rintf(factor ? x[k] * factor : 0)));
    }

    // Writes the rotated key and the value of input i to the caches.
    void write(int64_t i) const {
        const float *key = w.k[r * step.count + i] + g * n, *value = w.v[r * step.count + i] + g * n;
        const At& to = place_of(i);
        write_row(key, n, b.keys, head * d.slots + to.slot);
        write_row(key, n, b.aligned, head * d.aligned_slots + to.aligned_to);
        write_row(value, n, b.values, head * d.slots + to.slot);
    }

    // The first of the rotation's angles of input i, in cos and sin.
    int64_t angle_of(int64_t i) const {
        return ((step.tokens[r] + i) * d.angle_rows + (d.angle_rows == 1 ? 0 : r)) * n;
    }

    // Norms and rotates the key of input i, and moves what lies in its slot to the older ones.
    void prepare_key(int64_t i) const {
        int64_t input = r * step.count + i;
        const At& to = place_of(i);
        float *rotated = w.query[input * d.heads + g * groups], *key = w.k[input] + g * n;
        if (to.moved_to >= 0) {
            int64_t from = head * d.slots + to.slot, older = head * d.older_slots + to.moved_to;
            write_int8(b.keys, from, b.key_means, rotated, b.older_keys, b.older_key_scales, older);
            write_int8(b.values, from, b.value_means, rotated, b.older_values, b.older_value_scales, older);
        }
        if (b.k_norm) rms_norm(key, b.k_norm, n, float(d.eps), key);
        rotate(key, d.cos + angle_of(i), d.sin + angle_of(i), n, rotated);
        memcpy(key, rotated, 4 * n);
    }

    // As above, rotates the queries of input i and, where `scored`, computes the heads' share of TAS.
    void prepare(int64_t i, bool scored) const {
        prepare_key(i);
        int64_t input = r * step.count + i, first = g * groups, item = input * d.heads + first;
        const At& to = place_of(i);
        const float *cos = d.cos + angle_of(i), *sin = d.sin + angle_of(i);
        float scale = inverse_sqrt(float(n));
        auto aligned = static_cast<const char*>(b.aligned) + (head * d.aligned_slots + to.aligned_from) * bytes;
        for (int64_t h = 0; h < groups; h++) {
            float *q = w.q[input] + (first + h) * n, *query = w.query[item + h];
            if (b.q_norm) rms_norm(q, b.q_norm, n, float(d.eps), q);
            rotate(q, cos, sin, n, query);
            if (scored) {
                if (d.released) memcpy(w.output[item + h], q, 4 * n);
                const float* tas_query = d.released ? w.output[item + h] : query;
                float* score = w.head_scores + item + h;
                dot<Format, 1, 1>(aligned, bytes, n, PrefetchDistance{0, 0, 0}, tas_query, 0, score, 0);
            }
            for (int64_t k = 0; k < n; k++) query[k] *= scale;
        }
    }

    // Whether an input before input i attends to what lies in the slot that i overwrites.
    bool overwrites(int64_t i) const {
        if (!i) return false;
        // An input sees at least as much as the one before it, so the last one before i decides.
        int64_t slot = place_of(i).slot;
        return slot >= d.start[r] && slot < place_of(i - 1).length;
    }

    // Whether `attend` writes input i when it comes to the tile from slot s on, which inputs before i still attend to.
    bool due(int64_t i, int64_t s) const {
        int64_t slot = place_of(i).slot - d.start[r];
        return slot >= s && slot < s + TILE_SLOTS && overwrites(i);
    }

    // Attention of the inputs from `begin` on to `end`; appends: see `attend`.
    template <class Appends>
    void attend_inputs(int64_t begin, int64_t end, Appends appends) const {
        int64_t first = r * step.count + begin, start = head * d.slots + d.start[r], older = head * d.older_slots;
        Queries queries = queries_of(d, w, first, g, end - begin);
        Seen seen[MOST_ROWS], older_seen[MOST_ROWS];
        for (int64_t i = 0; i < queries.inputs; i++) {
            const At& to = place_of(begin + i);
            const uint8_t* mask = step.mask ? step.mask + (first + i) * (d.slots + d.older_slots) : nullptr;
            seen[i] = {to.length - d.start[r], mask ? mask + d.start[r] : nullptr};
            older_seen[i] = {to.older, mask ? mask + d.slots : nullptr};
        }
        begin_attention(queries, n);
        auto keys = static_cast<const char*>(b.keys), values = static_cast<const char*>(b.values);
        auto older_keys = static_cast<const char*>(b.older_keys) + older * n;
        bool has_older = older_seen[queries.inputs - 1].slots;
        if (has_older)
            attend({older_keys, static_cast<const char*>(b.older_values) + older * n, keys + start * bytes,
                    b.older_key_scales + older, b.older_value_scales + older, b.key_means + head * n,
                    b.value_means + head * n},
                   older_seen, queries, n);
        // What the next head reads first.
        int64_t next = head + 1 < d.rows * d.kv_heads ? head + 1 : head;
        const char* then = keys + (next * d.slots + d.start[next / d.kv_heads]) * bytes;
        if (has_older) then = older_keys + (next - head) * d.older_slots * n;
        attend<Format>({keys + start * bytes, values + start * bytes, then}, seen, queries, n, appends);
        end_attention(queries, n, {w.attended[first] + g * groups * n, w.attended.step});
    }

    // Attention of all inputs, which find the caches as in passes of their own. Without a mask they attend together,
    // and one that overwrites what others before it see is appended where they come to its slot. With a mask it is
    // appended after these have attended.
    void run(bool scored) const {
        for (int64_t i = 0; i < step.count && step.keys_only; i++) prepare_key(i), write(i);
        if (step.keys_only) return;
        // `prepare` overwrites the older slot that input i moves a token to: those that still see it attend before.
        auto moves = [&](int64_t i) {
            return place_of(i).moved_to >= 0 && place_of(i).moved_to < place_of(i - 1).older;
        };
        bool together = !step.mask;
        for (int64_t i = 1; i < step.count; i++) together = together && !moves(i);
        int64_t begin = 0;
        for (int64_t i = 0; i < step.count; i++) {
            bool late = overwrites(i);
            if (!together && i > begin && (late || moves(i))) {
                attend_inputs(begin, i, NothingDue{});
                begin = i;
            }
            prepare(i, scored);
            if (!together || !late) write(i);
        }
        if (together)
            attend_inputs(0, step.count, *this);
        else
            attend_inputs(begin, step.count, NothingDue{});
    }
};

// Cross attention of all inputs, added to step.x. Keys and values are normed before, and never rotated.
inline void attend_memory(Team& team, const Decoder& d, const Block& b, const Step& step, const Workspace& w) {
    int64_t rows = d.rows * step.count, width = d.width, n = d.head_width, groups = d.heads / d.kv_heads;
    for (int64_t r = 0; r < rows; r++) rms_norm(step.x + r * width, b.cross_norm, width, float(d.eps), w.normed[r]);
    product(team, b.cross_q, w.normed, rows, w.q);
    parallel_for(team, d.rows * d.kv_heads, [&](int64_t head) {
        CacheFormats::with(d.cache_format, [&](auto format) {
            using Format = decltype(format);
            int64_t memory = head * d.words * n * Format::size, first = head % d.kv_heads * groups;
            int64_t input = head / d.kv_heads * step.count;
            auto keys = static_cast<const char*>(b.memory_keys) + memory;
            Queries queries = queries_of(d, w, input, head % d.kv_heads, step.count);
            Seen seen[MOST_ROWS];
            queries.for_each([&](int64_t i, int64_t row) {
                float *q = w.q[input + i] + (first + row % d.heads) * n, *query = queries.query[row];
                if (b.cross_q_norm) rms_norm(q, b.cross_q_norm, n, float(d.eps), q);
                for (int64_t k = 0; k < n; k++) query[k] = q[k] * inverse_sqrt(float(n));
                seen[i] = {d.words, nullptr};
            });
            begin_attention(queries, n);
            attend<Format>({keys, static_cast<const char*>(b.memory_values) + memory, keys}, seen, queries, n);
            end_attention(queries, n, {w.attended[input] + first * n, w.attended.step});
        });
    });
    product(team, b.cross_o, w.attended, rows, w.branch, add_to({step.x, width}, w.branch, rows));
}

// The replay rule for one layer: writes the scores [inputs] of these tokens and which inputs replay.
inline void decide_replay(const Decoder& d, const Step& step, const Workspace& w, int64_t layer, bool* replays) {
    int64_t inputs = d.rows * step.count;
    float* scores = step.scores + layer * inputs;
    for (int64_t n = 0; n < inputs; n++) {
        float score = 0;
        for (int64_t h = 0; h < d.heads; h++) score += w.head_scores[n * d.heads + h];
        scores[n] = score / (__builtin_sqrtf(float(d.head_width)) * float(d.heads));
    }
    for (int64_t n = 0, half = inputs / 2; n < inputs; n++) {
        int64_t low = d.pairs ? n % half : n;
        float gated = d.pairs ? (scores[low] + scores[low + half]) / 2.0f : scores[n];
        replays[n] = step.thresholds && gated > step.thresholds[layer * inputs + n];
        step.replayed[layer * inputs + n] = replays[n];
    }
}

// The MLP branch of w.normed, to w.branch; after_chunk(first, last) is called after each chunk of outputs.
template <class AfterChunk>
void mlp(Team& team, const Block& b, const Workspace& w, int64_t rows, AfterChunk after_chunk) {
    gated_product(team, b.gate, b.up, w.normed, rows, w.hidden, w.gate);
    product(team, b.down, w.hidden, rows, w.branch, after_chunk);
}

void decode(const Decoder* decoder, Step* request) {
    const Decoder& d = *decoder;
    const Step& step = *request;
    Team team(d.threads);
    Workspace w(d, static_cast<char*>(d.scratch));
    int64_t rows = d.rows * step.count, width = d.width;
    Rows x{step.x, width};
    // The inputs whose MLP is computed, in the order of w.normed.
    int64_t computing[MOST_ROWS];
    bool replays[MOST_ROWS];
    int64_t mlp_ns = 0;
    for (int64_t layer = 0; layer < d.layers; layer++) {
        const Block& b = d.blocks[layer];
        bool scored = step.scores && (!step.scored || step.scored[layer]);
        if (step.places) add(step.x, step.places, rows * width);
        for (int64_t r = 0; r < rows; r++) rms_norm(x[r], b.norm1, width, float(d.eps), w.normed[r]);
        if (step.keys_only)
            products<2>(team, {&b.k, &b.v}, w.normed, rows, {w.k, w.v});
        else
            products<3>(team, {&b.q, &b.k, &b.v}, w.normed, rows, {w.q, w.k, w.v});
        parallel_for(team, d.rows * d.kv_heads, [&](int64_t head) {
            CacheFormats::with(d.cache_format, [&](auto format) {
                HeadGroup<decltype(format)>{d, b, step, w, head / d.kv_heads, head % d.kv_heads}.run(scored);
            });
        });
        if (step.keys_only) return;
        product(team, b.o, w.attended, rows, w.branch, add_to(x, w.branch, rows));
        if (b.cross_norm) attend_memory(team, d, b, step, w);
        for (int64_t r = 0; r < rows; r++) replays[r] = false;
        if (scored) decide_replay(d, step, w, layer, replays);
        int64_t mlp_start = monotonic_ns();
        int64_t count = 0;
        for (int64_t r = 0; r < rows; r++)
            if (!replays[r]) {
                rms_norm(x[r], b.norm2, width, float(d.eps), w.normed[count]);
                computing[count++] = r;
            }
        auto with_outputs = [&](auto format) {
            using Format = decltype(format);
            auto cached_output = [&](int64_t n) {
                int64_t r = n / step.count, place = (step.tokens[r] + n % step.count) % d.positions;
                return static_cast<char*>(b.outputs) + (r * d.positions + place) * width * Format::size;
            };
            // A computed output is added as the replay cache holds it, rounded, so that its replay adds the same.
            auto add_cached = [&](int64_t r, int64_t first, int64_t last) {
                const char* at = cached_output(r);
                for (int64_t k = first; k < last; k++) x[r][k] += Format::read(at + k * Format::size);
            };
            for (int64_t r = 0; r < rows; r++)
                if (replays[r]) add_cached(r, 0, width);
            if (count)
                mlp(team, b, w, count, [&](int64_t first, int64_t last) {
                    for (int64_t n = 0; n < count; n++) {
                        char* at = cached_output(computing[n]);
                        for (int64_t k = first; k < last; k++) Format::write(at + k * Format::size, w.branch[n][k]);
                        add_cached(computing[n], first, last);
                    }
                });
        };
        if (b.outputs)
            CacheFormats::with(d.output_format, with_outputs);
        else
            mlp(team, b, w, rows, add_to(x, w.branch, rows));
        mlp_ns += monotonic_ns() - mlp_start;
    }
    request->mlp_ns = mlp_ns;
    if (!d.norm) return;
    for (int64_t r = 0; r < rows; r++) {
        rms_norm(x[r], d.norm, width, float(d.eps), w.normed_row);
        memcpy(x[r], w.normed_row, 4 * width);
    }
}

int64_t decoder_bytes(const Decoder* d) { return Workspace(*d, nullptr).bytes; }

}  // namespace
