"""Actions of RT-1's data set as RLVR-World's models take them: 13 numbers per frame, each mapped to one of 256 ids.

The order follows the data set's keys, ranges are its smallest and largest numbers (ivideogpt/processor.py
_discretize_actions and frac_action_ranges.pth of thuml/RLVR-World, vid_wm).
"""

from __future__ import annotations

from torch import Tensor

from fastcar_cli.inputs.prompt import ActionPart, ranges_of
from fastcar_cli.models.network import Steering

BINS = 256

PARTS = (
    ActionPart(
        "base_displacement_vector",
        (-0.39600884914398193, -0.009631033055484295), (0.39600181579589844, 0.003676734399050474), "m", optional=True,
    ),
    ActionPart(
        "base_displacement_vertical_rotation", (-0.4000452756881714,), (0.39991137385368347,), "rad", optional=True
    ),
    ActionPart("gripper_closedness_action", (-1.0,), (1.0,), "-1 open, 1 closed"),
    ActionPart(
        "rotation_delta",
        (-1.569917917251587, -1.569892168045044, -1.570419430732727),
        (1.570636510848999, 1.5321086645126343, 1.5691522359848022), "rad",
    ),
    ActionPart("terminate_episode", (0.0,) * 3, (1.0,) * 3, "0 1 0 continues, 1 0 0 ends"),
    ActionPart(
        "world_vector",
        (-2.0204520225524902, -5.497899532318115, -2.031663417816162),
        (2.9984593391418457, 22.09052848815918, 2.7507524490356445), "m",
    ),
)  # fmt: skip

_KEYS = {
    **{"w": (10, 0.1), "s": (10, -0.1), "a": (11, 0.1), "d": (11, -0.1), "e": (12, 0.1), "c": (12, -0.1)},
    **{"i": (4, 0.2), "k": (4, -0.2), "j": (3, -0.2), "l": (3, 0.2), "u": (5, 0.2), "o": (5, -0.2)},
    **{"z": (2, 1.0), "x": (2, -1.0)},
}
_WORDS = "W/S, A/D and E/C move the arm, I/K, J/L and U/O turn the arm, Z closes and X opens the gripper"

STEERING = Steering((*[0.0] * 8, 1.0, *[0.0] * 4), PARTS, _KEYS, _WORDS)


def bins_of(actions: Tensor) -> Tensor:
    """Bins int64 of actions float32 [..., 13]; numbers out of range get the first or last bin."""
    low, high = actions.new_tensor(ranges_of(PARTS))
    share = ((actions - low) / (high - low + 1e-8)).clamp(0, 1)
    return (share * BINS).floor().long().clamp(0, BINS - 1)
