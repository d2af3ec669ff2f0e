"""Captions of scenes in many phrasings, for training and for measuring fidelity."""

from __future__ import annotations

import random

from fastcar_cli.world.lexicon import MOVES, PHRASES, PLACES
from fastcar_cli.world.scene import Scene


def caption(scene: Scene, rng: random.Random, *, drop: float = 0.0) -> str:
    """One of many ways to describe a scene; each attribute is left out with probability `drop`."""
    shape = rng.choice(PHRASES[scene.shape][:5])
    size = "" if rng.random() < drop else rng.choice(PHRASES[scene.size][:4]) + " "
    color = "" if rng.random() < drop else rng.choice(PHRASES[scene.color][:2]) + " "
    thing = "object" if rng.random() < drop else shape
    move = "" if rng.random() < drop else rng.choice(MOVES[scene.motion])
    where = "" if rng.random() < drop else rng.choice(PLACES[scene.background])
    noun = f"{rng.choice(('a', 'the', 'one'))} {size}{color}{thing}"
    orders = (
        f"{noun} {move} {where}",
        f"{noun} {move} {where}",
        f"{where} {noun} {move}",
        f"{noun} {where} {move}",
        f"a video of {noun} {move} {where}",
        f"{color}{size}{thing} {move} {where}",
    )
    return " ".join(rng.choice(orders).split())
