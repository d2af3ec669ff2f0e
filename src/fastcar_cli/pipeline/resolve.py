"""Resolves a configuration: adds the model's defaults, and refuses unsupported settings."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from fastcar_cli.checkpoints.memory_plan import Demand, MemoryPlan, make_plan
from fastcar_cli.checkpoints.names import BUNDLED
from fastcar_cli.checkpoints.open import open_model
from fastcar_cli.config.keys import DEVICES
from fastcar_cli.config.run_config import RunConfig
from fastcar_cli.decoding.batch import DecodeSettings
from fastcar_cli.decoding.drafts.drafts import DraftSettings
from fastcar_cli.decoding.replay.controller import Target, max_ratio
from fastcar_cli.decoding.replay.replay import ReplayRule
from fastcar_cli.errors import Key, RequestError
from fastcar_cli.models.checkpoint import Checkpoint, LoadedModel, empty_network
from fastcar_cli.models.network import Layout, Spec

SMALL_MODEL_THREADS = 2
"""Threads of the native kernels for a bundled model, whose matrix products are too small for more."""

DRAFT_WINDOW = 16
PROMPT_TOKENS = 64
"""Assumed tokens of a prompt with its template."""

T = TypeVar("T")


def resolve(model: LoadedModel, config: RunConfig) -> RunConfig:
    """Fill in the model's defaults, except `generation.seed`. Raises RequestError for settings it does not support."""
    spec, own, replay, draft = spec_in(model, config), model.defaults, config.replay, config.draft
    frames = spec.frames if config.generation.frames is None else config.generation.frames
    one_context = model.name not in BUNDLED or config.backend.name == "fpga-sim"
    policy = config.generation.context_policy or ("stop" if one_context and not spec.layout.rolls else "roll")
    _check_frames(model.name, spec, frames, policy == "roll")
    if policy == "roll" and decoded_frames(spec, frames) > segment_of(spec):
        if config.backend.name == "fpga-sim":
            said, hint = "fpga-sim can't continue a video past its context", ("or use ", Key("context_policy"), " stop")
            allowed = f"at most {min(spec.frames, spec.longest)}"
            raise RequestError(said, key="frames", value=config.generation.frames, allowed=allowed, hint=hint)
        if segment_of(spec) < 1 + (not spec.layout.prompt_frames):
            said = f"the context of {model.name!r} has room for only one frame, so it can't roll"
            raise RequestError(said, key="context_policy", allowed="stop")
    sampling = config.sampling.model_copy(
        update={key: getattr(own.sampling, key) for key, value in config.sampling if value is None}
    )
    replay.tau.by_layer(spec.decoder.layers)
    _check_ratio(config, decoded_frames(spec, frames), spec.layout)
    if sampling.cfg != 1.0 and not spec.layout.guided:
        said = f"the model {model.name!r} has no guidance"
        raise RequestError(said, key="cfg", value=f"{sampling.cfg:g}", allowed="1")
    gate = "pair" if (replay.gate or own.gate) == "pair" and sampling.cfg != 1.0 else "row"
    kind, window = draft.kind or "auto", _draft_length(config, spec.tokens_per_frame)
    backend, executor = config.backend, config.runtime.executor
    if backend.name != "torch" and executor not in ("auto", "torch"):
        why = "can't be used with ", Key("backend.name"), f" {backend.name}"
        raise RequestError(why, key="executor", value=executor, allowed=(Key("executor"), " torch"))
    if backend.name == "fpga-sim" and backend.preset is None:
        from fastcar_fpga import preset_for

        backend = backend.model_copy(update={"preset": preset_for(None, spec).name})
    return config.model_copy(
        update={
            "generation": config.generation.model_copy(update={"frames": frames, "context_policy": policy}),
            "sampling": sampling,
            "replay": replay.model_copy(update={"tas": replay.tas or own.tas, "gate": gate}),
            "draft": draft.model_copy(update={"kind": kind, "window": 1 if kind == "off" else window}),
            "backend": backend,
            "video": config.video.model_copy(update={"fps": config.video.fps or spec.fps}),
        }
    )


def decode_settings(model: LoadedModel, run: RunConfig) -> DecodeSettings:
    """Decode settings of a resolved configuration."""
    spec, replay, threads = spec_in(model, run), run.replay, run.runtime.threads
    if threads is None and model.name in BUNDLED:
        threads = min(SMALL_MODEL_THREADS, torch.get_num_threads())
    return DecodeSettings(
        frames=decoded_frames(spec, given(run.generation.frames)),
        segment=segment_of(spec) if run.generation.context_policy == "roll" else None,
        sampling=replace(model.defaults.sampling, **run.sampling.model_dump()),
        rule=ReplayRule(
            tau=replay.tau,
            tas_definition=given(replay.tas),
            pairs=replay.gate == "pair",
            max_age=replay.max_age,
            replay_delimiters=replay.eligible == "all",
            target=None if replay.ratio is None else Target(replay.ratio, replay.controller),
            score=replay.score,
            first_frame=replay.first_frame,
        ),
        draft=DraftSettings(given(run.draft.kind), given(run.draft.window)),
        **run.attention.model_dump(),
        executor=run.runtime.executor,
        threads=threads,
    )


def given(value: T | None) -> T:
    """A value that `resolve` filled in."""
    assert value is not None
    return value


def memory_plans(
    config: RunConfig, *, videos: int = 1, device: str | None = None, checkpoint: Checkpoint | None = None
) -> dict[str, MemoryPlan]:
    """Memory plans of a run by dtype, from the model's shapes alone."""
    device = device or resolve_device(config.runtime.device)
    checkpoint = checkpoint or open_model(config.model, config.runtime.tokenizer)
    spec = checkpoint.spec.sized(config.size).continuing(config.generation.context)
    guided = checkpoint.defaults.cfg if config.sampling.cfg is None else config.sampling.cfg
    layers, replay, attention = spec.decoder.layers, config.replay, config.attention
    demand = Demand(
        videos * (1 if guided == 1.0 else 2),
        max(1, decoded_frames(spec, min(config.generation.frames or spec.frames, spec.longest))),
        spec.layout.prompt or PROMPT_TOKENS,
        **attention.model_dump(),
        replaying=layers if replay.ratio is not None else sum(t < math.inf for t in replay.tau.by_layer(layers)),
        delimiters=replay.eligible == "all",
        pixel_itemsize=getattr(torch, config.runtime.pixel_dtype).itemsize,
    )
    network = empty_network(spec)
    return {name: make_plan(network, form, demand, device) for name, form in checkpoint.formats.items()}


def spec_in(model: LoadedModel, config: RunConfig) -> Spec:
    """The model's specification for the configured number of context frames."""
    return model.network.spec.continuing(config.generation.context)


def decoded_frames(spec: Spec, frames: int) -> int:
    """Number of latent frames to decode for a video of `frames` frames, context frames included."""
    return 1 + (frames - 1) // spec.frame_spec.per_latent - spec.layout.context


def rolls(spec: Spec, run: RunConfig) -> bool:
    """Whether the context of a resolved run rolls before the end of its video."""
    frames = decoded_frames(spec, given(run.generation.frames))
    return run.generation.context_policy == "roll" and frames > segment_of(spec)


def segment_of(spec: Spec) -> int:
    """Number of latent frames to decode before the context rolls: as many as in training, or as positions allow."""
    return decoded_frames(spec, min(spec.frames, spec.longest))


def _check_frames(name: str, spec: Spec, frames: int, rolls: bool) -> None:
    """Raise RequestError for incomplete latent frames and, unless the context rolls, for more frames than positions."""
    context, step = spec.frames_of(spec.layout.context), spec.frame_spec.per_latent
    least, longest = context + step if context else 1, max(spec.longest, frames * rolls)
    allowed = f"{least} to {longest}" if step == 1 else ", ".join(map(str, range(least, longest + 1, step)))
    if least <= frames <= longest and (frames - 1) % step == 0:
        return
    if frames > spec.frames == longest:
        said = f"the model {name!r} was trained on {spec.frames} frames and can't decode more"
    elif frames > longest:
        tokens = (spec.layout.prefix or 0) + (frames - spec.layout.context) * spec.tokens_per_frame
        said = f"the video needs {tokens} tokens, but the model {name!r} has {spec.decoder.max_positions} positions"
    elif frames >= least:
        said = f"the model {name!r} decodes {step} frames at a time after the first"
    else:
        said = f"the model {name!r} takes {context} of the frames as context"
    hint = ("for more frames use ", Key("context_policy"), " roll") if frames > longest else None
    raise RequestError(said, key="frames", value=frames, allowed=allowed, hint=hint)


def _check_ratio(config: RunConfig, frames: int, layout: Layout) -> None:
    """Raise RequestError for a replay ratio that this many decoded frames can't reach."""
    replay = config.replay
    dense = () if replay.eligible == "all" else layout.delimiters
    # If prompts contain frames, the first decoded frame may replay.
    first = max(replay.first_frame, not layout.prompt_frames)
    most = max_ratio(frames, layout.stride, replay.max_age, dense, first)
    if replay.ratio is not None and replay.ratio > most:
        why = "the prompt and the first frame never replay" if first else "the prompt never replays"
        age = () if replay.max_age is None else (" and ", Key("replay.max_age"), f" {replay.max_age}")
        said = f"{frames + layout.context} frames", age, f" allow at most {most:.4f}, because {why}"
        allowed = f"above 0, at most {int(most * 1e4) / 1e4:g}; with more frames the ratio may be higher"
        raise RequestError(said, key="replay.ratio", value=f"{replay.ratio:g}", allowed=allowed)


def _draft_length(config: RunConfig, frame: int) -> int:
    """The draft length. Raises RequestError for more tokens than a frame or the attention window."""
    window, attention = config.draft.window, config.attention.window
    most = min(frame, attention or frame)
    if window is not None and window > most:
        what = "a frame has" if most == frame else "the attention window has"
        raise RequestError(f"{what} {most} tokens", key="draft.window", value=window, allowed=f"1 to {most}")
    return min(window or DRAFT_WINDOW, most)


def resolve_device(device: str) -> str:
    """The torch device of a setting; `auto` selects CUDA if available. Raises RequestError for a missing device."""
    if not re.fullmatch(DEVICES, device):
        raise RequestError("unknown", key="device", value=device, allowed="auto, cpu, cuda, cuda:N, mps, xpu, xpu:N")
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = device.partition(":")
    if kind != "cpu":
        count = torch.get_device_module(kind).device_count()
        if not count:
            said = f"torch {torch.__version__} finds no {kind.upper()} device"
            raise RequestError(said, key="device", value=device, allowed="cpu, auto")
        if int(index or 0) >= count:
            said, allowed = f"no {kind.upper()} device has this number", ", ".join(f"{kind}:{i}" for i in range(count))
            raise RequestError(said, key="device", value=device, allowed=allowed)
    return device


def plain_option(value: Any) -> Any:
    """A path, dtype or device as the command line writes it; other values unchanged."""
    return str(value).removeprefix("torch.") if isinstance(value, (Path, torch.dtype, torch.device)) else value
