// What Python hands to the kernels. structs.py parses this file and makes its ctypes structs from it.
#pragma once
#include <stdint.h>

// Most rows of a decode pass.
constexpr int64_t MOST_ROWS = 1024;

// A row of the table of formats, as formats.py has it: bits of a weight and of a scale, weights that share a scale (0:
// all of a row). Without scales scale_bits is 0.
struct FormatRow {
    const char* name;
    int64_t bits, scale_bits, group;
};

// A linear map: weight [outputs, inputs] in the format of this number in `Formats` of formats.h. scale, a row for each
// output, and bias, float [outputs], may be null.
struct Matrix {
    const void *weight, *scale;
    const float* bias;
    int64_t outputs, inputs, format;
};

// A decoder block: its weights, KV cache and replay cache (decoder.py has the shapes). q_norm, k_norm and outputs may
// be null; cross_norm is without cross attention, which reads memory_keys and memory_values.
struct Block {
    const float* norm1;
    Matrix q, k, v, o;
    const float *q_norm, *k_norm, *norm2;
    Matrix gate, up, down;
    void *keys, *values, *aligned, *outputs, *older_keys, *older_values;
    float *older_key_scales, *older_value_scales, *key_means, *value_means;
    const float *cross_norm, *cross_q_norm;
    Matrix cross_q, cross_o;
    const void *memory_keys, *memory_values;
};

// All blocks (decoder.py says what the fields are). table has an `At` for each token. cos, sin [tokens, angle_rows,
// head width]; angle_rows is rows or 1. norm may be null: x is what the last block gives.
struct Decoder {
    int64_t layers, rows, most, width, heads, kv_heads, head_width, slots, aligned_slots, older_slots;
    int64_t words, positions, angle_rows, cache_format, output_format, pairs, released, threads;
    double eps;
    const Block* blocks;
    const float *norm, *cos, *sin;
    const int64_t *start, *table;
    void* scratch;
};

// Where a token lies in the caches: it is written to `slot`, whose token goes to slot `moved_to` of the older ones (-1:
// nowhere), and attends to the slots below `length` and to `older` of the older ones; among the aligned keys it is
// scored against `aligned_from` and written to `aligned_to`.
struct At {
    int64_t slot, length, aligned_from, aligned_to, older, moved_to;
};

// One pass: `count` input tokens of every row, the first of row r being tokens[r]. Input n = r * count + i is token
// tokens[r] + i. x [inputs, width] is overwritten with its result. What follows may be null (see `DecoderPass`).
// keys_only: the pass of the one block ends after keys and values. It sets mlp_ns, the nanoseconds in MLP branches.
struct Step {
    float* x;
    const int64_t* tokens;
    int64_t count, keys_only;
    const float* places;
    const uint8_t* mask;
    const float* thresholds;
    const uint8_t* scored;
    float* scores;
    uint8_t* replayed;
    int64_t mlp_ns;
};

// One linear map by itself: y [rows, outputs] from x [rows, inputs].
struct Product {
    Matrix matrix;
    const float* x;
    float* y;
    int64_t rows, threads;
    void* scratch;
};

struct DepthBlock {
    const float *norm1, *norm1_bias;
    Matrix q, k, v, o;
    const float *norm2, *norm2_bias;
    Matrix up, down;
};

// How codes are drawn. temperature 0 takes the likeliest code; top_k 0 takes all; strict: a code whose predecessors
// hold top-p exactly stays. Unless guidance is 1, the second half of the rows, unconditional, guides the first.
struct Sampling {
    double guidance, temperature;
    int64_t top_k, strict;
};

// The depth transformer (see `DepthWeights`). codebooks: one [codes, later.inputs] for each depth. keys, values
// [blocks, most rows, heads, depth, width / heads] float32. Without a depth transformer first.weight is null, and one
// code is drawn by the classifier's logits of the hidden state.
struct Depth {
    int64_t blocks_count, rows, width, heads, depth, threads;
    const DepthBlock* blocks;
    Matrix first, later;
    const float *depth_embeddings, *norm, *norm_bias;
    Matrix classifier;
    const float* const* codebooks;
    float *keys, *values;
    void* scratch;
};

// Drawing the codes of `count` tokens of each of `videos` videos from hidden [rows, first.inputs]. Draw n = v * count +
// i is of token first[v] + i; the unconditional rows follow the conditional ones. uniforms, given (or null) and codes
// are [videos, tokens, depth]. Also written: latent [draws, later.inputs] and logits [depth, draws, codes] (or null).
struct Draw {
    int64_t videos, tokens, count;
    const int64_t* first;
    Sampling sampling;
    const float *hidden, *uniforms;
    const double* top_p;
    const int64_t* given;
    int64_t* codes;
    float *latent, *logits;
};

// The kernels of one instruction set. Each *_bytes returns how much zeroed scratch memory the functions after it need.
struct Kernels {
    int64_t formats_count;
    const FormatRow* formats;
    int64_t (*decoder_bytes)(const Decoder*);
    void (*decode)(const Decoder*, Step*);
    int64_t (*depth_bytes)(const Depth*);
    int64_t (*draw)(const Depth*, const Draw*);
    int64_t (*product_bytes)(const Product*);
    void (*product)(const Product*);
};
