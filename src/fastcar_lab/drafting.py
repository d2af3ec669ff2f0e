"""How many tokens a pass with drafts makes final: decoded, and counted from the codes of a dense video."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.decoding.drafts.drafts import DraftSettings
from fastcar_cli.decoding.engine import begin
from fastcar_cli.errors import RequestError, RunError
from fastcar_cli.inputs.prompt import Prompt
from fastcar_cli.pipeline.pipeline import VideoPipeline
from fastcar_lab.couplings import Rule, contest

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
    prompts: Sequence[Prompt],
    windows: Sequence[int],
    on_video: Callable[[int, int], None] = lambda done, total: None,
    kinds: Sequence[str] = KINDS,
    against: Sequence[Rule] = (),
) -> dict[str, Any]:
    """Tokens a pass of one video a prompt (seeds from 0), for these kinds and windows, and what codes alone promise.

    against: other rules in the same windows, whose videos differ. `speedup` over dense decoding is by processor time;
    a pass of another rule counts as much as one of the last kind. `on_video(done, total)` counts decodes. Raises
    RequestError for a window above a frame or the attention and for other rules in a context that rolls, RunError where
    a video with drafts has other codes than the dense one.
    """
    segment = pipe.settings.segment
    if against and segment is not None and pipe.settings.frames > segment:
        # An executor is chosen anew where a context rolls, and draws by our rule.
        allowed = f"at most {min(pipe.spec.frames, pipe.spec.longest)}"
        raise RequestError("other rules run in one context", key="frames", value=pipe.frames, allowed=allowed)
    rules: list[str | Rule] = [*kinds, *against]
    names = [*kinds, *(rule.text for rule in against)]
    n, total, done = pipe.tokens_per_frame, len(prompts) * (1 + len(names) * len(windows)), 0
    settings = {
        (kind, w): pipe.with_config(pipe.config.changed({"draft.kind": kind, "draft.window": w})).settings
        for kind in dict.fromkeys([*kinds, *(rule.kind for rule in against)])
        for w in windows
    }
    dense = replace(pipe.settings, draft=DraftSettings())
    decoded, promised = {(name, w): Counts() for name in names for w in windows}, {w: Counts() for w in windows}
    same, seconds = [], dict.fromkeys([*decoded, ("off", 1)], 0.0)
    for seed, prompt in enumerate(prompts):
        began = time.process_time()
        truth = begin(pipe.model, [prompt], [seed], dense)[0].run().codes[0].cpu().numpy()
        seconds["off", 1] += time.process_time() - began
        same.append(float((truth[n:] == truth[:-n]).all(1).mean()))
        on_video(done := done + 1, total)
        for w in windows:
            count_aligned(truth, n, w, promised[w])
        for w in windows:
            for rule in rules:
                name, kind = (rule, rule) if isinstance(rule, str) else (rule.text, rule.kind)
                decode = begin(pipe.model, [prompt], [seed], settings[kind, w])[0]
                decode = decode if isinstance(rule, str) else contest(decode, rule, seed)
                began = time.process_time()
                decode.run()
                seconds[name, w] += time.process_time() - began
                if isinstance(rule, str) and not np.array_equal(decode.codes[0].cpu().numpy(), truth):
                    raise RunError(f"{kind} drafts with window {w} change the video of {str(prompt)!r}, seed {seed}")
                for run in decode.drafter.passes:
                    decoded[name, w].add(run.first[0] + 1 >= n, run.accepted[0])
                on_video(done := done + 1, total)
    for (name, w), counts in decoded.items():
        if name not in kinds:
            # They draw in torch; the passes are those of drafts.
            of_kind = decoded[kinds[-1], w]
            seconds[name, w] = seconds[kinds[-1], w] / sum(of_kind.passes) * sum(counts.passes)
    lines = [
        {"window": w, "counted": promised[w].to_dict()["later_frames"]}
        | {name: decoded[name, w].to_dict() | {"speedup": seconds["off", 1] / seconds[name, w]} for name in names}
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
