"""The keys of the configuration by section: defaults, meanings for help and docs, limits.

None stands for "what the model prefers"; the pipeline resolves it.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, InstanceOf, ValidationInfo, field_validator

from fastcar_cli.config import choices
from fastcar_cli.config.lists import digits
from fastcar_cli.config.tau import OFF, Tau

SIZES = r"^[1-9]\d{0,5}x[1-9]\d{0,5}$"
DEVICES = r"^(auto|cpu|cuda(:\d+)?)$"
MODELS = (
    "bundled model (mini, table, table-dense, mini-actions), name of the hub (vila-u-7b, ivideogpt-..., "
    "cosmos-predict1-...; NAME@REVISION), or model folder"
)
"""What a model is named by."""

LARGEST = 2**31 - 1
"""Largest number of tokens, codes or frames; memory and model may allow less."""


class Section(BaseModel):
    """Keys that belong together."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def setting(
    default: Any, meaning: str, *, flag: str | None = "", by_model: bool = False, unset: str = "none", **limits: Any
) -> Any:
    """A key with its default, meaning and limits.

    The command line sets it by `flag`; an empty one is called as the key, with None there is none. `by_model`: the
    default is the model's own preference. `unset`: what another default of None stands for.
    """
    extra: Any = {"flag": flag, "by_model": by_model, "unset": unset}
    return Field(default, description=meaning, json_schema_extra=extra, **limits)


class Generation(Section):
    """What to make."""

    frames: int | None = setting(None, "frames of the video, context frames included", by_model=True, ge=1, le=LARGEST)
    context: int | None = setting(None, "frames of the input to continue: 1 or 9", by_model=True, ge=1, le=LARGEST)
    size: str | None = setting(
        None, "WIDTHxHEIGHT of the frames, where a model makes several sizes", by_model=True, pattern=SIZES
    )
    seed: int | None = setting(None, "seed of the first video", unset="drawn, and printed", ge=0, lt=2**63)
    samples: int = setting(1, "videos per prompt or input; seeds count up", ge=1, le=1024)


class Sampling(Section):
    """How codes are drawn."""

    cfg: float | None = setting(None, "guidance scale; 1 is none", by_model=True, ge=0, le=1000)
    temperature: float | None = setting(None, "temperature; 0 takes the likeliest code", by_model=True, ge=0, le=1000)
    top_k: int | None = setting(None, "likeliest codes kept; 0 keeps all", by_model=True, ge=0, le=LARGEST)
    top_p: float | None = setting(None, "probability mass kept", by_model=True, gt=0, le=1)
    first_frame_top_p: float | None = setting(
        None, "probability mass kept in the first frame", flag=None, by_model=True, gt=0, le=1
    )

    @field_validator("temperature", mode="after")
    @classmethod
    def _not_tiny(cls, value: float | None) -> float | None:
        if value is not None and 0 < value < 0.001:
            raise ValueError("0 for the likeliest code, or at least 0.001")
        return value


class Replay(Section):
    """When an MLP is replayed."""

    tau: Annotated[InstanceOf[Tau], BeforeValidator(Tau.read)] = setting(
        OFF,
        "replay threshold: a number, 'off', or one of these per layer with commas between them; lower replays more, "
        "0 to -4 is useful",
    )
    ratio: float | None = setting(
        None,
        "replay ratio that a controller keeps by moving the threshold, such as 0.8; instead of tau",
        flag="--replay-ratio",
        gt=0,
        lt=1,
        allow_inf_nan=False,
    )
    controller: choices.Controller = setting(
        "layer", "what keeps the ratio: all layers with one threshold, or each layer", flag=None
    )
    score: choices.Score = setting("tas", "what the threshold is compared with")
    tas: choices.TasDefinition | None = setting(None, "definition of the temporal attention score", by_model=True)
    gate: choices.Gate | None = setting(None, "who decides on a replay: each row, or a guided pair", by_model=True)
    max_age: int | None = setting(
        None,
        "most consecutive replays of one cached MLP output",
        flag="--max-replay-age",
        unset="no limit",
        ge=1,
        le=LARGEST,
    )
    first_frame: int = setting(0, "first decoded frame that may replay, from 0", flag=None, ge=0, le=LARGEST)
    eligible: choices.Eligible = setting(
        "codes", "tokens that may replay: those of frames, or frame delimiters too", flag=None
    )

    @field_validator("ratio", mode="after")
    @classmethod
    def _one_of_both(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and not info.data.get("tau", OFF).off:
            raise ValueError(f"none beside 'replay.tau' {info.data['tau']}; a ratio is kept by moving tau")
        return value


def _read_window(value: Any) -> Any:
    if isinstance(value, str) and value != "off":
        try:
            return int(digits(value))
        except ValueError:
            raise ValueError("a number of tokens, or 'off'") from None
    return None if value == "off" or value is False else value


class Draft(Section):
    """How many tokens one pass decodes; the video is the same."""

    kind: choices.Draft | None = setting(
        None,
        "draft tokens that one pass verifies: aligned codes of the last frame (frame), these and what the last pass "
        "drew (jacobi), or what is fastest here (auto)",
        flag="--draft",
        unset="auto in generate, else off",
    )
    window: int | None = setting(
        None, "most tokens of a video in a pass with drafts", flag="--draft-window", unset="16 or fewer", ge=1, le=1024
    )


class Attention(Section):
    """Which earlier tokens are attended to."""

    window: Annotated[int | None, BeforeValidator(_read_window)] = setting(
        None, "last tokens attended to, or 'off' for all", unset="off", ge=1, le=LARGEST
    )
    sinks: int = setting(4, "first prompt tokens kept beside a window", ge=0, le=LARGEST)
    kv_dtype: choices.KVDtype = setting("auto", "format of keys and values; auto: as the model")


class Backend(Section):
    """Who executes the MLPs."""

    name: choices.Backend = setting("torch", "who executes the MLPs", flag="--backend")
    preset: str | None = setting(
        None,
        "accelerator of fpga-sim: a preset or a YAML file",
        flag="--fpga",
        unset="edge-small, or paper-u280 for larger weights",
        min_length=1,
    )


class Runtime(Section):
    """Where and in what precision."""

    device: str = setting("auto", "device: auto, cpu, cuda or cuda:N", pattern=DEVICES)
    dtype: choices.Dtype = setting("auto", "format of the weights; a converted model has its own")
    pixel_dtype: choices.PixelDtype = setting(
        "float32", "dtype that frames are decoded in; bfloat16 for models with a video tokenizer"
    )
    keep_prefill: str | None = setting(
        None,
        "file (.safetensors) that what the prompts leave is kept in, and read from by later runs of the same input",
        flag="--keep-prefill",
        min_length=1,
    )
    executor: choices.Executor = setting(
        "auto", "who runs a decode pass: native CPU kernels, a CUDA graph or plain torch; auto: the fastest"
    )
    threads: int | None = setting(
        None, "CPU threads", unset="all, two in the native kernels for a bundled model", ge=1, le=1024
    )


class Video(Section):
    """How frames are written."""

    fps: int | None = setting(None, "frames per second of the file", by_model=True, ge=1, le=120)
    scale: int = setting(1, "enlargement of the written frames, 1 to 16", ge=1, le=16)
