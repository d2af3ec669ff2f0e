"""What a sweep may be given: axes, prompts, shards, and what is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sweeping import BALL, sweep

from fastcar_cli.config.lists import parse_seeds, parse_shard, shard_of
from fastcar_cli.errors import RequestError
from fastcar_cli.sweep.grid import Cell, Grid, join_prompts, parse_axis

numbers = st.floats(-50, 50).map(lambda x: round(x, 3))
plans = st.builds(
    Grid,
    st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=3, unique=True).map(tuple),
    st.lists(st.integers(0, 99), min_size=1, max_size=4, unique=True).map(tuple),
    st.lists(st.one_of(st.none(), numbers), max_size=3, unique=True).map(tuple),
    st.sampled_from([(None,), (None, 16), (256, 16)]),
    st.sampled_from([("row",), ("pair", "row")]),
    st.sampled_from([("torch",), ("torch", "fpga-sim")]),
    score=st.sampled_from([("tas",), ("oracle", "tas")]),
    ratio=st.sampled_from([(), (0.25, 0.5)]),
)


def test_axes_are_read() -> None:
    assert parse_axis("tau", "off,0,-0.5, -inf") == (None, 0.0, -0.5, -math.inf)
    assert parse_seeds("0-3") == (0, 1, 2, 3)
    assert parse_seeds("0,5,7-8") == (0, 5, 7, 8)
    assert parse_axis("window", "off,256") == (None, 256)
    assert parse_shard("3/8") == (3, 8)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        *((partial(parse_axis, "tau"), t) for t in ("", "a", "1,,2", "nan", "inf,off", "-1,-1.0", "0,-0.0")),
        *((parse_seeds, t) for t in ("", "-1", "3-1", "x", "0-2,2", "1.5", str(2**63), "9" * 5000)),
        *((partial(parse_axis, "window"), t) for t in ("0", "-4", "x", "off,off", "8,", "9" * 5000, "²")),
        *((parse_shard, t) for t in ("0/8", "9/8", "3", "a/b", "1/0", f"1/{'9' * 5000}")),
    ],
)
def test_wrong_axes_are_refused_with_what_was_said(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(RequestError, match="`(tau|seeds|window|shard)`"):
        read(text)


@pytest.mark.slow
@given(plans, st.integers(1, 6))
def test_shards_are_the_whole_and_share_nothing(grid: Grid, n: int) -> None:
    cells = list(grid.cells())
    assert len(cells) == len(grid) == len({c.id for c in cells})
    parts = [c for k in range(n) for g in shard_of(grid.groups(), f"{k + 1}/{n}") for c in g]
    assert sorted(c.id for c in parts) == sorted(c.id for c in cells)


@given(plans)
def test_every_cell_has_its_dense_reference_in_the_grid(grid: Grid) -> None:
    cells = set(grid.cells())
    for cell in cells:
        assert cell.reference in cells and cell.reference.dense
        assert Cell.from_dict(json.loads(json.dumps(cell.to_dict()))) == cell


def test_prompt_files(tmp_path: Path) -> None:
    text, vbench = tmp_path / "p.txt", tmp_path / "p.json"
    text.write_text("\ufeff a ball \n\n a star\n", encoding="utf-8")
    assert join_prompts([], text)[0] == ["a ball", "a star"]
    vbench.write_text(json.dumps([{"prompt_en": "a", "dimension": ["x"]}, {"prompt_en": "b"}, {"prompt_en": "a"}]))
    prompts, notices = join_prompts([], vbench)
    assert prompts == ["a", "b"] and "1 entries repeat" in notices[0]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("p.txt", "", "has no prompt"),
        ("p.txt", " \n\n", "has no prompt"),
        ("p.txt", "a\nb\na\n", "line 3 repeats line 1"),
        ("p.json", "[]", "has no prompt"),
        ("p.json", "{}", "top level"),
        ("p.json", "[{}]", "entry 0"),
        ("p.json", "[", "not valid JSON"),
    ],
)
def test_bad_prompt_files_are_refused(tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    done = sweep("--prompts", tmp_path / name, "--tau", "off,-2", "-o", tmp_path / "d")
    assert isinstance(done.exception, RequestError) and said in str(done.exception)
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([BALL, BALL, "--tau", "1"], "is given twice"),
        ([" ", "--tau", "1"], "is empty"),
        (["--tau", "1"], "no prompt"),
        ([BALL], "no thresholds"),
        ([BALL, "--tau", "1", "--metrics", "psnr,vmaf"], "'vmaf' is unknown"),
        ([BALL, "--tau", "1", "--gate", "column"], "'column' is unknown"),
        ([BALL, "--tau", "1", "--backend", "tpu"], "'tpu' is unknown"),
        ([BALL, "--tau", "1", "--names", "x"], "--names x"),
        ([BALL, "--tau", "1", "--engine", "slurm"], "--engine slurm"),
        ([BALL, "--tau", "1", "--workers", "2"], "needs --engine ray"),
        ([BALL, "--tau", "1", "--metrics", "lpips"], "which fastcar does not download"),
        ([BALL, "--tau", "1", "--set", "generation.samples=2"], "--seeds"),
        ([BALL, "--tau", "1", "--prompts", "nowhere.txt"], "no such file"),
        (["gobbledygook", "--tau", "1"], "knows no word of"),
        ([BALL, "--tau", "1", "--names", "vbench", "--set", "video.fps=4"], "needs 8 fps"),
        (["a ball/star", "--tau", "1", "--names", "vbench"], "can't be a file name"),
    ],
)
def test_wrong_requests_are_refused_before_anything_is_written(tmp_path: Path, arguments: list[str], said: str) -> None:
    done = sweep(*arguments, "-o", tmp_path / "d")
    assert isinstance(done.exception, RequestError) and said in str(done.exception), done.exception
    assert not (tmp_path / "d").exists()


def test_a_folder_is_needed() -> None:
    done = sweep(BALL, "--tau", "1")
    assert isinstance(done.exception, RequestError) and "-o" in str(done.exception)
