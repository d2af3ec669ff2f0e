"""Samples the codes of a token. The blocks have LayerNorm with eps 1e-5, attention over the depths so far, and GELU.

A model without a depth transformer has one code per token, sampled from the classifier's logits of its hidden state.
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
from fastcar_cli.kernels.native.structs import STRUCTS, Linear, expect, fill, matrix, same_format


@dataclass(frozen=True)
class DepthBlockWeights:
    """A block: q, k, v and o are [width, width], up [any, width], down [width, any], norms float32 [width]."""

    norm1: Tensor
    norm1_bias: Tensor
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    norm2: Tensor
    norm2_bias: Tensor
    up: Linear
    down: Linear


@dataclass(frozen=True)
class DepthWeights:
    """A depth transformer."""

    blocks: Sequence[DepthBlockWeights]
    first: Linear  # maps the hidden state to the input of depth 0
    later: Linear  # maps summed code vectors to the input of later depths
    depth_embeddings: Tensor  # float32 [depth, width], added to the inputs
    norm: Tensor  # the last norm
    norm_bias: Tensor
    heads: int


def _transformer(weights: DepthWeights, depth: int) -> Any:
    """A `Depth` with the fields that describe the transformer, after checks."""
    blocks, shape = weights.blocks, list(weights.depth_embeddings.shape)
    if len(shape) != 2 or weights.heads < 1 or shape[1] % weights.heads:
        raise ValueError(f"depth_embeddings is {shape}, expected [depth, a multiple of {weights.heads}]")
    if not blocks:
        raise ValueError("0 blocks, expected at least one")
    width, mlp_width = shape[1], blocks[0].up.outputs
    norms = dict.fromkeys(("norm1", "norm1_bias", "norm2", "norm2_bias"), (width,))
    shapes = {**norms, **dict.fromkeys("qkvo", (width, width)), "up": (mlp_width, width), "down": (width, mlp_width)}
    structs = (STRUCTS.DepthBlock * len(blocks))()
    for i, (block, struct) in enumerate(zip(blocks, structs, strict=True)):
        fill(struct, f"block {i}: ", block, shapes)
        same_format(f"block {i}: q, k, v", block.q, block.k, block.v)
    whole = STRUCTS.Depth(blocks_count=len(blocks), width=width, heads=weights.heads, blocks=structs)
    norms = dict.fromkeys(("norm", "norm_bias"), (width,))
    fill(
        whole,
        "",
        weights,
        {**norms, "first": (width, None), "later": (width, None), "depth_embeddings": (depth, width)},
    )
    return whole


class CodeDraw:
    """Samples the codes of one or more tokens of every video, all depths in one call; weights are used in place.

    transformer: None if a token's one code is sampled from the hidden state itself. classifier: the map to logits.
    codebooks: float32 [codes, code width], one for each depth. uniforms: float32 [videos, tokens, depth]. codes: int64
    [videos, tokens, depth], written by each call. There is a row for each sampled token; unless guidance is 1, the
    unconditional rows follow the conditional ones. guidance, temperature, top_k, strict: cfg, temperature, top_k
    and top_p_strict of `SamplingSettings`. most: maximum tokens per video and call. Raises like `DecoderPass`.
    """

    def __init__(
        self,
        transformer: DepthWeights | None,
        *,
        classifier: Linear,
        codebooks: Sequence[Tensor],
        uniforms: Tensor,
        codes: Tensor,
        guidance: float = 1.0,
        temperature: float = 1.0,
        top_k: int = 0,
        strict: bool = False,
        most: int = 1,
        threads: int = 1,
    ) -> None:
        if min(codes.dim() - 2, threads, most) < 1 or not codes.numel():
            raise ValueError(f"{threads} threads, {most} tokens, codes of shape {list(codes.shape)}: none may be 0")
        videos, tokens, depth = codes.shape
        rows = videos * most * (1 if guidance == 1 else 2)
        if len(codebooks) != depth or (transformer is None and depth != 1):
            raise ValueError(f"{len(codebooks)} codebooks for a depth of {depth}")
        if transformer is None:
            width = classifier.inputs
            first, later = STRUCTS.Matrix(inputs=width), STRUCTS.Matrix(inputs=codebooks[0].shape[1])
            whole = STRUCTS.Depth(width=width, heads=1, first=first, later=later)
        else:
            whole = _transformer(transformer, depth)
        shape = (classifier.outputs, whole.later.inputs)
        vectors = [expect(f"codebook {d}", codebook, shape, torch.float32) for d, codebook in enumerate(codebooks)]
        self._cache = torch.zeros(2, whole.blocks_count, rows, whole.heads, depth, whole.width // whole.heads)
        whole.keys, whole.values = (part.data_ptr() for part in self._cache)
        whole.rows, whole.depth, whole.threads = rows, depth, threads
        whole.codebooks = (ctypes.c_void_p * depth)(*vectors)
        whole.classifier = matrix("classifier", classifier, None, whole.width)
        self._shape, self._most, self._pair = (videos, tokens, depth), most, 1 if guidance == 1 else 2
        self._inputs, self._logits, self._latent = whole.first.inputs, classifier.outputs, whole.later.inputs
        self._first: Any = (ctypes.c_int64 * videos)()
        self._top_p: Any = (ctypes.c_double * (videos * most))()
        self._draw = STRUCTS.Draw(
            **{"videos": videos, "tokens": tokens},
            first=ctypes.addressof(self._first),
            top_p=ctypes.addressof(self._top_p),
            sampling=STRUCTS.Sampling(guidance=guidance, temperature=temperature, top_k=top_k, strict=strict),
            uniforms=expect("uniforms", uniforms, self._shape, torch.float32),
            codes=expect("codes", codes, self._shape, torch.int64),
        )
        memory = scratch(kernels().depth_bytes(whole))
        whole.scratch = memory.data_ptr()
        self._run = partial(kernels().draw, ctypes.byref(whole), ctypes.byref(self._draw))
        # Tensors whose addresses are used must live as long as this object.
        self._held = (memory, transformer, classifier, codebooks, uniforms, codes)

    def __call__(
        self,
        hidden: Tensor,
        first: list[int],
        top_p: list[float],
        *,
        given: Tensor | None = None,
        keep_logits: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Sample the codes of `count` tokens of every video from hidden states float32 [rows, count, in].

        first: the first token of each video. top_p: one per token, those of a video adjacent. given: int64 [videos,
        tokens, depth], codes to use instead unless negative. Returns the summed code vectors [videos, count, code
        width] and, with `keep_logits`, the guided logits [depth, videos, count, codes]. Raises ArithmeticError if a
        logit is NaN or infinite, ValueError for a given code that is out of range.
        """
        (videos, tokens, depth), draw, count = self._shape, self._draw, hidden.shape[1]
        if not (min(first) >= 0 and max(first) + count <= tokens and 1 <= count <= self._most):
            raise ValueError(f"{count} tokens from {first} on: a call takes 1 to {self._most}, from 0 to {tokens - 1}")
        latent = torch.empty(videos, count, self._latent)
        logits = torch.empty(depth, videos, count, self._logits) if keep_logits else None
        self._first[:], self._top_p[: videos * count] = first, top_p
        draw.count, draw.latent = count, latent.data_ptr()
        shape = (self._pair * videos, count, self._inputs)
        draw.hidden = expect("hidden", hidden, shape, torch.float32)
        draw.given = None if given is None else expect("given", given, self._shape, torch.int64)
        draw.logits = None if logits is None else logits.data_ptr()
        if failed := self._run():
            where = f"tokens from {first} on, code {failed - 1}"
            if given is None or int(given.max()) < self._logits:
                raise ArithmeticError(f"{where}: the logits are not finite")
            raise ValueError(f"given: {where}: not in 0 to {self._logits - 1}")
        return latent, logits
