"""How tests run the command line."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

Run = Callable[..., "subprocess.CompletedProcess[str]"]
SCREEN = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
