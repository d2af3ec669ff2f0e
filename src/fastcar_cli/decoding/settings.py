"""How to decode: what a run decides once, for every pass."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastcar_cli.decoding.drafts.drafts import DraftSettings
from fastcar_cli.decoding.replay.replay import ReplayRule
from fastcar_cli.models.sampling import SamplingSettings


@dataclass(frozen=True)
class DecodeSettings:
    """How to decode.

    frames: decoded frames, without context frames.
    rule: what replays.
    draft: how several tokens are decoded in one pass.
    window: attend to the last so many tokens and each prompt's first `sinks` only; None: to all.
    kv_dtype: format of keys and values, of `choices.KVDtype`; auto: the model's dtype.
    keep_tas: compute and store the scores of every layer.
    executor: who runs a pass, of `choices.Executor`; auto: see `select.choose`.
    threads: of the native kernels alone; None: as many as torch has.
    """

    frames: int
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    rule: ReplayRule = field(default_factory=ReplayRule)
    draft: DraftSettings = field(default_factory=DraftSettings)
    window: int | None = None
    sinks: int = 4
    kv_dtype: str = "auto"
    keep_tas: bool = False
    executor: str = "auto"
    threads: int | None = None
