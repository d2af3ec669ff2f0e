// What the library exports. Python picks one of the sets of kernels that this processor runs.
#include "structs.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

extern "C" const Kernels kernels_plain;
#if defined(__x86_64__)
extern "C" const Kernels kernels_avx2, kernels_avx2vnni, kernels_avx512, kernels_avx512vnni, kernels_zen5;
#endif

namespace {

#if defined(__x86_64__)
struct Registers {
    unsigned a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(unsigned leaf, unsigned part = 0) {
    Registers r;
    __get_cpuid_count(leaf, part, &r.a, &r.b, &r.c, &r.d);
    return r;
}

// Whether the operating system saves all of these registers on a context switch (bits of XCR0).
bool os_saves(unsigned registers) {
    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & registers) == registers;
}

// Whether this is Zen 5 or a later core of AMD (family 26).
bool is_zen5(Registers zero, Registers one) {
    constexpr unsigned authentic[] = {0x68747541, 0x69746E65, 0x444D4163};
    unsigned family = one.a >> 8 & 15;
    if (family == 15) family += one.a >> 20 & 255;
    return zero.b == authentic[0] && zero.d == authentic[1] && zero.c == authentic[2] && family >= 26;
}

// What this processor has of what the kernels use, each with what it builds on.
struct Has {
    bool avx2 = false, avx2vnni = false, avx512 = false, avx512vnni = false, zen5 = false;
};

Has processor() {
    Registers one = cpuid(1), seven = cpuid(7);
    constexpr unsigned fma = 1u << 12, saved = 1u << 27, f16c = 1u << 29, avx2 = 1u << 5;
    constexpr unsigned avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31, vnni = 1u << 11, base = fma | saved | f16c;
    Has has;
    has.avx2 = (one.c & base) == base && (seven.b & avx2) != 0 && os_saves(0x6);
    has.avx2vnni = has.avx2 && (cpuid(7, 1).a & 1u << 4) != 0;
    has.avx512 = has.avx2 && (seven.b & avx512) == avx512 && os_saves(0xE6);
    has.avx512vnni = has.avx512 && (seven.c & vnni) != 0;
    has.zen5 = has.avx512vnni && is_zen5(cpuid(0), one);
    return has;
}
#endif

struct KernelSet {
    const char* name;
    const Kernels* kernels;
};

// The i-th best kernels that this processor runs; null after the last.
KernelSet kernel_set(int64_t i) {
#if defined(__x86_64__)
    Has has = processor();
    const bool runs[] = {has.zen5, has.avx512vnni, has.avx512, has.avx2vnni, has.avx2, true};
    constexpr KernelSet all[] = {{"zen5", &kernels_zen5},     {"avx512vnni", &kernels_avx512vnni},
                                 {"avx512", &kernels_avx512}, {"avx2+vnni", &kernels_avx2vnni},
                                 {"avx2+fma", &kernels_avx2}, {"plain", &kernels_plain}};
    for (int k = 0; k < 6; k++)
        if (runs[k] && i-- == 0) return all[k];
    return {nullptr, nullptr};
#elif defined(__aarch64__)
    return i == 0 ? KernelSet{"neon", &kernels_plain} : KernelSet{nullptr, nullptr};
#else
    return i == 0 ? KernelSet{"plain", &kernels_plain} : KernelSet{nullptr, nullptr};
#endif
}

}  // namespace

#ifdef _WIN32
#define EXPORT extern "C" __declspec(dllexport)
#else
#define EXPORT extern "C" __attribute__((visibility("default")))
#endif

// Name of the i-th best instruction set of this processor; null after the last.
EXPORT const char* fastcar_instruction_set(int64_t i) { return kernel_set(i).name; }
EXPORT const Kernels* fastcar_kernels(int64_t i) { return kernel_set(i).kernels; }
// Hash of the sources that the library was built from.
EXPORT const char* fastcar_sources() { return SOURCES; }
