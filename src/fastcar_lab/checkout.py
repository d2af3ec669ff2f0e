"""The checkout that a figure was made with."""

from __future__ import annotations

import subprocess
from pathlib import Path


def commit() -> str | None:
    """Of the checkout that the package lies in; None elsewhere."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
