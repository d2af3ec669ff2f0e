"""Compile the native kernels: `python src/fastcar_cli/kernels/native/build.py` does so in a checkout.

The package build runs this file by itself, so it uses only the standard library. The compiler is that of the
`ziglang` package, which includes its headers; without that package `$CXX`, c++, clang++ or g++. With the platform tag
of a wheel in FASTCAR_WHEEL, zig compiles for that system.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDER = Path(__file__).parent
NAME = "libfastcar.so"
"""The library's file in FOLDER, on every system."""
WHY_NOT = "not_built.txt"
"""The file in FOLDER that says why the library could not be built."""
SOURCES = FOLDER / "source"

TARGETS = {
    **{f"manylinux_2_17_{machine}": f"{machine}-linux-gnu.2.17" for machine in ("x86_64", "aarch64", "riscv64")},
    **{f"musllinux_1_1_{machine}": f"{machine}-linux-musl" for machine in ("x86_64", "aarch64", "riscv64")},
    "macosx_11_0_arm64": "aarch64-macos.11.0",
    "macosx_11_0_x86_64": "x86_64-macos.11.0",
    "win_amd64": "x86_64-windows-gnu",
    "win_arm64": "aarch64-windows-gnu",
}
"""Zig's target for each platform tag of a wheel; the tag names the oldest system that the library runs on."""
_MACHINE = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
_HERE = f"{_MACHINE}-{sys.platform}"
_AVX2 = ["-mavx2", "-mfma", "-mf16c"]
_AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c"]
SETS = {
    "x86_64": {
        "avx2": _AVX2,
        "avx2vnni": [*_AVX2, "-mavxvnni"],
        "avx512": _AVX512,
        "avx512vnni": [*_AVX512, "-mavx512vnni"],
        # The same instructions; weights are prefetched past the caches.
        "zen5": [*_AVX512, "-mavx512vnni", "-DPREFETCH_ONCE"],
    },
    "aarch64": {"dotprod": ["-mcpu=generic+dotprod"], "i8mm": ["-mcpu=generic+dotprod+i8mm"]},
}
"""Compiler flags of each machine's optional instruction sets."""
# NaN and infinity keep their meaning; the flags only assume that nothing reads errno or floating-point status.
FLAGS = (
    *("-std=c++17", "-O3", "-fno-exceptions", "-fno-rtti", "-fno-math-errno", "-fno-trapping-math"),
    *("-ffp-contract=fast", "-fvisibility=hidden"),
)


class BuildError(Exception):
    """Why the library could not be built."""


def source_hash() -> str:
    """Hash of the sources, stored in the library to show what it was built from."""
    digest = hashlib.sha256()
    for path in sorted([*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def platform_tag() -> str:
    """Platform tag of the wheel: FASTCAR_WHEEL, or that of this system if zig builds the library."""
    here = f"{'manylinux_2_17' if platform.libc_ver()[0] else 'musllinux_1_1'}_{_MACHINE}"
    mac, windows = ("macosx_11_0_arm64", "win_arm64") if _MACHINE == "aarch64" else ("macosx_11_0_x86_64", "win_amd64")
    return os.environ.get("FASTCAR_WHEEL") or {"darwin": mac, "win32": windows}.get(sys.platform, here)


def zig(target: str | None) -> list[str] | None:
    """Zig's command for a target, any machine of that kind; None if zig is not installed or has no such target."""
    if target is None or importlib.util.find_spec("ziglang") is None:
        return None
    return [sys.executable, "-m", "ziglang", "cc", "-target", target, "-fno-sanitize=all"]


def _system_compiler() -> list[str] | None:
    names = [os.environ.get("CXX"), "c++", "clang++", "g++"]
    compiler = next((path for name in names if name and (path := shutil.which(name))), None)
    return None if compiler is None else [compiler]


def _run(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        last = done.stdout.decode(errors="replace").strip().splitlines()[-6:]
        raise BuildError(f"{' '.join(command[:4])} ... ended with status {done.returncode}: " + " | ".join(last))


def compile_with(compiler: list[str], to: Path, folder: Path, *, target: str = _HERE, more: Sequence[str] = ()) -> None:
    """Compile the library for a target (machine and system) to `to`, with objects in `folder`. With `more` flags, such
    as a sanitizer's, symbols stay in it. Raises BuildError, or OSError if the compiler can't run.
    """
    # Zig caches what it compiles; CI sets a folder where a second build finds it.
    caches = ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")
    environment = {**dict.fromkeys(caches, str(folder / "zig")), **os.environ}
    flags = [*compiler, "-x", "c++", *FLAGS, *([] if "-win" in target else ["-fPIC"]), *more]
    if "ziglang" in compiler and target.startswith("x86_64"):
        # Clang splits VPDPWSSD to shorten chains of sums. Here many sums run side by side, and fewer instructions win.
        flags += ["-Xclang", "-target-feature", "-Xclang", "+fast-dpwssd"]
    copies = {"plain": [], **SETS.get(target.partition("-")[0], {})}
    jobs = {"team": ["team.cpp"], "dispatch": [f'-DSOURCES="{source_hash()}"', "dispatch.cpp"]}
    jobs |= {name: [*isa, f"-DNAME=kernels_{name}", "kernels.cpp"] for name, isa in copies.items()}
    objects = {name: str(folder / f"{name}.o") for name in jobs}

    def compile_one(name: str) -> None:
        *options, source = jobs[name]
        _run([*flags, *options, "-c", str(SOURCES / source), "-o", objects[name]], environment)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, jobs))
    # On Linux symbols of the C library are resolved at load time, so that none has to be installed for the build.
    link = more or ("-s", *(["-nostdlib"] if "linux" in target else []))
    _run([*compiler, "-shared", *link, *objects.values(), "-o", str(folder / NAME)], environment)
    shutil.move(folder / NAME, to)


def build(to: Path) -> str:
    """Build the library at this path. Returns its wheel's platform tag, "" for this system's own. Raises BuildError."""
    tag, reasons = platform_tag(), []
    target = TARGETS.get(tag)
    if target is None and "FASTCAR_WHEEL" in os.environ:
        raise BuildError(f"FASTCAR_WHEEL={tag}: allowed: {', '.join(TARGETS)}")
    compilers = [(zig(target), target or "", "the package ziglang is not installed")]
    if "FASTCAR_WHEEL" not in os.environ:
        compilers.append((_system_compiler(), _HERE, "there is no c++, clang++ or g++ on PATH"))
    for compiler, system, missing in compilers:
        if compiler is None:
            reasons.append(missing)
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                compile_with(compiler, to, Path(folder), target=system)
            except (BuildError, OSError) as e:
                reasons.append(str(e))
                print(e, file=sys.stderr)
                continue
        return tag if system == target else ""
    raise BuildError("; ".join(reasons))


if __name__ == "__main__":
    try:
        build(FOLDER / NAME)
    except BuildError as e:
        sys.exit(f"error: {e}")
    (FOLDER / WHY_NOT).unlink(missing_ok=True)
