"""`fastcar lab continue`: quality by frame of videos past the trained length.

Contexts that roll, from codes, are compared with clips that each begin with the last pixels of the one before.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
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
from fastcar_lab.worlds.protocol import Video
from fastcar_lab.worlds.table.analyser.backdrop import find_backdrop
from fastcar_lab.worlds.table.analyser.track import follow as follow_table
from fastcar_lab.worlds.table.analyser.verdict import as_float
from fastcar_lab.worlds.table.said import said_of
from fastcar_lab.worlds.table.world import WORLD as TABLE
from fastcar_lab.worlds.table_actions.evaluate import state_in
from fastcar_lab.worlds.table_actions.frames import render as render_session
from fastcar_lab.worlds.table_actions.frames import watch
from fastcar_lab.worlds.table_actions.keys import random_keys
from fastcar_lab.worlds.table_actions.samples import scene_of
from fastcar_lab.worlds.table_actions.scene import ACTIONS, draw_state, step

Objects = dict[tuple[str, str, str], Sequence[int]]
BOUNDS = (8, 16, 32, 64, 128, 200, 500)  # ends of the ranges of frames that a table has
AT_ONCE = 10  # frames that are looked at together


@dataclass(frozen=True)
class Quality:
    """By frame, means over videos: SSIM to the truth, shares with the right looks, and in the right place."""

    model: str
    way: str
    by_frame: dict[str, np.ndarray]

    @classmethod
    def of(cls, model: str, way: str, videos: Sequence[Sequence[Any]]) -> Quality:
        """The means of SSIM, look and place [T] of each video; the last may be left out."""
        names = ("SSIM", "look", "place")
        return cls(model, way, dict(zip(names, np.array(videos, float).mean(0), strict=False)))

    def rows(self) -> list[list[str]]:
        """Of the table: a line for each measure."""
        rows = []
        for name, values in self.by_frame.items():
            ends = [end for end in BOUNDS if end < len(values)] + [len(values)]
            parts = np.split(values, ends[:-1])
            rows.append([self.model, self.way, name, *(f"{part.mean():.2f}" for part in parts)])
        return rows


def _chunks(video: Video) -> list[Video]:
    """Frames that are looked at together; a background may change later."""
    return [video[i : i + AT_ONCE] for i in range(0, len(video), AT_ONCE)]


def mini(frames: int, count: int, seed: int) -> list[Quality]:
    """Objects that stay in the frame; where one begins is the model's choice."""
    rng = random.Random(seed)
    chosen = [c for c in split_combinations()[1] if c[3] in ("still", "bouncing")]
    scenes: list[Scene] = [rng.choice(scenes_of(c)) for c in rng.sample(chosen, count)]
    pipe = pipeline_of("mini", generation__frames=frames, generation__context_policy="roll")
    videos, _ = generate_videos(pipe, [caption(s, rng) for s in scenes], range(seed, seed + count))
    found = []
    for scene, video in zip(scenes, videos, strict=True):
        seen = [s for part in _chunks(video) for s in follow(part)]
        true = scene if seen[0] is None else replace(scene, start=(seen[0].x, seen[0].y))
        looks = [s is not None and (s.shape, s.color) == (scene.shape, scene.color) for s in seen]
        pairs = zip(seen, poses(true, frames), strict=True)
        near = [s is not None and max(abs(s.x - pose.x), abs(s.y - pose.y)) <= 2 for s, pose in pairs]
        found.append([ssim(video, (render(true, frames) * 255).round().astype(np.uint8)), looks, near])
    return [Quality.of("mini", "rolled after 8 frames", found)]


def table(frames: int, count: int, seed: int) -> list[Quality]:
    """Objects that rest, so that the truth is the first frame."""
    held_out = TABLE.held_out(60 * count, seed)
    chosen = [(scene, text) for scene, text in held_out if _rests(said_of(scene))][:count]
    pipe = pipeline_of("table", generation__frames=frames, generation__context_policy="roll")
    videos, _ = generate_videos(pipe, [text for _, text in chosen], range(seed, seed + len(chosen)))
    found = []
    for (scene, _), video in zip(chosen, videos, strict=True):
        wanted = sorted((t.shape, t.material, t.color) for t in scene.things)
        seen = [frame for part in _chunks(video) for frame in _objects(part)]
        looks = [sorted(frame) == wanted for frame in seen]
        near = [_alike(frame, seen[0]) for frame in seen]
        found.append([ssim(video, np.repeat(video[:1], frames, 0)), looks, near])
    return [Quality.of("table", "rolled after 16 frames", found)]


def _rests(said: Any) -> bool:
    return not said.camera and all(thing.deed in (None, "still") for thing in said.things)


def _alike(a: Objects, b: Objects) -> bool:
    return a.keys() == b.keys() and all(np.abs(np.subtract(a[k], b[k]))[:2].max() <= 2 for k in a)


def _objects(video: Video) -> list[Objects]:
    """Looks of the objects in each frame of `table`, and where they are."""
    pixels = as_float(video)
    tracks, _ = follow_table(pixels, find_backdrop(pixels))
    by_frame: list[Objects] = [{} for _ in video]
    for track in tracks:
        for frame, at in zip(by_frame, track.at, strict=True):
            if at is not None:
                frame[track.look.shape, track.look.material, track.look.color] = at
    return by_frame


def table_actions(frames: int, count: int, seed: int) -> list[Quality]:
    """A ball that the same random keys steer in both ways; objects' looks are not in the training data."""
    scenes, truth, actions = [], [], []
    clip = pipeline_of("table-actions")
    given, trained = clip.context, clip.frames
    for i in range(count):
        rng = random.Random(seed * 1_000_003 + i)
        scenes.append(scene_of(rng, kept_out=True))
        states = [draw_state(scenes[-1], rng)] * 2
        keys = list(islice(random_keys(rng), frames - 1))
        for key in keys:
            states.append(step(states[-2], states[-1], key, scenes[-1].halves))
        truth.append(render_session(scenes[-1], states[1:]))
        actions.append(np.array([*[ACTIONS[0]] * (given - 1), *keys, ACTIONS[0]], np.float32))
    first, seeds = [np.repeat(true[:1], given, 0) for true in truth], range(seed, seed + count)
    pipe = pipeline_of("table-actions", generation__frames=frames + given - 1, generation__context_policy="roll")
    prompts: list[Prompt] = [Clip(begin, moves) for begin, moves in zip(first, actions, strict=True)]
    again = np.stack(first)
    while (done := again.shape[1]) < frames + given - 1:
        rest = [np.pad(moves[done - given :], ((0, trained), (0, 0)))[:trained] for moves in actions]
        begun: list[Prompt] = [Clip(video[-given:], moves) for video, moves in zip(again, rest, strict=True)]
        again = np.concatenate([again, generate_videos(clip, begun, seeds)[0][:, given:]], 1)
    ways = {"rolled": generate_videos(pipe, prompts, seeds)[0], "pixels encoded again": again}
    found = []
    for way, videos in ways.items():
        rows = []
        for scene, video, true in zip(scenes, videos[:, given - 1 :][:, :frames], truth, strict=True):
            seen = [state_in(scene, frame) for part in _chunks(video) for frame in watch(part)]
            rows.append([ssim(video, true), [state is not None for state in seen]])
        found.append(Quality.of("table-actions", f"{way} after {trained} frames", rows))
    return found


def lines_of(found: Sequence[Quality], frames: int) -> str:
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
