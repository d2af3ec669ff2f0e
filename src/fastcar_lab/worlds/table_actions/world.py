"""`table-actions`: on `table`'s ground a person steers a ball among other objects, 128 x 128 pixels."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from fastcar_cli.checkpoints.open import load
from fastcar_cli.inputs.prompt import Clip, Prompt
from fastcar_cli.models.bundled.steered import Steered, SteeredSpec
from fastcar_cli.models.bundled.steered_checkpoint import FORMAT
from fastcar_lab.training.stages import Training, one_file
from fastcar_lab.worlds.protocol import Video
from fastcar_lab.worlds.table_actions.evaluate import judge
from fastcar_lab.worlds.table_actions.frames import render, watch
from fastcar_lab.worlds.table_actions.hyperparameters import TABLE_ACTIONS
from fastcar_lab.worlds.table_actions.learner import Learner, network_of
from fastcar_lab.worlds.table_actions.samples import Session, play
from fastcar_lab.worlds.table_actions.scene import ACTIONS
from fastcar_lab.worlds.table_actions.train_tokenizer import ActionsTokenizer, evaluate

STEPS, REST = 16, TABLE_ACTIONS.context - 1
"""Keys of a session, and given frames before its first one, which are like it."""


def export(spec: SteeredSpec, folder: Path, checkpoint: Path, tokenizer: Path) -> None:
    """Write config.json and model.safetensors, weights as float16, of both halves as training left them."""
    model = Learner(spec)
    model.load_state_dict(torch.load(checkpoint, map_location="cpu", weights_only=True)["model"])
    network = network_of(model)
    network.tokenizer.load_state_dict(ActionsTokenizer.load(tokenizer).finished().state_dict())
    folder.mkdir(parents=True, exist_ok=True)
    lines = (f"{json.dumps(k)}: {json.dumps(v)}" for k, v in (("format", FORMAT), ("spec", spec.to_dict())))
    (folder / "config.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    file = folder / "model.safetensors"
    save_file({k: v.detach().half().contiguous() for k, v in network.state_dict().items()}, str(file))
    file.chmod(0o644)


class TableActions:
    """See `World`; a scene is a session of keys, its prompt the first frames, at rest, with the keys."""

    name = "table-actions"
    spec = TABLE_ACTIONS

    @property
    def training(self) -> Training:
        """See `World`."""
        from fastcar_lab.worlds.table_actions import train_tokenizer, train_transformer

        return Training(
            steps=(6400, 4000, 3000),
            codes="tokenizer.safetensors",
            tokenizer=one_file(train_tokenizer.train),
            kind=ActionsTokenizer,
            settings=train_transformer.ActionSettings,
            stage=train_transformer.train,
            export=export,
        )

    def held_out(self, count: int, seed: int) -> list[tuple[Session, Prompt]]:
        """See `World`: looks, ground and light together were never trained on."""
        made: list[tuple[Session, Prompt]] = []
        for i in range(count):
            s = play(random.Random(seed * 1_000_003 + i), STEPS + 1, kept_out=True)
            s = replace(s, states=[s.states[0]] * REST + s.states, actions=[ACTIONS[0]] * REST + s.actions)
            made.append((s, Clip(render(s.scene, s.states[: REST + 1]), np.array(s.actions, np.float32))))
        return made

    def render(self, scene: Session) -> Video:
        """See `World`."""
        return render(scene.scene, scene.states)

    def score(self, scenes: Sequence[Session], videos: Sequence[Video]) -> dict[str, Any]:
        """See `World`, and `evaluate.Shares`."""
        truths = [scene.states[REST : len(video)] for scene, video in zip(scenes, videos, strict=True)]
        seen = [watch(video[REST : len(scene.states)]) for scene, video in zip(scenes, videos, strict=True)]
        return asdict(judge([scene.scene for scene in scenes], truths, seen))

    def tokenizer_quality(self, tokenizer: str, count: int, seed: int) -> dict[str, Any]:
        """See `World`."""
        file = Path(tokenizer)
        network = None if file.is_file() else load(tokenizer).network
        made = network.tokenizer if isinstance(network, Steered) else ActionsTokenizer.load(file).finished()
        return evaluate(made, count, seed)


WORLD = TableActions()


def write(folder: Path, count: int, seed: int) -> list[str]:
    """Write held-out sessions 0.npz and so on, with `image` and `action` of each frame; a line about each."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for i, (session, _) in enumerate(WORLD.held_out(count, seed)):
        actions = np.array([*session.actions, ACTIONS[0]], np.float32)
        np.savez_compressed(folder / f"{i}.npz", image=WORLD.render(session), action=actions)
        looks = ", ".join(f"{look.color} {look.material} {look.shape}" for look in session.scene.looks)
        lines.append(f"{folder / str(i)}.npz: {looks}")
    return lines
