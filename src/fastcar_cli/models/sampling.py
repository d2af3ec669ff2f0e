"""Settings of sampling, shared by a model's defaults, the configuration and the engine."""

from __future__ import annotations

from pydantic.dataclasses import dataclass as checked_dataclass

from fastcar_cli.system.plain_data import WHOLE, Count, Factor, Flag, Setting


@checked_dataclass(frozen=True, config=WHOLE)
class SamplingSettings:
    """Sampling of codes from logits."""

    cfg: Setting = 3.0  # guidance scale; 1: none
    temperature: Setting = 1.0  # 0: the likeliest code
    top_k: Count = 0  # 0: all codes
    top_p: Factor = 1.0  # 1: all codes
    top_p_strict: Flag = False  # leave out a code only if those before it sum to more than top_p, not to exactly top_p
    first_frame_top_p: Factor | None = None  # in frame 0, where a rare code may begin an object

    @property
    def guided(self) -> bool:
        """Whether every video has an unconditional row besides its conditional one."""
        return self.cfg != 1.0

    def top_p_of(self, frame: int) -> float:
        """The top-p of this frame."""
        return self.first_frame_top_p if frame == 0 and self.first_frame_top_p is not None else self.top_p
