"""Names of models; imports no torch, so that shell completion is fast."""

from __future__ import annotations

FROM_TEXT = ("mini", "table", "table-dense")  # bundled text-to-video models
BUNDLED = (*FROM_TEXT, "table-actions")  # names of all bundled models
FORMER = {"mini-actions": "table-actions"}  # bundled models that others have replaced

IVIDEOGPT = tuple(
    f"ivideogpt-{name}"
    for name in (
        *("oxe-64-act-free", "oxe-64-act-free-medium", "oxe-64-goal-cond", "oxe-256-act-free", "bair-64-act-free"),
        *("bair-64-act-cond", "robonet-64-act-cond", "vp2-robosuite-64-act-cond", "vp2-robodesk-64-act-cond"),
    )
)
"""Released iVideoGPT models (thuml/iVideoGPT, README.md)."""

RLVR = tuple(f"rt1-world-model-{kind}-step-{way}" for kind in ("single", "multi") for way in ("base", "rlvr"))
"""Released models of RLVR-World (thuml/RLVR-World) for videos of RT-1's robot."""

COSMOS = {
    f"cosmos-predict1-{name.lower()}": f"nvidia/Cosmos-Predict1-{name}"
    for name in ("4B", "12B", "5B-Video2World", "13B-Video2World")
}
"""Released Cosmos-Predict1 models that continue videos token by token, and their repositories."""

REPOSITORIES = {"vila-u-7b": "mit-han-lab/vila-u-7b-256", **{name: f"thuml/{name}" for name in (*IVIDEOGPT, *RLVR)}}
REPOSITORIES |= COSMOS
"""Short names of checkpoints and their repositories."""
