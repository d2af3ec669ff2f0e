"""How many tokens a pass with drafts makes final: decoded, and counted from the codes of a dense video."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.decoding.drafts.drafts import DraftSettings
from fastcar_cli.decoding.engine import begin
from fastcar_cli.errors import RunError
from fastcar_cli.pipeline.pipeline import VideoPipeline

Codes = NDArray[np.int64]
KINDS = ("frame", "jacobi")


@dataclass
class Counts:
    """Tokens and passes, of first frames and of later ones; a pass belongs to the frame of its first new token."""

    tokens: list[int] = field(default_factory=lambda: [0, 0])
    passes: list[int] = field(default_factory=lambda: [0, 0])

    def add(self, later: bool, tokens: int) -> None:
        """Count one pass."""
        self.tokens[later] += tokens
        self.passes[later] += 1

    def to_dict(self) -> dict[str, float | None]:
        """Tokens a pass; None where no pass was counted."""
        first, later = (t / p if p else None for t, p in zip(self.tokens, self.passes, strict=True))
        return {"first_frame": first, "later_frames": later}


def count_aligned(codes: Codes, frame: int, window: int, counts: Counts) -> None:
    """Count what passes make final after the first frame, where a token is drafted by its aligned one.

    codes: of a dense video, int64 [T*N, depth]; frame: N; window: W, at most N. A pass makes one token final and up to
    W - 1 behind it, as far as they equal their aligned tokens.
    """
    right = (codes[frame:] == codes[:-frame]).all(1)
    done = 0
    while done < len(right):
        drafts = right[done : done + window - 1]
        accepted = int(drafts.argmin()) if not drafts.all() else len(drafts)
        tokens = min(accepted + 1, len(right) - done)
        counts.add(True, tokens)
        done += tokens


def tokens_a_pass(
    pipe: VideoPipeline,
    prompts: Sequence[str],
    windows: Sequence[int],
    on_video: Callable[[int, int], None] = lambda done, total: None,
    kinds: Sequence[str] = KINDS,
) -> dict[str, Any]:
    """Tokens a pass of one video a prompt (seeds from 0), for these kinds and windows, and what codes alone promise.

    `on_video(done, total)` counts decodes. Raises RequestError for a window above a frame or the attention, RunError
    where a video with drafts has other codes than the dense one.
    """
    n, total, done = pipe.tokens_per_frame, len(prompts) * (1 + len(kinds) * len(windows)), 0
    settings = {
        (kind, w): pipe.with_config(pipe.config.changed({"draft.kind": kind, "draft.window": w})).settings
        for kind in kinds
        for w in windows
    }
    dense = replace(pipe.settings, draft=DraftSettings())
    decoded, promised = {setting: Counts() for setting in settings}, {w: Counts() for w in windows}
    same = []
    for seed, prompt in enumerate(prompts):
        truth = begin(pipe.model, [prompt], [seed], dense)[0].run().codes[0].cpu().numpy()
        same.append(float((truth[n:] == truth[:-n]).all(1).mean()))
        on_video(done := done + 1, total)
        for w in windows:
            count_aligned(truth, n, w, promised[w])
        for (kind, w), setting in settings.items():
            decode = begin(pipe.model, [prompt], [seed], setting)[0].run()
            if not np.array_equal(decode.codes[0].cpu().numpy(), truth):
                raise RunError(f"{kind} drafts with window {w} change the video of {prompt!r}, seed {seed}")
            assert decode.drafter is not None
            for run in decode.drafter.passes:
                decoded[kind, w].add(run.first[0] + 1 >= n, run.accepted[0])
            on_video(done := done + 1, total)
    lines = [
        {"window": w, "counted": promised[w].to_dict()["later_frames"]}
        | {kind: decoded[kind, w].to_dict() for kind in kinds}
        for w in windows
    ]
    return {
        "model": pipe.name,
        "temperature": dense.sampling.temperature,
        "top_p": dense.sampling.top_p,
        "videos": len(prompts),
        "same_as_aligned": float(np.mean(same)),
        "windows": lines,
    }
