"""The recipe of a video: all settings that determine its tokens and its file, without paths, device or threads."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from fastcar_cli._version import __version__
from fastcar_cli.checkpoints.open import public_name
from fastcar_cli.config.presets import fpga_presets
from fastcar_cli.config.run_config import RunConfig, current, flat, later_wins, nested
from fastcar_cli.errors import Key, RequestError
from fastcar_cli.inputs.prompt import Prompt, TokenisedClip
from fastcar_cli.models.checkpoint import Identity, LoadedModel
from fastcar_cli.pipeline.resolve import rolls, spec_in
from fastcar_fpga import load_preset

_TAKEN = (
    *("model", "generation.frames", "generation.context", "generation.size", "sampling", "replay", "attention"),
    *("backend", "runtime.dtype", "video"),
)
_DECIDED = ("generation.seed", "generation.samples")


def decides(key: str) -> bool:
    """Whether a key determines a video's tokens or its file."""
    return key.startswith((*_TAKEN, *_DECIDED))


def recipe_of(
    run: RunConfig, loaded: LoadedModel, source: Identity, prompt: Prompt, seed: int, ids: Sequence[int] = ()
) -> dict[str, Any]:
    """The recipe of one video of a resolved run; a prompt of frames is stored as its `ids`, actions and name."""
    model, preset = run.model, run.backend.preset
    settings = {k: v for k, v in flat(run.to_dict()).items() if k.startswith(_TAKEN)}
    settings["runtime.dtype"] = loaded.network.weight_format
    if not rolls(spec_in(loaded, run), run):
        del settings["generation.context_policy"]  # without a roll, as in recipes from before this key
    if not public_name(model):
        del settings["model"]
    recipe: dict[str, Any] = {"prompt": str(prompt), "seed": seed, "settings": nested(settings)}
    if not isinstance(prompt, str):
        actions = None if prompt.actions is None else prompt.actions.tolist()
        recipe["input"] = {"ids": list(ids), "actions": actions}
    if preset not in fpga_presets():
        del recipe["settings"]["backend"]["preset"]
        if preset is not None and run.backend.name == "fpga-sim":
            recipe["accelerator"] = load_preset(preset).name
    recipe["model"] = {"name": loaded.name, "weights": source.weights, "commit": source.commit}
    return {**recipe, "version": __version__}


def prompt_of(recipe: dict[str, Any], source: str) -> Prompt:
    """The prompt or input of a recipe's video. Raises RequestError for a damaged input."""
    stored = recipe.get("input")
    if stored is None:
        return recipe["prompt"]
    try:
        ids, actions = stored["ids"], stored["actions"]
        if not all(type(i) is int for i in ids):
            raise TypeError
        return TokenisedClip(tuple(ids), None if actions is None else np.array(actions, np.float32), recipe["prompt"])
    except (KeyError, TypeError, ValueError, OverflowError):
        hint = ("give the input again: ", Key("input"), " FILE")
        raise RequestError(f"{source}: its recipe has a damaged input", hint=hint) from None


def settings_of(recipe: dict[str, Any], source: str, given: Collection[str]) -> tuple[dict[str, Any], list[str]]:
    """A recipe's settings by dotted key, except the `given` keys, and notes for the user. Raises RequestError."""
    settings = flat(current(recipe["settings"]))
    taken = {k: v for k, v in settings.items() if k.startswith(_TAKEN) and k not in given}
    model, preset = settings.get("model"), settings.get("backend.preset")
    # Anybody can add files to another revision of a public repository with a pull request.
    known = isinstance(model, str) and public_name(model) and re.fullmatch(r"[^@]+(@[0-9a-f]{40})?", model)
    if "model" not in given and not known:
        written = recipe.get("model")
        name = written.get("name") if isinstance(written, dict) else _last(model)
        hint = "give the model's folder: ", Key("model"), " FOLDER"
        raise RequestError(f"{source} was made with a local model, {name!r}", hint=hint)
    if preset not in fpga_presets():
        taken.pop("backend.preset", None)
        if settings.get("backend.name") == "fpga-sim" and not {"backend.preset", "backend.name"} & {*given}:
            name = _last(recipe.get("accelerator", preset))
            hint = "give that file: ", Key("backend.preset"), " FILE"
            raise RequestError(f"{source} was made with a local accelerator file, {name!r}", hint=hint)
    base = flat(RunConfig.from_dict(nested(taken), source).to_dict())
    taken = {k: base[k] for k in taken}
    later_wins(taken, given)
    if "generation.context_policy" not in given:
        # Older versions had only this policy and did not write it.
        taken.setdefault("generation.context_policy", "stop")
    if "generation.seed" not in given:
        taken["generation.seed"] = recipe["seed"]
    defaults = flat(RunConfig().to_dict())
    left = [
        k for k in settings if not k.startswith((*_TAKEN, *_DECIDED)) and k in defaults and settings[k] != defaults[k]
    ]
    notes = [f"keys in {source} that do not affect tokens are ignored: {', '.join(left)}"] if left else []
    if recipe.get("version") != __version__:
        notes.append(f"{source} was made by fastcar {recipe.get('version')}; with {__version__} its tokens may differ")
    return taken, notes


def same_weights(recipe: dict[str, Any], source: str, model: str, loaded: Identity) -> list[str]:
    """A note for the user if the model differs from the recipe's."""
    written = recipe.get("model")
    if not isinstance(written, dict) or written.get("weights", loaded.weights) == loaded.weights:
        return []
    commit = written.get("commit")
    other = f" (for its weights use {model.partition('@')[0]}@{commit})" if commit and loaded.commit else ""
    return [f"{source} was made with other weights than {model!r} has{other}: its tokens will differ"]


def _last(path: Any) -> Any:
    return path.replace("\\", "/").rstrip("/").split("/")[-1] if isinstance(path, str) else path
