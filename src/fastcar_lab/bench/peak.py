"""How many multiply-adds a core makes at most, measured by small C functions that make nothing else.

Products of floats are of 32 bits. Weights in int8 meet inputs of 16 bits, weights in int4 inputs of 8 bits, whose sums
take more than one instruction where a processor lacks VNNI.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter

from fastcar_cli.errors import RunError

PRODUCT_BITS: Mapping[str, int] = {"int8": 16, "int4": 8}
"""Width of the numbers that products with weights of a format multiply, where it is not 32."""

_CHAINS = 10
_SOURCE = """
#define EACH(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8) f(9)
#define ADD_UP(i) sum += (int)s##i[0];
typedef float Floats __attribute__((vector_size(4 * LANES)));
int products_of_32_bits(long n, int seed) {
    Floats x = (float)seed - (Floats){};
#define BEGIN(i) Floats s##i = x * i;
#define ADD(i) s##i = s##i * x + x;
    EACH(BEGIN)
    for (long k = 0; k < n; k++) { EACH(ADD) }
    int sum = 0;
    EACH(ADD_UP)
    return sum;
}

#if LANES > 4
#include <immintrin.h>
#if LANES == 16
typedef __m512i Vector;
#define DO(name) _mm512_##name
#else
typedef __m256i Vector;
#define DO(name) _mm256_##name
#endif
#if defined(__AVX512VNNI__)
#define ADD_16 _mm512_dpwssd_epi32
#define ADD_8 _mm512_dpbusd_epi32
#define ADD_SUMS(i)
#elif defined(__AVXVNNI__)
#define ADD_16 _mm256_dpwssd_avx_epi32
#define ADD_8 _mm256_dpbusd_avx_epi32
#define ADD_SUMS(i)
#else
#define ADD_16(sums, x, y) DO(add_epi32)(sums, DO(madd_epi16)(x, y))
// 8 sums of two products fit 16 bits; then two of those are added to one of 32.
#define ADD_8(sums, x, y) DO(add_epi16)(sums, DO(maddubs_epi16)(x, y))
#define ADD_SUMS(i) all = DO(add_epi32)(all, DO(madd_epi16)(s##i, x));
#endif
#define BEGIN_SUMS(i) Vector s##i = x;
// The compiler takes y for another number each time, as it would multiply once, and adds before it multiplies again.
#define MULTIPLY(add, i) s##i = add(s##i, y, x); __asm__ volatile("" : "+x"(y), "+x"(s##i));
#define MULTIPLY_16(i) MULTIPLY(ADD_16, i)
#define MULTIPLY_8(i) MULTIPLY(ADD_8, i)
int products_of_16_bits(long n, int seed) {
    Vector x = DO(set1_epi16)((short)seed), y = x;
    EACH(BEGIN_SUMS)
    for (long k = 0; k < n; k++) { EACH(MULTIPLY_16) }
    int sum = 0;
    EACH(ADD_UP)
    return sum;
}
int products_of_8_bits(long n, int seed) {
    Vector x = DO(set1_epi16)((short)seed), y = x, all = x;
    EACH(BEGIN_SUMS)
    for (long k = 0; k < n; k += 8) {
        EACH(MULTIPLY_8) EACH(MULTIPLY_8) EACH(MULTIPLY_8) EACH(MULTIPLY_8)
        EACH(MULTIPLY_8) EACH(MULTIPLY_8) EACH(MULTIPLY_8) EACH(MULTIPLY_8)
        EACH(ADD_SUMS)
    }
    int sum = (int)all[0];
    EACH(ADD_UP)
    return sum;
}
#endif
"""
_AVX2, _AVX512 = ["-mavx2", "-mfma"], ["-mavx512f", "-mavx512bw", "-mfma"]
_SETS = {
    "avx2+fma": (8, _AVX2),
    "avx2+vnni": (8, [*_AVX2, "-mavxvnni"]),
    "avx512": (16, _AVX512),
    "plain": (4, []),
    "neon": (4, []),
}


def multiply_adds_per_s(instruction_set: str, repeats: int = 50) -> dict[int, float]:
    """Of one core with this instruction set of the native kernels, by width of the multiplied numbers in bits: the best
    of many repeats. Without AVX2 only 32 bits are measured; 16 and 8 count two and four times as many.

    Raises RunError where there is no C compiler.
    """
    lanes, flags = _SETS.get(instruction_set, (16, [*_AVX512, "-mavx512vnni"]))
    compiler = shutil.which("cc") or shutil.which("clang") or shutil.which("gcc")
    command = [compiler] if compiler else [sys.executable, "-m", "ziglang", "cc"]
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "peak.c"), Path(folder, "peak.so")
        source.write_text(_SOURCE, encoding="utf-8")
        command += ["-O3", "-ffp-contract=fast", *flags, f"-DLANES={lanes}", "-shared", "-fPIC"]
        done = subprocess.run([*command, source, "-o", library], capture_output=True, check=False)
        if done.returncode:
            raise RunError("the rate of multiply-adds is measured by a C function, and no compiler built it")
        loaded = ctypes.CDLL(str(library))
    count, rates = 100_000, {}
    for bits in (32, 16, 8) if flags else (32,):
        run, best = getattr(loaded, f"products_of_{bits}_bits"), float("inf")
        run.argtypes = [ctypes.c_long, ctypes.c_int]
        for _ in range(repeats):
            began = perf_counter()
            run(count, 0)
            best = min(best, perf_counter() - began)
        rates[bits] = count * _CHAINS * lanes * (32 // bits) / best
    return {bits: rates.get(bits, rates[32] * (32 // bits)) for bits in (32, 16, 8)}
