"""The prompts of a batch, and what the decoder's input tokens get by position: angles and added vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fastcar_cli.models.decoder import KV
from fastcar_cli.models.network import Network


@dataclass(frozen=True)
class PromptRows:
    """Prompts as rows of token ids, padded on the left: conditional rows first, then the unconditional ones."""

    ids: Tensor  # int64 [rows, padded]
    lengths: Tensor  # tokens of each row, int64 [rows]
    guided: bool  # whether each video has two rows
    aligned: int = 0  # tokens of frames at the end of the prompts
    conditions: Tensor | None = None  # what videos get besides their prompts; see `Network.added`
    reused: int = 0  # number of first tokens whose keys and values the KV cache already holds

    @classmethod
    def of(
        cls, model: Network, rows: Sequence[Sequence[int]], guided: bool, conditions: Tensor | None = None
    ) -> PromptRows:
        """The prompts with these token ids, one list per row, on the device of a model."""
        longest, device = max(map(len, rows)), model.device
        ids = torch.tensor([[0] * (longest - len(row)) + list(row) for row in rows], device=device)
        lengths = torch.tensor([len(row) for row in rows], device=device)
        conditions = None if conditions is None else conditions.to(device)
        return cls(ids, lengths, guided, model.spec.layout.aligned(longest), conditions)

    @property
    def rows(self) -> int:
        """Rows of the batch: two per video with guidance, else one."""
        return self.ids.shape[0]

    @property
    def videos(self) -> int:
        """P, videos of the batch."""
        return self.rows // 2 if self.guided else self.rows

    @property
    def padded(self) -> int:
        """Tokens of the longest prompt."""
        return self.ids.shape[1]

    @property
    def pad(self) -> Tensor:
        """Padding before each prompt, int64 [rows]."""
        return self.padded - self.lengths

    def rows_of(self, video: int) -> list[int]:
        """The batch rows of a video."""
        return [video, video + self.videos] if self.guided else [video]

    def doubled(self, x: Tensor) -> Tensor:
        """Repeat x [P, ...], which both rows of a video share, for every row: [rows, ...]."""
        return torch.cat([x, x]) if self.guided else x

    def unpadded(self) -> list[list[int]]:
        """Token ids of each row without padding."""
        return [ids[pad:] for ids, pad in zip(self.ids.tolist(), self.pad.tolist(), strict=True)]

    def positions(self) -> Tensor:
        """Rotary positions of the padded prompts, int64 [rows, padded]; padding has 1."""
        i = torch.arange(self.padded, device=self.ids.device)[None] - self.pad[:, None]
        return torch.where(i >= 0, i, torch.ones_like(i))

    def apart(self) -> list[tuple[list[list[int]], PromptRows]]:
        """For each different prompt, the rows of each video that has it, and the prompt padded as if it were alone.
        With conditions all prompts count as different.
        """
        alike: dict[Any, list[list[int]]] = {}
        rows = self.unpadded()
        for video in range(self.videos):
            key = video if self.conditions is not None else str([rows[row] for row in self.rows_of(video)])
            alike.setdefault(key, []).append(self.rows_of(video))
        found = []
        for videos in alike.values():
            own = videos[0]
            lengths = self.lengths[own]
            conditions = None if self.conditions is None else self.conditions[own[:1]]
            ids = self.ids[own, self.padded - int(lengths.max()) :]
            found.append((videos, replace(self, ids=ids, lengths=lengths, conditions=conditions)))
        return found


def _by_video(parts: Sequence[Tensor]) -> Tensor | None:
    """Join parts [n, 1, width] of all videos to [n, P, width], or [n, 1, width] if they are equal; None if empty."""
    if all(torch.equal(part, parts[0]) for part in parts):
        return parts[0] if parts else None
    return torch.cat(list(parts), 1)


class Places:
    """Rotary angles of every visual token, and vectors that the model adds to its input, computed before decoding.

    cos, sin: [T*N + slack, rows or 1, head_dim]; 1 if all prompts are equally long.
    added: [T*N + slack, 1 or P, width] or None; slack repeats the last token's.
    prompt_added: the same for the prompts' `aligned` tokens.
    cross_kv: keys and values of each block's cross-attention; empty for a model without it.
    """

    def __init__(self, model: Network, prompts: PromptRows, tokens: int, slack: int = 0) -> None:
        lengths = prompts.lengths
        lengths = lengths if bool((lengths != lengths[0]).any()) else lengths[:1]
        self._lengths, self._absolute, self._dtype = lengths, model.llm.absolute, model.dtype
        self._model, self._begin, self._tokens, self._slack = model, 0, tokens, slack
        self.cos, self.sin = self._angles(tokens + slack)
        # Video by video, as the rounding of a product may depend on how many rows it has.
        source, alone = prompts.conditions, [slice(v, v + 1) for v in range(prompts.videos)]
        self.cross_kv: list[KV] = []
        if source is not None:
            of_videos = [model.llm.cross_kv(source[video].to(model.dtype)) for video in alone]
            self.cross_kv = [
                (torch.cat(k), torch.cat(v)) for k, v in (zip(*m, strict=True) for m in zip(*of_videos, strict=True))
            ]
        self.added = self.prompt_added = None
        added = self._added(prompts, tokens)
        if added is not None:
            self.prompt_added, self.added = added.split([prompts.aligned, tokens])
            self.added = torch.cat([self.added, self.added[-1:].expand(slack, -1, -1)])

    def _angles(self, tokens: int) -> tuple[Tensor, Tensor]:
        positions = self._lengths[None] + torch.arange(tokens, device=self._lengths.device)[:, None]
        return self._model.llm.rotary(positions, self._dtype)

    def _added(self, prompts: PromptRows, tokens: int, begin: int = 0) -> Tensor | None:
        """Vectors added to the prompts' `aligned` tokens and to `tokens` tokens after them, from token `begin` on."""
        source, alone = prompts.conditions, [slice(v, v + 1) for v in range(prompts.videos)]
        every = [
            self._model.added(prompts.aligned + tokens, prompts.ids[v], None if source is None else source[v], begin)
            for v in alone
        ]
        return _by_video([x for x in every if x is not None])

    def move(self, prompts: PromptRows, begin: int, count: int) -> None:
        """Make visual token `begin` the first after the prompts; updates it and the `count - 1` tokens after it."""
        self._begin, end = begin, min(begin + count, self._tokens)
        angled = slice(begin, end + self._slack)
        self.cos[angled], self.sin[angled] = self._angles(end + self._slack - begin)
        if self.added is not None:
            added = self._added(prompts, end - begin, begin)
            assert added is not None
            self.prompt_added, self.added[begin:end] = added.split([prompts.aligned, end - begin])

    def refresh(self, prompts: PromptRows, frame: int, size: int) -> slice:
        """Update the added vectors up to decoded frame `frame`, of `size` tokens; returns the tokens updated."""
        end = min((frame + 1) * size, self._tokens)
        if self.added is not None:
            added = self._added(prompts, end - self._begin, self._begin)
            assert added is not None
            self.prompt_added, self.added[self._begin : end] = added.split([prompts.aligned, end - self._begin])
        return slice(self._begin, end)

    def before_block(self, x: Tensor, index: Tensor) -> Tensor:
        """A block's input from the previous block's output x [rows, S, width]; `index`: positions [rows, S]."""
        return x if self._absolute is None else x + self._absolute(index, self._dtype)

    def index(self, t: Tensor) -> Tensor:
        """Positions of the visual tokens t int64 [rows]."""
        return self._lengths + t - self._begin
