// One product of random weights by the set of kernels NAME, and a hash of its results: FORMAT INPUTS OUTPUTS ROWS, the
// format by its number. MOST weight rows are made whatever OUTPUTS is, so that two runs differ by products alone.
#include <stdio.h>
#include <stdlib.h>

#include "structs.h"

extern "C" const Kernels NAME;

static uint64_t state = 1;
static uint64_t next() { return (state = state * 6364136223846793005 + 1442695040888963407) >> 33; }
template <class T>
static T* filled(int64_t count, T (*value)()) {
    T* all = static_cast<T*>(calloc(count * sizeof(T) + 64, 1));
    for (int64_t k = 0; k < count; k++) all[k] = value();
    return all;
}

constexpr int64_t MOST = 128;

int main(int, char** given) {
    int64_t format = atoll(given[1]), inputs = atoll(given[2]), outputs = atoll(given[3]), rows = atoll(given[4]);
    const FormatRow& row = NAME.formats[format];
    auto number = [] { return float(next() % 2048) / 1024 - 1; };
    auto half = []() -> uint16_t { return 0x2000 + next() % 4096; };
    auto bfloat = []() -> uint16_t { return 0x3F00 + next() % 128 + next() % 2 * 0x8000; };
    const void* weights = row.bits == 32   ? static_cast<void*>(filled<float>(MOST * inputs, number))
                          : row.bits == 16 ? static_cast<void*>(filled<uint16_t>(MOST * inputs, bfloat))
                                           : filled<int8_t>(MOST * inputs * row.bits / 8, [] {
                                                 return int8_t(int64_t(next() % 255) - 127);
                                             });
    const void* scales = row.group ? static_cast<void*>(filled<uint16_t>(MOST * inputs / row.group, half))
                                   : filled<float>(MOST, number);
    Product p{{weights, row.scale_bits ? scales : nullptr, nullptr, outputs, inputs, format},
              filled<float>(rows * inputs, number),
              filled<float>(rows * MOST, [] { return 0.0f; }),
              rows,
              1,
              nullptr};
    uintptr_t memory = reinterpret_cast<uintptr_t>(calloc(NAME.product_bytes(&p) + 64, 1));
    p.scratch = reinterpret_cast<void*>((memory + 63) / 64 * 64);
    NAME.product(&p);
    uint64_t hash = 14695981039346656037u;
    const uint8_t* bytes = reinterpret_cast<uint8_t*>(p.y);
    for (int64_t k = 0; k < 4 * rows * outputs; k++) hash = (hash ^ bytes[k]) * 1099511628211u;
    printf("%016llx\n", static_cast<unsigned long long>(hash));
}
