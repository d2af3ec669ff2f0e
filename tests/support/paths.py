"""Files that tests read and that are not made by them."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""Of the repository."""
SHARED = ROOT.parent / "shared"
"""Recorded data that is no part of the repository."""
GOLDEN = Path(os.environ.get("FASTCAR_GOLDEN", SHARED / "golden"))
GOLDEN_FRAMES = Path(os.environ.get("FASTCAR_GOLDEN_FRAMES", SHARED / "golden-ivideogpt"))
GOLDEN_LATENTS = Path(os.environ.get("FASTCAR_GOLDEN_LATENTS", SHARED / "golden-cosmos"))
GOLDEN_ROBOT = Path(os.environ.get("FASTCAR_GOLDEN_ROBOT", SHARED / "golden-rlvr"))
