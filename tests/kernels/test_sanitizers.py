"""The native kernels under the address and undefined-behaviour sanitizers of gcc: `pytest -m sanitizers`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable

import pytest
from support.paths import ROOT

from fastcar_cli.kernels.native import build

# Checks of null pointers, sizes of objects and overflows of pointers take three quarters of the time of the build; the
# address sanitizer sees such accesses.
FLAGS = (
    *("-O1", "-g1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
    *("-fno-sanitize=null,object-size,pointer-overflow", "--param", "asan-instrumentation-with-call-threshold=0"),
    # Those of Zen 5 differ by a prefetch, which no sanitizer looks at.
    "-Dkernels_zen5=kernels_avx512vnni",
)
RUNTIMES = ("libasan.so", "libubsan.so", "libstdc++.so.6")
OVERREAD = """
import torch, support.sanitized
from fastcar_cli.kernels.native import Linear, Product
product = Product(Linear(torch.ones(64, 64)), 1)
product.product.matrix.outputs = 65
product(torch.ones(1, 64))
"""

pytestmark = [
    pytest.mark.sanitizers, pytest.mark.long, pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None or sys.platform != "linux", reason="needs g++ on Linux"),
]  # fmt: skip
Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Call:
    """Runs Python with the kernels built with sanitizers."""
    folder = tmp_path_factory.mktemp("sanitized")
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(build.SETS["x86_64"], "zen5")
        build.compile_with(["g++"], folder / "kernels.so", folder, more=FLAGS)
    runtimes = [subprocess.check_output(["g++", f"-print-file-name={name}"], text=True).strip() for name in RUNTIMES]
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(runtimes),
        "ASAN_OPTIONS": "detect_leaks=0",
        "SANITIZED_KERNELS": str(folder / "kernels.so"),
        "PYTHONPATH": f"{ROOT / 'tests'}{os.pathsep}{ROOT / 'src'}",
    }

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)

    return call


def test_an_overread_is_seen(sanitized: Call) -> None:
    done = sanitized("-c", OVERREAD)
    assert done.returncode and "AddressSanitizer: heap-buffer-overflow" in done.stderr


def test_kernels_read_and_write_what_is_theirs(sanitized: Call) -> None:
    kernels = [f"tests/kernels/test_native{part}.py" for part in ("", "_window", "_products")]
    # A forked child of a test would load the library without sanitizers. -s: a sanitizer writes its report as the
    # process ends, past what pytest captures.
    done = sanitized(
        *("-m", "pytest", "-s", "-p", "support.sanitized"),
        *(*kernels, "tests/decoding/test_executors.py", "-k", "native and not forked"),
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    assert " passed" in done.stdout and "skipped" not in done.stdout
