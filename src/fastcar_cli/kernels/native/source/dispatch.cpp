// What the library exports. Python picks one of the sets of kernels that this processor runs.
#include "structs.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

extern "C" const Kernels kernels_plain;
#if defined(__x86_64__)
extern "C" const Kernels kernels_avx2, kernels_avx512, kernels_avx512vnni, kernels_zen5;
#endif

namespace {

#if defined(__x86_64__)
struct Registers {
    unsigned a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(unsigned leaf) {
    Registers r;
    __get_cpuid_count(leaf, 0, &r.a, &r.b, &r.c, &r.d);
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

// What this processor is. 0: nothing that is used; 1: AVX2 with FMA and F16C; 2: also AVX-512 F, BW, DQ and VL; 3: also
// VNNI; 4: these and Zen 5.
int vector_level() {
    Registers one = cpuid(1), seven = cpuid(7);
    constexpr unsigned fma = 1u << 12, saved = 1u << 27, f16c = 1u << 29, avx2 = 1u << 5;
    constexpr unsigned avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31, vnni = 1u << 11, base = fma | saved | f16c;
    if ((one.c & base) != base || (seven.b & avx2) == 0 || !os_saves(0x6)) return 0;
    if ((seven.b & avx512) != avx512 || !os_saves(0xE6)) return 1;
    if ((seven.c & vnni) == 0) return 2;
    return is_zen5(cpuid(0), one) ? 4 : 3;
}
#endif

struct KernelSet {
    const char* name;
    const Kernels* kernels;
};

// The i-th best kernels that this processor runs; null after the last.
KernelSet kernel_set(long i) {
#if defined(__x86_64__)
    constexpr KernelSet all[] = {{"zen5", &kernels_zen5},
                                 {"avx512vnni", &kernels_avx512vnni},
                                 {"avx512", &kernels_avx512},
                                 {"avx2+fma", &kernels_avx2},
                                 {"plain", &kernels_plain}};
    long index = i + 4 - vector_level();
    return index < 5 ? all[index] : KernelSet{nullptr, nullptr};
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
