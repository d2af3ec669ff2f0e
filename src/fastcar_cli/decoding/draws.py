"""The codes of a batch: given or sampled, position by position, one depth after another."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fastcar_cli.decoding.inputs import Inputs
from fastcar_cli.decoding.sampling import Logits, guide, sample
from fastcar_cli.models.network import Network
from fastcar_cli.models.sampling import SamplingSettings


class Draws:
    """Codes and the random numbers that decide them."""

    def __init__(
        self,
        model: Network,
        settings: SamplingSettings,
        uniforms: Tensor,
        slack: int = 0,
        conditions: Tensor | None = None,
    ) -> None:
        layout, device = model.spec.layout, model.device
        self._codebooks, self._settings = model.codebooks, settings
        self.tokens = tokens = uniforms.shape[1]  # T*N, positions of a video
        # [P, T*N + slack, depth]: random numbers in [0, 1) for sampling, and codes int64, including drafts.
        self.uniforms = F.pad(uniforms.to(device), (0, 0, 0, slack)).contiguous()
        self.buffer = torch.zeros(self.uniforms.shape, dtype=torch.int64, device=device)
        self.codes = self.buffer[:, :tokens]  # filled as positions are decoded
        self.given: Tensor | None = None  # shaped like `buffer`; codes instead of samples; -1: sample
        self._fixed = model.given
        self.places = set(layout.delimiters if layout.together else ())  # positions of given tokens that share a pass
        fixed = model.given(tokens + slack, conditions)
        if bool((fixed >= 0).any()):
            self.given = fixed[..., None].expand_as(self.buffer).contiguous()
        self.videos = len(self.buffer)
        # Final positions of each video; the position where decoding stops for the caller; positions with given codes.
        self.done, self.limit, self.known = [0] * self.videos, tokens, 0
        self.keep_logits = False
        # Summed code vectors of the last position, [P, 1, code_width]; None (after several tokens at once): looked up.
        self.latent: Tensor | None = None
        # top_p by position on the device, only if it changes.
        self._top_ps: Tensor | None = None
        if settings.top_p_of(0) != settings.top_p_of(1):
            self._top_ps = torch.full(self.buffer.shape[1:2], settings.top_p_of(1), device=device)
            self._top_ps[: layout.stride] = settings.top_p_of(0)

    def give(self, codes: Tensor, begin: int = 0) -> None:
        """Use these codes [P, n, depth] instead of sampled ones, from position `begin` on."""
        if self.given is None:
            self.given = torch.full_like(self.buffer, -1)
        self.known = begin + codes.shape[1]
        self.given[:, begin : self.known] = codes.to(self.buffer)

    def refresh(self, conditions: Tensor, begin: int, end: int) -> None:
        """Update the given ids of positions `begin` to `end` - 1 from the conditions."""
        if self.given is not None:
            self.given[:, begin:end] = self._fixed(end - begin, conditions, begin)[..., None]

    def rewind(self, begin: int) -> None:
        """Decode the final positions from `begin` on again, with the same codes."""
        self.give(self.buffer[:, begin : min(self.done)].clone(), begin)
        self.done, self.latent = [begin] * self.videos, None

    def input_latents(self, inputs: Inputs, embed: Callable[[Tensor], Tensor]) -> Tensor:
        """Summed code vectors of the input tokens, [P, count, code_width]: stored when sampled, or from `embed`."""
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
        """Sample n positions of every video in torch into the buffer; those of a video are adjacent.

        hidden [rows n, width]; positions int64 [P n] stay on their device. Returns the sums of the code vectors [P n,
        code_width] and, with `keep_logits`, guided logits [depth, P n, codes].
        """
        settings, codes, kept = self._settings, list[Tensor](), list[Tensor]()
        videos = torch.arange(len(positions), device=positions.device) // (len(positions) // self.videos)
        top_p = settings.top_p_of(1) if self._top_ps is None else self._top_ps[positions, None]
        uniforms = self.uniforms[videos, positions]
        given = None if self.given is None else self.given[videos, positions]
        # On the CPU nothing is sampled if all codes are given: their logits may be NaN.
        draws = given is None or given.device.type != "cpu" or bool((given < 0).any())
        x, total = hidden, torch.empty(0)
        for d, book in enumerate(self._codebooks):
            guided = guide(logits(x, d), settings.cfg)
            if self.keep_logits:
                kept.append(guided.clone())
            if draws:
                code = sample(guided, uniforms[:, d], settings, top_p)
            if given is not None:
                code = torch.where(given[:, d] < 0, code, given[:, d]) if draws else given[:, d]
            codes.append(code)
            total = total + book(code) if d else book(code)
            x = torch.cat([total, total]) if settings.guided else total
        self.buffer[videos, positions] = torch.stack(codes, -1)
        return total, torch.stack(kept) if kept else None
