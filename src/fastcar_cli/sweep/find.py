"""From a target to a threshold: `replay=0.8`, `ssim>=0.9`, `fidelity-drop<=0.02`.

The search goes over ranks of the TAS that dense runs show, not over thresholds themselves, because replay changes
evenly with the rank. Rank 0 is tau -inf (all that can replays), rank 1 is dense. Every threshold tried is a cell of
the sweep, so a search resumes as well.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.decoding.replay.replay import ReplayRule
from fastcar_cli.errors import Key, RequestError
from fastcar_cli.pipeline.engines import Engine
from fastcar_cli.sweep.held_out import HeldOut, OnEvaluate, Sample, evaluate
from fastcar_cli.sweep.results import inert
from fastcar_cli.sweep.session import Session
from fastcar_cli.sweep.store import Store
from fastcar_cli.sweep.target import TOLERANCE, Target
from fastcar_cli.system.files import write_whole

STEPS = 16
"""Most thresholds tried after tau -inf."""
_TAS_VIDEOS = 8
_NEAR = 0.005
"""Of the spread of the TAS: thresholds nearer to one another count as one in a search for a quality."""
_EDGE = 0.02
"""Ranks nearer to an end than this lie outside the TAS seen, up to its whole range beyond it."""


class Ranks:
    """Thresholds by rank of the TAS of dense runs."""

    def __init__(self, tas: NDArray[np.float32]) -> None:
        self._tas = np.sort(tas)
        self.low, self.high = float(self._tas[0]), float(self._tas[-1])

    @property
    def spread(self) -> float:
        """Range of the TAS between its 2nd and 98th percentile."""
        return float(np.quantile(self._tas, 1 - _EDGE) - np.quantile(self._tas, _EDGE))

    def tau(self, rank: float) -> float:
        """The threshold at a rank, to three decimals so that it can be printed and typed."""
        if rank <= 0:
            return -math.inf
        span = max(self.high - self.low, 1e-3)
        inner = [_EDGE, *np.linspace(0.05, 0.95, 19), 1 - _EDGE]
        grid = [0.0, _EDGE / 2, *inner, 1 - _EDGE / 2, 1.0]
        at = [self.low - span, self.low, *np.quantile(self._tas, inner), self.high, self.high + span]
        return round(float(np.interp(rank, grid, at)), 3) + 0.0


class Lines(Protocol):
    """Lines of the summary by threshold."""

    lines: dict[float, dict[str, Any]]

    def line(self, tau: float) -> dict[str, Any]:
        """The line of one threshold; it joins `lines`."""


class _Search:
    """Lines decoded when they are first needed."""

    def __init__(self, session: Session, store: Store, engine: Engine, on_evaluate: OnEvaluate) -> None:
        self.sample, self._engine, self._on_evaluate = Sample(session, store), engine, on_evaluate
        self.lines: dict[float, dict[str, Any]] = {}

    def line(self, tau: float) -> dict[str, Any]:
        """The summary of one threshold over the videos searched."""
        if tau not in self.lines:
            self.lines[tau] = evaluate([self.sample], self._engine, tau, self._on_evaluate)
        return self.lines[tau]


def tas_of(session: Session) -> NDArray[np.float32]:
    """TAS of every eligible pass of dense runs of some of the videos, flat."""
    grid, runs = session.grid, []
    pairs = [(p, s) for s in grid.seeds for p in grid.prompts][:_TAS_VIDEOS]
    pipe = session.worker.pipe(next(grid.cells()))
    rule = ReplayRule(tas_definition=pipe.settings.rule.tas_definition, score=grid.scores[0])
    pipe = pipe.with_settings(rule=rule, keep_tas=True)
    for prompt, seed in pairs:
        replay = pipe.run([session.worker.begin(prompt)], [seed]).replay
        if replay is not None and replay.tas is not None:
            runs.append(replay.tas[:, :, replay.gateable(replay.tas.shape[2])].flatten().cpu().numpy())
    tas = np.concatenate(runs) if runs else np.zeros(0, np.float32)
    tas = tas[np.isfinite(tas)]
    if not tas.size:
        raise RequestError("a video of one frame has nothing to replay", key="find", hint=(Key("frames"), " 2 or more"))
    return tas


def find_threshold(
    session: Session, store: Store, engine: Engine, target: Target, on_evaluate: OnEvaluate
) -> dict[str, Any]:
    """Search, check the threshold on held-out videos, and write found.yaml; the `find` part of results.

    The best threshold of a quality target is the one that replays most of those tried that meet it.
    """
    ranks = Ranks(tas_of(session))
    search = _Search(session, store, engine, on_evaluate)
    for tau in session.grid.taus:
        if tau is not None:
            search.line(tau)
    best, reached = narrow(search, ranks, target)
    validation = None
    if reached and best is not None:
        best, validation = HeldOut(
            search.sample, search.lines, (ranks.low, ranks.high), target, engine, on_evaluate
        ).settle(best)
    document: dict[str, Any] = {
        "target": target.text,
        "metric": target.name,
        "reached": reached,
        "best": None if best is None else _point(search.lines[best], target),
        "evaluated": [_point(search.lines[t], target) for t in sorted(search.lines, reverse=True)],
        "cliffs": cliffs(search.lines, target, ranks.spread),
        "inert": inert([search.lines[t] for t in sorted(search.lines, reverse=True)]),
        "tas": {"low": ranks.low, "high": ranks.high},
        "validation": validation,
        "config": None,
    }
    if reached and best is not None:
        # Decodes of a search lie far apart; the threshold it ends with is timed beside the dense runs.
        timed = session.with_grid(taus=(best,))
        on_evaluate("timing", timed.left(store))
        timed.run(store, engine)
        document["config"] = str(write_config(session, store.folder, best))
    return document


def narrow(search: Lines, ranks: Ranks, target: Target) -> tuple[float | None, bool]:
    """Try thresholds until the target is met or can't be; the best one, and whether it reaches the target."""
    (_match if target.sign == "=" else _bisect)(search, ranks, target)
    return choose(search.lines, target)


def _match(search: Lines, ranks: Ranks, target: Target) -> None:
    """Narrow the ranks around a ratio by false position (Illinois: an end that stays counts half each time); where a
    step narrowed them by less than half, the next one halves them.
    """
    most = target.value(search.line(-math.inf))
    if target.wanted >= most - TOLERANCE:
        return
    low, high, over, under, last, before = 0.0, 1.0, most - target.wanted, -target.wanted, 0, 2.0
    for _ in range(STEPS):
        rank = low + (high - low) * over / (over - under)
        rank = min(max(rank, low + 0.05 * (high - low)), high - 0.05 * (high - low))
        if high - low > before / 2:
            rank = (low + high) / 2
        before = high - low
        tau = ranks.tau(rank)
        if tau in (ranks.tau(low), ranks.tau(high)):
            return
        off = target.value(search.line(tau)) - target.wanted
        if abs(off) <= TOLERANCE:
            return
        side = 1 if off > 0 else -1
        if side > 0:
            low, over, under = rank, off, under / 2 if last == side else under
        else:
            high, under, over = rank, off, over / 2 if last == side else over
        last = side


def _bisect(search: Lines, ranks: Ranks, target: Target) -> None:
    """Halve the ranks between a threshold that misses a quality and one that keeps it."""
    if target.meets(search.line(-math.inf)):
        return
    low, high = 0.0, 1.0
    below: dict[str, Any] = search.line(-math.inf)
    above: dict[str, Any] | None = None
    for _ in range(STEPS):
        rank = (low + high) / 2
        tau = ranks.tau(rank)
        if tau in (ranks.tau(low), ranks.tau(high)):
            return
        line = search.line(tau)
        if target.meets(line):
            high, above = rank, line
        else:
            low, below = rank, line
        if above is not None and below["replay_ratio"] - above["replay_ratio"] <= 2 * TOLERANCE:
            return
        if ranks.tau(high) - ranks.tau(low) < _NEAR * ranks.spread:
            # Thresholds this near have a cliff between them, which finer steps do not make less steep.
            return


def choose(lines: dict[float, dict[str, Any]], target: Target) -> tuple[float | None, bool]:
    """The best threshold tried and whether it reaches the target; thresholds that replay nothing don't count."""
    useful = {t: x for t, x in lines.items() if x["replay_ratio"] > 0}
    if not useful:
        return None, False
    if target.sign == "=":
        best = min(useful, key=lambda t: (abs(target.value(useful[t]) - target.wanted), -t))
        return best, target.meets(useful[best])
    good = {t: x for t, x in useful.items() if target.meets(x)}
    if good:
        return max(good, key=lambda t: (good[t]["replay_ratio"], t)), True
    sign = 1 if target.sign == ">=" else -1
    return max(useful, key=lambda t: (sign * target.value(useful[t]), useful[t]["replay_ratio"])), False


def _point(line: dict[str, Any], target: Target) -> dict[str, Any]:
    value = target.value(line)
    keys = ("tau", "replay_ratio", "eligible_ratio")
    return {**{k: line[k] for k in keys}, "value": value if math.isfinite(value) else None}


def cliffs(lines: dict[float, dict[str, Any]], target: Target, spread: float) -> list[dict[str, Any]]:
    """Neighbouring thresholds, at most a tenth of the TAS's range apart, between which the target's value changes by
    a quarter of all it can: from dense to tau -inf (PSNR, infinite when dense: from its best to its worst).
    """
    points = [(t, target.value(lines[t])) for t in sorted(lines) if math.isfinite(t)]
    values = [v for t in lines if math.isfinite(v := target.value(lines[t]))]
    if target.key != "psnr_db":
        values.append(target.ideal)
    whole = max(values) - min(values) if values else 0.0
    jumps = []
    for (t0, v0), (t1, v1) in itertools.pairwise(points):
        if whole > 0 and t1 - t0 <= 0.1 * spread and abs(v1 - v0) >= 0.25 * whole and math.isfinite(v1 - v0):
            why = f"between tau {t0:g} and {t1:g} {target.name} goes from {v0:.4g} to {v1:.4g}"
            jumps.append({"from": t0, "to": t1, "why": why})
    return jumps


def write_config(session: Session, folder: Path, tau: float) -> Path:
    """DIR/found.yaml: the configuration of the search with the threshold found, for `generate --config`."""
    cell = next(session.grid.cells())
    grid = session.grid
    keys = {"replay.tau": tau, "replay.gate": grid.gates[0], "replay.score": grid.scores[0]}
    keys |= {"attention.window": cell.window, "backend.name": cell.backend}
    file = folder / "found.yaml"
    write_whole(file, session.worker.config.changed(keys).to_yaml())
    return file
