"""Configuration keys by section, also for help and docs. The pipeline replaces None by the model's default."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, InstanceOf, ValidationInfo, field_validator

from fastcar_cli.config import choices
from fastcar_cli.config.lists import digits
from fastcar_cli.config.tau import OFF, Tau

SIZES = r"^[1-9]\d{0,5}x[1-9]\d{0,5}$"
DEVICES = r"^(auto|cpu|mps|(cuda|xpu)(:\d+)?)$"
MODELS = (
    "bundled model (mini, table, table-dense, table-actions), name of a model on the hub (vila-u-7b, ivideogpt-..., "
    "rt1-world-model-..., cosmos-predict1-...; NAME@REVISION for one revision), or folder of a model"
)
"""Allowed values of `model`, for help texts."""

LARGEST = 2**31 - 1


class Section(BaseModel):
    """A group of keys."""

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
    """A key with its default, meaning and limits; with `ge` alone the maximum is LARGEST.

    `flag`: its option; "" uses the key's name, None adds no option. `by_model`: the default is the model's. `unset`:
    the meaning of any other default of None. `common`: the help of `generate` lists the option.
    """
    text = "the model's" if by_model else unset if default is None else str(default)
    extra: Any = {"flag": flag, "default": text, "by_model": by_model, "common": common}
    if limits.keys() == {"ge"}:
        limits["le"] = LARGEST
    return Field(default, description=meaning, json_schema_extra=extra, **limits)


class GenerationKeys(Section):
    """The videos to make."""

    frames: int | None = setting(None, "number of frames, context frames included", by_model=True, common=True, ge=1)
    context: int | None = setting(None, "number of input frames (Cosmos-Predict1: 1 or 9)", by_model=True, ge=1)
    context_policy: choices.ContextPolicy | None = setting(
        None, "if a video outgrows the model's context: refuse it (stop), or forget old frames (roll)", by_model=True
    )
    size: str | None = setting(None, "frame size WxH, for models that have several sizes", by_model=True, pattern=SIZES)
    seed: int | None = setting(None, "seed of the first video", unset="random, printed", common=True, ge=0, lt=2**63)
    samples: int = setting(1, "videos per prompt or input; their seeds are consecutive", common=True, ge=1, le=1024)


class InputKeys(Section):
    """Selection of input frames."""

    start: int | None = setting(None, "index of the first input frame to use, counted from 0", unset="0", ge=0)
    step: int | None = setting(None, "use only every n-th input frame", unset="1", ge=1)
    key: str | None = setting(None, "name of the array with the frames in an .npz input", min_length=1)
    goal: bool = setting(False, "put the last frame of a clip first, for goal-conditioned models")


class SamplingKeys(Section):
    """Sampling of codes."""

    cfg: float | None = setting(None, "guidance scale; 1 disables guidance", by_model=True, common=True, ge=0, le=1000)
    temperature: float | None = setting(
        None, "sampling temperature; 0 always selects the most likely code", by_model=True, common=True, ge=0, le=1000
    )
    top_k: int | None = setting(None, "sample from the k most likely codes; 0 samples from all", by_model=True, ge=0)
    top_p: float | None = setting(None, "nucleus sampling: cumulative probability", by_model=True, gt=0, le=1)
    first_frame_top_p: float | None = setting(None, "top_p for the first frame", flag=None, by_model=True, gt=0, le=1)

    @field_validator("temperature", mode="after")
    @classmethod
    def _not_tiny(cls, value: float | None) -> float | None:
        if value is not None and 0 < value < 0.001:
            raise ValueError("0 for the most likely code, or at least 0.001")
        return value


class ReplayKeys(Section):
    """Replay of MLP outputs."""

    tau: Annotated[InstanceOf[Tau], BeforeValidator(Tau.read)] = setting(
        OFF,
        "replay threshold: off, a number (0 to -4 is useful), or one per layer; a lower value replays more MLPs",
        common=True,
    )
    ratio: float | None = setting(
        None, "target replay ratio, such as 0.8; fastcar adjusts tau", flag="--replay-ratio", common=True, gt=0, lt=1
    )
    controller: choices.Controller = setting("layer", "with replay.ratio: a tau per layer, or a global tau", flag=None)
    score: choices.Score = setting("tas", "score to compare with tau; tas is the temporal attention score", common=True)
    tas: choices.TasDefinition | None = setting(
        None, "queries that TAS uses: those after rotary embedding (attention) or before it (released)", by_model=True
    )
    gate: choices.Gate | None = setting(
        None, "with guidance: each row decides on replay itself (row), or both decide together (pair)", by_model=True
    )
    max_age: int | None = setting(
        None, "maximum number of consecutive replays of one MLP output", flag="--max-replay-age", unset="no limit", ge=1
    )
    first_frame: int = setting(0, "index of the first decoded frame that may replay, counted from 0", flag=None, ge=0)
    eligible: choices.Eligible = setting("codes", "tokens that may replay: codes of frames (codes), or all", flag=None)

    @field_validator("ratio", mode="after")
    @classmethod
    def _one_of_both(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and not info.data.get("tau", OFF).off:
            raise ValueError(f"no ratio while 'replay.tau' is {info.data['tau']}: leave one of them out")
        return value


def _read_window(value: Any) -> Any:
    if isinstance(value, str) and value != "off":
        try:
            return int(digits(value))
        except ValueError:
            raise ValueError("a number of tokens, or 'off'") from None
    return None if value == "off" or value is False else value


class DraftKeys(Section):
    """Drafts, which decode the same video with several tokens per pass."""

    kind: choices.Draft | None = setting(
        None,
        "speculative decoding: the same video in fewer passes. Drafts are the previous frame's codes (frame), or "
        "discarded samples of the last pass (jacobi). auto is jacobi with this machine's fastest draft length",
        flag="--draft",
        unset="auto; off in sweep and profile",
        common=True,
    )
    window: int | None = setting(
        None,
        "draft length: maximum number of tokens per video that one pass takes as input",
        flag="--draft-window",
        unset="16, or the number of tokens per frame if that is lower",
        common=True,
        ge=1,
        le=1024,
    )


class AttentionKeys(Section):
    """Attention window and KV cache."""

    window: Annotated[int | None, BeforeValidator(_read_window)] = setting(
        None, "attention window in tokens, or off for full attention", unset="off", common=True, ge=1
    )
    sinks: int = setting(4, "number of tokens at the prompt's start that stay in the window", ge=0)
    kv_dtype: choices.KVDtype = setting("auto", "format of the KV cache; auto uses the model's dtype", common=True)


class BackendKeys(Section):
    """Backend of the MLPs."""

    name: choices.Backend = setting(
        "torch", "where MLPs run; fpga-sim is an emulated FPGA accelerator", flag="--backend", common=True
    )
    preset: str | None = setting(
        None,
        "accelerator for fpga-sim: a preset or a YAML file",
        flag="--fpga",
        unset="edge-small, or paper-u280 for a model too large for it",
        common=True,
        min_length=1,
    )


class RuntimeKeys(Section):
    """Device, precision and executor."""

    device: str = setting("auto", "device: auto, cpu, cuda or cuda:N; mps and xpu use plain torch", pattern=DEVICES)
    dtype: choices.Dtype = setting("auto", "format of the weights; converted models have a fixed format", common=True)
    pixel_dtype: choices.PixelDtype = setting(
        "float32", "dtype of the pixel decoder; only Cosmos-Predict1 and RLVR-World support bfloat16"
    )
    tokenizer: str | None = setting(
        None, "folder of the tokenizer, if not beside the model", unset="the tokenizer beside the model", min_length=1
    )
    keep_prefill: str | None = setting(None, "file for the prompt's KV cache: saved if new, else loaded", min_length=1)
    executor: choices.Executor = setting(
        "auto", "how decode passes run: native CPU kernels, a CUDA graph or plain torch; auto selects the fastest"
    )
    threads: int | None = setting(
        None, "number of CPU threads", unset="all; two if a bundled model runs in native kernels", ge=1, le=1024
    )


class VideoKeys(Section):
    """Output files."""

    fps: int | None = setting(None, "frames per second in the video file", by_model=True, ge=1, le=120)
    scale: int = setting(1, "factor by which frames are enlarged in the video file, 1 to 16", ge=1, le=16)
