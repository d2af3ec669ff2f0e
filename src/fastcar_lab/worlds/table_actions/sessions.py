"""Long sessions of play by random keys, decoded by `World.step`: whether all objects are there at the end."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np

from fastcar_cli.pipeline.pipeline import VideoPipeline
from fastcar_lab.worlds.table_actions.codes import PLACES
from fastcar_lab.worlds.table_actions.evaluate import Seen, seen_in, steps_right
from fastcar_lab.worlds.table_actions.frames import render, watch
from fastcar_lab.worlds.table_actions.keys import random_keys
from fastcar_lab.worlds.table_actions.samples import scene_of
from fastcar_lab.worlds.table_actions.scene import Scene, draw_state

LAST = 12  # frames of the end of a session that are looked at; objects may cover each other in some


def _kept(scene: Scene, frames: Sequence[Seen]) -> list[bool]:
    """By frame, whether all objects are seen once, and nothing else."""
    wanted = sorted(map(repr, scene.looks))
    return [sorted(repr(look) for look, spots in seen.items() for _ in spots) == wanted for seen in frames]


def measure(pipe: VideoPipeline, count: int, frames: int = 600, seed: int = 2) -> dict[str, Any]:
    """Shares of sessions and frames that are right.

    `kept` are sessions with all objects in most of the last frames, by the analyser of `table`, and `kept_frames` all
    frames with them, by codes. `steered` and `pushed` are single steps, see `Steps`, and `_of` their numbers.
    """
    kept, kept_frames, steps = [], [], []
    for i in range(count):
        rng = random.Random(seed * 1_000_003 + i)
        scene = scene_of(rng, kept_out=True)
        state = draw_state(scene, rng)
        actions = list(islice(random_keys(rng, rng.choice(((1, 1), (1, 8), (4, 16)))), frames - 1))
        world = pipe.play(render(scene, [state])[0], seed=i)
        images = [world.step(action)[0] for action in actions]
        codes = np.concatenate([world.ids[-PLACES:], world.codes[:, 0]]).reshape(-1, PLACES)
        seen = [seen_in(frame) for frame in codes]
        kept.append(sum(_kept(scene, watch(np.stack(images[-LAST:])))) * 2 > LAST)
        kept_frames += _kept(scene, seen)
        steps.append(steps_right(scene, seen, actions))
    found: dict[str, Any] = {"kept": float(np.mean(kept)), "kept_frames": float(np.mean(kept_frames))}
    for name in ("steered", "pushed"):
        right, of = (sum(getattr(step, name)[k] for step in steps) for k in (0, 1))
        found[name], found[f"{name}_of"] = right / max(1, of), of
    return found
