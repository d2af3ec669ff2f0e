"""Clips of looks that `mini-actions` was not trained on, with their pushes, and whether its object goes where they say.

Where the object is in a frame is found by the analyser of `mini`, which knows nothing of the model.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fastcar_cli.inputs.prompt import Clip
from fastcar_cli.media import open_writer
from fastcar_cli.models.ivideogpt.tokenizer import Tokenizer
from fastcar_lab.worlds.mini.analyser import follow
from fastcar_lab.worlds.mini_actions.codes import dictionary
from fastcar_lab.worlds.mini_actions.scene import Look, Story, centre, draw_story, looks, render

EXAMPLE = Story(Look("star", "red", "grass"), (3, 9), ((2, 0), (2, 0), (2, -2), (0, -2), (-2, -2), (-2, 0), (-2, 0)))
"""What the model's own example shows, a look that was never trained on."""
LIMITS = (2, 4)
"""Distances in px, along either side, within which an object is where it should be."""


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


@torch.no_grad()
def drawn_from_true_codes(tokenizer: Tokenizer, stories: Sequence[Story]) -> NDArray[np.uint8]:
    """Videos of a transformer without fault: first frames read, later ones as enumerated."""
    spec, videos = tokenizer.spec, []
    for story in stories:
        first = torch.from_numpy(frames_of(story)[:1]).permute(0, 3, 1, 2)[None] / 255.0
        codes = dictionary().of(story)[1].astype(np.int64) + spec.codes
        later = np.pad(codes, ((0, 0), (1, 0)), constant_values=spec.delimiter).reshape(1, -1)
        given, cross = tokenizer.decode_context(tokenizer.tokenize(first)[:, : spec.prompt_tokens])
        pixels = torch.cat([given, tokenizer.decode_later(torch.from_numpy(later), cross)], 1)[0]
        videos.append((pixels.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy())
    return np.stack(videos)


def obedience(videos: NDArray[np.uint8], stories: Sequence[Story]) -> dict[str, float]:
    """Shares of predicted frames whose object is where the pushes say, within `LIMITS`, and of clips with all of them.

    `look` is the share of frames with the right shape and colour, `first` that of first predicted frames within the
    tighter limit, `unmoved` that of frames which an object that never moves would be right in.
    """
    gaps, kept, still = [], [], []
    for video, story in zip(videos, stories, strict=True):
        wanted = np.array([centre(spot) for spot in story.places[1 : len(video)]], float)
        seen = follow(video)[1:]
        places = np.array([(s.x, s.y) if s else (np.inf, np.inf) for s in seen])
        gaps.append(np.abs(places - wanted).max(1))
        kept.append([s is not None and (s.shape, s.color) == (story.look.shape, story.look.color) for s in seen])
        still.append(np.abs(np.array(centre(story.start)) - wanted).max(1))
    gap = np.stack(gaps)
    return {
        **{f"within_{limit}": float((gap <= limit).mean()) for limit in LIMITS},
        **{f"clips_{limit}": float((gap <= limit).all(1).mean()) for limit in LIMITS},
        "first": float((gap[:, 0] <= LIMITS[0]).mean()),
        "look": float(np.mean(kept)),
        "unmoved": float((np.stack(still) <= LIMITS[0]).mean()),
    }
