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
        given: codes shaped as `buffer` that are taken instead of drawn ones at the positions of `is_given`; None where
            all are drawn.
        done: final positions of each video.
        keep_logits: whether passes return logits.
        latent: sum of the code vectors of the position that the last pass drew, [P, 1, code_width]; None where it is
            looked up, as behind a pass of several tokens.

    """

    def __init__(self, model: Network, settings: SamplingSettings, uniforms: Tensor, slack: int = 0) -> None:
        layout, device = model.spec.layout, model.device
        self._model, self._settings, self._frame = model, settings, layout.stride
        self.tokens = tokens = uniforms.shape[1]
        self.uniforms = F.pad(uniforms.to(device), (0, 0, 0, slack)).contiguous()
        self.sampler = CodeSampler(model.codebooks, settings, self.uniforms, layout.stride)
        self.buffer = torch.zeros(self.uniforms.shape, dtype=torch.int64, device=device)
        self.codes = self.buffer[:, :tokens]
        self.given: Tensor | None = None
        fixed = layout.fixed(tokens + slack)
        self.is_given = [code is not None for code in fixed]
        if any(self.is_given):
            ids = torch.tensor([-1 if code is None else code for code in fixed], device=device)
            self.given = ids[None, :, None].expand_as(self.buffer).contiguous()
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
        self.is_given = [True] * self.buffer.shape[1]

    def input_latents(self, inputs: Inputs, embed: Callable[[Tensor], Tensor]) -> Tensor:
        """Sums of the code vectors of the input tokens, [P, count, code_width], by `embed` where they were not drawn
        by the last pass.
        """
        if self.latent is not None and inputs.count == 1:
            return self.latent
        if (t := inputs.common) is not None:
            return embed(self.buffer.narrow(1, t, inputs.count))
        videos = torch.arange(len(self.codes), device=self.codes.device)[:, None]
        return embed(self.buffer[videos, self.positions(inputs)])

    def drawn(self, inputs: Inputs) -> Tensor:
        """Codes of the positions behind the inputs, [P, count, depth]."""
        if (t := inputs.common) is not None:
            return self.buffer.narrow(1, t + 1, inputs.count)
        videos = torch.arange(len(self.codes), device=self.codes.device)[:, None]
        return self.buffer[videos, self.positions(inputs) + 1]

    def positions(self, inputs: Inputs) -> Tensor:
        """Of the input tokens, int64 [P, count]."""
        first = torch.tensor(inputs.first, device=self.codes.device)
        return first[:, None] + torch.arange(inputs.count, device=self.codes.device)

    def commit(self, inputs: Inputs, accepted: tuple[int, ...]) -> None:
        """Make the first `accepted` positions behind the inputs of each video final."""
        self.done = [first + 1 + count for first, count in zip(inputs.first, accepted, strict=True)]
        self.latent = self.latent if inputs.count == 1 else None

    def draw(self, hidden: Tensor, index: int | Tensor, logits: Logits) -> tuple[Tensor, Tensor | None]:
        """Draw position `index` of every video in torch, from hidden states [rows, width].

        index: the same of all videos, or int64 [P]. Returns the sums of the code vectors [P, code_width] and, where
        they are kept, guided logits [depth, P, codes].
        """
        kept: list[Tensor] | None = [] if self.keep_logits else None
        videos: slice | Tensor = slice(None)
        if isinstance(index, Tensor):
            videos = torch.arange(len(self.codes), device=index.device)
        given = None
        if self.given is not None and (isinstance(index, Tensor) or self.is_given[index]):
            given = self.given[videos, index]
        codes, latent = self.sampler.draw(hidden, index, logits, given, kept)
        self.buffer[videos, index] = codes
        return latent, torch.stack(kept) if kept else None
