"""`fastcar generate --draft`: the video is the same, fewer passes make it, and what can't be is said in a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.ivideogpt import ACTIONS, moving_clip, write_clip, write_model
from support.processes import Run

from fastcar_cli.cli.render import summary
from fastcar_cli.media import read_frames, read_recipe

BALL = "a red ball rolling to the right on the grass"
CUBE = "a red cube slides to the right"
WAYS: dict[str, tuple[str, ...]] = {
    "mini": (BALL,),
    "mini, replay": (BALL, "--tau", "-2", "--max-replay-age", "2"),
    "mini, ratio": (BALL, "--replay-ratio", "0.5"),
    "mini, window": (BALL, "--window", "100", "--tau", "0"),
    "mini, int8": (BALL, "--dtype", "int8", "--kv-dtype", "int8"),
    "mini, bfloat16": (BALL, "--dtype", "bfloat16", "--temperature", "0.3"),
    "mini, two videos": (BALL, "--samples", "2", "--tau", "-1"),
    "table": (CUBE, "--model", "table", "--frames", "3", "--tau", "-2"),
    "table-dense, int8": (CUBE, "--model", "table-dense", "--frames", "2", "--dtype", "int8"),
}


def _made(run: Run, name: str, *arguments: str) -> tuple[list[dict[str, Any]], list[np.ndarray]]:
    """Reports and frames of a run's videos."""
    done = run("generate", *arguments, "--seed", "3", "--json", "-o", name)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    reports = document.get("videos", [document])
    return reports, [read_frames(Path(report["video"]["path"])) for report in reports]


_DENSE: dict[str, tuple[list[dict[str, Any]], list[np.ndarray]]] = {}


def _dense(run: Run, way: str) -> tuple[list[dict[str, Any]], list[np.ndarray]]:
    """What a way makes without drafts, decoded once."""
    if way not in _DENSE:
        _DENSE[way] = _made(run, "off", *WAYS[way], "--draft", "off")
    return _DENSE[way]


@pytest.mark.slow
@pytest.mark.parametrize(
    "draft",
    [
        pytest.param(("frame", "8"), marks=pytest.mark.slow),
        pytest.param(("jacobi", "3"), marks=pytest.mark.slow),
        ("jacobi", "16"),
    ],
)
@pytest.mark.parametrize("way", WAYS)
def test_the_video_is_the_same_in_fewer_passes(run: Run, way: str, draft: tuple[str, str]) -> None:
    dense, frames = _dense(run, way)
    reports, drafted = _made(run, "drafted", *WAYS[way], "--draft", draft[0], "--draft-window", draft[1])
    assert all(np.array_equal(a, b) for a, b in zip(frames, drafted, strict=True))
    for one, other in zip(dense, reports, strict=True):
        found = other["draft"]
        assert other["replay"] == one["replay"]
        assert one["draft"]["tokens_per_pass"] == 1 and one["draft"]["passes"] == one["tokens"]["visual"]
        assert 1 < found["tokens_per_pass"] <= found["window"] <= int(draft[1])
        assert found["tokens_per_pass"] == pytest.approx(one["draft"]["passes"] / found["passes"])
        assert found["kind"] == ("frame" if draft[0] == "frame" else "jacobi")
        assert len(found["accepted_by_frame"]) == other["video"]["frames"]
        assert max(found["accepted_by_frame"][1:]) > 0.3


@pytest.mark.slow
@pytest.mark.parametrize("way", ["mini", "table"])
def test_auto_makes_the_same_video(run: Run, way: str) -> None:
    _, frames = _dense(run, way)
    _, drafted = _made(run, "auto", *WAYS[way])
    assert np.array_equal(frames[0], drafted[0])


def test_frames_and_actions_are_continued_the_same(run: Run, tmp_path: Path) -> None:
    model = write_model(tmp_path / "acting", 1, ACTIONS)
    clip = write_clip(tmp_path / "clip.gif", moving_clip(4))
    np.save(tmp_path / "actions.npy", np.linspace(-1, 1, 4 * ACTIONS, dtype=np.float32).reshape(4, ACTIONS))
    arguments = ("--model", model, "--input", clip, "--actions", "actions.npy", "--frames", "4", "--tau", "0")
    _, frames = _made(run, "off", *arguments, "--draft", "off")
    reports, drafted = _made(run, "drafted", *arguments, "--draft", "jacobi", "--draft-window", "8")
    assert np.array_equal(frames[0], drafted[0])
    assert reports[0]["draft"]["tokens_per_pass"] >= 1


def test_a_recipe_does_not_depend_on_drafts(run: Run) -> None:
    for draft in ("off", "jacobi"):
        _made(run, f"{draft}.mp4", BALL, "--frames", "2", "--draft", draft)
    assert read_recipe(Path("off.mp4")) == read_recipe(Path("jacobi.mp4"))
    assert Path("off.mp4").read_bytes() == Path("jacobi.mp4").read_bytes()


def test_the_table_names_drafts(run: Run) -> None:
    shown = run("generate", BALL, "--seed", "3", "--draft", "jacobi", "--draft-window", "8", "-o", "a.mp4").stdout
    assert "tokens per pass, draft length 8, same video as without" in " ".join(shown.split())
    assert "tokens per pass" not in run("generate", BALL, "--frames", "2", "--draft", "off", "-o", "b.mp4").stdout


def test_a_graph_does_not_promise_the_same_codes(run: Run) -> None:
    report = json.loads(
        run("generate", BALL, "--draft", "jacobi", "--draft-window", "8", "-o", "a.mp4", "--json").stdout
    )
    report["kernels"]["name"] = "graph"
    names, values = (list(column.cells) for column in summary(report).columns)
    assert str(values[names.index("drafts")]).endswith("draft length 8, same video as without drafts, up to rounding")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--draft-window", "65"), "a frame has 64 tokens"),
        (("--window", "10", "--draft-window", "11"), "the attention window has 10 tokens"),
        (("--draft", "some"), "'off', 'frame', 'jacobi' or 'auto'"),
        (("--draft", "jacobi", "--score", "random", "--tau", "0"), "executor torch decodes only one token per pass"),
    ],
)
def test_what_can_not_be_is_said(run: Run, arguments: tuple[str, ...], said: str) -> None:
    done = run("generate", BALL, *arguments, "-o", "a.mp4")
    assert done.returncode == 2 and said in " ".join(done.stderr.replace("│", " ").split())
    assert not Path("a.mp4").exists()
