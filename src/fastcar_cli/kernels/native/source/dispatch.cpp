// What the library exports. Python picks one of the sets of kernels that this processor runs.
#include "structs.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(_WIN32)
#include <windows.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

extern "C" const Kernels kernels_plain;
#if defined(__x86_64__)
extern "C" const Kernels kernels_avx2, kernels_avx2vnni, kernels_avx512, kernels_avx512vnni, kernels_zen5;
#elif defined(__aarch64__)
extern "C" const Kernels kernels_dotprod, kernels_i8mm;
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
#elif defined(__aarch64__)
// Whether the processor has an extension: its bit of AT_HWCAP or AT_HWCAP2, its name on macOS, its number on Windows.
bool has(int entry, unsigned long bit, const char* name, unsigned long number) {
#if defined(_WIN32)
    return IsProcessorFeaturePresent(number) != 0;
#elif defined(__APPLE__)
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
#else
    return (getauxval(entry) & bit) != 0;
#endif
}
#endif

struct KernelSet {
    const char* name;
    const Kernels* kernels;
    bool runs;
};

// The i-th best kernels that this processor runs; null after the last.
KernelSet kernel_set(int64_t i) {
#if defined(__x86_64__)
    Registers zero = cpuid(0), one = cpuid(1), seven = cpuid(7);
    constexpr unsigned base = 1u << 12 | 1u << 27 | 1u << 29;  // FMA, registers saved by the system, F16C
    bool avx2 = (one.c & base) == base && (seven.b & 1u << 5) != 0 && os_saves(0x6);
    constexpr unsigned parts = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;  // F, DQ, BW, VL
    bool avx512 = avx2 && (seven.b & parts) == parts && os_saves(0xE6);
    bool vnni = avx512 && (seven.c & 1u << 11) != 0;
    // Zen 5 and later cores of AMD are of family 26 on.
    bool amd = zero.b == 0x68747541 && zero.d == 0x69746E65 && zero.c == 0x444D4163;  // AuthenticAMD
    unsigned family = one.a >> 8 & 15;
    if (family == 15) family += one.a >> 20 & 255;
    const KernelSet all[] = {{"zen5", &kernels_zen5, vnni && amd && family >= 26},
                             {"avx512vnni", &kernels_avx512vnni, vnni},
                             {"avx512", &kernels_avx512, avx512},
                             {"avx2+vnni", &kernels_avx2vnni, avx2 && (cpuid(7, 1).a & 1u << 4) != 0},
                             {"avx2+fma", &kernels_avx2, avx2},
                             {"plain", &kernels_plain, true}};
#elif defined(__aarch64__)
    bool dotprod = has(16, 1 << 20, "hw.optional.arm.FEAT_DotProd", 43);
    bool i8mm = dotprod && has(26, 1 << 13, "hw.optional.arm.FEAT_I8MM", 66);
    const KernelSet all[] = {{"neon+i8mm", &kernels_i8mm, i8mm},
                             {"neon+dotprod", &kernels_dotprod, dotprod},
                             {"neon", &kernels_plain, true}};
#else
    const KernelSet all[] = {{"plain", &kernels_plain, true}};
#endif
    for (const KernelSet& each : all)
        if (each.runs && i-- == 0) return each;
    return {nullptr, nullptr, false};
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
