"""Validates the threshold of a search on held-out videos, and moves it where it misses a replay ratio there.

A search sees a few prompts and seeds. Validation decodes the same prompts with unseen seeds. The replay ratio varies
far more between prompts than between seeds, so for the bundled model, whose captions can be drawn, it also decodes
captions that were never trained on.

Validation goes in rounds. Where a round misses the ratio, its videos join the ones the threshold is fitted to, the
threshold moves, and the next round validates it on new videos. A quality target is validated once and never moved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from fastcar_cli.config.tau import Tau
from fastcar_cli.pipeline.engines import Engine
from fastcar_cli.sweep.results import cells_of, dense_line, summarise
from fastcar_cli.sweep.session import Session
from fastcar_cli.sweep.store import Store
from fastcar_cli.sweep.target import HELD_OUT, TOLERANCE, Target
from fastcar_cli.system.plugins import world_of

_ALLOWED = 0.8 * HELD_OUT
"""Farthest that a move takes the ratio of the searched videos from the target; less than what the target allows."""
_ROUNDS = 3
"""Rounds of validation at most."""
_STEPS = 8
"""Thresholds that one move tries at most."""
_LEAST_VIDEOS = 8
"""Videos with unseen seeds in a round, at least."""
_CAPTIONS = 64
"""Captions drawn in a round."""
_CAPTION_SEED = 1000
"""Seed of the captions' videos in the first round; each round adds one."""

OnEvaluate = Callable[[str, int], None]
"""Called with what is decoded next and how many decodes that adds."""


@dataclass(frozen=True)
class Sample:
    """The videos of a session's grid (its prompts and seeds), and the store that keeps their cells."""

    session: Session
    store: Store


def evaluate(samples: Sequence[Sample], engine: Engine, tau: float, on_evaluate: OnEvaluate) -> dict[str, Any]:
    """The summary line of one threshold over the videos of these samples; decodes the cells that are missing."""
    documents = []
    for sample in samples:
        part = sample.session.with_grid(taus=(tau,), repeats=1)
        sample.store.claim(part.fingerprint(), part.grid)
        on_evaluate(f"tau {Tau.read(tau)}", part.left(sample.store))
        part.run(sample.store, engine)
        documents += [sample.store.cells[c.id] for c in part.grid.cells()]
    lines = summarise(cells_of(documents), samples[0].session.worker.scorer.keys)
    return next(x for x in lines if not dense_line(x))


@dataclass(frozen=True)
class CaptionSet:
    """Captions that share one seed. They are decoded as one batch, for their replay ratios only; no cell is kept."""

    session: Session
    captions: tuple[str, ...]
    seed: int

    def ratios(self, tau: float) -> dict[str, float]:
        """The replay ratio and the eligible ratio at a threshold, means over the captions, keyed as a summary line."""
        cell = replace(next(self.session.grid.cells()), tau=tau)
        pipe = self.session.worker.pipe(cell)
        pipe.run(self.captions, [self.seed] * len(self.captions))
        reports = [pipe.report(i)["replay"] for i in range(len(self.captions))]
        names = {"replay_ratio": "ratio", "eligible_ratio": "eligible_ratio"}
        return {key: fmean(r[name] for r in reports) for key, name in names.items()}


def captions_of(session: Session, number: int) -> list[CaptionSet]:
    """The captions of a round, of what training leaves out; empty for a model whose world is not known."""
    base = session.worker.base
    world = world_of(base.model.tokenizer, base.height, base.width)
    drawn = [] if world is None else world.unseen_captions(_CAPTIONS, number)
    captions = dict.fromkeys(text for text in drawn if text not in session.grid.prompts)
    return [CaptionSet(session, tuple(captions), _CAPTION_SEED + number)] if captions else []


def unseen(session: Session, store: Store, number: int) -> Sample:
    """The searched prompts with the seeds that follow the searched ones; rounds share no seed.

    As many seeds as the search had, or more to make `_LEAST_VIDEOS` videos.
    """
    grid = session.grid
    count = max(len(grid.seeds), math.ceil(_LEAST_VIDEOS / len(grid.prompts)))
    first = max(grid.seeds) + 1 + number * count
    return Sample(session.with_grid(seeds=tuple(range(first, first + count))), store)


@dataclass(frozen=True)
class FittingSet:
    """All videos that a replay ratio is averaged over."""

    samples: list[Sample]
    caption_sets: list[CaptionSet]

    @property
    def videos(self) -> int:
        """Number of videos."""
        grids = (s.session.grid for s in self.samples)
        return sum(len(p.prompts) * len(p.seeds) for p in grids) + sum(len(c.captions) for c in self.caption_sets)

    def line(self, tau: float, engine: Engine, on_evaluate: OnEvaluate) -> dict[str, Any]:
        """The summary line of a threshold. Its ratios are means over all videos, its quality is that of the samples."""
        line = evaluate(self.samples, engine, tau, on_evaluate)
        if self.caption_sets:
            on_evaluate(f"captions held out, tau {Tau.read(tau)}", 0)
        parts = [(line["videos"], line), *((len(c.captions), c.ratios(tau)) for c in self.caption_sets)]
        total = sum(n for n, _ in parts)
        means = {k: sum(n * p[k] for n, p in parts) / total for k in ("replay_ratio", "eligible_ratio")}
        return {**line, **means, "videos": total}


@dataclass(frozen=True)
class HeldOut:
    """Validation of the best threshold of a search. Its cells are in a sweep folder of their own, DIR/held-out.

    searched: the videos of the search.
    lines: their summary line by threshold; `move` adds those that it tries.
    ends: least and largest TAS seen: below the first everything replays, above the second nothing does.
    """

    searched: Sample
    lines: dict[float, dict[str, Any]]
    ends: tuple[float, float]
    target: Target
    engine: Engine
    on_evaluate: OnEvaluate

    def settle(self, best: float) -> tuple[float, dict[str, Any]]:
        """The threshold to keep, and the document of its last validation."""
        target = self.target
        store = Store.make(self.searched.store.folder / "held-out")
        fitted = FittingSet([self.searched], [])
        validation: dict[str, Any] = {}
        for number in range(_ROUNDS):
            fresh = unseen(self.searched.session, store, number)
            store.claim(fresh.session.fingerprint(), fresh.session.grid)
            store.read()
            drawn = captions_of(self.searched.session, number) if target.sign == "=" else []
            line = FittingSet([fresh], drawn).line(best, self.engine, self.on_evaluate)
            value = target.value(line)
            validation = {
                "seeds": list(fresh.session.grid.seeds),
                "captions": sum(len(c.captions) for c in drawn),
                "videos": line["videos"],
                "judged_on": fitted.videos,
                "tau": Tau.read(best).plain(),
                "value": value if math.isfinite(value) else None,
                "replay_ratio": line["replay_ratio"],
                "met": target.meets(line),
            }
            if target.sign != "=" or abs(value - target.wanted) <= HELD_OUT / 2 or not math.isfinite(best):
                break
            if number < _ROUNDS - 1:
                fitted = FittingSet([*fitted.samples, fresh], [*fitted.caption_sets, *drawn])
                best = self.move(fitted, best)
        return best, validation

    def move(self, fitted: FittingSet, best: float) -> float:
        """The threshold whose ratio over `fitted` is nearest to the target.

        Only thresholds count whose ratio on the searched videos still meets the target. Each step interpolates the
        ratio over `fitted` between the thresholds tried. Where only the searched videos were decoded, it takes their
        ratio plus `shift`, by which the two ratios differ at `best`.
        """
        target, lines, ends = self.target, self.lines, self.ends

        def whole(tau: float) -> float:
            if tau not in lines:
                lines[tau] = evaluate(fitted.samples[:1], self.engine, tau, self.on_evaluate)
            return target.value(fitted.line(tau, self.engine, self.on_evaluate))

        ratios = {best: whole(best)}
        shift = ratios[best] - target.value(lines[best])
        for step in range(_STEPS):
            known = {ends[0]: target.value(lines[-math.inf]), ends[1]: 0.0} | {
                t: target.value(x) for t, x in lines.items() if math.isfinite(t)
            }
            taus = sorted(known, reverse=True)
            # Ratios by falling threshold, of the searched videos and of all fitted ones; neither may fall.
            searched = np.maximum.accumulate([known[t] for t in taus])
            rising = np.maximum.accumulate([ratios.get(t, known[t] + shift * (t not in ends)) for t in taus])
            # Thresholds between these keep the searched videos within the target.
            highest, lowest = (np.interp(target.wanted + off, searched, taus) for off in (-_ALLOWED, _ALLOWED))
            wished = float(np.interp(target.wanted, rising, taus))
            tau = float(np.clip(wished, lowest, highest))
            limited = tau != wished
            if step % 2:
                # Linear interpolation can return to where it was on a bent curve, so every other step bisects.
                above, below = [t for t in taus if t > tau], [t for t in taus if t <= tau]
                tau = (above[-1] + below[0]) / 2 if above and below else tau
            tau = round(tau, 3) + 0.0
            if tau in ratios:
                break
            ratios[tau] = whole(tau)
            used = abs(target.value(lines[tau]) - target.wanted)
            at_limit = limited and abs(used - _ALLOWED) <= TOLERANCE
            if target.meets(lines[tau]) and (at_limit or abs(ratios[tau] - target.wanted) <= TOLERANCE):
                break
        good = [t for t in ratios if target.meets(lines[t])]
        return min(good, key=lambda t: (abs(ratios[t] - target.wanted), -t))
