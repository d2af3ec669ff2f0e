"""The report of a sweep, looked at in a browser."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.browser import Open
from support.sweep_folder import write_folder

from fastcar_cli.errors import RequestError, RunError
from fastcar_cli.sweep.report.build import write_report

PROMPTS = ["a small blue car drives left", "a green boat on the sea"]
HOSTILE = [
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 2'>",
    "quotes \" ' ` & &amp; {{ data }} \\u003c \u2028 end",
    "<!-- <script> ${window.hacked = 3}",
]


def _wait(page: Any, condition: str) -> None:
    """Wait until a condition holds (Playwright's own way needs eval, which the page forbids)."""
    end = time.monotonic() + 300
    while not page.evaluate(condition):
        assert time.monotonic() < end, condition
        page.wait_for_timeout(20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = write_folder(tmp_path_factory.mktemp("sweep") / "out", PROMPTS, seeds=(0, 7), gates=("row", "pair"))
    write_report(found)
    return found


@pytest.fixture(scope="module")
def report(folder: Path) -> Path:
    return folder / "report.html"


def test_one_file_that_names_no_other(folder: Path, report: Path) -> None:
    text = report.read_text(encoding="utf-8")
    assert [u for u in re.findall(r"https?://[^\s\"'<)]+", text) if u != "http://www.w3.org/2000/svg"] == []
    assert not re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=[\"'](?!data:)", text)
    assert not list(folder.glob(".report-*"))
    assert oct(report.stat().st_mode & 0o777) != "0o600"


@pytest.mark.slow
def test_videos_play_together_and_go_round(look: Open, report: Path) -> None:
    page = look(report)
    page.locator("#play").click()
    _wait(page, "[...document.querySelectorAll('video')].every(v => v.currentTime > 0.3 && v.videoWidth === 64)")
    assert page.locator("#play").inner_text() == "Pause"
    apart = page.evaluate(
        "(([a, b]) => Math.abs(a.currentTime - b.currentTime))([...document.querySelectorAll('video')])"
    )
    assert apart < 2 / 8
    number = "document.getElementById('frame-number').textContent"
    _wait(page, f"{number} === 'frame 8 of 8'")
    _wait(page, f"{number} !== 'frame 8 of 8'")
    page.locator("#play").click()
    assert page.locator("#play").inner_text() == "Play"
    at = page.evaluate(number)
    page.wait_for_timeout(500)
    assert page.evaluate(number) == at


def test_another_threshold_continues_playing(look: Open, report: Path) -> None:
    page = look(report)
    page.locator("#play").click()
    for _ in range(3):
        for name in ("tau 0, gate row", "tau −∞, gate row"):
            page.locator("#pick").get_by_label("Setting").select_option(label=name)
    number = page.locator("#frame-number").inner_text()
    _wait(page, f"document.getElementById('frame-number').textContent !== '{number}'")
    _wait(page, "[...document.querySelectorAll('video')].every(v => v.currentTime > 0.2)")
    assert page.locator("#play").inner_text() == "Pause"
    assert page.evaluate("PLAYER.cell.tau") == "-inf"


def test_scrubbing_moves_both_videos_and_the_map(look: Open, folder: Path, report: Path) -> None:
    page = look(report)
    _wait(page, "[...document.querySelectorAll('video')].every(v => v.readyState >= 2)")
    shares = "[...VIEW.heat.getContext('2d').getImageData(0, 0, 8, 8).data].filter((_, i) => i % 4 === 3)"
    page.locator("#scrub").fill("1")
    assert set(page.evaluate(shares)) == {0}
    page.locator("#scrub").fill("6")
    _wait(page, "[...document.querySelectorAll('video')].every(v => Math.floor(v.currentTime * 8) === 5)")
    alpha = page.evaluate(shares)
    cell = page.evaluate("PLAYER.cell.id")
    cells = {c["id"]: c for c in json.loads((folder / "results.json").read_text())["cells"]}
    wanted = [v * 255 * 0.8 for line in cells[cell]["replay"]["map"][5] for v in line]
    assert max(abs(a - b) for a, b in zip(alpha, wanted, strict=True)) <= 2
    assert page.locator("#heat").is_visible()
    page.locator("#show-heat").uncheck()
    assert not page.locator("#heat").is_visible()
    page.get_by_label("Frame forward").click()
    assert page.locator("#frame-number").inner_text() == "frame 7 of 8"


def test_pickers_lead_to_the_cell(look: Open, folder: Path, report: Path) -> None:
    page = look(report)
    pick = page.locator("#pick")
    pick.get_by_label("Prompt").select_option(label=PROMPTS[1])
    pick.get_by_label("Seed").select_option("7")
    pick.get_by_label("Setting").select_option(label="tau 0, gate pair")
    cells = json.loads((folder / "results.json").read_text())["cells"]
    (cell,) = [c for c in cells if (c["prompt"], c["seed"], c["gate"], c["tau"]) == (PROMPTS[1], 7, "pair", 0.0)]
    assert page.evaluate("PLAYER.cell.id") == cell["id"]
    assert page.evaluate("PLAYER.dense.id") == cell["reference"]
    shown = page.locator("#side").inner_text()
    assert PROMPTS[1] in shown
    assert f"{cell['metrics']['ssim']:.4f}" in shown
    assert f"{cell['speed']['speedup']:.2f}×" in shown


def test_the_plot_has_a_point_a_setting_and_names_it(look: Open, folder: Path, report: Path) -> None:
    page = look(report)
    summary = json.loads((folder / "results.json").read_text())["summary"]
    assert page.locator("#trade .point").count() == len(summary)
    assert page.locator("#trade .knee-ring").count() == 1
    row = next(r for r in summary if (r["tau"], r["gate"]) == ("-inf", "pair"))
    assert page.locator("#trade-legend").inner_text().split("\n") == ["thresholds, gate row", "thresholds, gate pair"]
    shown = page.locator('#trade .point[data-setting*="-inf"][data-setting*="pair"] title').text_content()
    assert "tau −∞, gate pair" in shown
    assert f"{row['speedup']:.2f}×" in shown
    assert f"{row['ssim']:.4f}" in shown
    page.locator("#trade-controls").get_by_label("Quality").select_option("psnr_db")
    finite = [r for r in summary if r["psnr_db"] is not None]
    assert page.locator("#trade .point").count() == len(finite) < len(summary)
    page.locator('#trade .point[data-setting*="-inf"]').first.press("Enter")
    assert json.loads(page.evaluate("STATE.setting"))[0] == "-inf"


BOXES = """(() => [...document.querySelectorAll('#trade svg .label')].map(t => {
  const b = t.getBBox(); return [b.x, b.y, b.x + b.width, b.y + b.height]; }))()"""
RINGS = """(() => [...document.querySelectorAll('#trade .point')].map(p => {
  const c = p.querySelector('.halo'), r = p.querySelector('.knee-ring') ? 12 : 6;
  const x = +c.getAttribute('cx'), y = +c.getAttribute('cy'); return [x - r, y - r, x + r, y + r]; }))()"""


@pytest.mark.parametrize("spread", [0.001, *(pytest.param(s, marks=pytest.mark.slow) for s in (0.005, 0.02))])
def test_labels_of_settings_that_are_nearly_equal_stay_apart(look: Open, folder: Path, spread: float) -> None:
    results = json.loads((folder / "results.json").read_text())
    draws, base = np.random.default_rng(1), results["summary"][1]
    results["summary"] += [{**base, "tau": -4 - 0.25 * k} for k in range(6)]
    for row in results["summary"][1:]:
        for key in ("speedup", "ssim"):
            row[key] = base[key] * draws.uniform(1 - spread, 1 + spread)
    near = folder.parent / f"near{spread}"
    shutil.copytree(folder, near)
    (near / "results.json").write_text(json.dumps(results))
    write_report(near)
    for width in (390, 1200):
        page = look(near / "report.html", width)
        labels, rings = page.evaluate(BOXES), page.evaluate(RINGS)
        assert len(labels) > 2
        # A line of text has room above and below its letters.
        for i, (left, top, right, bottom) in enumerate(labels):
            for other in [*labels[:i], *rings]:
                across, down = min(right, other[2]) - max(left, other[0]), min(bottom, other[3]) - max(top, other[1])
                assert across <= 1 or down <= 4, (labels[i], other)


def test_the_table_has_a_row_a_setting_that_shows_its_video(look: Open, folder: Path, report: Path) -> None:
    page = look(report)
    summary = json.loads((folder / "results.json").read_text())["summary"]
    heads = page.locator("#settings thead th").all_inner_texts()
    rows = page.locator("#settings tbody tr")
    assert rows.count() == len(summary)
    for i, line in enumerate(summary):
        shown = dict(zip(heads, rows.nth(i).locator("th, td").all_inner_texts(), strict=True))
        assert (shown["Videos"], shown["Speed-up"]) == (str(line["videos"]), f"{line['speedup']:.2f}×")
        assert shown["SSIM"] == f"{1 if line['tau'] is None else line['ssim']:.4f}"
        assert shown["PSNR (dB)"] == ("∞" if line["psnr_db"] is None else f"{line['psnr_db']:.2f}")
    rows.get_by_role("button", name="tau 0, gate pair").click()
    assert page.evaluate("[PLAYER.cell.tau, PLAYER.cell.gate]") == [0, "pair"]
    assert rows.locator("nth=1").locator("button").inner_text().startswith("tau 0")
    assert page.locator("#settings tr.on").count() == 1


def test_configuration_and_machine_are_there(look: Open, report: Path) -> None:
    page = look(report)
    page.locator("summary").click()
    shown = page.locator("#how").inner_text()
    for text in ('"top_p": 0.6', "a processor", "Linux x86_64", "tokens_per_frame", "2.13.0"):
        assert text in shown


def test_a_hostile_prompt_is_text(look: Open, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "out", HOSTILE, taus=(None, -2.0), config={"model": "</script><b>x</b>"})
    page = look(write_report(folder))
    assert page.evaluate("window.hacked") is None
    for i, prompt in enumerate(HOSTILE):
        page.locator("#pick").get_by_label("Prompt").select_option(str(i))
        assert page.locator("#side blockquote").evaluate("e => e.textContent") == prompt
    assert "</script><b>x</b>" in page.locator("#how").text_content()
    assert page.locator("main img, main b:text-is('x')").count() == 0


def _contrast(page: Any, selector: str) -> float:
    script = """(e) => {
        const style = (x) => getComputedStyle(x), rgb = (c) => c.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255);
        let back = e;
        while (style(back).backgroundColor.endsWith(', 0)') && back.parentElement) back = back.parentElement;
        const light = (c) => rgb(c).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
            .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
        const both = [light(style(e).color), light(style(back).backgroundColor)].sort((x, y) => y - x);
        return (both[0] + 0.05) / (both[1] + 0.05); }"""
    return min(page.locator(selector).evaluate_all(f"(all) => all.map({script})"))


def test_light_and_dark_with_good_contrast(look: Open, report: Path) -> None:
    backgrounds = []
    for scheme in ("light", "dark"):
        page = look(report, color_scheme=scheme)
        backgrounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        for part in ("h1", ".lead", ".sub", ".why b", "#play", ".side dt", "table.data thead th", ".tag", "footer"):
            assert _contrast(page, part) >= 4.5, (scheme, part)
    assert backgrounds[0] != backgrounds[1]


@pytest.mark.parametrize("width", [320, 375, 768])
def test_no_sideways_scrolling_on_a_phone(look: Open, report: Path, width: int) -> None:
    page = look(report, width=width, has_touch=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    boxes = page.locator("video").evaluate_all("(all) => all.map((v) => v.getBoundingClientRect().right)")
    assert max(boxes) <= width
    page.evaluate("VIEW.b.caption.textContent = 'Replayed, at a ratio of 50 %'")
    tops = page.locator("video").evaluate_all("(all) => all.map((v) => v.getBoundingClientRect().top)")
    assert abs(tops[0] - tops[1]) < 1, "a caption of two lines moves its video"


def test_a_limit_on_videos_is_reported_and_the_knee_comes_first(look: Open, folder: Path) -> None:
    copy = folder.parent / "limited"
    shutil.copytree(folder, copy)
    sizes = {p.name: p.stat().st_size for p in (copy / "cells").iterdir()}
    page = look(write_report(copy, video_limit=5 * max(sizes.values())))
    embedded = page.evaluate("Object.keys(VIDEOS)")
    cells = json.loads((copy / "results.json").read_text())["cells"]
    assert 0 < len(embedded) < len(cells)
    assert sum(sizes[f"{e}.mp4"] for e in embedded) <= 5 * max(sizes.values())
    first = [c["id"] for c in cells if c["prompt"] == PROMPTS[0] and c["seed"] == 0]
    knee = next(c["id"] for c in cells if c["id"] in first and c["tau"] == -2.0 and c["gate"] == "row")
    assert {first[0], knee} <= set(embedded)
    assert f"{len(embedded)} of {len(cells)} videos are embedded" in page.locator("#embedded").inner_text()
    page.locator("#pick").get_by_label("Prompt").select_option(label=PROMPTS[1])
    page.locator("#pick").get_by_label("Seed").select_option("7")
    link = page.get_by_role("link", name="Open the file").first
    assert (copy / link.get_attribute("href")).exists()


def test_a_video_that_is_gone_is_named(look: Open, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "out", PROMPTS[:1], taus=(None, -2.0))
    (folder / "cells" / "c1.mp4").unlink()
    page = look(write_report(folder))
    assert "1 could not be read" in page.locator("#embedded").inner_text()
    assert "cells/c1.mp4 could not be read" in page.locator("#player").inner_text()


def test_nothing_outside_the_folder_gets_into_the_page(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "out", PROMPTS[:1], taus=(None, -2.0))
    (tmp_path / "secret.mp4").write_bytes(b"secret secret")
    data = json.loads((folder / "results.json").read_text())
    data["cells"][1]["video"] = "../secret.mp4"
    (folder / "results.json").write_text(json.dumps(data))
    assert "c2VjcmV0IHNlY3JldA" not in write_report(folder).read_text()


def test_a_dense_run_belongs_to_every_curve(look: Open, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "out", PROMPTS[:1], gates=("pair",))
    data = json.loads((folder / "results.json").read_text())
    for x in data["cells"] + data["summary"]:
        x["gate"] = "row" if x["tau"] is None else "pair"
    (folder / "results.json").write_text(json.dumps(data))
    page = look(write_report(folder))
    assert page.locator("#trade polyline").count() == 1
    points = page.locator("#trade polyline").get_attribute("points")
    assert len(points.split()) == len(data["summary"])
    assert page.locator("#trade-legend span").count() == 0


@pytest.mark.parametrize("taus", [(None,), (None, -2.0), ()])
def test_small_and_empty_sweeps_make_a_page(look: Open, tmp_path: Path, taus: tuple[Any, ...]) -> None:
    folder = write_folder(tmp_path / "out", PROMPTS[:1], taus=taus)
    data = json.loads((folder / "results.json").read_text())
    data["knee"] = []
    data["machine"]["odd"] = float("nan")
    for cell in data["cells"]:
        cell["fidelity"] = None
        cell["frames"] = None
    for row in data["summary"]:
        row["all_right"] = row["fidelity_drop"] = None
    (folder / "results.json").write_text(json.dumps(data))
    page = look(write_report(folder))
    assert page.locator("h1").inner_text()
    assert '"odd": null' in page.locator("#how").text_content()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "can't be read"),
        (
            '{"cells": [{"id": "a"}], "summary": [], "plan": {}, "model": {}, "config": {}, "machine": {}}',
            "cell 0 lacks",
        ),
        ("[]", "not the result of a sweep"),
        ('{"cells": []}', "expected keys"),
    ],
)
def test_damaged_results_are_named(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(RequestError) as caught:
        write_report(tmp_path)
    assert says in f"{caught.value} {caught.value.hint}"
    assert str(tmp_path / "results.json") in str(caught.value)
    assert not (tmp_path / "report.html").exists()


def test_no_results_and_no_place(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="results.json is missing"):
        write_report(tmp_path)
    folder = write_folder(tmp_path / "out", PROMPTS[:1], taus=(None,))
    (folder / "report.html").mkdir()
    with pytest.raises(RunError, match=r"report\.html could not be written"):
        write_report(folder)
    assert not list(folder.glob(".report-*"))
