"""`fastcar play`: the lines of its protocol, its files, its page, and who may use it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from fastcar_cli.cli.app import app
from fastcar_cli.media.reader import frames_of

KEYS = [[8.0, 0.0], [8.0, 0.0], [0.0, -8.0], [-8.0, 4.0], [0.0, 0.0]]


def _csv(folder: Path, actions: list[list[float]]) -> Path:
    file = folder / "keys.csv"
    file.write_text("".join(",".join(map(str, action)) + "\n" for action in actions), encoding="utf-8")
    return file


def _play(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["play", *map(str, arguments)])


def _lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def _frames(file: Path) -> Any:
    return np.stack([*frames_of(file)])


@pytest.mark.parametrize("count", [5, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize("tau", ["off", "-2"])
def test_generate_makes_the_session_again(tmp_path: Path, count: int, tau: str) -> None:
    """With 60 frames the context of `mini-actions` rolls."""
    rng = np.random.default_rng(5)
    actions = (4.0 * rng.integers(-2, 3, (count, 2))).tolist()
    played = _play("--actions", _csv(tmp_path, actions), "--json", "--seed", 3, "--tau", tau, "-o", tmp_path / "s.mp4")
    assert played.exit_code == 0
    first, *frames, last = _lines(played.stdout)
    assert first["action"] == {"size": 2, "reach": 8.0}
    assert [line["frame"] for line in frames] == [*range(1, count + 1)]
    assert (last["steps"], last["video"]["frames"], last["hits"]) == (count, count + 1, 0)
    again = CliRunner().invoke(app, ["generate", "--from", str(tmp_path / "s.mp4"), "-o", str(tmp_path / "t.mp4")])
    assert again.exit_code == 0
    assert (tmp_path / "t.mp4").read_bytes() == (tmp_path / "s.mp4").read_bytes()
    once_more = _play("--actions", tmp_path / "s.csv", "--seed", 3, "--tau", tau, "-o", tmp_path / "u.mp4")
    assert once_more.exit_code == 0
    assert np.array_equal(_frames(tmp_path / "u.mp4"), _frames(tmp_path / "s.mp4"))
