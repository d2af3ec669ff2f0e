"""How tests stop training and compare where it ended."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fastcar_lab.training import loop as steps


def stop_before(number: int, monkeypatch: pytest.MonkeyPatch) -> float:
    """A deadline that comes before the step of this number, counted from where a call begins."""
    clock = count()
    monkeypatch.setattr(steps, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    return float(number)


def kill_at(step: int) -> Callable[[str], None]:
    def log(line: str) -> None:
        if line.startswith(f"step {step} "):
            raise KeyboardInterrupt

    return log


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
