"""Clips of looks that `mini-actions` was not trained on, with their pushes, as files to try it with."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.inputs.prompt import Clip
from fastcar_cli.media import open_writer
from fastcar_lab.worlds.mini_actions.scene import Look, Story, draw_story, looks, render

EXAMPLE = Story(Look("star", "red", "grass"), (3, 9), ((2, 0), (2, 0), (2, -2), (0, -2), (-2, -2), (-2, 0), (-2, 0)))
"""What the model's own example shows, a look that was never trained on."""


def held_out(count: int, seed: int) -> list[Story]:
    """Random videos of looks that were never trained on."""
    rng, choice = random.Random(seed), looks()[1]
    return [draw_story(choice, rng) for _ in range(count)]


def frames_of(story: Story) -> NDArray[np.uint8]:
    """The video of a story, uint8 [frames, 64, 64, 3]."""
    return (render(story) * 255).round().astype(np.uint8)


def clip_of(story: Story) -> Clip:
    """What a model is given of a story: its first frame and the pushes."""
    return Clip(frames_of(story)[:1], np.array(story.actions, np.float32), " ".join(vars(story.look).values()))


def write(folder: Path, count: int, seed: int) -> list[str]:
    """Write 0.mp4, 0.json and so on: frames as the renderer draws them, and the pushes (dx, dy) in pixels between them.

    Returns a line for each.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for i, story in enumerate(held_out(count, seed)):
        with open_writer(folder / f"{i}.mp4", fps=4, recipe={}) as writer:
            for frame in frames_of(story):
                writer.add(frame)
        pushes = [[int(v) for v in action] for action in story.actions]
        (folder / f"{i}.json").write_text(json.dumps(pushes) + "\n", encoding="utf-8")
        lines.append(f"{folder / str(i)}.mp4: {story.look} from {story.places[0]}, {folder / str(i)}.json")
    return lines


def write_example(file: Path) -> None:
    """Write the .npz file that comes with the model: frames, and a push after each (none after the last)."""
    actions = np.array([*EXAMPLE.actions, (0, 0)], np.float32)
    np.savez_compressed(file, image=frames_of(EXAMPLE), action=actions)
