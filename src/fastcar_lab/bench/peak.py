"""How many float32 multiply-adds a core makes at most, measured by a small C function that makes nothing else."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from fastcar_cli.errors import RunError

_CHAINS = 12
_SOURCE = """
typedef float Floats __attribute__((vector_size(4 * LANES)));
float multiply_add(long n, float start) {
    Floats x = start - (Floats){}, sums[CHAINS];
    for (int i = 0; i < CHAINS; i++) sums[i] = x * (float)i;
    for (long k = 0; k < n; k++)
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) sums[i] = sums[i] * x + x;
    for (int i = 1; i < CHAINS; i++) sums[0] += sums[i];
    return sums[0][0];
}
"""
_AVX2 = (8, ["-mavx2", "-mfma"])
_SETS = {"avx2+fma": _AVX2, "avx2+vnni": _AVX2, "plain": (4, []), "neon": (4, [])}
_AVX512 = (16, ["-mavx512f", "-mfma"])


def multiply_adds_per_s(instruction_set: str, repeats: int = 50) -> float:
    """Of one core with this instruction set of the native kernels: the best of many repeats.

    Raises RunError where there is no C compiler.
    """
    lanes, flags = _SETS.get(instruction_set, _AVX512)
    compiler = shutil.which("cc") or shutil.which("clang") or shutil.which("gcc")
    command = [compiler] if compiler else [sys.executable, "-m", "ziglang", "cc"]
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "peak.c"), Path(folder, "peak.so")
        source.write_text(_SOURCE, encoding="utf-8")
        command += ["-O3", "-ffp-contract=fast", *flags, f"-DLANES={lanes}", f"-DCHAINS={_CHAINS}"]
        done = subprocess.run([*command, "-shared", "-fPIC", source, "-o", library], capture_output=True, check=False)
        if done.returncode:
            raise RunError("the rate of multiply-adds is measured by a C function, and no compiler built it")
        run, count, best = ctypes.CDLL(str(library)).multiply_add, 100_000, float("inf")
    run.argtypes, run.restype = [ctypes.c_long, ctypes.c_float], ctypes.c_float
    for _ in range(repeats):
        began = perf_counter()
        run(count, 0.5)
        best = min(best, perf_counter() - began)
    return count * _CHAINS * lanes / best
