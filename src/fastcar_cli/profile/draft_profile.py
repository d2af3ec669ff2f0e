"""What passes with drafts cost here, and the acceptance from which they pay or beat replay."""

from __future__ import annotations

import math
from typing import Any

from fastcar_cli.config.tau import OFF, Tau
from fastcar_cli.decoding.drafts.drafts import DraftSettings
from fastcar_cli.decoding.executors import native
from fastcar_cli.decoding.replay.replay import ReplayRule
from fastcar_cli.kernels.native import MOST_ROWS, instruction_set
from fastcar_cli.profile.profiler import Shape, decode_of, tokens_of

WINDOWS = (1, 2, 4, 8, 16)


def needed(window: int, gain: float) -> float | None:
    """The probability of a right draft from which a pass of W inputs gives `gain` tokens; None where none does."""
    if gain > window:
        return None
    low, high = 0.0, 1.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if tokens_of(window, middle) >= gain else (middle, high)
    return 0.0 if gain <= 1 else high


def _seconds(shape: Shape, rows: int, seq: int, rounds: int, lengths: list[int], tau: Tau) -> dict[int, float]:
    """Least seconds, by draft length, of passes that make one token final at this context; the lengths take turns.

    The first two passes of each only warm up; the first one of all makes the drafter.
    """
    layout = shape.spec.layout
    text = layout.prefix or min(12, max(1, seq - 1))
    first = max(1, layout.stride + 1, seq - text)
    frames = -(-(first + (rounds + 3) * len(lengths) + 1) // layout.stride)
    draft = DraftSettings("frame", max(lengths), accept=0.0)
    decode = decode_of(shape.network, rows, text, frames, rule=ReplayRule(tau), draft=draft, executor="native")
    steps, clock = decode.steps(first=first), decode.clock
    least = dict.fromkeys(lengths, math.inf)
    for turn in range(rounds + 3):
        for length in lengths:
            if decode.drafter is not None:
                decode.drafter.window = length
            before = clock.decode, clock.draw
            next(steps)
            draw = clock.draw - before[1]
            if turn >= 2:
                least[length] = min(least[length], (clock.decode - before[0] - draw) * shape.scale + draw)
    return least


def draft_table(shape: Shape, rows: int, seq: int, repeats: int, ratio: float) -> dict[str, Any] | None:
    """Cost of a pass of the native kernels by its input tokens W, and from which acceptance drafts pay.

    A pass makes 1 + A + ... + A^(W-1) tokens final where each draft is right with probability A. Replay is that of
    passes of one token of which every row replays together at this ratio. None where no native kernel can run.
    """
    if native.obstacle(shape.network) is not None:
        return None
    windows = [w for w in WINDOWS if w <= shape.spec.layout.stride and rows * w <= MOST_ROWS]
    dense = _seconds(shape, rows, seq, repeats, windows, OFF)
    replayed = _seconds(shape, rows, seq, repeats, [1], Tau((-math.inf,)))[1]
    one = dense[1]
    replay = one / (one - ratio * max(0.0, one - replayed))
    lines: list[dict[str, Any]] = []
    for w, seconds in dense.items():
        cost = seconds / one
        gains = {"pays_from": cost, "beats_replay_from": replay * cost}
        least = {key: needed(w, gain) if w > 1 else None for key, gain in gains.items()}
        lines.append({"window": w, "ms": seconds * 1e3, "cost": cost, **least})
    return {
        "seq": seq,
        "rows": rows,
        "kernels": instruction_set(),
        "replay_ratio": ratio,
        "replay_speedup": replay,
        "replayed_ms": replayed * 1e3,
        "windows": lines,
    }
