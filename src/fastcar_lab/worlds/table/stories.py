"""Drawing scenes at random: which stories there are, and where things must be for each to happen."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from fastcar_cli.inputs.worlds.physics import STEP, contact_distance
from fastcar_lab.worlds.table.ground import PERIOD
from fastcar_lab.worlds.table.scene import (
    COLORS,
    FRAMES,
    GROUNDS,
    LIGHTS,
    MATERIALS,
    SHAPES,
    SIDE,
    SIZES,
    TURNED,
    TURNING,
    Scene,
    Thing,
)

_LEFT, _RIGHT, _TOP, _BOTTOM = 16, 112, 40, 114  # where the middle of an object that is to be seen whole may be
_MIDDLE = (64, 76)  # around what place the middle of all paths lies
_OUT = 24  # how far outside the frame nothing of an object is seen
HOPS = (10, 14)  # speeds at which a bouncing ball leaves the ground: 18 and 32 px high, 6 and 8 frames long
_TRIES = 4000
_APART = 36  # pixels between things at first, right or down
Story = Callable[[random.Random], tuple[Thing, ...]]  # draws the objects of a scene


def _even(rng: random.Random, low: int, high: int) -> int:
    """A multiple of the grid in low..high."""
    return rng.randrange(-(-low // STEP), high // STEP + 1) * STEP


def standing(rng: random.Random, shapes: tuple[str, ...] = SHAPES) -> Thing:
    """Something that rests anywhere."""
    shape = rng.choice(shapes)
    turn = rng.choice((0, TURNED)) if shape in TURNING else 0
    x, y = _even(rng, _LEFT, _RIGHT), _even(rng, _TOP, _BOTTOM)
    return Thing(shape, rng.choice(list(COLORS)), rng.choice(MATERIALS), rng.choice(SIZES), x, y, turn=turn)


def _busy(rng: random.Random, *, still: float = 0.25) -> Thing:
    """Something that rests, moves, turns or bounces by itself."""
    thing = standing(rng)
    if rng.random() < still:
        return thing
    if thing.shape in TURNING and rng.random() < 0.4:
        return replace(thing, spin=rng.choice((-1, 1)))
    if thing.shape == "ball" and rng.random() < 0.4:
        vx = rng.choice((0, 0, -4, -2, 2, 4))
        return replace(thing, hop=rng.choice(HOPS), vx=vx)
    return _moving(rng, thing)


def _moving(rng: random.Random, thing: Thing) -> Thing:
    """The same, on its way in one of eight directions."""
    vx, vy = rng.choice(((1, 0), (-1, 0), (1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1)))
    if vy:
        return replace(thing, vx=vx * rng.choice((2, 4)), vy=vy * 2)
    return replace(thing, vx=vx * rng.choice((2, 4, 6)))


def _enter(rng: random.Random) -> tuple[Thing, ...]:
    side, speed = rng.choice((-1, 1)), rng.choice((4, 6, 6))
    return (replace(standing(rng), x=-_OUT if side > 0 else SIDE + _OUT, vx=side * speed),)


def _leave(rng: random.Random) -> tuple[Thing, ...]:
    side, speed = rng.choice((-1, 1)), rng.choice((4, 6, 6))
    frames = rng.randrange(11, FRAMES)
    x = (SIDE + _OUT if side > 0 else -_OUT) - side * speed * frames
    return (replace(standing(rng), x=x, vx=side * speed),)


def _hit(rng: random.Random) -> tuple[Thing, ...]:
    """The first moves along a row or a column and touches the second in frame 3 to 9."""
    a, b = standing(rng), standing(rng)
    along_y = rng.random() < 0.25
    speed = rng.choice((2, 4, 6)) if a.mass == b.mass else 6
    speed = min(speed, 4) if along_y and a.mass == b.mass else speed
    way = rng.choice((-1, 1))
    gap = contact_distance(a.reach + b.reach, along_y) + speed * rng.randrange(3, 10)
    # Standing things that are hit show one of their sides, as their reach is meant.
    a, b = replace(a, turn=0), replace(b, turn=0)
    if along_y:
        return replace(a, vy=way * speed), replace(b, x=a.x, y=a.y + way * gap)
    return replace(a, vx=way * speed), replace(b, x=a.x + way * gap, y=a.y)


def _pass(rng: random.Random, way: int) -> tuple[Thing, ...]:
    """The first passes the second along a row, in front of it (way 1) or behind it (-1)."""
    a, b = standing(rng), standing(rng)
    y = b.y + way * (contact_distance(a.reach + b.reach, True) + _even(rng, 2, 8))
    side, speed = rng.choice((-1, 1)), rng.choice((4, 4, 6))
    start = b.x - side * (a.reach + b.reach + _even(rng, 2, 16))
    return replace(a, x=start, y=y, vx=side * speed), b


def _chain(rng: random.Random) -> tuple[Thing, ...]:
    """The first hits the second, and that the third behind it in the same row."""
    a, b, c = (replace(standing(rng), turn=0) for _ in range(3))
    way = rng.choice((-1, 1))
    b, c = replace(b, size=a.size), replace(c, size=a.size)
    speed = rng.choice((4, 6))
    x_b = a.x + way * (contact_distance(a.reach + b.reach, False) + speed * rng.randrange(2, 6))
    x_c = x_b + way * (contact_distance(b.reach + c.reach, False) + speed * rng.randrange(1, 5))
    return replace(a, vx=way * speed), replace(b, x=x_b, y=a.y), replace(c, x=x_c, y=a.y)


def _with_bystander(story: Story) -> Story:
    return lambda rng: (*story(rng), standing(rng))


_front, _behind = partial(_pass, way=1), partial(_pass, way=-1)


def _apart(rng: random.Random) -> tuple[Thing, ...]:
    return _busy(rng, still=0.4), _busy(rng, still=0.6)


STORIES: dict[str, tuple[float, Story]] = {
    "alone": (0.32, lambda rng: (_busy(rng, still=0.15),)),
    "enter": (0.05, _enter),
    "leave": (0.05, _leave),
    "hit": (0.17, _hit),
    "front": (0.07, _front),
    "behind": (0.07, _behind),
    "apart": (0.14, _apart),
    "chain": (0.04, _chain),
    "hit+": (0.03, _with_bystander(_hit)),
    "front+": (0.02, _with_bystander(_front)),
    "behind+": (0.02, _with_bystander(_behind)),
    "apart+": (0.02, _with_bystander(_apart)),
}
"""Every story: its share of the scenes, and how its objects are drawn; with `+` a third one rests nearby."""


def _seen(scene: Scene) -> bool:
    """Whether everything is whole in the frame for as long as the story says."""
    paths, _ = scene.paths()
    for i, path in enumerate(paths):
        inside = [_LEFT - 4 <= p.x <= _RIGHT + 4 and _TOP - 4 <= p.y <= _BOTTOM for p in path]
        heads = [p.y - p.z >= _TOP - 8 for p in path]
        if scene.story == "enter":
            good = inside[-1]
        elif scene.story == "leave" or (scene.story in ("hit", "hit+", "chain") and i == len(paths) - 1):
            # What is hit last may leave the frame.
            good = inside[0] and all(_TOP - 4 <= p.y <= _BOTTOM for p in path)
        else:
            good = all(inside)
        if not good or not all(heads):
            return False
    return True


def _free(scene: Scene) -> bool:
    """Whether nothing meets but what the story wants to meet."""
    paths, contacts = scene.paths()
    met = {(c.first, c.second) for c in contacts}
    base = scene.story.rstrip("+")
    wanted = {"hit": {(0, 1)}, "chain": {(0, 1), (1, 2)}}.get(base, set())
    if met != wanted or len(contacts) != len(wanted):
        return False
    for i in range(len(paths)):
        for j in range(i + 1, len(paths)):
            related = (i, j) in wanted or (base in ("front", "behind") and (i, j) == (0, 1))
            if related or (base == "chain"):
                continue
            for p, q in zip(paths[i], paths[j], strict=True):
                if abs(p.x - q.x) < 34 and abs((p.y - p.z) - (q.y - q.z)) < 38:
                    return False
    if base in ("front", "behind"):
        side = [p.x - q.x for p, q in zip(paths[0], paths[1], strict=True)]
        room = scene.things[0].reach + scene.things[1].reach
        return side[0] * side[-1] < 0 and abs(side[-1]) >= room
    return True


def happens(scene: Scene) -> bool:
    """Whether a scene shows its story: everything in sight as it wants, and nothing met that it does not want."""
    return _seen(scene) and _free(scene)


def _centred(scene: Scene, rng: random.Random) -> Scene:
    """The same scene, moved so that what happens lies around the middle of the frame."""
    paths, _ = scene.paths()
    xs = [min(max(p.x, 0), SIDE) for path in paths for p in path]
    ys = [p.y - p.z // 2 for path in paths for p in path]
    right, down = (
        _even(rng, -spread, spread) + 2 * round((middle - (min(at) + max(at)) / 2) / 2)
        for at, middle, spread in ((xs, _MIDDLE[0], 20), (ys, _MIDDLE[1], 12))
    )
    if scene.story in ("enter", "leave"):
        right = 0
    return replace(scene, things=tuple(replace(t, x=t.x + right, y=t.y + down) for t in scene.things))


def draw_scene(rng: random.Random, story: str | None = None) -> Scene:
    """A random scene of this story, or of any."""
    name = story or rng.choices(list(STORIES), [share for share, _ in STORIES.values()])[0]
    make = STORIES[name][1]
    light = "dusk" if rng.random() < 0.3 else "day"
    ground = rng.choice(GROUNDS)
    pans = name in ("alone", "apart") and rng.random() < 0.25
    pan = rng.choice((-4, -2, 2, 4)) if pans else 0
    offset = _even(rng, 0, 30) if pans else 0
    for _ in range(_TRIES):
        scene = _centred(Scene(make(rng), ground, light, name, pan, offset), rng)
        if happens(scene):
            return scene
    raise RuntimeError(f"no scene of story {name!r} found in {_TRIES} tries")


def any_scene(rng: random.Random) -> Scene:
    """Things on any way, which may cover each other or leave; nothing that a story would want."""
    things: list[Thing] = []
    for _ in range(rng.choice((1, 2, 3))):
        thing = standing(rng, SHAPES)
        if rng.random() < 0.7:
            thing = replace(thing, vx=rng.randrange(-6, 8, STEP), vy=rng.randrange(-4, 6, STEP))
        if thing.shape in TURNING:
            thing = replace(thing, spin=rng.choice((-1, 0, 1)))
        elif thing.shape == "ball":
            thing = replace(thing, hop=rng.choice((0, *HOPS)))
        if all(abs(thing.x - o.x) > _APART or abs(thing.y - o.y) > _APART for o in things):
            things.append(thing)
    pan = rng.choice((0, 0, -2, 2))
    offset = rng.randrange(0, PERIOD, STEP) if pan else 0
    return Scene(tuple(things), rng.choice(GROUNDS), rng.choice(list(LIGHTS)), "alone", pan, offset)


def held_out(scene: Scene) -> bool:
    """Whether scenes that say the same are kept out of training: one in sixteen, whatever the places."""
    what = [(t.shape, t.color, t.material, t.size) for t in scene.things]
    said = repr((what, scene.ground, scene.light, scene.story))
    return zlib.crc32(said.encode()) % 16 == 0


def scene_of(seed: int, number: int, *, kept_out: bool = False) -> Scene:
    """The scene with this number, either of those held out or of the others."""
    rng = random.Random(seed * 1_000_003 + number)
    while True:
        scene = draw_scene(rng)
        if held_out(scene) == kept_out:
            return scene
