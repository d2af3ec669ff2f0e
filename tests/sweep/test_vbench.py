"""VBench's total from result files, against published scores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastcar_cli.errors import RequestError
from fastcar_cli.sweep.vbench import DIMENSIONS, score

# Percentages of VBench's own evaluation (arXiv 2311.17982 and its leaderboard), in the order of DIMENSIONS, and
# the published quality, semantic and total scores.
PUBLISHED = {
    "LaVie": (
        [91.41, 97.47, 98.3, 96.38, 49.72, 54.94, 61.9, 91.82, 33.32, 96.8, 86.39, 34.09, 52.69, 23.56, 25.93, 26.41],
        (78.78, 70.31, 77.08),
    ),
    "ModelScope": (
        [89.87, 95.29, 98.28, 95.79, 66.39, 52.06, 58.57, 82.25, 38.98, 92.4, 81.72, 33.68, 39.26, 23.39, 25.37, 25.67],
        (78.05, 66.54, 75.75),
    ),
    "VideoCrafter-1.0": (
        [95.1, 98.04, 98.93, 95.67, 55.0, 62.67, 65.46, 78.18, 45.66, 91.6, 93.32, 58.86, 43.75, 24.41, 25.54, 26.76],
        (81.59, 72.22, 79.72),
    ),
}


def _write(folder: Path, scores: dict[str, float], name: str = "all") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"results_2024_{name}_eval_results.json"
    file.write_text(json.dumps({k: [v, [{"video_path": "a.mp4", "video_results": v}]] for k, v in scores.items()}))
    return file


def _scores(percentages: list[float]) -> dict[str, float]:
    return {name: p / 100 for name, p in zip(DIMENSIONS, percentages, strict=True)}


@pytest.mark.parametrize("model", PUBLISHED)
def test_published_totals_are_met(model: str, tmp_path: Path) -> None:
    percentages, expected = PUBLISHED[model]
    for name, value in _scores(percentages).items():
        # One file a dimension in folders, as vbench's scripts leave them.
        _write(tmp_path / name, {name: value}, name)
    (tmp_path / "color" / "results_full_info.json").write_text("[]")
    found = score(tmp_path)
    got = [100 * found[key] for key in ("quality", "semantic", "total")]
    # The published inputs are rounded to 0.01 %.
    assert got == pytest.approx(expected, abs=0.011)
    assert found["missing"] == [] == found["unknown"]
    assert found["dimensions"]["color"]["videos"] == 1


def test_range_and_weights_by_hand(tmp_path: Path) -> None:
    _write(tmp_path, {name: d.high for name, d in DIMENSIONS.items()})
    found = score(tmp_path)
    assert (found["quality"], found["semantic"], found["total"]) == pytest.approx((1, 1, 1))
    lowest = {name: d.low for name, d in DIMENSIONS.items()}
    _write(tmp_path, lowest | {"dynamic_degree": 1.0})
    found = score(tmp_path)
    assert (found["quality"], found["semantic"]) == pytest.approx((0.5 / 6.5, 0.0))
    assert found["total"] == pytest.approx(0.8 * 0.5 / 6.5)


@given(st.lists(st.floats(0, 1), min_size=16, max_size=16))
def test_total_is_four_to_one(tmp_path_factory, values: list[float]) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path_factory.mktemp("vbench")
    _write(folder, dict(zip(DIMENSIONS, values, strict=True)))
    found = score(folder)
    assert found["total"] == pytest.approx((4 * found["quality"] + found["semantic"]) / 5)


def test_missing_dimensions_are_named_and_not_counted_as_zero(tmp_path: Path) -> None:
    scores = _scores(PUBLISHED["LaVie"][0])
    del scores["color"], scores["scene"]
    _write(tmp_path, scores | {"camera_motion": 0.5})
    found = score(tmp_path)
    assert found["missing"] == ["color", "scene"]
    assert found["unknown"] == ["camera_motion"]
    assert (found["total"], found["semantic"]) == (None, None)
    assert 100 * found["quality"] == pytest.approx(78.78, abs=0.011)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"color": [0.5', "damaged"),
        ("[1, 2]", "damaged: the top level is a list"),
        ('{"color": 0.5}', "color has no score"),
        ('{"color": [NaN, []]}', "color has no score"),
        ('{"color": ["0.5", []]}', "color has no score"),
        ('{"color": [true, []]}', "color has no score"),
        ('{"color": []}', "color has no score"),
        ('{"imaging_quality": [63.2, []]}', "imaging_quality is 63.2; allowed: 0 to 1"),
        ('{"i2v_subject": [0.5, []]}', "none of its"),
    ],
)
def test_damage_is_named_with_its_file(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "a_eval_results.json").write_text(text)
    with pytest.raises(RequestError, match=says.replace("[", r"\[")) as caught:
        score(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_no_folder_no_files_and_two_opinions(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no such folder"):
        score(tmp_path / "none")
    with pytest.raises(RequestError, match="eval_results"):
        score(tmp_path)
    _write(tmp_path, {"color": 0.5}, "one")
    _write(tmp_path, {"color": 0.5}, "two")
    assert score(tmp_path)["dimensions"]["color"]["score"] == 0.5
    _write(tmp_path, {"color": 0.6}, "two")
    with pytest.raises(RequestError, match=r"color is 0.5 in .*one.* and 0.6 in .*two"):
        score(tmp_path)
