"""Captions of scenes in many phrasings, for training and for measuring fidelity."""

from __future__ import annotations

import random

from fastcar_cli.world.lexicon import PHRASES
from fastcar_cli.world.scene import Scene

_MOVES: dict[str, tuple[str, ...]] = {
    "left": ("moving left", "rolling to the left", "drives left", "slides to the left", "going from right to left", "heading leftwards"),
    "right": ("moving right", "rolling to the right", "drives right", "slides to the right", "going from left to right", "heading rightwards"),
    "up": ("moving up", "rising", "flies upwards", "going up", "rises", "climbing"),
    "down": ("moving down", "falling", "sinks", "going down", "falls down", "dropping"),
    "still": ("standing still", "that stays still", "resting", "parked", "not moving", "is motionless"),
    "growing": ("growing", "that grows", "getting bigger", "becomes larger", "expanding"),
    "shrinking": ("shrinking", "that shrinks", "getting smaller", "becomes smaller"),
    "bouncing": ("bouncing", "that bounces", "jumping up and down", "hopping", "bounces up and down"),
}  # fmt: skip
_PLACES: dict[str, tuple[str, ...]] = {
    "grass": ("on the grass", "across the grass", "over a meadow", "in a field", "on the lawn"),
    "sky": ("in the sky", "through the air", "against the sky"),
    "sea": ("on the sea", "across the water", "on the ocean", "on a lake"),
    "sand": ("on the sand", "across the desert", "along the beach"),
    "night": ("at night", "in the dark", "through the night"),
    "road": ("on the road", "on the street", "along the road", "on the asphalt"),
}


def caption(scene: Scene, rng: random.Random, *, drop: float = 0.0) -> str:
    """One of many ways to describe a scene; each attribute is left out with probability `drop`."""
    shape = rng.choice(PHRASES[scene.shape][:5])
    size = "" if rng.random() < drop else rng.choice(PHRASES[scene.size][:4]) + " "
    color = "" if rng.random() < drop else rng.choice(PHRASES[scene.color][:2]) + " "
    thing = "object" if rng.random() < drop else shape
    move = "" if rng.random() < drop else rng.choice(_MOVES[scene.motion])
    where = "" if rng.random() < drop else rng.choice(_PLACES[scene.background])
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
