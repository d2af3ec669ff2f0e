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
    default: Any,
    meaning: str,
    *,
    flag: str | None = "",
    by_model: bool = False,
    unset: str = "none",
    common: bool = False,
    **limits: Any,
) -> Any:
    """A key with its default, meaning and limits; with `ge` alone it is at most LARGEST.

    The command line sets it by `flag`; an empty one is called as the key, with None there is none. `by_model`: the
    default is the model's own preference. `unset`: the meaning of any other default of None. `common`: the help of
    `generate` shows the option; the others are listed by `fastcar config --keys`.
    """
    extra: Any = {"flag": flag, "by_model": by_model, "unset": unset, "common": common}
    if limits.keys() == {"ge"}:
        limits["le"] = LARGEST
    return Field(default, description=meaning, json_schema_extra=extra, **limits)


class GenerationKeys(Section):
    """What to make."""

    frames: int | None = setting(None, "frames, those of the input included", by_model=True, common=True, ge=1)
    context: int | None = setting(None, "context frames of the input: 1 or 9", by_model=True, ge=1)
    context_policy: choices.ContextPolicy | None = setting(
        None, "when the model's positions end: stop, or roll the context on", by_model=True
    )
    size: str | None = setting(None, "WIDTHxHEIGHT, where a model makes several sizes", by_model=True, pattern=SIZES)
    seed: int | None = setting(None, "seed of the first video", unset="drawn, and printed", common=True, ge=0, lt=2**63)
    samples: int = setting(1, "videos per prompt or input; seeds count up", common=True, ge=1, le=1024)


class InputKeys(Section):
    """Which frames of an input are used."""

    start: int | None = setting(None, "first frame of an input that is used, from 0", unset="0", ge=0)
    step: int | None = setting(None, "frames of an input from one to the next", unset="1", ge=1)
    key: str | None = setting(None, "array of an .npz input that holds the frames", min_length=1)
    goal: bool = setting(False, "put the last frame of a clip first, for goal-conditioned models")


class SamplingKeys(Section):
    """How codes are drawn."""

    cfg: float | None = setting(None, "guidance scale; 1 is none", by_model=True, common=True, ge=0, le=1000)
    temperature: float | None = setting(
        None, "temperature; 0 takes the likeliest code", by_model=True, common=True, ge=0, le=1000
    )
    top_k: int | None = setting(None, "sample among the k likeliest codes; 0: all", by_model=True, ge=0)
    top_p: float | None = setting(None, "sample among codes of this probability mass", by_model=True, gt=0, le=1)
    first_frame_top_p: float | None = setting(None, "top_p of the first frame", flag=None, by_model=True, gt=0, le=1)

    @field_validator("temperature", mode="after")
    @classmethod
    def _not_tiny(cls, value: float | None) -> float | None:
        if value is not None and 0 < value < 0.001:
            raise ValueError("0 for the likeliest code, or at least 0.001")
        return value


class ReplayKeys(Section):
    """When an MLP is replayed."""

    tau: Annotated[InstanceOf[Tau], BeforeValidator(Tau.read)] = setting(
        OFF, "replay threshold: off, a number (0 to -4 is useful), or one per layer; lower replays more", common=True
    )
    ratio: float | None = setting(
        None, "replay ratio to hold, such as 0.8, instead of tau", flag="--replay-ratio", common=True, gt=0, lt=1
    )
    controller: choices.Controller = setting(
        "layer", "scope of the ratio: one threshold for all layers, or one per layer", flag=None
    )
    score: choices.Score = setting("tas", "score that is compared with the threshold", common=True)
    tas: choices.TasDefinition | None = setting(None, "definition of the temporal attention score", by_model=True)
    gate: choices.Gate | None = setting(None, "unit that replays: each row, or a guided pair", by_model=True)
    max_age: int | None = setting(
        None, "most consecutive replays of one cached MLP output", flag="--max-replay-age", unset="no limit", ge=1
    )
    first_frame: int = setting(0, "first decoded frame that may replay, from 0", flag=None, ge=0)
    eligible: choices.Eligible = setting("codes", "tokens that may replay: codes, or frame delimiters too", flag=None)

    @field_validator("ratio", mode="after")
    @classmethod
    def _one_of_both(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and not info.data.get("tau", OFF).off:
            raise ValueError(f"none beside 'replay.tau' {info.data['tau']}; a controller holds a ratio by moving tau")
        return value


def _read_window(value: Any) -> Any:
    if isinstance(value, str) and value != "off":
        try:
            return int(digits(value))
        except ValueError:
            raise ValueError("a number of tokens, or 'off'") from None
    return None if value == "off" or value is False else value


class DraftKeys(Section):
    """How many tokens one pass decodes; the video is the same."""

    kind: choices.Draft | None = setting(
        None,
        "draft tokens that one pass verifies, for the same video in less time: the previous frame's codes "
        "(frame), these and the last pass's draws (jacobi), or the fastest here (auto)",
        flag="--draft",
        unset="auto in generate, else off",
        common=True,
    )
    window: int | None = setting(
        None,
        "draft length: input tokens of a pass",
        flag="--draft-window",
        unset="16 or fewer",
        common=True,
        ge=1,
        le=1024,
    )


class AttentionKeys(Section):
    """Which earlier tokens are attended to."""

    window: Annotated[int | None, BeforeValidator(_read_window)] = setting(
        None, "number of latest tokens attended to, or off for all", unset="off", common=True, ge=1
    )
    sinks: int = setting(4, "first prompt tokens attended to beside a window", common=True, ge=0)
    kv_dtype: choices.KVDtype = setting("auto", "format of the KV cache; auto: as the model", common=True)


class BackendKeys(Section):
    """Where the MLPs run."""

    name: choices.Backend = setting(
        "torch", "where MLPs run: here, or on an emulated FPGA accelerator", flag="--backend", common=True
    )
    preset: str | None = setting(
        None,
        "accelerator of fpga-sim: a preset or a YAML file",
        flag="--fpga",
        unset="edge-small, or paper-u280 for larger weights",
        common=True,
        min_length=1,
    )


class RuntimeKeys(Section):
    """Where and in what precision."""

    device: str = setting("auto", "device: auto, cpu, cuda or cuda:N", pattern=DEVICES)
    dtype: choices.Dtype = setting("auto", "format of the weights; a converted model has its own", common=True)
    pixel_dtype: choices.PixelDtype = setting("float32", "dtype of the pixel decoder; bfloat16 for video tokenizers")
    keep_prefill: str | None = setting(
        None, "file (.safetensors) that saves the prompt's KV cache for later runs of the same input", min_length=1
    )
    executor: choices.Executor = setting(
        "auto", "runs decode passes: native CPU kernels, a CUDA graph or plain torch; auto: the fastest"
    )
    threads: int | None = setting(
        None, "CPU threads", unset="all, two in the native kernels for a bundled model", ge=1, le=1024
    )


class VideoKeys(Section):
    """How frames are written."""

    fps: int | None = setting(None, "frames per second of the file", by_model=True, ge=1, le=120)
    scale: int = setting(1, "enlargement of the written frames, 1 to 16", ge=1, le=16)
