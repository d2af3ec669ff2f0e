"""`fastcar lab continue`: quality by frame of videos past the trained length.

Contexts that roll, from codes, are compared with clips that each begin with the last pixels of the one before.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fastcar_cli.inputs.prompt import Clip, Prompt
from fastcar_cli.media.metrics import ssim
from fastcar_lab.common import drawn, markdown, pipeline_of
from fastcar_lab.evaluation import generate_videos
from fastcar_lab.worlds.mini.analyser import follow
from fastcar_lab.worlds.mini.captions import caption
from fastcar_lab.worlds.mini.render import render
from fastcar_lab.worlds.mini.scene import Scene, poses, scenes_of, split_combinations
from fastcar_lab.worlds.mini_actions.samples import frames_of
from fastcar_lab.worlds.mini_actions.scene import Story, centre, draw_story, looks
from fastcar_lab.worlds.protocol import Video

Look = tuple[str, str]
BOUNDS = (8, 16, 32, 64, 128, 200, 500)  # ends of the ranges of frames that a table has


@dataclass(frozen=True)
class Quality:
    """By frame, means over videos: SSIM to the renderer, shares with the right look, and within 2 px of the place."""

    model: str
    way: str
    by_frame: dict[str, np.ndarray]

    def rows(self) -> list[list[str]]:
        """Of the table: a line for each measure."""
        rows = []
        for name, values in self.by_frame.items():
            ends = [end for end in BOUNDS if end < len(values)] + [len(values)]
            parts = np.split(values, ends[:-1])
            rows.append([self.model, self.way, name, *(f"{part.mean():.2f}" for part in parts)])
        return rows


def _quality(
    model: str, way: str, videos: Video, truth: Sequence[Video], looks: Sequence[Look], places: Sequence[Any]
) -> Quality:
    found = []
    for video, true, look, wanted in zip(videos, truth, looks, places, strict=True):
        # Clip by clip, as a background may change later.
        seen = [s for i in range(0, len(video), 8) for s in follow(video[i : i + 8])]
        right = [s is not None and (s.shape, s.color) == look for s in seen]
        near = [s is not None and max(abs(s.x - x), abs(s.y - y)) <= 2 for s, (x, y) in zip(seen, wanted, strict=True)]
        found.append([ssim(video, true), right, near])
    return Quality(model, way, dict(zip(("SSIM", "look", "place"), np.array(found, float).mean(0), strict=True)))


def mini(frames: int, count: int, seed: int) -> list[Quality]:
    """Objects that stay in the picture; where one begins is the model's choice."""
    rng = random.Random(seed)
    chosen = [c for c in split_combinations()[1] if c[3] in ("still", "bouncing")]
    scenes: list[Scene] = [rng.choice(scenes_of(c)) for c in rng.sample(chosen, count)]
    pipe = pipeline_of("mini", generation__frames=frames, generation__context_policy="roll")
    videos, _ = generate_videos(pipe, [caption(s, rng) for s in scenes], range(seed, seed + count))
    begun = [follow(video[:1])[0] for video in videos]
    scenes = [replace(s, start=(b.x, b.y)) if b is not None else s for s, b in zip(scenes, begun, strict=True)]
    truth = [(render(s, frames) * 255).round().astype(np.uint8) for s in scenes]
    places = [[(pose.x, pose.y) for pose in poses(s, frames)] for s in scenes]
    return [_quality("mini", "rolled after 8 frames", videos, truth, [(s.shape, s.color) for s in scenes], places)]


def mini_actions(frames: int, count: int, seed: int) -> list[Quality]:
    """One object that is pushed, by the same pushes in every way."""
    rng = random.Random(seed)
    stories: list[Story] = [draw_story(looks()[1], rng, frames) for _ in range(count)]
    truth = [frames_of(story) for story in stories]
    actions = [np.array([*story.actions, (0, 0)], np.float32) for story in stories]
    places = [[centre(spot) for spot in story.places] for story in stories]
    prompts: list[Prompt] = [Clip(true[:1], moves) for true, moves in zip(truth, actions, strict=True)]
    pipe = pipeline_of("mini-actions", generation__frames=frames, generation__context_policy="roll")
    seeds, trained, spec = range(seed, seed + count), pipe.spec.frames, pipe.spec
    ways = {f"rolled after {n} frames": pipe.with_settings(segment=n - 1) for n in (trained, spec.longest)}
    videos = {way: generate_videos(piped, prompts, seeds)[0] for way, piped in ways.items()}
    clip, again = pipeline_of("mini-actions", generation__frames=trained), np.stack([true[:1] for true in truth])
    while (done := again.shape[1] - 1) < frames - 1:
        rest = [np.pad(moves[done:], ((0, trained), (0, 0)))[:trained] for moves in actions]
        begun: list[Prompt] = [Clip(video[-1:], moves) for video, moves in zip(again, rest, strict=True)]
        made, _ = generate_videos(clip, begun, [seed + 1000 * done + i for i in range(count)])
        again = np.concatenate([again, made[:, 1:]], 1)
    videos[f"pixels encoded again after {trained} frames"] = again[:, :frames]
    own = [(story.look.shape, story.look.color) for story in stories]
    return [_quality("mini-actions", way, v, truth, own, places) for way, v in videos.items()]


def table(found: Sequence[Quality], frames: int) -> str:
    """The measures by range of frames, as Markdown."""
    ends = [end for end in BOUNDS if end < frames] + [frames]
    ranges = [f"{a} to {b - 1}" for a, b in zip([0, *ends], ends, strict=False)]
    return "\n".join(markdown(["model", "way", "measure", *ranges], [row for q in found for row in q.rows()]))


def plot(found: Sequence[Quality]) -> dict[str, bytes]:
    """SSIM and the share with the right look by frame, means of 8 frames."""

    def draw(figure: Any) -> None:
        for axes, name in zip(figure.subplots(1, 2), ("SSIM", "look"), strict=True):
            for q in found:
                smooth = np.convolve(q.by_frame[name], np.ones(8) / 8, "valid")
                axes.plot(np.arange(len(smooth)) + 4, smooth, label=f"{q.model}: {q.way}")
            axes.set(xlabel="frame", title=name, ylim=(0, 1.02))
        axes.legend(fontsize=8)

    return drawn(draw, (11.0, 4.0))
