"""Drafts: proposed codes for the next positions of a video, which one pass of the decoder verifies.

A pass takes W input tokens of a video, its last final one and W - 1 drafts, and samples the W positions after them,
each with its own random numbers. A draft is accepted if the sample at its position equals it; the first sample that
differs is final too. So the video has the same codes as with one token per pass.

`frame` proposes the code of the aligned token, N earlier. `jacobi` prefers what the last pass sampled after its first
difference (speculative Jacobi decoding, arXiv 2410.01699), and takes aligned tokens after that.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastcar_cli.decoding.drafts.length import DraftWindow
from fastcar_cli.decoding.draws import Draws
from fastcar_cli.decoding.inputs import Inputs


@dataclass(frozen=True)
class DraftSettings:
    """How tokens are drafted."""

    kind: str = "off"  # `off`, `frame`, `jacobi`, or `auto`: jacobi, its length chosen by measured cost and acceptance
    window: int = 1  # W, maximum input tokens per video and pass
    accept: float | None = None  # for benchmarks: accept each draft with this probability, whatever is sampled

    @property
    def fixed(self) -> int:
        """The draft length W of a fixed length; 1 for `auto`."""
        return 1 if self.kind in ("off", "auto") else self.window

    @property
    def slack(self) -> int:
        """Extra positions after a video's last one, because a pass may reach beyond the end."""
        return 0 if self.kind == "off" or self.window == 1 else self.window


class Pass(NamedTuple):
    """A pass of the decoder: first input token, number of inputs, and number of final tokens, per video."""

    first: tuple[int, ...]
    taken: int
    accepted: tuple[int, ...]


class Drafter:
    """Drafts the next tokens of every video of a batch, and counts how many are right.

    passes: all passes, in order. drafted: whether a final position was an accepted draft, bool [P, T*N].
    """

    def __init__(
        self,
        draws: Draws,
        settings: DraftSettings,
        frame: int,
        columns: int,
        lockstep: bool = False,
        before: Tensor | None = None,
        windows: DraftWindow | None = None,
        together: bool = True,
        most: int | None = None,
    ) -> None:
        """Drafts are written to the codes of `draws`, at their positions.

        frame: N. columns: codes in a row of a frame. lockstep: all videos must be at the same token. before: codes
        int64 [P, N, depth] of the frame before the first, if prompts hold one. windows: what `auto` has measured in
        earlier videos. together: a pass takes given tokens (`Draws.places`) besides its drafts.
        """
        self._before, self._places, self._known = before, draws.places if together else set[int](), 0
        self._draws, self._frame, self._columns, self._lockstep = draws, frame, columns, lockstep
        self._carry = settings.kind != "frame"
        self.window = settings.window
        self._choice: DraftWindow | None = None
        if settings.kind == "auto":
            self._choice = windows or DraftWindow(settings.window)
            self._choice.begin(draws.tokens, most)
            # The same memory: NumPy reads a few numbers ten times as fast as torch.
            self._array: Any = draws.buffer.numpy() if draws.buffer.device.type == "cpu" else draws.buffer
        # Below these positions the codes of each video are samples of the last pass.
        self._drawn = [0] * draws.videos
        self._drafts: Tensor | None = None
        self._accept, self._chance = settings.accept, torch.Generator().manual_seed(0)
        self.passes: list[Pass] = []
        self.drafted = torch.zeros(draws.videos, draws.tokens, dtype=torch.bool)

    def inputs(self, most: int) -> Inputs:
        """The inputs of the next pass, at most `most` per video; a finished video repeats its last token."""
        draws, self._drafts = self._draws, None
        least, first = min(draws.done), tuple(done - 1 for done in draws.done)
        if least < draws.known:
            window, most = self.window, min(most, draws.known - least)
        else:
            window = self.window if self._choice is None else self._choice.choose(partial(self._promising, least))
        self._known = min(map(self._given_from, draws.done)) if self._places else 0
        window += self._known
        if window < 2 or not least or (count := min(window, most, draws.limit - least)) < 2:
            return Inputs(first)
        for video, done in enumerate(draws.done):
            self._write(video, done, done + count - 1)
        self._drafts = draws.drawn(Inputs(first, count - 1)).clone()
        return Inputs(first, count)

    def _given_from(self, position: int) -> int:
        """Number of consecutive given tokens from this position on, which a pass takes together."""
        return next(n for n in itertools.count() if (position + n) % self._frame not in self._places)

    def _write(self, video: int, begin: int, end: int) -> None:
        """Draft the positions `begin` to `end` - 1 of a video."""
        codes, draws = self._draws.buffer[video], self._draws
        at = min(max(begin, self._drawn[video]), end) if self._carry else begin
        while at < end:
            back = self._back(at)
            stop = min(end, at + back)
            codes[at:stop] = self._codes(at - back, stop - back)[video]
            at = stop
        if draws.given is not None:
            fixed = draws.given[video, begin:end]
            codes[begin:end] = torch.where(fixed < 0, codes[begin:end], fixed)

    def _codes(self, begin: int, end: int) -> Tensor:
        """Codes [P, n, depth] of positions `begin` to `end` - 1; negative positions are the prompts'."""
        codes = self._draws.buffer[:, max(0, begin) : max(0, end)]
        if begin >= 0 or self._before is None:
            return codes
        length = self._before.shape[1]
        return torch.cat([self._before[:, length + begin : length + min(0, end)], codes], 1)

    def _back(self, position: int) -> int:
        """Distance to the token that serves as a draft: a frame; in the first frame a row, or one token."""
        known = position >= self._frame or self._before is not None
        return self._frame if known else self._columns if position >= self._columns else 1

    def _promising(self, done: int) -> float:
        """The share of the last final tokens for which a draft would have been accepted."""
        begin = max(1, done - 16)
        if done - begin < 4:
            return 0.0
        back = self._back(begin)
        if back <= begin:
            now, drafts = self._array[:, begin:done].tolist(), self._array[:, begin - back : done - back].tolist()
        else:
            now, drafts = self._codes(begin, done).tolist(), self._codes(begin - back, done - back).tolist()
        right = [a == b for of_video in zip(now, drafts, strict=True) for a, b in zip(*of_video, strict=True)]
        return sum(right) / len(right) if self._accept is None else self._accept

    def accepted(self, inputs: Inputs, record: bool = True) -> tuple[int, ...]:
        """Number of positions after the inputs, now sampled, that become final in each video.

        Without `record` the pass is not counted: its codes were final before.
        """
        draws, last = self._draws, self._draws.limit - 1
        if self._drafts is None:
            accepted = tuple([int(t < last) for t in inputs.first])
        else:
            right = (draws.drawn(inputs)[:, :-1] == self._drafts).all(-1)
            if self._accept is not None:
                right = torch.rand(right.shape, generator=self._chance) < self._accept
                if draws.given is not None:
                    right |= (inputs.of(draws.given.transpose(0, 1), shift=1)[:-1, :, 0] >= 0).T.cpu()
            counts = [1 + [*row, False].index(False) for row in right.tolist()]
            if self._lockstep:
                counts = [min(counts)] * len(counts)
            for video, (t, n) in enumerate(zip(inputs.first, counts, strict=True)):
                self.drafted[video, t + 1 : t + n] |= record
            self._drawn = [t + 1 + inputs.count for t in inputs.first]
            accepted = tuple([n if t + n <= last else last - t for n, t in zip(counts, inputs.first, strict=True)])
        if record:
            self.passes.append(Pass(inputs.first, inputs.count, accepted))
        return accepted

    def report(self, video: int) -> dict[str, Any]:
        """Statistics of a video's drafts, for its JSON document."""
        own = [p for p in self.passes if p.accepted[video]]
        done = sum(p.accepted[video] for p in own)
        drawn = [place for place in range(self._frame) if place not in self._draws.places]
        drafted = self.drafted[video, : done - done % self._frame].view(-1, self._frame)[:, drawn]
        return {
            "kind": "off" if self.window == 1 else "jacobi" if self._carry else "frame",
            "window": min(max((p.taken for p in own), default=1), self.window),
            "passes": len(own),
            "tokens_per_pass": done / len(own) if own else None,
            "accepted_by_frame": [float(share) for share in drafted.float().mean(1)],
        }

    def learn(self, seconds: float) -> None:
        """Record the seconds of the last pass, to choose the draft length."""
        if self._choice is not None and not self._known:
            last = self.passes[-1]
            self._choice.learn(last.taken, [n for n in last.accepted if n], seconds)
