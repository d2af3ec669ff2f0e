"""Captions of scenes in many phrasings; what they say is true of the scene."""

from __future__ import annotations

import random

from fastcar_lab.worlds.table.lexicon import PHRASES
from fastcar_lab.worlds.table.scene import Scene, Thing

_SPOKEN = {
    "ball": 4, "cube": 3, "cylinder": 3, "pyramid": 2, "ring": 4, "red": 2, "orange": 1, "yellow": 1, "green": 1,
    "cyan": 2, "blue": 1, "purple": 2, "white": 1, "metal": 3, "rubber": 2, "small": 3, "large": 2, "slow": 2,
    "fast": 2,
}  # fmt: skip
"""How many of the ways to say a word captions use; the rest are known for those who write prompts."""
_GROUNDS = {
    "grey": ("on a grey floor", "on the grey floor", "on concrete", "on a grey table", "on a gray surface"),
    "wood": ("on a wooden table", "on the wooden floor", "on wood", "on wooden planks"),
    "grass": ("on the grass", "on a lawn", "on green grass", "across the lawn", "on a meadow"),
    "checker": ("on a checkered floor", "on a checkerboard", "on the tiles", "on a checkered table"),
}
_LIGHTS = {
    "day": ("by day", "in daylight", "during the day"),
    "dusk": ("at dusk", "in the evening", "at sunset", "in evening light"),
}
_LEFT = ("to the left", "left", "leftwards", "from right to left")
_RIGHT = ("to the right", "right", "rightwards", "from left to right")
_FRONT = ("towards the viewer", "forward", "to the front", "towards the camera")
_BACK = ("away from the viewer", "backwards", "to the back")


def _say(token: str, rng: random.Random) -> str:
    return rng.choice(PHRASES[token][: _SPOKEN[token]])


def noun(thing: Thing, rng: random.Random, drop: float = 0.0) -> str:
    """What an object is, with an article; size, colour and material are each left out with probability `drop`."""
    words = [_say(word, rng) for word in (thing.size, thing.color, thing.material) if rng.random() >= drop]
    if len(words) == 3 and rng.random() < 0.15:
        words = [words[0], words[2], words[1]]
    text = " ".join([*words, _say(thing.shape, rng)])
    article = rng.choice(("a", "a", "the", "one"))
    return f"{'an' if article == 'a' and text[0] in 'aeio' else article} {text}"


def _goes(thing: Thing, rng: random.Random) -> str:
    own = "rolls" if thing.shape == "ball" else "slides"
    return rng.choice((own, own, "moves", "goes"))


def _way(thing: Thing, rng: random.Random) -> str:
    parts = []
    if thing.vx:
        parts.append(rng.choice(_RIGHT if thing.vx > 0 else _LEFT))
    if thing.vy:
        parts.append(rng.choice(_FRONT if thing.vy > 0 else _BACK))
    return " and ".join(parts)


def _pace(thing: Thing, rng: random.Random) -> str:
    """A word for the speed, where it is one of the extremes and the dice ask for it."""
    speed = abs(thing.vx)
    if thing.vy or rng.random() < 0.4 or speed not in (2, 6):
        return ""
    return _say("slow" if speed == 2 else "fast", rng) + " "


def deed(thing: Thing, rng: random.Random) -> str:
    """What an object does by itself."""
    if thing.hop:
        bounce = rng.choice(("bounces", "hops", "jumps", "bounces up and down"))
        return bounce if not thing.vx else f"{bounce} {_pace(thing, rng)}{_way(thing, rng)}"
    if thing.spin:
        return rng.choice(("turns", "spins", "rotates", "turns on the spot", "turns around"))
    if thing.moves:
        return f"{_goes(thing, rng)} {_pace(thing, rng)}{_way(thing, rng)}"
    return rng.choice(("stands still", "stands", "rests", "does not move", "is still"))


def _event(scene: Scene, rng: random.Random, drop: float) -> str:
    """The story in words, without ground, light and camera."""
    names = [noun(thing, rng, drop) for thing in scene.things]
    first = scene.things[0]
    base = scene.story.rstrip("+")
    if base == "enter":
        side = "from the left" if first.vx > 0 else "from the right"
        return f"{names[0]} {rng.choice(('enters', 'comes in', 'enters the picture'))} {_pace(first, rng)}{side}"
    if base == "leave":
        out = rng.choice(("leaves", "leaves the frame", "goes out", "exits", "leaves the picture"))
        side = rng.choice(("to the right", "right") if first.vx > 0 else ("to the left", "left"))
        return f"{names[0]} {out} {_pace(first, rng)}{side}"
    if base in ("hit", "chain"):
        hit = rng.choice(("hits", "strikes", "bumps into", "collides with"))
        text = f"{names[0]} {_goes(first, rng)} {_pace(first, rng)}{_way(first, rng)} and {hit} {names[1]}"
        if base == "chain":
            text += f" {rng.choice(('which hits', 'that hits', 'and that hits'))} {names[2]}"
    elif base in ("front", "behind"):
        where = "in front of" if base == "front" else "behind"
        goes = rng.choice((_goes(first, rng), "passes"))
        text = f"{names[0]} {goes} {_pace(first, rng)}{_way(first, rng)} {where} {names[1]}"
    elif base == "apart":
        text = f"{names[0]} {deed(first, rng)}"
        second = scene.things[1]
        gap = first.x - second.x
        if not first.moves and not second.moves and abs(gap) >= 30 and rng.random() < 0.5:
            text += f" {'to the left of' if gap < 0 else 'to the right of'} {names[1]}"
            text += f" {rng.choice(('that', 'which'))} {deed(second, rng)}"
        else:
            text += f" {rng.choice(('and', 'while', 'and'))} {names[1]} {deed(second, rng)}"
    else:
        return f"{names[0]} {deed(first, rng)}"
    if scene.story.endswith("+"):
        text += f" {rng.choice(('and', 'while'))} {names[2]} {deed(scene.things[2], rng)}"
    return text


def caption(scene: Scene, rng: random.Random, *, drop: float = 0.0) -> str:
    """One of many ways to describe a scene; each attribute is left out with probability `drop`."""
    event = _event(scene, rng, drop)
    where = "" if rng.random() < drop else rng.choice(_GROUNDS[scene.ground])
    # Daylight goes without saying as often as not.
    unsaid = drop if scene.light == "dusk" else 0.5
    when = "" if rng.random() < unsaid else rng.choice(_LIGHTS[scene.light])
    camera = ""
    if scene.pan:
        side = "right" if scene.pan > 0 else "left"
        camera = f"the camera {rng.choice(('pans', 'moves'))} {rng.choice(('', 'to the '))}{side}"
    orders = (
        (event, where, when, camera),
        (event, where, when, camera),
        (where, when, event, camera),
        (event, when, where, camera),
        ("a video of", event, where, when, camera),
    )
    return " ".join(" ".join(rng.choice(orders)).split())
