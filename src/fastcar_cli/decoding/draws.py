"""The codes of a batch: given or drawn, position by position."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fastcar_cli.decoding.inputs import Inputs
from fastcar_cli.decoding.sampling import CodeSampler, Logits
from fastcar_cli.models.network import Network
from fastcar_cli.models.sampling import SamplingSettings


class Draws:
    """Codes and the random numbers that decide them.

    Attributes:
        tokens: T*N, positions of a video.
        codes: int64 [P, T*N, depth], filled as positions are decoded.
        buffer: what `codes` is a part of, int64 [P, T*N + slack, depth]; passes write up to `slack` positions beyond
            the end of a video, and drafts.
        uniforms: numbers in [0, 1) that fix the draws, shaped as `buffer`; a position's belong to its video alone.
        given: codes shaped as `buffer` that are taken instead of drawn ones where they are not negative; None where all
            are drawn.
        done: final positions of each video.
        keep_logits: whether passes return logits.
        latent: sum of the code vectors of the position that the last pass drew, [P, 1, code_width]; None where it is
            looked up, as after a pass of several tokens.

    """

    def __init__(self, model: Network, settings: SamplingSettings, uniforms: Tensor, slack: int = 0) -> None:
        layout, device = model.spec.layout, model.device
        self.tokens = tokens = uniforms.shape[1]
        self.uniforms = F.pad(uniforms.to(device), (0, 0, 0, slack)).contiguous()
        self.sampler = CodeSampler(model.codebooks, settings, self.uniforms, layout.stride)
        self.buffer = torch.zeros(self.uniforms.shape, dtype=torch.int64, device=device)
        self.codes = self.buffer[:, :tokens]
        self.given: Tensor | None = None
        fixed = torch.tensor([-1 if code is None else code for code in layout.fixed(tokens + slack)], device=device)
        if bool((fixed >= 0).any()):
            self.given = fixed[None, :, None].expand_as(self.buffer).contiguous()
        self.done = [0] * self.videos
        self.keep_logits = False
        self.latent: Tensor | None = None

    @property
    def videos(self) -> int:
        """P."""
        return len(self.buffer)

    def give(self, codes: Tensor) -> None:
        """Take these codes [P, T*N, depth] instead of drawn ones."""
        self.given = F.pad(codes.to(self.buffer), (0, 0, 0, self.buffer.shape[1] - self.tokens)).contiguous()

    def input_latents(self, inputs: Inputs, embed: Callable[[Tensor], Tensor]) -> Tensor:
        """Sums of the code vectors of the input tokens, [P, count, code_width], by `embed` where they were not drawn
        by the last pass.
        """
        if self.latent is not None and inputs.count == 1:
            return self.latent
        return embed(inputs.of(self.buffer.transpose(0, 1)).transpose(0, 1))

    def drawn(self, inputs: Inputs) -> Tensor:
        """Codes of the positions after the inputs, [P, count, depth]."""
        return inputs.of(self.buffer.transpose(0, 1), shift=1).transpose(0, 1)

    def advance(self, inputs: Inputs, accepted: tuple[int, ...]) -> None:
        """Make the first `accepted` positions after the inputs of each video final."""
        self.done = [first + 1 + count for first, count in zip(inputs.first, accepted, strict=True)]
        self.latent = self.latent if inputs.count == 1 else None

    def draw(self, hidden: Tensor, positions: Tensor, logits: Logits) -> tuple[Tensor, Tensor | None]:
        """Draw one position of every video in torch, from hidden states [rows, width]; positions int64 [P].

        Returns the sums of the code vectors [P, code_width] and, with `keep_logits`, guided logits [depth, P, codes].
        """
        kept: list[Tensor] | None = [] if self.keep_logits else None
        videos = torch.arange(self.videos, device=positions.device)
        given = None if self.given is None else self.given[videos, positions]
        codes, latent = self.sampler.draw(hidden, positions, logits, given, kept)
        self.buffer[videos, positions] = codes
        return latent, torch.stack(kept) if kept else None
