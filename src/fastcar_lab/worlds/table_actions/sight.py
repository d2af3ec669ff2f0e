"""What is seen in the frames of a session, found by the analyser of `table`, which knows nothing of the model."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.inputs.worlds.physics import STEP
from fastcar_lab.worlds.table.analyser.backdrop import find_backdrop
from fastcar_lab.worlds.table.analyser.track import follow
from fastcar_lab.worlds.table_actions.evaluate import Seen
from fastcar_lab.worlds.table_actions.scene import SIZE, Look


def watch(video: NDArray[np.uint8]) -> list[Seen]:
    """Objects by frame of a video [T, 128, 128, 3]; those of another size are none of this world's."""
    frames = np.asarray(video / np.float32(255), np.float32)
    tracks, _ = follow(frames, find_backdrop(frames))
    seen: list[Seen] = [{} for _ in video]
    for track in tracks:
        if track.look.size != SIZE:
            continue
        look = Look(track.look.shape, track.look.material, track.look.color)
        for frame, at in zip(seen, track.at, strict=True):
            if at is not None:
                frame.setdefault(look, []).append((round(at[0] / STEP), round(at[1] / STEP)))
    return seen
