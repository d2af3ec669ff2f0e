"""The report's second page: which tokens a gate got wrong."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from support.browser import Open
from support.sweeping import BALL, TINY_METRICS, sweep, tiny_folder

from fastcar_cli.sweep.report import write_tokens_page
from fastcar_cli.sweep.report.tokens import gate_errors

N, FRAMES = 4, 4


def test_errors_are_against_the_least_changed_as_many() -> None:
    passes = 3 * N - 1
    change = np.full((2, 1, passes), np.nan)
    change[0, 0, N:] = [1, 2, 3, 4, 5, 6, 7]
    change[1, 0, N:] = [7, 6, 5, 4, 3, 2, 1]
    replayed = np.zeros((2, 1, passes), bool)
    replayed[0, 0, [N, N + 6]] = True  # of the two least changed one; token N + 6 changed most
    replayed[1, 0, N + 6] = True  # just the least changed
    changed, still = gate_errors({"replayed": replayed, "change": change}, 3, (2, 2))
    assert changed.shape == still.shape == (3, 2, 2)
    assert changed.reshape(-1)[N + 6] == 0.5 and changed.sum() == 0.5
    assert still.reshape(-1)[N + 1] == 0.5 and still.sum() == 0.5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("tokens")
    options = ["--model", tiny_folder(top / "tiny"), "--repeats", "1", "--metrics", TINY_METRICS, "-o", top / "out"]
    done = sweep(BALL, "--score", "tas,oracle", "--replay-ratio", "0.5", "--tokens", *options)
    assert done.exit_code == 0, done.exception
    return top / "out"


def test_the_page_is_one_file_with_every_cell(folder: Path) -> None:
    text = (folder / "tokens.html").read_text(encoding="utf-8")
    assert not re.findall(r"https?://", text) and "{{" not in text
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])  # type: ignore[index]
    assert [c["score"] for c in data["cells"]] == ["tas", "oracle"] and data["total"] == 2
    for cell in data["cells"]:
        assert len(cell["frames"]) == FRAMES and np.shape(cell["changed"]) == (FRAMES, 2, 2)
        assert not np.any(cell["changed"][0]) and not np.any(cell["still"][0])
        # As many of one kind as of the other, layer by layer.
        assert np.sum(cell["changed"]) == pytest.approx(np.sum(cell["still"]), abs=0.02)
    tas, oracle = (np.sum(c["changed"]) for c in data["cells"])
    assert oracle < tas


def test_a_sweep_without_tokens_has_no_second_page(tmp_path: Path) -> None:
    options = ["--model", tiny_folder(tmp_path / "tiny"), "--repeats", "1", "--metrics", TINY_METRICS]
    assert sweep(BALL, "--tau", "0", *options, "-o", tmp_path / "out").exit_code == 0
    assert not (tmp_path / "out" / "tokens.html").exists() and write_tokens_page(tmp_path / "out") is None


@pytest.mark.parametrize("width", [1200, 390])
def test_the_page_in_a_browser(look: Open, folder: Path, width: int) -> None:
    page = look(folder / "tokens.html", width=width)
    assert page.locator("#film figure").count() == FRAMES
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    # The words of the table's headers have a space between them, and none is cut.
    words = page.evaluate(
        "[...document.querySelectorAll('th')].map(h => { const r = document.createRange(); r.selectNodeContents(h);"
        " const b = r.getBoundingClientRect(); return [b.left, b.right]; })"
    )
    assert all(right + 4 < left for (_, right), (left, _) in pairwise(words))
    assert words[-1][1] <= width
    assert page.get_by_label("Setting", exact=True).bounding_box()["width"] > 200
    seen = (
        "[...document.querySelectorAll('#film canvas')].map(c => [...c.getContext('2d').getImageData(0, 0, 2, 2).data])"
    )
    before = page.evaluate(seen)
    assert any(v for v in before[1]) and not any(before[0])
    page.get_by_label("replayed though changed").uncheck()
    page.get_by_label("computed though still").uncheck()
    assert not any(v for frame in page.evaluate(seen) for v in frame)
    page.get_by_label("Setting", exact=True).select_option(label="oracle, ratio 0.5")
    assert "differ" in page.locator("#summary").inner_text()
