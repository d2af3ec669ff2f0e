"""Clips of looks that `mini-actions` was not trained on, with their pushes, as files to try it with.

`python -m fastcar_lab.worlds.actions.samples FOLDER --count 3` writes 0.mp4 and 0.json, and so on: eight frames as the
renderer draws them, and the seven pushes (dx, dy) in pixels that lead from one to the next.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.prompt import Clip
from fastcar_cli.video import open_writer
from fastcar_lab.worlds.actions.scene import Story, draw_story, looks, render


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


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    for i, story in enumerate(held_out(options.count, options.seed)):
        with open_writer(options.folder / f"{i}.mp4", fps=4, recipe={}) as writer:
            for frame in frames_of(story):
                writer.add(frame)
        pushes = [[int(v) for v in action] for action in story.actions]
        (options.folder / f"{i}.json").write_text(json.dumps(pushes) + "\n", encoding="utf-8")
        print(f"{options.folder / str(i)}.mp4: {story.look} from {story.places[0]}, {options.folder / str(i)}.json")


if __name__ == "__main__":
    main()
