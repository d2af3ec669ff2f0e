"""One video for the page: decoded, encoded, and with its maps in the form that the report's player reads."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastcar_cli.checkpoints.hub import here
from fastcar_cli.checkpoints.names import BUNDLED, REPOSITORIES
from fastcar_cli.checkpoints.open import spec_of
from fastcar_cli.config.run_config import load_config
from fastcar_cli.errors import RequestError
from fastcar_cli.media import default_name
from fastcar_cli.pipeline.pipeline import VideoPipeline
from fastcar_cli.sweep.worker import draft_data, replay_map

SHOWN_SIDE = 256
"""Frames are enlarged to about this many pixels a side."""


def models() -> list[str]:
    """Models that take a text and are on this machine."""
    names = [*BUNDLED, *(name for name, repository in REPOSITORIES.items() if here(repository))]
    return [name for name in names if not spec_of(name).layout.context]


class Maker:
    """Makes one video after another and keeps the model of the last one."""

    def __init__(self) -> None:
        self._pipe: VideoPipeline | None = None

    def __call__(self, form: dict[str, str], on_step: Callable[[int, int], None]) -> tuple[dict[str, Any], bytes]:
        """The results of a sweep with this one video, for the player, and the video as MP4.

        `form` has prompt, model, tau, draft and seed as text, an empty seed for any. Raises RequestError for what is
        refused and RunError for what fails.
        """
        prompt, name = form.get("prompt", "").strip(), form.get("model", "")
        if name not in (offered := models()):
            raise RequestError(f"{name!r} is not a model of this page", allowed=", ".join(offered))
        if not prompt:
            raise RequestError("the prompt is empty", hint="describe the video in a few words")
        seed = form.get("seed", "").strip()
        if seed and not (seed.isascii() and seed.isdigit() and int(seed) < 2**63):
            allowed = "0 to 2^63 - 1, or none for any"
            raise RequestError(f"the seed {seed[:40]!r} is not a whole number", allowed=allowed)
        scale = max(1, round(SHOWN_SIDE / max(spec_of(name).frame_spec.size)))
        flags = {"replay.tau": form.get("tau", "off"), "draft.kind": form.get("draft", "auto"), "video.scale": scale}
        run = load_config(flags={"model": name, **flags})
        if self._pipe is None or self._pipe.config.model != name:
            self._pipe = None  # before the next one needs memory
            self._pipe = VideoPipeline.from_config(run)
        pipe = self._pipe.with_config(run)
        notes = pipe.notices([prompt])
        (video,) = pipe.videos([prompt], [int(seed) if seed else secrets.randbelow(2**31)], on_step)
        report, draft = video.report, video.report["draft"]
        # The results of a sweep with one cell, which is its own reference.
        cell = {
            **{"id": "video", "reference": "video", "prompt": report["prompt"], "seed": report["seed"]},
            "tau": form["tau"] if isinstance(report["tau"], list) else report["tau"],
            **{key: report["replay"][key] for key in ("score", "gate")},
            "draft": f"{draft['kind']}-{draft['window']}" if draft["window"] > 1 else "off",
            "speed": {"decode_s": {"median": report["timing"]["decode_s"]}},
            "replay": {**report["replay"], "map": replay_map(pipe)},
            "drafts": draft_data(pipe, draft),
        }
        results = {"form": form, "notes": notes, "file": default_name(report["prompt"], report["seed"]).name}
        results["model"] = {key: getattr(pipe, key) for key in ("name", "layers", "frames", "fps")}
        with tempfile.TemporaryDirectory() as folder:
            data = video.save(Path(folder) / "video.mp4", scale).read_bytes()
        return empty_results() | results | {"cells": [cell]}, data


def empty_results() -> dict[str, Any]:
    """As a video's, before there is one."""
    return {"form": {}, "notes": [], "cells": [], "summary": [], "plan": {}, "model": {}, "report": {"missing": []}}
