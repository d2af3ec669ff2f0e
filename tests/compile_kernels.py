"""Compile every kernel for an H100 at the shapes of VILA-U 7B, on a machine without one; prints JSON.

Run by test_kernels.py in a process of its own: here triton must not interpret.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.backends.nvidia
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from fastcar_cli.kernels.gpu.append import Places, Score, append
from fastcar_cli.kernels.gpu.attend import attend, chunks_of
from fastcar_cli.kernels.gpu.depth import attend_depths
from fastcar_cli.kernels.gpu.linear import linear
from fastcar_cli.kernels.gpu.mlp import Gate, mlp
from fastcar_cli.kernels.gpu.norm import layer_norm, rms_norm

ROWS, WIDTH, WIDE, HEADS, HEAD, FRAME, TOKENS, PLACES, DEPTH = 2, 4096, 11008, 32, 128, 256, 2047, 2112, 2560


class Hopper:
    """As much of a driver as compiling asks for."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


compiled: list[tuple[str, Any]] = []


def _compile_only(self: JITFunction, grid: object) -> Callable[..., None]:
    def call(*arguments: object, **options: object) -> None:
        compiled.append((self.fn.__name__, self.run(*arguments, grid=grid, warmup=True, **options)))

    return call


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


def launch() -> None:
    """Call every kernel once as a decode step does, with and without replay."""
    x, h, t = empty(ROWS, WIDTH), empty(ROWS, WIDTH), torch.zeros(1, dtype=torch.int64)
    square = empty(WIDTH, WIDTH)
    flags, cache = torch.zeros(ROWS, TOKENS, dtype=torch.uint8), empty(ROWS, FRAME, WIDTH)
    rms_norm(x, empty(WIDTH), 1e-5, h)
    qkv = linear(h, [square] * 3, [None] * 3, empty(ROWS, 3 * WIDTH))
    linear(h, [square], [None], x, add=True)
    gate, down = empty(WIDE, WIDTH), empty(WIDTH, WIDE)
    for replay in (Gate(flags, t, cache), None):
        mlp(h, gate, gate, down, x, empty(ROWS, WIDE), replay)
    keys = empty(ROWS, HEADS, PLACES, HEAD)
    angles, query, places = empty(TOKENS + 1, ROWS, HEAD), empty(ROWS, HEADS, HEAD), Places(60, FRAME)
    ages = torch.zeros(ROWS, FRAME, dtype=torch.int16)
    for score in (Score(torch.zeros(1), flags, None, ages, None, 0, True, True), None):
        append(qkv, query, keys, keys, None, angles, angles, t, places, 1, score)
    variants(flags, ages, t)
    chunks = chunks_of(PLACES)
    scratch = [empty(ROWS, HEADS, chunks, *s, dtype=torch.float32) for s in ((HEAD,), (), ())]
    attend(query, keys, keys, torch.zeros(ROWS, dtype=torch.int64), t, places, tuple(scratch), x)  # type: ignore[arg-type]
    y = empty(ROWS, DEPTH)
    layer_norm(y, empty(DEPTH), empty(DEPTH), 1e-5, y)
    linear(y, [empty(4 * DEPTH, DEPTH)], [empty(4 * DEPTH)], empty(ROWS, 4 * DEPTH), gelu=True)
    attend_depths(empty(4, ROWS, 3 * DEPTH), 40, 3, y)


def variants(flags: torch.Tensor, ages: torch.Tensor, t: torch.Tensor) -> None:
    """Ways of deciding that cover each option, for a window and a full cache, with and without guidance."""
    window, tas = 700, torch.zeros(ROWS, TOKENS)
    rolling = empty(ROWS, 8, FRAME + 1, HEAD)
    for ring, videos, max_age, kept, forced, pairs in (
        (None, 1, 3, tas, None, True),
        (None, 2, 0, None, flags, False),
        (rolling, 1, 3, None, flags, False),
        (rolling, 2, 3, tas, None, False),
        (rolling, 1, 0, tas, None, True),
    ):
        keys = empty(ROWS, 8, PLACES if ring is None else window + 4, HEAD)
        places = Places(60, FRAME) if ring is None else Places(60, FRAME, window, 4)
        query, angles = empty(ROWS, HEADS, HEAD), empty(TOKENS + 1, ROWS, HEAD)
        score = Score(torch.zeros(1), flags, forced, ages, kept, max_age, False, pairs)
        append(empty(ROWS, (HEADS + 16) * HEAD), query, keys, keys, ring, angles, angles, t, places, videos, score)
    scratch = [empty(ROWS, HEADS, chunks_of(window + 4), *s, dtype=torch.float32) for s in ((HEAD,), (), ())]
    attend(query, keys, keys, torch.zeros(ROWS, dtype=torch.int64), t, places, tuple(scratch), empty(ROWS, WIDTH))  # type: ignore[arg-type]


def stack_bytes(cubin: bytes) -> int:
    """Bytes of stack of the machine code: where registers spill there are some."""
    tool = os.path.join(os.path.dirname(triton.backends.nvidia.__file__), "bin", "cuobjdump")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        report = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    return max(int(n) for n in re.findall(r"STACK:(\d+)", report.stdout))


if __name__ == "__main__":
    driver.set_active(Hopper())
    JITFunction.__getitem__ = _compile_only
    launch()
    print(
        json.dumps(
            [
                {"name": name, "shared": k.metadata.shared, "stack": stack_bytes(k.asm["cubin"]), "ptx": k.asm["ptx"]}
                for name, k in compiled
            ]
        )
    )
