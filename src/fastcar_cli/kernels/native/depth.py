"""Steps of the depth transformer: LayerNorm with eps 1e-5, attention over the depths so far, GELU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fastcar_cli.kernels.native import structs
from fastcar_cli.kernels.native.library import kernels, scratch
from fastcar_cli.kernels.native.structs import Linear, expect, matrix


@dataclass(frozen=True)
class Norm:
    """Weight and bias of a LayerNorm, float32 [width]."""

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class DepthBlockWeights:
    """A block: the maps of attention are [width, width], up [any, width], down [width, any]."""

    norm1: Norm
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    norm2: Norm
    up: Linear
    down: Linear


class DepthSteps:
    """One depth after another, for a fixed number of rows; weights are used in place.

    first, later: the maps into the state at depth 0 and after it. places: float32 [depth, width], added by depth.
    norm, classes: the last norm and the map to logits. Raises as `DecoderPass` does.
    """

    def __init__(
        self,
        blocks: Sequence[DepthBlockWeights],
        *,
        first: Linear,
        later: Linear,
        places: Tensor,
        norm: Norm,
        classes: Linear,
        heads: int,
        rows: int,
        threads: int = 1,
    ) -> None:
        if places.dim() != 2 or heads < 1 or places.shape[1] % heads:
            raise ValueError(f"places is {list(places.shape)}, expected [depth, width], width a multiple of {heads}")
        if min(len(blocks), rows, threads) < 1:
            raise ValueError(f"{len(blocks)} blocks, {rows} rows and {threads} threads, expected at least one of each")
        depth, width = places.shape
        wide = blocks[0].up.weight.shape[0]
        sizes = {**dict.fromkeys("qkvo", (width, width)), "up": (wide, width), "down": (width, wide)}
        table = (structs.DepthBlock * len(blocks))()
        for i, (block, to) in enumerate(zip(blocks, table, strict=True)):
            for part, size in sizes.items():
                setattr(to, part, matrix(f"block {i}: {part}", getattr(block, part), *size))
            for part in ("norm1", "norm2"):
                given: Norm = getattr(block, part)
                setattr(to, part, expect(f"block {i}: {part}.weight", given.weight, (width,), torch.float32))
                setattr(to, f"{part}_bias", expect(f"block {i}: {part}.bias", given.bias, (width,), torch.float32))
        self._memory = torch.zeros(2, len(blocks), rows, heads, depth, width // heads)
        self._depth = structs.Depth(
            **{"blocks_count": len(blocks), "rows": rows, "width": width, "heads": heads, "depth": depth},
            **{"threads": threads, "blocks": table},
            first=matrix("first", first, width),
            later=matrix("later", later, width),
            place=expect("places", places, (depth, width), torch.float32),
            norm=expect("norm.weight", norm.weight, (width,), torch.float32),
            norm_bias=expect("norm.bias", norm.bias, (width,), torch.float32),
            classes=matrix("classes", classes, None, width),
            keys=self._memory[0].data_ptr(),
            values=self._memory[1].data_ptr(),
        )
        self._kernels = kernels()
        self._scratch = scratch(self._kernels.depth_bytes(self._depth))
        self._depth.scratch = self._scratch.data_ptr()
        # What an address points to must live as long as this object.
        self._held = (blocks, first, later, places, norm, classes)

    def __call__(self, x: Tensor, d: int) -> Tensor:
        """Logits float32 [rows, codes] of depth d, for x float32 [rows, in]: the hidden state at depth 0, the sum of
        the code vectors so far after it. Depths are called in turn, from 0 on for each token.
        """
        if not 0 <= d < self._depth.depth:
            raise ValueError(f"depth {d}, expected 0 to {self._depth.depth - 1}")
        into = self._depth.later if d else self._depth.first
        at = expect("x", x, (self._depth.rows, into.inputs), torch.float32)
        logits = torch.empty(self._depth.rows, self._depth.classes.outputs)
        self._kernels.depth(ctypes.byref(self._depth), at, d, logits.data_ptr())
        return logits
