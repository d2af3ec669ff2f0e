"""An online controller that adjusts the threshold to reach a replay ratio.

Sixteen times per frame the controller sets tau so that a share f of the last frame's scores lies above it:

    f = (target - replayed so far) / replays still possible          (both counted in MLPs)

With `max_age` the ages of the cached values limit the possible replays, and only scores of positions that may replay
again are ranked. The ratio misses its target by at most the share of decisions between two settings,
(N // 16) / (T*N - 1): 0.8 % for 8 frames.

Each layer reaches the ratio by itself (scope `layer`), or all layers share one tau (`global`). If scores equal the
threshold, or f falls between two ranks, an additive recurrence with the golden ratio decides. Every video of a batch
has its own state.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fastcar_cli.decoding.inputs import Inputs

GOLDEN = 0.6180339887498949
SETTINGS_PER_FRAME = 16


def max_ratio(
    frames: int, tokens_per_frame: int, max_age: int | None = None, dense: Sequence[int] = (), first: int = 1
) -> float:
    """The largest replay ratio of T*N - 1 passes: the `first` frames and `dense` positions of a frame never replay."""
    passes = frames * tokens_per_frame - 1
    if passes < 1 or frames <= first:
        return 0.0
    # The video's last token is never an input, so the last position of a frame is visited once less.
    visits, end = (frames - first, frames - first - 1), tokens_per_frame - 1
    often, last = (n if max_age is None else n - n // (max_age + 1) for n in visits)
    return (often * (end - sum(place < end for place in dense)) + last * (end not in dense)) / passes


@dataclass(frozen=True)
class Size:
    """Sizes of a batch; row r belongs to video r % videos."""

    layers: int
    rows: int
    videos: int
    frame: int  # N
    tokens: int  # T*N
    width: int
    slack: int = 0  # tokens after them that drafts may write
    delimiters: Sequence[int] = ()  # positions in a frame
    aligned: int = 0  # tokens of frames at the end of the prompts
    dtype: torch.dtype = torch.float32  # of MLP outputs
    device: torch.device | None = None
    opening: int = 0


@dataclass(frozen=True)
class Target:
    """The ratio over all passes; scope `layer`: in each layer, `global`: over all layers together."""

    ratio: float
    scope: str = "layer"


class Controller:
    """Sets the thresholds of one batch of videos, for `Replay`.

    The `first` frames never replay; with 0 the first thresholds come from the first frame's own tokens. `dense`
    positions of a frame never replay. Raises ValueError for a ratio that can't be reached.
    """

    def __init__(
        self, target: Target, size: Size, max_age: int | None, dense: Sequence[int] = (), first: int = 1
    ) -> None:
        layers, rows, videos, device = size.layers, size.rows, size.videos, size.device
        self.target, self.frame, self.passes = target, size.frame, size.tokens - 1
        self._layers, self._videos, self._per_video = layers, videos, rows // videos
        groups = layers if target.scope == "layer" else 1
        # MLPs per step that share a threshold.
        self._members = layers * self._per_video // groups
        self._max_age = max_age
        self._most = max_ratio(size.tokens // self.frame, self.frame, max_age, dense, first)
        self._gated = torch.ones(self.frame, dtype=torch.bool, device=device)
        self._gated[list(dense)] = False
        self._some_dense = bool(dense)
        gated = [t % self.frame not in dense for t in range(self.passes)]
        self._left = [*itertools.accumulate(reversed(gated))][::-1]
        if not 0 < target.ratio <= self._most:
            raise ValueError(f"a replay ratio must be above 0 and at most {self._most:.4f}, not {target.ratio:g}")
        self._wanted = target.ratio * self.passes * self._members
        self._done = torch.zeros(videos, groups, device=device)
        self._scores = torch.zeros(layers, rows, self.frame, device=device)
        self._tau = torch.full((layers, rows), float("inf"), device=device)
        self._every = max(1, self.frame // SETTINGS_PER_FRAME)
        self._first = first * self.frame
        self._at = self._first - self._every if first else 0
        self._seen = 0

    def thresholds(self, t: int, replayed: Tensor, age: Tensor) -> Tensor:
        """Tau of every layer and row at an input token t that may replay, float32 [layers, rows]. `replayed` bool
        [layers, rows, T*N - 1] holds the decisions up to t - 1; see `Replay.ages` for `age` [layers, rows, N].
        """
        if t < self._at + self._every:
            return self._tau
        self._done += self._by_group(replayed[:, :, self._at : t]).sum(-1)
        self._at = t
        self._seen = min(t - self._first, self.frame)
        if not bool(self._gated[: self._seen].any()):
            return self._tau
        missing, young = self._wanted - self._done, None
        if self._max_age is None:
            share = missing / (self._members * max(1, self._left[t]))
        else:
            possible = self._by_group(self._possible(t, age)).sum(-1)
            share = torch.where(missing > 0, missing / possible.clamp(min=0.5), 0.0)
            young = age[..., : self._seen] < self._max_age
        tau = self._quantile(share, (t * GOLDEN) % 1.0, young)
        self._tau.copy_(tau.T.expand(self._layers, -1).repeat(1, self._per_video))
        return self._tau

    def horizon(self, t: int) -> int:
        """Number of input tokens from t on that share the current thresholds."""
        since = t - self._at
        return self._every if since >= self._every else self._every - since

    def _possible(self, t: int, age: Tensor) -> Tensor:
        """Number of replays still possible at each position of a frame from input token t on, [layers, rows, N]."""
        assert self._max_age is not None
        place = torch.arange(self.frame, device=age.device)
        visits = (self.passes - 1 - t - (place - t) % self.frame).div(self.frame, rounding_mode="floor") + 1
        return (visits - (visits + age).div(self._max_age + 1, rounding_mode="floor")) * self._gated

    def _by_group(self, values: Tensor) -> Tensor:
        """Reshape [layers, rows, n] to [videos, groups, members * n]."""
        split = values.unflatten(1, (self._per_video, self._videos))
        return split.permute(2, 0, 1, 3).reshape(*self._done.shape, -1)

    def observe(self, inputs: Inputs, scores: Tensor) -> None:
        """Store the scores [count, layers, rows] of these inputs."""
        by_place = self._scores.permute(2, 1, 0)
        by_place[inputs.index(by_place, ring=True)] = scores.mT

    def _quantile(self, share: Tensor, dither: float, among: Tensor | None = None) -> Tensor:
        """The threshold that a `share` [videos, groups] of the stored scores exceeds, [videos, groups]. `among`
        [layers, rows, positions] selects scores; those of positions that never replay are always left out.
        """
        if self._some_dense:
            gated = self._gated[: self._seen].expand(self._layers, len(self._tau[0]), -1)
            among = gated if among is None else among & gated
        kept = self._by_group(self._scores[..., : self._seen])
        wanted = share * kept.shape[-1]
        if among is not None:
            counted = self._by_group(among)
            kept = kept.masked_fill(~counted, float("-inf"))
            wanted = share * counted.sum(-1)
        rank = wanted.long().clamp(0, kept.shape[-1] - 1)[..., None]
        value = kept.sort(dim=-1, descending=True).values.gather(-1, rank)
        above, equal = (kept > value).sum(-1), (kept == value).sum(-1)
        value = value[..., 0]
        below = torch.nextafter(value, torch.full_like(value, float("-inf")))
        tau = torch.where(dither * equal < wanted - above, below, value)
        return tau.masked_fill(share <= 0, float("inf")).masked_fill(share >= 1, float("-inf"))

    def taus(self, video: int) -> list[float | None]:
        """The `--tau` of each layer that gives about this ratio in frames like the video's last; None before any."""
        if not self._seen:
            return [None] * self._layers
        tau = self._quantile(torch.full_like(self._done, self.target.ratio / self._most), 0.5)[video]
        return [float(v) for v in tau.expand(self._layers)]
