// The kernels. This file is compiled once for each instruction set; NAME is the symbol of that copy.
#include "decoder.h"
#include "depth.h"

namespace {

struct ProductWorkspace {
    Inputs x;
    Rows y;
    int64_t bytes;

    ProductWorkspace(const Product& p, char* memory) {
        Scratch scratch{memory};
        x = scratch.inputs(p.rows, p.matrix.inputs);
        y = scratch.rows(p.rows, p.matrix.outputs);
        bytes = scratch.used;
    }
};

int64_t product_bytes(const Product* p) { return ProductWorkspace(*p, nullptr).bytes; }

void single_product(const Product* request) {
    const Product& p = *request;
    Team team(p.threads);
    ProductWorkspace w(p, static_cast<char*>(p.scratch));
    copy_rows(p.x, p.matrix.inputs, w.x, p.rows, p.matrix.inputs);
    product(team, p.matrix, w.x, p.rows, w.y);
    for (int64_t r = 0; r < p.rows; r++) memcpy(p.y + r * p.matrix.outputs, w.y[r], 4 * p.matrix.outputs);
}

}  // namespace

extern "C" const Kernels NAME = {
    Formats::count, Formats::rows, decoder_bytes, decode, depth_bytes, draw, product_bytes, single_product,
};
