"""The codes of a batch: given or drawn, position by position."""

from __future__ import annotations

import torch
from torch import Tensor

from fastcar_cli.decoding.inputs import Inputs
from fastcar_cli.decoding.sampling import CodeSampler, Logits
from fastcar_cli.models.network import Network
from fastcar_cli.models.sampling import SamplingSettings


class Draws:
    """Codes and the random numbers that decide them.

    Attributes:
        codes: int64 [P, T*N, depth], filled as positions are decoded.
        uniforms: [P, T*N, depth] numbers in [0, 1) that fix the draws; a position's belong to its video alone.
        given: codes int64 [P, T*N, depth] that are taken instead of drawn ones at the positions of `is_given`; None
            where all are drawn.
        done: final positions of each video.
        keep_logits: whether passes return logits.
        latent: sums of the code vectors of the positions that the last pass drew, [P, count, code_width], of the last
            final one alone once the pass is committed; None where they are looked up.

    """

    def __init__(self, model: Network, settings: SamplingSettings, uniforms: Tensor, tokens: int) -> None:
        layout, device = model.spec.layout, model.device
        self._model, self._settings, self._frame = model, settings, layout.stride
        self.uniforms = uniforms.to(device).contiguous()
        self.sampler = CodeSampler(model.codebooks, settings, self.uniforms, layout.stride)
        self.codes = torch.zeros(len(uniforms), tokens, model.spec.code_depth, dtype=torch.int64, device=device)
        self.given: Tensor | None = None
        fixed = layout.fixed(tokens)
        self.is_given = [code is not None for code in fixed]
        if any(self.is_given):
            ids = torch.tensor([-1 if code is None else code for code in fixed], device=device)
            self.given = ids[None, :, None].expand_as(self.codes).contiguous()
        self.done = [0] * len(uniforms)
        self.keep_logits = False
        self.latent: Tensor | None = None

    @property
    def tokens(self) -> int:
        """T*N, positions of a video."""
        return self.codes.shape[1]

    def give(self, codes: Tensor) -> None:
        """Take these codes [P, T*N, depth] instead of drawn ones."""
        self.given = codes.to(self.codes).contiguous()
        self.is_given = [True] * self.tokens

    def input_latents(self, inputs: Inputs) -> Tensor:
        """Sums of the code vectors of the input tokens, [P, count, code_width]."""
        if self.latent is not None and inputs.count == 1:
            return self.latent
        videos = torch.arange(len(self.codes), device=self.codes.device)[:, None]
        return self._model.embed(self.codes[videos, self._positions(inputs)])

    def drawn(self, inputs: Inputs) -> Tensor:
        """Codes of the positions behind the inputs, [P, count, depth]."""
        if (t := inputs.common) is not None:
            return self.codes.narrow(1, t + 1, inputs.count)
        videos = torch.arange(len(self.codes), device=self.codes.device)[:, None]
        return self.codes[videos, self._positions(inputs) + 1]

    def _positions(self, inputs: Inputs) -> Tensor:
        """Of the input tokens, int64 [P, count]."""
        first = torch.tensor(inputs.first, device=self.codes.device)
        return first[:, None] + torch.arange(inputs.count, device=self.codes.device)

    def commit(self, inputs: Inputs, accepted: tuple[int, ...]) -> None:
        """Make the first `accepted` positions behind the inputs of each video final."""
        self.done = [first + 1 + count for first, count in zip(inputs.first, accepted, strict=True)]
        if self.latent is not None and inputs.count > 1:
            at = torch.tensor(accepted, device=self.latent.device) - 1
            self.latent = self.latent[torch.arange(len(at), device=at.device), at][:, None]

    def draw(self, hidden: Tensor, index: int | Tensor, logits: Logits) -> tuple[Tensor, Tensor, Tensor | None]:
        """Draw position `index` of every video in torch, from hidden states [rows, width].

        index: the same of all videos, or int64 [P]. Returns codes int64 [P, depth], the sums of their vectors [P,
        code_width] and, where they are kept, guided logits [depth, P, codes].
        """
        kept: list[Tensor] | None = [] if self.keep_logits else None
        videos: slice | Tensor = slice(None)
        if isinstance(index, Tensor):
            videos = torch.arange(len(self.codes), device=index.device)
        given = None
        if self.given is not None and (isinstance(index, Tensor) or self.is_given[index]):
            given = self.given[videos, index]
        codes, latent = self.sampler.draw(hidden, index, logits, given, kept)
        self.codes[videos, index] = codes
        return codes, latent, torch.stack(kept) if kept else None
