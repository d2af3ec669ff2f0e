// Products with weights in int8 and int4. Their inputs are quantised too, a group of them to integers with one scale.
// The products of a group are summed in int32, then scaled and summed in float32. Weights are multiplied a block at a
// time, which is unpacked into registers and may meet many inputs, stored in the order in which its weights are
// unpacked.
#pragma once
#include "instructions.h"

namespace {

// Quantised inputs of `count` rows: block by block the integers of all rows, so that those that meet the same weights
// are one piece of memory, then all scales likewise.
struct QuantisedInputs {
    const char *integers, *scales;
    int64_t count;
    template <class Format>
    INLINE QuantisedInputs from(int64_t block, int64_t row) const {
        int64_t k = block * count + row;
        return {integers + k * Format::input_bytes, scales + k * Format::input_scales * int64_t(sizeof(float)), count};
    }
};

// The scale that quantises n numbers to integers up to `largest`; NaN where a number is NaN or infinite.
INLINE float quantisation_scale(const float* x, int64_t n, float largest) {
    Floats top = {}, nan_or_zero = {};
    for (int64_t k = 0; k < n; k += LANES) {
        Floats v = load(x + k), size = bit_cast<Floats>(bit_cast<Ints>(v) & 0x7FFFFFFF);
        top = size > top ? size : top;
        nan_or_zero += v * 0.0f;
    }
    float peak = lane_maximum(top);
    // The inverse of a smaller scale could overflow; such inputs count as 0.
    if (peak < 1e-30f) peak = 0;
    return peak / largest + lane_sum(nan_or_zero);
}

// The unit of a row of n inputs: the power of two of which their scale (see above) is at most 32,767.
inline float scale_unit(const float* x, int64_t n, float largest) {
    float smallest = quantisation_scale(x, n, largest) / 32767;
    uint32_t power = (bit_cast<uint32_t>(smallest) + 0x7FFFFF) & 0x7F800000;
    return bit_cast<float>(power) + (smallest - smallest);
}

// LANES numbers times `factor`, rounded to the nearest integer.
INLINE Ints scale_and_round(const float* x, float factor) {
    constexpr float magic = 12582912.0f;
    return bit_cast<Ints>(load(x) * factor + magic) - bit_cast<Ints>(broadcast(magic));
}

// One scale for each output, which `multiply` applies. Inputs are quantised to 16 bits.
//
// block_bytes, block_inputs: weights of a block. input_bytes, input_scales: quantised inputs and their scales for a
// block. weight_scale_bytes: scales of a block's weights. units: whether scales of inputs are multiples of a unit of
// their row. few: as many inputs meet the weight rows of a panel at a time as sums stay in registers: one row if there
// are no more inputs, with `tiles` `many` rows. halves: whether halves of blocks of `many` weight rows meet all inputs,
// as whole ones don't fit the registers.
struct Int8 {
    typedef QuantisedInputs Inputs;
    static constexpr FormatRow row{"int8", 8, 32, 0};
    static constexpr bool quantised = true;
    static constexpr int block_bytes = CACHE_LINE, block_inputs = CACHE_LINE, group_size = CACHE_LINE;
    static constexpr int input_bytes = 2 * CACHE_LINE, input_scales = 1, weight_scale_bytes = 0, sums = 1;
    static constexpr int one = 4, two = WIDE ? 4 : 2, many = BYTE_ROWS, from_inputs = 3, few = 4;
    static constexpr bool units = false, halves = false, tiles = LANES == 16;
    static int64_t bytes(int64_t n) { return n; }
    static int64_t scale_bytes(int64_t) { return 0; }

    static void quantise(const float* x, char* out, float* scale, int64_t, float) {
        *scale = quantisation_scale(x, group_size, 32767);
        float factor = *scale > 0 ? 1 / *scale : 0;
        uint16_t integers[group_size];
        for (int k = 0; k < group_size; k += LANES) {
            Uint16s v = __builtin_convertvector(scale_and_round(x + k, factor), Uint16s);
            memcpy(integers + k, &v, sizeof v);
        }
        store_codes(integers, out);
    }

    // A block of R weight rows in registers.
    template <int R>
    struct Unpacked {
        Bytes bytes[R][BYTE_REGISTERS];
        ByteSums first[R];
    };

    // Only the last block of a row may be partial: it has `tail` weights. `row` are the bytes from one row to the next.
    template <bool full, int R>
    static INLINE Unpacked<R> unpack(const char* weights, int64_t row, const char*, int64_t, int64_t tail) {
        Unpacked<R> w;
        for (int j = 0; j < R; j++) {
            for (int64_t v = 0, size = sizeof(Int16s); v < BYTE_REGISTERS; v++) {
                const char* at = weights + j * row + v * size;
                w.bytes[j][v] = widen_bytes(full ? load_as<Int16s>(at) : load_part<Int16s>(at, tail - v * size));
            }
            w.first[j] = first_sums(w.bytes[j]);
        }
        return w;
    }

    // Adds the products of a block of R rows with quantised inputs to the sums of the rows.
    template <int R>
    static INLINE void multiply_block(const Unpacked<R>& w, const char* x, const char* scale, Floats* sums) {
        ByteSums products[R];
        for (int j = 0; j < R; j++) products[j] = w.first[j];
        for (int v = 0; v < BYTE_REGISTERS; v++)
            for (int j = 0; j < R; j++) add_products(products[j], w.bytes[j][v], x, v);
        for (int j = 0; j < R; j++)
            sums[j] += __builtin_convertvector(total(products[j]), Floats) * load_as<float>(scale);
    }
};

// Groups of 32 weights with a float16 scale each. Byte k of a group holds weight k in its low half and weight 16 + k in
// its high half, each plus 8. Inputs are quantised to 8 bits in groups of 32, whose scales are multiples of a unit; the
// first halves of a block's groups come first.
struct Int4 {
    typedef QuantisedInputs Inputs;
    static constexpr FormatRow row{"int4", 4, 16, 32};
    static constexpr bool quantised = true;
    static constexpr int group_size = row.group, block_inputs = GROUPS * group_size, block_bytes = block_inputs / 2;
    static constexpr int input_bytes = block_inputs, input_scales = 2 * LANES, weight_scale_bytes = 2 * GROUPS;
    static constexpr int sums = 1, one = LANES == 16 ? 4 : 1, two = one, many = LANES == 8 || WIDE ? 2 : 1;
    static constexpr bool units = true, halves = LANES == 8, tiles = false;
    static constexpr int from_inputs = 3, few = 0;
    static int64_t bytes(int64_t n) { return n / 2; }
    static int64_t scale_bytes(int64_t n) { return n / group_size * 2; }

    // Quantises group g of a block. `scale` gets, for each block, LANES scales in the lanes of their groups and then
    // LANES corrections.
    static void quantise(const float* x, char* out, float* scale, int64_t g, float unit) {
        // The multiple is NaN in a row of zeros and in one with a NaN.
        float multiple = quantisation_scale(x, group_size, 127) / unit;
        int32_t n = multiple > 0 ? int32_t(multiple) : 0;
        n += float(n) < multiple;
        float factor = n ? 1 / (float(n) * unit) : 0;
        Ints sums = {};
        int8_t integers[group_size];
        for (int k = 0; k < group_size; k += LANES) {
            Int8s b = __builtin_convertvector(scale_and_round(x + k, factor), Int8s);
            sums += __builtin_convertvector(b, Ints);  // a NaN's integer fits no byte, and its sum might overflow
            memcpy(integers + k, &b, sizeof b);
        }
        for (int k = 0; k < group_size; k += RUN)
            memcpy(out + k / 16 * (input_bytes / 2) + input_offset(g, k % 16), integers + k, RUN);
        int32_t sum = 0;
        for (int k = 0; k < LANES; k++) sum += sums[k];
        int32_t words[] = {scale_word(n), correction(n, sum)};
        for (int k = 0; k < 2; k++) memcpy(scale + k * LANES + first_lane(g), words + k, sizeof words[k]);
    }

    template <int R>
    struct Unpacked {
        static constexpr int vectors = block_bytes / (4 * LANES);
        Uint8s low[R][vectors], high[R][vectors];
        Floats scales[R];
    };

    // As in Int8. scales: of the weights, scale_row bytes from one row to the next.
    template <bool full, int R>
    static INLINE Unpacked<R> unpack(const char* weights, int64_t row, const char* scales, int64_t scale_row,
                                     int64_t tail) {
        Unpacked<R> w;
        for (int j = 0; j < R; j++) {
            const char *at = weights + j * row, *from = scales + j * scale_row;
            w.scales[j] = scales_by_lane(full ? load_as<Scales>(from) : load_part<Scales>(from, scale_bytes(tail)));
            Uint8s both[w.vectors];
            for (int64_t v = 0, size = sizeof(Uint8s); v < w.vectors; v++)
                both[v] =
                    full ? load_as<Uint8s>(at + v * size) : load_part<Uint8s>(at + v * size, bytes(tail) - v * size);
            to_input_order(both);
            for (int v = 0; v < w.vectors; v++) {
                w.low[j][v] = both[v] & 15;
                w.high[j][v] = both[v] >> 4;
            }
        }
        return w;
    }

    template <int R>
    static INLINE void multiply_block(const Unpacked<R>& w, const char* x, const char* scales, Floats* sums) {
        for (int j = 0; j < R; j++) {
            GroupSums products = first_sums(scales);
            products = add_products<0, Unpacked<R>::vectors>(products, w.low[j], w.high[j], x, x + input_bytes / 2);
            sums[j] += scaled(products, scales, w.scales[j]);
        }
    }

    // A half of it. In between, `products` [R] hold what the first half came to.
    template <int half, int R>
    static INLINE void multiply_half(const Unpacked<R>& w, const char* x, const char* scales, GroupSums* products,
                                     Floats* sums) {
        constexpr int size = Unpacked<R>::vectors / 2, first = half * size, last = first + size;
        for (int j = 0; j < R; j++) {
            GroupSums all = half ? products[j] : first_sums(scales);
            all = add_products<first, last>(all, w.low[j], w.high[j], x, x + input_bytes / 2);
            if (half)
                sums[j] += scaled(all, scales, w.scales[j]);
            else
                products[j] = all;
        }
    }
};

}  // namespace
