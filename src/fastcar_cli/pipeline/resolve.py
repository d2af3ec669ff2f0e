"""A configuration made whole: what it leaves open comes from the model, and what the model can't do is refused."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from typing import Any, TypeVar

import torch

from fastcar_cli.checkpoints.names import BUNDLED
from fastcar_cli.config.keys import DEVICES
from fastcar_cli.config.run_config import RunConfig, tau_to_plain
from fastcar_cli.decoding.drafts.drafts import DraftSettings
from fastcar_cli.decoding.replay.controller import Target, max_ratio
from fastcar_cli.decoding.replay.replay import ReplayRule
from fastcar_cli.decoding.settings import DecodeSettings
from fastcar_cli.errors import Key, RequestError
from fastcar_cli.models.checkpoint import LoadedModel
from fastcar_cli.models.network import Layout, Spec

SMALL_MODEL_THREADS = 2
"""Threads of the native kernels for a bundled model: its products are too short to share among more."""

DRAFT_WINDOW = 16
"""Most tokens of a video that a pass takes where no other number is given."""

T = TypeVar("T")


def _choose(value: T | None, default: T) -> T:
    return default if value is None else value


def settings_of(model: LoadedModel, config: RunConfig) -> DecodeSettings:
    """How a model decodes under a configuration. Raises RequestError for what this model can't do."""
    spec, own, s, replay = spec_in(model, config), model.defaults, config.sampling, config.replay
    pictures = _choose(config.generation.frames, spec.frames)
    _check_frames(model.name, spec, pictures)
    frames = 1 + (pictures - 1) // spec.frame_spec.pictures
    sampling = replace(own.sampling, **s.model_dump(exclude_none=True))
    layers = spec.decoder.layers
    replay.tau.by_layer(layers)
    rule = ReplayRule(
        tau=replay.tau,
        tas_definition=_choose(replay.tas, own.tas),
        pairs=_choose(replay.gate, own.gate) == "pair" and sampling.cfg != 1.0,
        max_age=replay.max_age,
        replay_delimiters=replay.eligible == "all",
        target=_target(config, frames - spec.layout.context, spec.layout),
        score=replay.score,
        first_frame=replay.first_frame,
    )
    if sampling.cfg != 1.0 and not spec.layout.guided:
        raise RequestError(
            f"the model {model.name!r} has no guidance", key="cfg", value=f"{sampling.cfg:g}", allowed="1"
        )
    threads = config.runtime.threads
    if threads is None and model.name in BUNDLED:
        threads = min(SMALL_MODEL_THREADS, torch.get_num_threads())
    return DecodeSettings(
        frames=frames - spec.layout.context,
        sampling=sampling,
        rule=rule,
        draft=_draft(config, spec.tokens_per_frame),
        window=config.attention.window,
        sinks=config.attention.sinks,
        kv_dtype=config.attention.kv_dtype,
        executor=_executor(config),
        threads=threads,
    )


def spec_in(model: LoadedModel, config: RunConfig) -> Spec:
    """The model's specification, continuing from what the configuration says."""
    return model.network.spec.continuing(config.generation.context)


def _check_frames(name: str, spec: Spec, frames: int) -> None:
    """Refuse videos that are longer than the model has positions for, and such that end within a frame of codes."""
    context, step = spec.pictures(spec.layout.context), spec.frame_spec.pictures
    least, longest = context + step if context else 1, spec.longest
    allowed = f"{least} to {longest}" if step == 1 else ", ".join(map(str, range(least, longest + 1, step)))
    if least <= frames <= longest and (frames - 1) % step == 0:
        return
    if frames > spec.frames == longest:
        why = f"was trained on {spec.frames} frames and has no position for more"
        said = f"the model {name!r} {why}"
    elif frames > longest:
        tokens = (spec.layout.lead or 0) + (frames - spec.layout.context) * spec.tokens_per_frame
        said = f"{tokens} tokens, the model {name!r} has {spec.decoder.max_positions} positions"
    elif frames >= least:
        said = f"the model {name!r} makes {step} at once"
    else:
        said = f"{context} of them are given to the model {name!r}"
    raise RequestError(said, key="frames", value=frames, allowed=allowed)


def _target(config: RunConfig, frames: int, layout: Layout) -> Target | None:
    """The replay ratio to keep. Raises RequestError for one that this many decoded frames can't reach."""
    replay = config.replay
    if replay.ratio is None:
        return None
    dense = () if replay.eligible == "all" else layout.delimiters
    # Where prompts hold frames, the first decoded one may replay.
    first = max(replay.first_frame, not layout.behind)
    most = max_ratio(frames, layout.stride, replay.max_age, dense, first)
    if replay.ratio > most:
        why = "a prompt and the first frame are always computed" if first else "a prompt is always computed"
        age = () if replay.max_age is None else (" and ", Key("replay.max_age"), f" {replay.max_age}")
        raise RequestError(
            (f"{frames + layout.context} frames", age, f" allow at most {most:.4f}, because {why}"),
            key="replay.ratio",
            value=f"{replay.ratio:g}",
            allowed=f"above 0, at most {int(most * 1e4) / 1e4:g}; more frames allow more",
        )
    return Target(replay.ratio, replay.controller)


def _draft(config: RunConfig, frame: int) -> DraftSettings:
    """How tokens are drafted. Raises RequestError for more of them in a pass than a frame or the attention holds."""
    kind, window, attention = config.draft.kind or "auto", config.draft.window, config.attention.window
    most = min(frame, attention or frame)
    if window is not None and window > most:
        what = "a frame has" if most == frame else "the attention window has"
        raise RequestError(f"{what} {most} tokens", key="draft.window", value=window, allowed=f"1 to {most}")
    return DraftSettings() if kind == "off" else DraftSettings(kind, min(window or DRAFT_WINDOW, most))


def _executor(config: RunConfig) -> str:
    """Who decodes. Raises RequestError for what does not go with another MLP backend."""
    backend, executor = config.backend.name, config.runtime.executor
    if backend != "torch" and executor not in ("auto", "torch"):
        raise RequestError(
            ("does not go with ", Key("backend.name"), f" {backend}"),
            key="executor",
            value=executor,
            allowed=(Key("executor"), " torch"),
        )
    return executor


def effective(config: RunConfig, settings: DecodeSettings, frames: int, fps: int) -> dict[str, Any]:
    """The configuration with what the settings say in place of what it leaves open or says otherwise.

    `frames` counts the context frames too.
    """
    data, rule, target = config.to_dict(), settings.rule, settings.rule.target
    data["generation"]["frames"] = frames
    data["sampling"] = {key: value for key, value in asdict(settings.sampling).items() if key in data["sampling"]}
    data["replay"] |= {"tau": tau_to_plain(rule.tau), "score": rule.score, "tas": rule.tas_definition}
    data["replay"] |= {"gate": "pair" if rule.pairs else "row", "max_age": rule.max_age}
    data["replay"] |= {"eligible": "all" if rule.replay_delimiters else "codes", "first_frame": rule.first_frame}
    data["replay"] |= {"ratio": None} if target is None else {"ratio": target.ratio, "controller": target.scope}
    data["draft"] = {"kind": settings.draft.kind, "window": settings.draft.window}
    data["attention"] = {"window": settings.window, "sinks": settings.sinks, "kv_dtype": settings.kv_dtype}
    data["runtime"]["executor"] = settings.executor
    data["video"]["fps"] = fps
    return data


def resolve_device(device: str) -> str:
    """The torch device of a request; `auto` takes a GPU where there is one. Raises RequestError for others."""
    if not re.fullmatch(DEVICES, device):
        raise RequestError("unknown", key="device", value=device, allowed="auto, cpu, cuda or cuda:N")
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda"):
        if not torch.cuda.is_available():
            raise RequestError("no CUDA device here", key="device", value=device, allowed="cpu, auto")
        index = int(device.partition(":")[2] or 0)
        if index >= torch.cuda.device_count():
            raise RequestError(
                f"there are {torch.cuda.device_count()} CUDA devices, counted from 0", key="device", value=device
            )
    return device
