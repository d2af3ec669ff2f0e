"""Whether a threshold holds on videos it was not searched on, and moving it where it does not.

A ratio differs from prompt to prompt far more than from seed to seed, so seeds alone tell little: for the bundled
model, whose world is known, captions of that world are decoded as well. Where they miss a ratio, they count as
searched from then on, the threshold moves to what fits all, and others are held out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from fastcar_cli.analysis.sweep.plan import plain_tau, told_tau
from fastcar_cli.analysis.sweep.results import cells_of, summarise
from fastcar_cli.analysis.sweep.runner import Engine
from fastcar_cli.analysis.sweep.session import Session
from fastcar_cli.analysis.sweep.store import Store
from fastcar_cli.analysis.sweep.target import HELD_OUT, TOLERANCE, Target
from fastcar_cli.models.registry import BUNDLED

_ALLOWED = 0.8 * HELD_OUT
_ROUNDS = 3
_STEPS = 8
_LEAST_VIDEOS = 8
_CAPTIONS = 64
_CROWD_SEED = 1000

Tell = Callable[[str, int], None]


@dataclass(frozen=True)
class Sample:
    """Videos that thresholds are judged on: the prompts and seeds of a session's plan, and where its cells lie."""

    session: Session
    store: Store


def evaluate(samples: Sequence[Sample], engine: Engine, tau: float, tell: Tell) -> dict[str, Any]:
    """Decode what a threshold needs, and its line of the summary over exactly these samples' videos."""
    documents = []
    for sample in samples:
        part = sample.session.with_plan(taus=(tau,), repeats=1)
        sample.store.claim(part.fingerprint(), part.plan)
        tell(f"tau {told_tau(tau)}", part.left(sample.store))
        part.run(sample.store, engine)
        documents += [sample.store.cells[c.id] for c in part.plan.cells()]
    lines = summarise(cells_of(documents), samples[0].session.worker.scorer.keys)
    return next(x for x in lines if x["tau"] is not None)


@dataclass(frozen=True)
class Crowd:
    """Captions of the bundled model's world with one seed, decoded all at once for their ratios only."""

    session: Session
    captions: tuple[str, ...]
    seed: int

    def ratios(self, tau: float) -> dict[str, float]:
        """Means of the ratios at a threshold, by key of a summary line."""
        cell = replace(next(self.session.plan.cells()), tau=tau)
        pipe = self.session.worker.pipe(cell)
        for _ in pipe.stream(self.captions, [self.seed] * len(self.captions)):
            pass
        reports = [pipe.report(i)["replay"] for i in range(len(self.captions))]
        names = {"replay_ratio": "ratio", "eligible_ratio": "eligible_ratio"}
        return {key: fmean(r[name] for r in reports) for key, name in names.items()}


def crowd_of(session: Session, number: int) -> list[Crowd]:
    """Captions of the numbered round, of combinations never trained on; none for other models."""
    if session.request.config.model not in BUNDLED:
        return []
    from fastcar_cli.world.evaluate import held_out_captions

    captions = {text: None for _, text in held_out_captions(_CAPTIONS, number) if text not in session.plan.prompts}
    return [Crowd(session, tuple(captions), _CROWD_SEED + number)]


def unseen(session: Session, store: Store, number: int) -> Sample:
    """The prompts searched with seeds behind those searched: as many in each round, and at least eight videos."""
    plan = session.plan
    count = max(len(plan.seeds), math.ceil(_LEAST_VIDEOS / len(plan.prompts)))
    first = max(plan.seeds) + 1 + number * count
    return Sample(session.with_plan(seeds=tuple(range(first, first + count))), store)


@dataclass(frozen=True)
class Judges:
    """All videos that a ratio is judged on."""

    samples: list[Sample]
    crowds: list[Crowd]

    @property
    def videos(self) -> int:
        """How many."""
        plans = (s.session.plan for s in self.samples)
        return sum(len(p.prompts) * len(p.seeds) for p in plans) + sum(len(c.captions) for c in self.crowds)

    def line(self, tau: float, engine: Engine, tell: Tell) -> dict[str, Any]:
        """The summary of a threshold, its ratios over all these videos."""
        line = evaluate(self.samples, engine, tau, tell)
        if self.crowds:
            tell(f"captions held out, tau {told_tau(tau)}", 0)
        parts = [(line["videos"], line), *((len(c.captions), c.ratios(tau)) for c in self.crowds)]
        total = sum(n for n, _ in parts)
        means = {k: sum(n * p[k] for n, p in parts) / total for k in ("replay_ratio", "eligible_ratio")}
        return {**line, **means, "videos": total}


@dataclass(frozen=True)
class HeldOut:
    """The check of a search's best threshold on unseen videos, kept in a sweep folder of its own (DIR/held-out).

    searched: the videos searched; lines: their summary by threshold, which grow; ends: least and largest TAS,
    where everything and nothing replays.
    """

    searched: Sample
    lines: dict[float, dict[str, Any]]
    ends: tuple[float, float]
    target: Target
    engine: Engine
    tell: Tell

    def settle(self, best: float) -> tuple[float, dict[str, Any]]:
        """The threshold to keep and its validation."""
        target = self.target
        store = Store.make(self.searched.store.folder / "held-out")
        judges = Judges([self.searched], [])
        validation: dict[str, Any] = {}
        for number in range(_ROUNDS):
            fresh = unseen(self.searched.session, store, number)
            store.claim(fresh.session.fingerprint(), fresh.session.plan)
            store.read()
            crowd = crowd_of(self.searched.session, number) if target.sign == "=" else []
            line = Judges([fresh], crowd).line(best, self.engine, self.tell)
            value = target.value(line)
            validation = {
                "seeds": list(fresh.session.plan.seeds),
                "captions": sum(len(c.captions) for c in crowd),
                "videos": line["videos"],
                "judged_on": judges.videos,
                "tau": plain_tau(best),
                "value": value if math.isfinite(value) else None,
                "replay_ratio": line["replay_ratio"],
                "met": target.meets(line),
            }
            if target.sign != "=" or abs(value - target.wanted) <= HELD_OUT / 2 or not math.isfinite(best):
                break
            if number < _ROUNDS - 1:
                judges = Judges([*judges.samples, fresh], [*judges.crowds, *crowd])
                best = self.move(judges, best)
        return best, validation

    def move(self, judges: Judges, best: float) -> float:
        """The threshold that brings the ratio of all these videos nearest to the target, of those that still meet it on
        the videos searched. Between thresholds tried the ratio is taken to run as on those, higher or lower by what the
        whole differs at the best.
        """
        target, lines, ends = self.target, self.lines, self.ends

        def whole(tau: float) -> float:
            if tau not in lines:
                lines[tau] = evaluate(judges.samples[:1], self.engine, tau, self.tell)
            return target.value(judges.line(tau, self.engine, self.tell))

        found = {best: whole(best)}
        shift = found[best] - target.value(lines[best])
        for step in range(_STEPS):
            known = {ends[0]: target.value(lines[-math.inf]), ends[1]: 0.0} | {
                t: target.value(x) for t, x in lines.items() if math.isfinite(t)
            }
            taus = sorted(known, reverse=True)
            mine = np.maximum.accumulate([known[t] for t in taus])
            rising = np.maximum.accumulate([found.get(t, known[t] + shift * (t not in ends)) for t in taus])
            # No farther than the videos searched allow, with a little to spare.
            highest, lowest = (np.interp(target.wanted + off, mine, taus) for off in (-_ALLOWED, _ALLOWED))
            wished = float(np.interp(target.wanted, rising, taus))
            tau = float(np.clip(wished, lowest, highest))
            limited = tau != wished
            if step % 2:
                # The curve may bend so much that the straight line leads back to where it began.
                above, below = [t for t in taus if t > tau], [t for t in taus if t <= tau]
                tau = (above[-1] + below[0]) / 2 if above and below else tau
            tau = round(tau, 3) + 0.0
            if tau in found:
                break
            found[tau] = whole(tau)
            used = abs(target.value(lines[tau]) - target.wanted)
            at_limit = limited and abs(used - _ALLOWED) <= TOLERANCE
            if target.meets(lines[tau]) and (at_limit or abs(found[tau] - target.wanted) <= TOLERANCE):
                break
        good = [t for t in found if target.meets(lines[t])]
        return min(good, key=lambda t: (abs(found[t] - target.wanted), -t))
