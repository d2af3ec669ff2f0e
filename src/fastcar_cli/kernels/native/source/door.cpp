// What the library exports. The instruction set is chosen by name, so that Python says what runs.
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

Registers ask(unsigned leaf) {
    Registers r;
    __get_cpuid_count(leaf, 0, &r.a, &r.b, &r.c, &r.d);
    return r;
}

// Whether the operating system keeps all of these registers (bits of XCR0).
bool keeps(unsigned registers) {
    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & registers) == registers;
}

// 0: none; 1: AVX2 with FMA and F16C; 2: AVX-512 F, BW, DQ and VL as well; 3: VNNI as well.
int vectors() {
    Registers one = ask(1), seven = ask(7);
    constexpr unsigned fma = 1u << 12, saved = 1u << 27, f16c = 1u << 29, avx2 = 1u << 5;
    constexpr unsigned avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31, vnni = 1u << 11, first = fma | saved | f16c;
    if ((one.c & first) != first || (seven.b & avx2) == 0 || !keeps(0x6)) return 0;
    if ((seven.b & avx512) != avx512 || !keeps(0xE6)) return 1;
    return seven.c & vnni ? 3 : 2;
}
#endif

struct Choice {
    const char* name;
    const Kernels* kernels;
};

// The i-th best that this processor runs; none behind the last.
Choice choice(long i) {
#if defined(__x86_64__)
    constexpr Choice all[] = {{"avx512vnni", &kernels_avx512vnni},
                              {"avx512", &kernels_avx512},
                              {"avx2+fma", &kernels_avx2},
                              {"plain", &kernels_plain}};
    long index = i + 3 - vectors();
    return index < 4 ? all[index] : Choice{nullptr, nullptr};
#elif defined(__aarch64__)
    return i == 0 ? Choice{"neon", &kernels_plain} : Choice{nullptr, nullptr};
#else
    return i == 0 ? Choice{"plain", &kernels_plain} : Choice{nullptr, nullptr};
#endif
}

}  // namespace

#ifdef _WIN32
#define EXPORT extern "C" __declspec(dllexport)
#else
#define EXPORT extern "C" __attribute__((visibility("default")))
#endif

// Name of the i-th best instruction set here, null behind the last.
EXPORT const char* fastcar_instruction_set(int64_t i) { return choice(i).name; }
EXPORT const Kernels* fastcar_kernels(int64_t i) { return choice(i).kernels; }
// Hash of the sources that this was built from.
EXPORT const char* fastcar_sources() { return SOURCES; }
