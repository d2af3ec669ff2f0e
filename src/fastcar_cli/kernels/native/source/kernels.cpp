// The kernels. This file is compiled once for each instruction set; NAME is the symbol of that copy.
#include "decoder.h"
#include "depth.h"

namespace {

int64_t product_bytes(const Product* p) {
    Scratch scratch{nullptr};
    scratch.inputs(p->rows, p->matrix.inputs);
    return scratch.used;
}

void single_product(const Product* request) {
    const Product& p = *request;
    int64_t n = p.matrix.inputs;
    Team team(p.threads);
    Inputs x = Scratch{static_cast<char*>(p.scratch)}.inputs(p.rows, n);
    for (int64_t r = 0; r < p.rows; r++) memcpy(x[r], p.x + r * n, 4 * n);
    product(team, p.matrix, x, p.rows, {p.y, p.matrix.outputs});
}

}  // namespace

extern "C" const Kernels NAME = {
    Formats::count, Formats::rows, decoder_bytes, decode, depth_bytes, draw, product_bytes, single_product,
};
