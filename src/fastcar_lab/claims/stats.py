"""Numbers with their spread: bootstrap over prompts, rank correlation, area under the curve."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
RESAMPLES = 2000  # draws of the bootstrap; its seed is fixed, so the same videos give the same spread


@dataclass(frozen=True)
class Estimate:
    """A mean over videos with its 95 % interval; NaN bounds where one prompt allows none."""

    mean: float
    low: float
    high: float
    videos: int
    prompts: int

    @property
    def above_zero(self) -> bool:
        """Whether the whole interval lies above zero."""
        return self.low > 0

    @property
    def below_zero(self) -> bool:
        """Whether the whole interval lies below zero."""
        return self.high < 0

    @property
    def bounds(self) -> list[float]:
        """The mean and its interval."""
        return [self.mean, self.low, self.high]

    def row(self, key: str) -> dict[str, float]:
        """The same as cells of a table."""
        return dict(zip((key, f"{key}_low", f"{key}_high"), self.bounds, strict=True))

    def text(self, form: str = ".3f") -> str:
        """For people: 0.812 [0.790, 0.834]."""
        if not self.videos:
            return "none"
        if not np.isfinite(self.low):
            return f"{self.mean:{form}} [one prompt: no interval]"
        return f"{self.mean:{form}} [{self.low:{form}}, {self.high:{form}}]"


Values = Mapping[str, Sequence[float]]  # numbers of videos by prompt


def estimate(values: Values) -> Estimate:
    """Mean over all videos and its percentile interval where prompts are drawn with replacement. Videos of one prompt
    are drawn together, as they resemble each other. Videos that are NaN are left out.
    """
    groups = [np.array([v for v in group if np.isfinite(v)], float) for group in values.values()]
    groups = [g for g in groups if len(g)]
    if not groups:
        return Estimate(np.nan, np.nan, np.nan, 0, 0)
    sums, counts = np.array([g.sum() for g in groups]), np.array([len(g) for g in groups])
    mean = float(sums.sum() / counts.sum())
    low = high = np.nan
    if len(groups) > 1:
        drawn = np.random.default_rng(0).integers(0, len(groups), (RESAMPLES, len(groups)))
        means = sums[drawn].sum(1) / counts[drawn].sum(1)
        low, high = (float(v) for v in np.percentile(means, (2.5, 97.5)))
    return Estimate(mean, low, high, int(counts.sum()), len(groups))


def difference(a: Values, b: Values) -> Estimate:
    """A - b of the same videos, paired."""
    return estimate(less(a, b))


def less(a: Values, b: Values) -> Values:
    """A - b of the same videos."""
    return {p: [x - y for x, y in zip(a[p], b[p], strict=True)] for p in a}


def _ranks(values: Floats) -> Floats:
    """Ranks from 1 on; equal values share the mean of theirs."""
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (counts.cumsum() - (counts - 1) / 2)[where]


def rank_correlation(a: Floats, b: Floats) -> float:
    """Spearman's rank correlation of two flat arrays; NaN where one is constant."""
    x, y = _ranks(a), _ranks(b)
    if x.std() == 0 or y.std() == 0:
        return float("nan")
    return float(np.corrcoef(x, y)[0, 1])


def area_under_curve(scores: Floats, positive: NDArray[np.bool_]) -> float:
    """Chance that a positive has the higher score than a negative (ties half): the ROC's area; NaN without both."""
    n, m = int(positive.sum()), int((~positive).sum())
    if not n or not m:
        return float("nan")
    return float((_ranks(scores)[positive].sum() - n * (n + 1) / 2) / (n * m))


def by_prompt(videos: Iterable[tuple[str, float]]) -> dict[str, list[float]]:
    """(prompt, number) pairs as `Values`."""
    values: dict[str, list[float]] = {}
    for prompt, value in videos:
        values.setdefault(prompt, []).append(float(value))
    return values


def over_layers(layers: Sequence[Sequence[tuple[str, float]]], mean: Callable[..., Any] = np.mean) -> Values:
    """The mean over layers of each video, given (prompt, number) of the videos by layer."""
    values = mean([[v for _, v in videos] for videos in layers], axis=0)
    return by_prompt(zip([p for p, _ in layers[0]], values.tolist(), strict=True))


def by_kind(values: Values, kinds: Mapping[str, str]) -> dict[str, Estimate]:
    """Estimates of the prompts of each kind of scene, given the kind of every prompt."""
    return {
        kind: estimate({p: v for p, v in values.items() if kinds[p] == kind})
        for kind in dict.fromkeys(kinds[p] for p in values)
    }


def over_kinds(values: Values, kinds: Mapping[str, str]) -> Estimate:
    """Mean of the means of kinds, and its interval where kinds are drawn with replacement, then prompts of each. So it
    says what another mixture of scenes may come to. Without numbers of two kinds there are no bounds.
    """
    means: dict[str, list[float]] = {}
    videos = 0
    for prompt, group in values.items():
        kept = [v for v in group if np.isfinite(v)]
        videos += len(kept)
        if kept:
            means.setdefault(kinds[prompt], []).append(float(np.mean(kept)))
    groups = [np.array(group) for group in means.values()]
    if not groups:
        return Estimate(np.nan, np.nan, np.nan, 0, 0)
    low = high = np.nan
    if len(groups) > 1:
        rng = np.random.default_rng(0)
        # Of each kind as many draws as it may be taken for: one a place of the mixture.
        drawn = np.stack([g[rng.integers(0, len(g), (RESAMPLES, len(groups), len(g)))].mean(-1) for g in groups])
        chosen = rng.integers(0, len(groups), (RESAMPLES, len(groups)))
        mixtures = drawn[chosen, np.arange(RESAMPLES)[:, None], np.arange(len(groups))].mean(1)
        low, high = (float(v) for v in np.percentile(mixtures, (2.5, 97.5)))
    mean = float(np.mean([g.mean() for g in groups]))
    return Estimate(mean, low, high, videos, sum(map(len, groups)))
