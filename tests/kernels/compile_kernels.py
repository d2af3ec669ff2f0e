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

from fastcar_cli.kernels.gpu import follow
from fastcar_cli.kernels.gpu.append import Extent, Gate, append
from fastcar_cli.kernels.gpu.attend import attend, attend_depths, chunks_of
from fastcar_cli.kernels.gpu.linear import Matrix, linear
from fastcar_cli.kernels.gpu.mlp import Cached, mlp
from fastcar_cli.kernels.gpu.norm import norm

ROWS, WIDTH, WIDE, HEADS, HEAD, FRAME, TOKENS, SLOTS, DEPTH = 2, 4096, 11008, 32, 128, 256, 2047, 2112, 2560


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
    x, h, t = empty(ROWS, WIDTH), empty(ROWS, WIDTH), torch.zeros(ROWS, dtype=torch.int64)
    square = empty(WIDTH, WIDTH)
    flags, cache = torch.zeros(ROWS, dtype=torch.uint8), empty(ROWS, FRAME, WIDTH)
    norm(x, empty(WIDTH), None, 1e-5, h)
    qkv = linear(h, [Matrix(square)] * 3, empty(ROWS, 3 * WIDTH))
    linear(h, [Matrix(square)], x, add=True)
    gate, down = Matrix(empty(WIDE, WIDTH)), Matrix(empty(WIDTH, WIDE))
    for replay in (Cached(flags, t, cache), None):
        mlp(h, [gate, gate, down], x, empty(ROWS, WIDE), replay)
    keys = empty(ROWS, HEADS, SLOTS, HEAD)
    angles, query, extent = empty(TOKENS + 1, ROWS, HEAD), empty(ROWS, HEADS, HEAD), Extent(60, FRAME)
    limits, sinks = torch.zeros(ROWS), torch.zeros(ROWS, dtype=torch.int64)
    for gate_of in (Gate(limits, limits, flags, True, True), None):
        append(qkv, query, keys, keys, keys, angles, angles, t, extent, 1, gate_of)
    variants(flags, t)
    chunks = chunks_of(SLOTS)
    scratch = [empty(ROWS, HEADS, chunks, *s, dtype=torch.float32) for s in ((HEAD,), (), ())]
    attend(query, keys, keys, sinks, sinks, t, extent, tuple(scratch), x)  # type: ignore[arg-type]
    y = empty(ROWS, DEPTH)
    norm(y, empty(DEPTH), empty(DEPTH), 1e-5, y)
    linear(y, [Matrix(empty(4 * DEPTH, DEPTH), None, empty(4 * DEPTH))], empty(ROWS, 4 * DEPTH), gelu=True)
    attend_depths(empty(4, ROWS, 3 * DEPTH), 40, 3, y)


def variants(flags: torch.Tensor, t: torch.Tensor) -> None:
    """Ways of deciding that cover each option, for a window and a full cache, with and without guidance."""
    window, limits = 700, torch.zeros(ROWS)
    rolling = empty(ROWS, 8, FRAME + 1, HEAD)
    for windowed, videos, pairs in (
        (False, 1, True),
        (False, 2, False),
        (True, 1, False),
        (True, 2, False),
        (True, 1, True),
    ):
        keys = empty(ROWS, 8, window + 4 if windowed else SLOTS, HEAD)
        extent = Extent(60, FRAME, window, 4) if windowed else Extent(60, FRAME)
        query, angles = empty(ROWS, HEADS, HEAD), empty(TOKENS + 1, ROWS, HEAD)
        gate, qkv = Gate(limits, limits, flags, False, pairs), empty(ROWS, (HEADS + 16) * HEAD)
        append(qkv, query, keys, keys, rolling if windowed else keys, angles, angles, t, extent, videos, gate)
    scratch = [empty(ROWS, HEADS, chunks_of(window + 4), *s, dtype=torch.float32) for s in ((HEAD,), (), ())]
    sinks = torch.zeros(ROWS, dtype=torch.int64)
    attend(query, keys, keys, sinks, sinks, t, extent, tuple(scratch), empty(ROWS, WIDTH))  # type: ignore[arg-type]


def int4(outputs: int, inputs: int) -> Matrix:
    numbers = torch.empty(outputs, inputs // 2, dtype=torch.uint8)
    return Matrix(numbers, torch.empty(outputs, inputs // 32, dtype=torch.float16))


def int8(outputs: int, inputs: int) -> Matrix:
    return Matrix(torch.empty(outputs, inputs, dtype=torch.int8), torch.empty(outputs))


def few_bits(packed: Callable[[int, int], Matrix]) -> None:
    """The products of weights in few bits, of few rows, of more and of the most."""
    for rows in (2, 32, 128):
        h, flags, t = empty(rows, WIDTH), torch.zeros(rows, dtype=torch.uint8), torch.zeros(rows, dtype=torch.int64)
        linear(h, [packed(WIDTH, WIDTH)] * 3, empty(rows, 3 * WIDTH))
        matrices = [packed(WIDE, WIDTH), packed(WIDE, WIDTH), packed(WIDTH, WIDE)]
        mlp(h, matrices, empty(rows, WIDTH), empty(rows, WIDE), Cached(flags, t, empty(2, FRAME, WIDTH)))


def stack_bytes(cubin: bytes) -> int:
    """Bytes of stack of the machine code: where registers spill there are some."""
    tool = os.path.join(os.path.dirname(triton.backends.nvidia.__file__), "bin", "cuobjdump")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        report = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    return max(int(n) for n in re.findall(r"STACK:(\d+)", report.stdout))


if __name__ == "__main__":
    follow.possible = lambda device: True  # type: ignore[assignment]
    driver.set_active(Hopper())
    JITFunction.__getitem__ = _compile_only
    launch()
    bits = [0] * len(compiled)
    for form, packed in ((4, int4), (8, int8)):
        few_bits(packed)
        bits += [form] * (len(compiled) - len(bits))
    print(
        json.dumps(
            [
                {
                    "name": name,
                    "bits": bits[i],
                    "shared": k.metadata.shared,
                    "stack": stack_bytes(k.asm["cubin"]),
                    "ptx": k.asm["ptx"],
                }
                for i, (name, k) in enumerate(compiled)
            ]
        )
    )
