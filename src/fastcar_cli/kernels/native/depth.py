"""The codes of a position: depth transformer (LayerNorm with eps 1e-5, attention over depths so far, GELU), draws.

A model without one has one code a position, drawn from a map of its hidden state.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fastcar_cli.kernels.native.library import kernels, scratch
from fastcar_cli.kernels.native.structs import STRUCTS, Linear, expect, matrix, same_format


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


@dataclass(frozen=True)
class DepthWeights:
    """A depth transformer.

    first, later: the maps into the state at depth 0 and after it. places: float32 [depth, width], added by depth. norm:
    the last one.
    """

    blocks: Sequence[DepthBlockWeights]
    first: Linear
    later: Linear
    places: Tensor
    norm: Norm
    heads: int


def _transformer(weights: DepthWeights, depth: int) -> dict[str, Any]:
    """Fields of `Depth` that are the transformer's, checked."""
    blocks, places, norm = weights.blocks, weights.places, weights.norm
    if places.dim() != 2 or weights.heads < 1 or places.shape[1] % weights.heads:
        raise ValueError(
            f"places is {list(places.shape)}, expected [depth, width], width a multiple of {weights.heads}"
        )
    if not blocks:
        raise ValueError("0 blocks: expected some")
    width, wide = places.shape[1], blocks[0].up.outputs
    sizes = {**dict.fromkeys("qkvo", (width, width)), "up": (wide, width), "down": (width, wide)}
    table = (STRUCTS.DepthBlock * len(blocks))()
    for i, (block, to) in enumerate(zip(blocks, table, strict=True)):
        for part, size in sizes.items():
            setattr(to, part, matrix(f"block {i}: {part}", getattr(block, part), *size))
        same_format(f"block {i}: q, k, v", block.q, block.k, block.v)
        for part in ("norm1", "norm2"):
            own: Norm = getattr(block, part)
            setattr(to, part, expect(f"block {i}: {part}.weight", own.weight, (width,), torch.float32))
            setattr(to, f"{part}_bias", expect(f"block {i}: {part}.bias", own.bias, (width,), torch.float32))
    return {
        **{"blocks_count": len(blocks), "width": width, "heads": weights.heads, "blocks": table},
        "first": matrix("first", weights.first, width),
        "later": matrix("later", weights.later, width),
        "place": expect("places", places, (depth, width), torch.float32),
        "norm": expect("norm.weight", norm.weight, (width,), torch.float32),
        "norm_bias": expect("norm.bias", norm.bias, (width,), torch.float32),
    }


class CodeDraw:
    """Draws the codes of one position after another, all depths in one call; weights are used in place.

    transformer: None where the one code of a position is drawn from the hidden state itself. classes: the map to
    logits. books: float32 [codes, code width], one a depth. uniforms: float32 [videos, tokens, depth]; codes: int64
    likewise, where draws are written. Rows are videos, or with a guidance that is not 1 their conditional rows and then
    the others. temperature, top_k as in `decoding.sampling.SamplingSettings`. Raises as `DecoderPass` does.
    """

    def __init__(
        self,
        transformer: DepthWeights | None,
        *,
        classes: Linear,
        books: Sequence[Tensor],
        uniforms: Tensor,
        codes: Tensor,
        guidance: float = 1.0,
        temperature: float = 1.0,
        top_k: int = 0,
        threads: int = 1,
    ) -> None:
        if min(codes.dim() - 2, threads) < 1 or not codes.numel():
            raise ValueError(f"{threads} threads, codes {list(codes.shape)}: expected some of each")
        videos, tokens, depth = codes.shape
        rows = videos if guidance == 1 else 2 * videos
        if len(books) != depth or (transformer is None and depth != 1):
            raise ValueError(f"{len(books)} codebooks for a depth of {depth}")
        known = classes.outputs
        if transformer is None:
            width = classes.inputs
            none, table = STRUCTS.Matrix(inputs=width), STRUCTS.Matrix(inputs=books[0].shape[1])
            parts: dict[str, Any] = {"width": width, "heads": 1, "first": none, "later": table}
        else:
            parts = _transformer(transformer, depth)
        shape = (known, parts["later"].inputs)
        vectors = [expect(f"book {d}", book, shape, torch.float32) for d, book in enumerate(books)]
        width, heads = parts["width"], parts["heads"]
        self._memory = torch.zeros(2, parts.get("blocks_count", 0), rows, heads, depth, width // heads)
        self._depth = STRUCTS.Depth(
            **parts,
            **{"rows": rows, "depth": depth, "threads": threads, "books": (ctypes.c_void_p * depth)(*vectors)},
            classes=matrix("classes", classes, None, width),
            keys=self._memory[0].data_ptr(),
            values=self._memory[1].data_ptr(),
        )
        self._shape = (videos, tokens, depth)
        self._draw = STRUCTS.Draw(
            tokens=tokens,
            sampling=STRUCTS.Sampling(guidance=guidance, temperature=temperature, top_k=top_k),
            uniforms=expect("uniforms", uniforms, self._shape, torch.float32),
            codes=expect("codes", codes, self._shape, torch.int64),
        )
        memory = scratch(kernels().depth_bytes(self._depth))
        self._depth.scratch = memory.data_ptr()
        self._run = partial(kernels().draw, ctypes.byref(self._depth), ctypes.byref(self._draw))
        # What an address points to must live as long as this object.
        self._held = (memory, transformer, classes, books, uniforms, codes)

    def __call__(
        self, hidden: Tensor, index: int, *, top_p: float = 1.0, given: Tensor | None = None, keep_logits: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Draw the codes of position `index` from its hidden states, float32 [rows, in], by the top-p in force.

        Codes int64 [videos, tokens, depth] that are `given` are taken instead. Returns the sums of the code vectors
        [videos, code width], and with `keep_logits` the guided logits [depth, videos, codes]. Raises ArithmeticError
        where no code can be drawn because a logit is NaN or infinite, ValueError for a given code that is none.
        """
        (videos, tokens, depth), draw = self._shape, self._draw
        if not 0 <= index < tokens:
            raise ValueError(f"index is {index}, expected 0 to {tokens - 1}")
        latent = torch.empty(videos, self._depth.later.inputs)
        logits = torch.empty(depth, videos, self._depth.classes.outputs) if keep_logits else None
        draw.index, draw.sampling.top_p, draw.latent = index, top_p, latent.data_ptr()
        draw.hidden = expect("hidden", hidden, (self._depth.rows, self._depth.first.inputs), torch.float32)
        draw.given = None if given is None else expect("given", given, self._shape, torch.int64)
        draw.logits = None if logits is None else logits.data_ptr()
        if failed := self._run():
            where = f"token {index}, depth {failed - 1}"
            if given is None:
                raise ArithmeticError(f"{where}: the logits are not finite")
            raise ValueError(f"given: {where} has no code of 0 to {self._depth.classes.outputs - 1}")
        return latent, logits
