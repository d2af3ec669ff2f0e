"""Training material of the decoder: captions and codes of clips that are drawn, rendered and encoded as needed."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fastcar_lab.training.tokenizer import quantize, to_patches
from fastcar_lab.worlds.table.captions import caption
from fastcar_lab.worlds.table.lexicon import table_tokenizer
from fastcar_lab.worlds.table.placement import looks_of, of_scene
from fastcar_lab.worlds.table.render import empty, render
from fastcar_lab.worlds.table.scene import FRAMES, LIGHTS, Scene
from fastcar_lab.worlds.table.stories import draw_scene, held_out
from fastcar_lab.worlds.table.tokenizer import PATCH, TableTokenizer


@dataclass(frozen=True)
class Batch:
    """Clips of a batch of videos."""

    text: Tensor  # [B, P] token ids
    placed: Tensor  # [B, P], those whose placements are used
    codes: Tensor  # [B, T*N, depth]
    begins: Tensor  # [B], the frame of the video each clip begins with
    busy: Tensor  # [B, T*N], where objects or shadows are, or were a frame before
    kept: Tensor  # [B, K], the tokens to draw

    def to(self, device: str) -> Batch:
        """The same on a device."""
        return Batch(*(x.to(device) for x in vars(self).values()))


def around_things(busy: Tensor, count: int, grid: tuple[int, int], rng: random.Random) -> Tensor:
    """Tokens [T * count] of the same `count` places of each frame: those with something in them, and next to such. busy
    [T*N] says where things are. What room is left goes to places of the ground at random, and where there is not
    enough, places are left out at random. The first place is always among them.
    """
    h, w = grid
    there = busy.view(-1, h, w).any(0)
    near = F.max_pool2d(there[None, None].float(), 3, stride=1, padding=1)[0, 0] > 0
    order = [rng.random() + (0 if there.view(-1)[i] else 1 if near.view(-1)[i] else 2) for i in range(h * w)]
    places = sorted({0, *sorted(range(1, h * w), key=order.__getitem__)[: count - 1]})
    frames = torch.arange(busy.numel() // (h * w))[:, None] * (h * w)
    return (frames + torch.tensor(places)).flatten()


class Encoder:
    """Frames to codes, each distinct patch once."""

    def __init__(self, tokenizer: TableTokenizer) -> None:
        self.tokenizer, self.codebooks = tokenizer.eval(), tokenizer.codebooks().detach()

    @torch.no_grad()
    def __call__(self, frames: NDArray[np.uint8]) -> Tensor:
        """Frames uint8 [T, 128, 128, 3] to codes [T, 64, depth]."""
        patches = to_patches(torch.from_numpy(frames), PATCH).numpy()
        count = patches.shape[-1]
        rows = np.ascontiguousarray(patches.reshape(-1, count)).view(np.dtype((np.void, count)))[:, 0]
        _, first, inverse = np.unique(rows, return_index=True, return_inverse=True)
        distinct = torch.from_numpy(patches.reshape(-1, count)[first]).float() / 255
        codes = quantize(self.tokenizer.encoder(distinct), self.codebooks)
        return codes[torch.from_numpy(inverse.reshape(-1))].view(*patches.shape[:2], -1)


def _empty(scene: Scene, frames: range) -> NDArray[np.uint8]:
    """The ground alone, as the camera sees it in these frames of a scene."""
    light = np.asarray(LIGHTS[scene.light], np.float32) * 255
    return np.clip(np.stack([empty(scene, t) for t in frames]) * light + 0.5, 0, 255).astype(np.uint8)


def things_in(scene: Scene, video: NDArray[np.uint8], frames: range) -> NDArray[np.bool_]:
    """Patches [frames, 64] of a scene's video with anything but ground in them."""
    differs = video[frames.start : frames.stop] != _empty(scene, frames)
    return np.asarray(to_patches(torch.from_numpy(differs), PATCH).any(-1).numpy())


def busy_patches(scene: Scene, video: NDArray[np.uint8], frames: range) -> NDArray[np.bool_]:
    """Patches [frames * 64] with anything but ground in them, in this frame or the one before."""
    there = things_in(scene, video, range(max(frames.start - 1, 0), frames.stop))
    now = there[len(there) - len(frames) :]
    last = there[:-1] if len(there) > len(frames) else np.concatenate([there[:1], there[:-1]])
    return (now | last).reshape(-1)


class Clips:
    """Draws batches; what a batch holds follows from the random numbers it is given."""

    def __init__(
        self,
        tokenizer: TableTokenizer,
        *,
        drop_placement: float = 0.02,
        drop_caption: float = 0.02,
        drop_words: float = 0.0,
    ) -> None:
        self.encode, self.grid = Encoder(tokenizer), tokenizer.spec.grid
        self.words = table_tokenizer()
        self.drop_placement, self.drop_caption, self.drop_words = drop_placement, drop_caption, drop_words

    def _ids(self, scene: Scene, rng: random.Random) -> tuple[int, ...]:
        if rng.random() < self.drop_caption:
            return self.words.blank()
        tokens = self.words.read(caption(scene, rng)).tokens
        placement = () if rng.random() < self.drop_placement else of_scene(scene)
        looks, around = [looks_of(t) for t in scene.things], {"ground": scene.ground, "light": scene.light}
        said = self.words.completed(tokens, looks, around, placement)
        if len(said) > self.words.length - 2:  # one in some 40,000 says too much to hold its placement as well
            said = self.words.completed(tokens, looks, around, ())
        return self.words.ids_of(said)

    def draw(
        self,
        count: int,
        frames: int,
        rng: random.Random,
        *,
        kept_out: bool = False,
        late: float = 0.5,
        places: int | None = None,
    ) -> tuple[Batch, list[Scene]]:
        """`count` clips of `frames` frames; with probability `late` a clip does not begin with its video. Of each frame
        the tokens of `places` places are to be drawn, see `around_things`; None is all.
        """
        texts, placed, videos, begins, busy, kept = [], [], [], [], [], []
        scenes: list[Scene] = []
        while len(scenes) < count:
            scene = draw_scene(rng)
            if held_out(scene) != kept_out:
                continue
            begin = rng.randint(1, FRAMES - frames) if frames < FRAMES and rng.random() < late else 0
            chosen = range(begin, begin + frames)
            video = render(scene, chosen.stop)
            placed.append(self._ids(scene, rng))
            texts.append(self.words.blank() if rng.random() < self.drop_words else placed[-1])
            videos.append(video[begin:])
            begins.append(begin)
            busy.append(torch.from_numpy(busy_patches(scene, video, chosen)))
            count_of = places or math.prod(self.grid)
            kept.append(around_things(busy[-1], count_of, self.grid, rng))
            scenes.append(scene)
        # Much of the ground is in several clips.
        codes = self.encode(np.concatenate(videos)).view(count, frames * math.prod(self.grid), -1)
        stacked = (codes, torch.tensor(begins), torch.stack(busy), torch.stack(kept))
        return Batch(torch.tensor(texts), torch.tensor(placed), *stacked), scenes


def swapped(text: Tensor, values: tuple[str, ...], vocabulary: tuple[str, ...], rng: random.Random) -> Tensor:
    """Token ids [B, P] with the first of these words in each caption replaced by another of them."""
    ids = [vocabulary.index(v) for v in values]
    out = text.clone()
    for row in out:
        for i, token in enumerate(row.tolist()):
            if token in ids:
                row[i] = rng.choice([t for t in ids if t != token])
                break
    return out
