// What the Python side hands over, laid out as structs.py declares it.
#pragma once
#include <stdint.h>

// A linear map, weight [outputs, inputs] of a format of formats.h. scale, float [outputs] or in int4 float16 [outputs,
// inputs / 32], and bias [outputs] may be null.
struct Matrix {
    const void *weight, *scale;
    const float* bias;
    int64_t outputs, inputs, format;
};

// A decoder block with its memory. keys, values [rows, kv heads, slots, head width], whole numbers (formats 2 and 3, the
// latter of 12 bits) with a scale a slot each, else null; aligned likewise with `ring` slots, outputs [rows, positions, width] or null.
struct Block {
    const float* norm1;
    Matrix q, k, v, o;
    const float* norm2;
    Matrix gate, up, down;
    void *keys, *values, *aligned, *outputs;
    float *key_scales, *value_scales;
};

struct Decoder {
    int64_t layers, rows, width, heads, kv_heads, head_width, slots, ring, positions;
    int64_t cache_format, aligned_format, output_format, pairs, released, threads;
    double eps;
    const Block* blocks;
    const float* norm;
    const int64_t* start;
    void* scratch;
};

// One pass: x [rows, width] in place; cos, sin [angles, head width], angles rows or 1. May be null: mask [rows, slots],
// thresholds [layers, rows], scored [layers], scores and replayed [layers, rows]. mlp_ns is the time spent in MLP branches.
struct Step {
    float* x;
    const float *cos, *sin;
    int64_t angles, slot, length, aligned_from, aligned_to, position;
    const uint8_t* mask;
    const float* thresholds;
    const uint8_t* scored;
    float* scores;
    uint8_t* replayed;
    int64_t mlp_ns;
};

// A linear map of its own: y [rows, outputs] from x [rows, inputs].
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

// How codes are drawn: temperature 0 takes the likeliest, top_k 0 and top_p 1 keep all. Rows are guided by `guidance`,
// conditional ones first, unless it is 1.
struct Sampling {
    double guidance, temperature, top_p;
    int64_t top_k;
};

// The depth transformer: maps of the hidden state (first) and of code vectors (later) into it, place [depth, width],
// a codebook [codes, later.inputs] a depth, keys and values [blocks, rows, heads, depth, width / heads] float32. Where
// the weight of `first` is null there is none, and one code is drawn from the hidden state's classes.
struct Depth {
    int64_t blocks_count, rows, width, heads, depth, threads;
    const DepthBlock* blocks;
    Matrix first, later;
    const float *place, *norm, *norm_bias;
    Matrix classes;
    const float* const* books;
    float *keys, *values;
    void* scratch;
};

// Drawing the codes of position `index` of so many tokens from hidden [rows, first.inputs], into codes [videos, tokens,
// depth]: by uniforms, likewise, or as they are given, likewise or null. Also the sums of their vectors, latent [videos,
// later.inputs], and where not null the guided logits [depth, videos, codes].
struct Draw {
    int64_t tokens, index;
    Sampling sampling;
    const float *hidden, *uniforms;
    const int64_t* given;
    int64_t* codes;
    float *latent, *logits;
};

// What one instruction set's copy of the kernels offers. The *_bytes are sizes of zeroed scratch memory.
struct Kernels {
    int64_t (*decoder_bytes)(const Decoder*);
    void (*decode)(const Decoder*, Step*);
    void (*mlps)(const Decoder*, const float* x, float* y, int64_t passes);
    int64_t (*depth_bytes)(const Depth*);
    int64_t (*draw)(const Depth*, const Draw*);
    int64_t (*product_bytes)(const Product*);
    void (*product)(const Product*);
};
