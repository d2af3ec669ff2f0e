"""What a video is continued from: the last frames of a clip or one picture, fitted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fastcar_cli.errors import RequestError
from fastcar_cli.inputs.clip import Excerpt, Wanted, cropped, read_clip

SIZE = (32, 48)


def clip(count: int, height: int = 32, width: int = 48) -> np.ndarray:
    """Frames of one grey each, ten times their number."""
    return np.repeat(np.arange(count, dtype=np.uint8) * 10, height * width * 3).reshape(count, height, width, 3)


def written(folder: Path, frames: np.ndarray) -> Path:
    np.savez(folder / "clip.npz", image=frames)
    return folder / "clip.npz"


def read(path: Path, **changes: Any) -> Excerpt:
    return read_clip(
        path, Wanted(**{"model": "m", "frames": 33, "context": 9, "height": 32, "width": 48, "last": True, **changes})
    )


def numbers(excerpt: Excerpt) -> list[int]:
    """The frames that these are, by their grey."""
    assert excerpt.clip.frames.shape[1:] == (*SIZE, 3)
    return [round(float(p.mean()) * 25.5) for p in excerpt.clip.frames]


def test_a_clip_gives_its_last_nine_frames(tmp_path: Path) -> None:
    excerpt = read(written(tmp_path, clip(14)))
    assert numbers(excerpt) == list(excerpt.indices) == list(range(5, 14))
    assert excerpt.clip.frames.shape == (9, *SIZE, 3)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P"])
def test_a_picture_gives_one_frame_whatever_its_colours(tmp_path: Path, mode: str) -> None:
    Image.fromarray(clip(3, 40, 60)[2]).convert("RGB").convert(mode).save(tmp_path / "a.png")
    excerpt = read(tmp_path / "a.png", context=1)
    assert (excerpt.indices, excerpt.source_size, numbers(excerpt)) == ((0,), (40, 60), [2])


@pytest.mark.parametrize(
    ("changes", "frames"),
    [
        ({"frames": 12, "whole": True}, range(2, 14)),
        ({"start": 3}, range(3, 12)),
        ({"start": 0, "frames": 12, "whole": True}, range(12)),
        ({"context": 4, "step": 3}, range(4, 14, 3)),
        ({"context": 4, "step": 3, "start": 1}, range(1, 11, 3)),
    ],
)
def test_other_parts_of_a_clip(tmp_path: Path, changes: dict[str, int], frames: range) -> None:
    assert list(read(written(tmp_path, clip(14)), **changes).indices) == list(frames)


@pytest.mark.parametrize(
    ("count", "changes", "why"),
    [
        (5, {}, "has 5 frames, expected 9 context frames"),
        (14, {"start": 8}, "has 14 frames, expected 17 to read 9 of them from index 8"),
        (14, {"whole": True}, "has 14 frames, expected 33$"),
        (1, {"whole": True}, "has 1 frame, expected 33$"),
    ],
)
def test_too_few_frames_are_refused_in_one_sentence(
    tmp_path: Path, count: int, changes: dict[str, int], why: str
) -> None:
    with pytest.raises(RequestError, match=why):
        read(written(tmp_path, clip(count)), **changes)


@given(st.integers(8, 90), st.integers(8, 90))
def test_a_picture_is_resized_as_another_library_does_and_its_centre_kept(height: int, width: int) -> None:
    image = np.random.default_rng(height * 100 + width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    ratio = max(SIZE[0] / height, SIZE[1] / width)
    h, w = int(np.ceil(ratio * height)), int(np.ceil(ratio * width))
    planes = [
        Image.fromarray(image[..., c].astype(np.float32)).resize((w, h), Image.Resampling.BILINEAR) for c in range(3)
    ]
    top, left = round((h - SIZE[0]) / 2), round((w - SIZE[1]) / 2)
    wanted = np.stack([np.asarray(p) for p in planes], -1)[top : top + SIZE[0], left : left + SIZE[1]]
    assert np.abs(cropped(image, *SIZE) * 255 - wanted).max() <= 0.05


def test_a_picture_of_the_right_size_stays_as_it_is() -> None:
    image = np.random.default_rng(0).integers(0, 256, (*SIZE, 3), dtype=np.uint8)
    assert np.array_equal(np.rint(cropped(image, *SIZE) * 255), image)
