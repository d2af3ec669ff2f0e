"""Clips instead of prompts."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from fastcar_cli.errors import Key, RequestError
from fastcar_cli.inputs.prompt import Clip
from fastcar_cli.pipeline.clips import Inputs
from fastcar_cli.pipeline.pipeline import VideoPipeline


def named_clips(inputs: Inputs, pipe: VideoPipeline) -> dict[str, Clip]:
    """Clips by names with a hash of their contents, so that a folder never mixes two clips of one name.

    Raises RequestError for what can't be read, and a clip that is given twice.
    """
    spec = pipe.spec
    if inputs and not spec.layout.context:
        raise RequestError(f"the model {pipe.name!r} takes a text, no frames", key="input", hint="give it prompts")
    clips: dict[str, Clip] = {}
    for excerpt in inputs.read(spec, pipe.name, pipe.frames):
        clip = excerpt.clip
        digest = hashlib.sha256(clip.frames[: pipe.context].tobytes())
        digest.update(b"" if clip.actions is None else clip.actions.tobytes())
        name = f"{clip.name} {digest.hexdigest()[:8]}"
        if name in clips:
            raise RequestError(
                "is given twice",
                key="input",
                value=clip.name,
                hint=("more videos of it come from more ", Key("seeds")),
            )
        clips[name] = replace(clip, frames=clip.frames[: pipe.context])
    return clips
