// What the library exports. Python picks one of the instruction sets that this processor runs.
#include "structs.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

extern "C" const Kernels kernels_plain;
#if defined(__x86_64__)
extern "C" const Kernels kernels_avx2, kernels_avx512, kernels_avx512vnni;
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

// The vector instructions of this processor. 0: none that is used; 1: AVX2 with FMA and F16C; 2: also AVX-512 F, BW, DQ
// and VL; 3: also VNNI.
int vector_level() {
    Registers one = cpuid(1), seven = cpuid(7);
    constexpr unsigned fma = 1u << 12, saved = 1u << 27, f16c = 1u << 29, avx2 = 1u << 5;
    constexpr unsigned avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31, vnni = 1u << 11, base = fma | saved | f16c;
    if ((one.c & base) != base || (seven.b & avx2) == 0 || !os_saves(0x6)) return 0;
    if ((seven.b & avx512) != avx512 || !os_saves(0xE6)) return 1;
    return seven.c & vnni ? 3 : 2;
}
#endif

struct KernelSet {
    const char* name;
    const Kernels* kernels;
};

// The i-th best kernels that this processor runs; null after the last.
KernelSet kernel_set(long i) {
#if defined(__x86_64__)
    constexpr KernelSet all[] = {{"avx512vnni", &kernels_avx512vnni},
                                 {"avx512", &kernels_avx512},
                                 {"avx2+fma", &kernels_avx2},
                                 {"plain", &kernels_plain}};
    long index = i + 3 - vector_level();
    return index < 4 ? all[index] : KernelSet{nullptr, nullptr};
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
