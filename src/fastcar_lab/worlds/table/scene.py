"""What a scene of the table world consists of: objects, how each begins, ground, light and camera.

Places are pixels of the frame: `x` grows to the right, `y` towards the viewer, both at the point of the ground under an
object's middle; `z` is the height above the ground as it is seen. Everything lies on a grid of 2 px, starts anywhere on
it, and moves by an even number of pixels a frame (`models/paths.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from fastcar_cli.inputs.worlds.physics import Body, Contact, Pose, simulate

SIDE = 128  # height and width of a frame in pixels
FRAMES = 16  # frames of a training video
SHAPES = ("ball", "cube", "cylinder", "pyramid", "ring")
TURNING = ("cube", "pyramid")  # shapes whose turning can be seen
TURNED = 2  # the turn, in steps of 15 degrees, of what is seen edgewise
COLORS: dict[str, tuple[float, float, float]] = {
    "red": (0.80, 0.10, 0.10),
    "orange": (0.96, 0.46, 0.05),
    "yellow": (0.95, 0.86, 0.12),
    "green": (0.10, 0.56, 0.18),
    "cyan": (0.16, 0.76, 0.78),
    "blue": (0.12, 0.24, 0.84),
    "purple": (0.52, 0.16, 0.68),
    "white": (0.93, 0.93, 0.93),
}
MATERIALS = ("metal", "rubber")
SIZES = ("small", "large")
RADIUS = {"small": 10, "large": 14}  # half the width of a ball in pixels
MASS = {"small": 1, "large": 2}
GROUNDS = ("grey", "wood", "grass", "checker")
LIGHTS: dict[str, tuple[float, float, float]] = {"day": (1.0, 1.0, 1.0), "dusk": (0.76, 0.62, 0.70)}
"""What each light leaves of red, green and blue."""


@dataclass(frozen=True)
class Thing:
    """One object: what it is, and how it begins."""

    shape: str
    color: str
    material: str
    size: str
    x: int  # px at frame 0
    y: int  # as x
    vx: int = 0  # px a frame
    vy: int = 0  # as vx
    turn: int = 0  # steps of 15 degrees
    spin: int = 0  # steps a frame
    hop: int = 0  # px a frame with which it leaves the ground; 0: it does not

    @property
    def reach(self) -> int:
        """Distance in px from the middle to where something beside it touches it."""
        return RADIUS[self.size] - {"cube": 2, "cylinder": 4}.get(self.shape, 0)

    @property
    def mass(self) -> int:
        """Its weight, which decides how a collision ends."""
        return MASS[self.size]

    @property
    def body(self) -> Body:
        """What decides its path."""
        return Body(self.reach, self.mass, self.x, self.y, self.vx, self.vy, self.turn, self.spin, self.hop)

    @property
    def moves(self) -> bool:
        """Whether it changes its place."""
        return bool(self.vx or self.vy)


@dataclass(frozen=True)
class Scene:
    """One video: the objects, the first being the one that a caption begins with. `pan` is how many px a frame the
    camera moves to the right; `offset` the camera's place at frame 0; `story` names what happens (see `stories.py`).
    """

    things: tuple[Thing, ...]
    ground: str
    light: str
    story: str
    pan: int = 0
    offset: int = 0

    def paths(self, frames: int = FRAMES) -> tuple[list[list[Pose]], list[Contact]]:
        """Poses [objects][frames] in px of the frame, and the contacts in order of time."""
        return simulate([thing.body for thing in self.things], self.pan, frames)
