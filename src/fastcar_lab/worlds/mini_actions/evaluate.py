"""Whether the object of `mini-actions` goes where the pushes say.

Where the object is in a frame is found by the analyser of `mini`, which knows nothing of the model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from fastcar_cli.models.ivideogpt.tokenizer import Tokenizer
from fastcar_lab.worlds.mini.analyser import follow
from fastcar_lab.worlds.mini_actions.codes import dictionary
from fastcar_lab.worlds.mini_actions.samples import frames_of
from fastcar_lab.worlds.mini_actions.scene import Story, centre

LIMITS = (2, 4)
"""Distances in px, along either side, within which an object is where it should be."""


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
