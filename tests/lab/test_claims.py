"""The claims, from made-up numbers and from a tiny model."""

from __future__ import annotations

import csv
import html
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr
from support.browser import Open
from support.sweeping import held, tiny_folder
from torch import nn
from typer.testing import CliRunner, Result

from fastcar_cli.cli.app import app
from fastcar_cli.config.run_config import load_config
from fastcar_cli.decoding import trace
from fastcar_cli.errors import FastcarError, RequestError
from fastcar_cli.models import load
from fastcar_cli.pipeline.pipeline import VideoPipeline
from fastcar_lab.claims import c1_shares, c2_similarity, c3_bound
from fastcar_lab.claims.accelerator import independent
from fastcar_lab.claims.prompts import kinds_of, prompts_for
from fastcar_lab.claims.stats import area_under_curve, by_kind, difference, estimate, over_kinds, rank_correlation
from fastcar_lab.commands.claims import all_claims, default_model

SAID = ("a small red ball rolling to the right on the grass", "a big yellow star bouncing at night")
"""Leave nothing open, so that their readings are the same without a seed."""
LAYERS, N, FRAMES = 3, 4, 4
numbers = st.floats(-100, 100, allow_nan=False)


def claims(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["lab", "claims", *map(str, arguments)])


@given(st.dictionaries(st.text(max_size=3), st.lists(numbers, min_size=1, max_size=4), min_size=2, max_size=6))
def test_an_interval_holds_its_mean(values: dict[str, list[float]]) -> None:
    found = estimate(values)
    flat = [v for group in values.values() for v in group]
    assert found.mean == pytest.approx(np.mean(flat), abs=1e-9) and found.videos == len(flat)
    assert min(flat) - 1e-9 <= found.low <= found.high <= max(flat) + 1e-9
    same = difference(values, values)
    assert (same.mean, same.low, same.high) == (0, 0, 0) and not same.above_zero and not same.below_zero


def test_an_interval_covers_about_as_often_as_it_says() -> None:
    rng, inside = np.random.default_rng(1), 0
    for _ in range(200):
        prompts = {str(p): list(rng.normal(rng.normal(3, 1), 0.1, 2)) for p in range(20)}
        e = estimate(prompts)
        inside += e.low <= 3 <= e.high
    assert 0.85 <= inside / 200 <= 0.99


def test_one_prompt_has_no_interval() -> None:
    found = estimate({"a": [1.0, 2.0]})
    assert found.mean == 1.5 and not found.above_zero and "no interval" in found.text()


@given(st.floats(0.5, 5), st.integers(2, 4))
def test_an_interval_over_kinds_holds_what_kinds_differ_by(apart: float, many: int) -> None:
    kinds = {f"{k} {i}": str(k) for k in range(many) for i in range(6)}
    values = {p: [apart * int(k) + 0.01 * i] for i, (p, k) in enumerate(kinds.items())}
    within, over = estimate(values), over_kinds(values, kinds)
    assert over.mean == pytest.approx(within.mean) and over.low < within.low and over.high > within.high
    assert list(by_kind(values, kinds)) == [str(k) for k in range(many)]
    assert by_kind(values, kinds)["1"].mean == pytest.approx(np.mean([v for p, v in values.items() if kinds[p] == "1"]))


@pytest.mark.slow
def test_prompts_are_of_each_kind_in_turn() -> None:
    pipe = VideoPipeline.from_config(load_config(None, [], {"model": "table"}))
    drawn = prompts_for(pipe, 32, balanced=True)
    kinds = list(kinds_of(pipe, drawn).values())
    assert [kinds.count(kind) for kind in ("still", "moving", "meeting", "panning")] == [8, 8, 8, 8]
    assert prompts_for(pipe, 8, balanced=True) == drawn[:8] and len(set(drawn)) == 32


@given(st.lists(st.integers(0, 5), min_size=2, max_size=30), st.integers(0, 1000))
def test_areas_and_ranks_are_those_of_the_textbook(scores: list[int], seed: int) -> None:
    values = np.array(scores, float)
    positive = np.random.default_rng(seed).random(len(scores)) < 0.5
    pairs = [(a > b) + (a == b) / 2 for a in values[positive] for b in values[~positive]]
    area = area_under_curve(values, positive)
    assert area == pytest.approx(np.mean(pairs)) if pairs else np.isnan(area)
    other = np.random.default_rng(seed).random(len(scores))
    found = rank_correlation(values, other)
    assert np.isnan(found) if len(set(scores)) == 1 else found == pytest.approx(spearmanr(values, other)[0])


def test_operator_norms_are_largest_singular_values() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(24, 16, bias=False)
    norm = float(torch.linalg.matrix_norm(linear.weight.detach(), 2))
    assert c3_bound.operator_norm(linear, 24) == pytest.approx(norm, rel=1e-5)


def test_a_place_moves_where_its_pixels_do() -> None:
    images = np.zeros((3, 8, 8, 3), np.uint8)
    images[1, :4, 4:] = 9
    assert c2_similarity.moving(images, (2, 2)).tolist() == [
        [False] * 4,
        [False, True, False, False],
        [False, True, False, False],
    ]


def test_independent_draws_keep_the_ratio_of_layers_and_frames() -> None:
    bits = np.zeros((2, 8, 3 * 64 - 1), bool)
    bits[0, :, 64:128], bits[1, :4, 128:] = True, True
    drawn = independent(bits, 64)
    assert drawn[0, :, 64:128].all() and not drawn[:, :, :64].any() and not drawn[1, :, 64:128].any()
    assert drawn[1, :, 128:].mean() == pytest.approx(0.5, abs=0.1) and not np.array_equal(drawn, bits)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some claims on a tiny model."""
    top = tmp_path_factory.mktemp("claims")
    tiny_folder(top / "tiny")
    (top / "p.txt").write_text("\n".join(SAID))
    done = claims(*_options(top), "--claim", "2,3,5")
    assert done.exit_code == 0, done.exception
    return top


def _options(top: Path) -> list[object]:
    return ["--model", top / "tiny", "--prompts-file", top / "p.txt", "--seeds", 1, "-o", top / "out"]


def _document(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "out" / "claims.json").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_claims_are_judged(folder: Path) -> None:
    found = _document(folder)["claims"]
    assert [c["number"] for c in found] == [2, 3, 5]
    _whole(folder, found)
    page = (folder / "out" / "claims.html").read_text(encoding="utf-8")
    for number, module in all_claims().items():
        row = page[page.index(f"{number}. {html.escape(module.TITLE)}") :].partition("</tr>")[0]
        assert ("not measured" in row) == (number not in (2, 3, 5)), row


@pytest.mark.slow
def test_drafts_are_held_against_replay_on_every_machine(folder: Path, tmp_path: Path) -> None:
    # The folder of the other tests keeps its page.
    done = claims(*_options(folder)[:-1], tmp_path / "out", "--claim", "10")
    assert done.exit_code == 0, done.exception
    (found,) = _document(tmp_path)["claims"]
    _whole(tmp_path, [found])
    assert "videos with drafts equal those without" in found["summary"]
    machines = found["numbers"]["best"]
    assert len(machines) == 3 and {"paper-u280", "u280-int8"} < set(machines)
    for best in machines.values():
        assert (best["drafts"]["level"], best["drafts"]["draft"]) == ("off", "jacobi-4")
        assert (best["replay"]["draft"], best["both"]["draft"]) == ("off", "jacobi-4")
        assert best["replay"]["level"] == best["both"]["level"] == found["numbers"]["level"]
        assert all(row["speedup"] > 0 for row in best.values())


@pytest.mark.slow
def test_relaxed_drafts_are_another_video_and_cost_what_their_passes_do(folder: Path, tmp_path: Path) -> None:
    for _ in range(2):
        done = claims(*_options(folder)[:-1], tmp_path / "out", "--claim", "11")
        assert done.exit_code == 0, done.exception
        (found,) = _document(tmp_path)["claims"]
        _whole(tmp_path, [found])
        cells = {file: file.read_bytes() for file in (tmp_path / "out" / "tiny" / "relaxed").glob("*.json")}
    assert len(cells) == found["videos"] and all(file.read_bytes() == whole for file, whole in cells.items())
    videos = [json.loads(whole) for whole in cells.values()]
    assert all(video["exact"]["digest"] == video["off"]["digest"] for video in videos)
    assert any(video["relaxed:0.1"]["digest"] != video["off"]["digest"] for video in videos)
    for video in videos:
        each = {video[name]["cost"]["CPU"] / video[name]["passes"] for name in ("exact", "relaxed:0.1", "coarse:0.5")}
        assert max(each) == pytest.approx(min(each))
        assert video["relaxed:0.1"]["passes"] <= video["off"]["passes"] and video["off"]["tokens_per_pass"] == 1


@pytest.mark.slow
def test_a_stop_while_claims_are_judged_keeps_what_is_finished(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(study: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(c2_similarity, "judge", stopped)
    done = claims(*_options(folder), "--claim", "2,3,5")
    assert done.exit_code == 130 and "what is finished is kept" in done.stderr


@pytest.mark.slow
def test_every_claim_is_judged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shares = {"attention": [0.3, 0.31, 0.32], "mlp": [0.5, 0.51, 0.52], "rest": [0.2, 0.18, 0.16]}
    # The 7B shape takes gigabytes and minutes: its shares are found on disk, as of an earlier run.
    measured = dict.fromkeys(map(str, c1_shares.LENGTHS), shares)
    (folder / "out" / f"shares-{c1_shares.SHAPE}.json").write_text(json.dumps(measured))
    done = claims(*_options(folder))
    assert done.exit_code == 0, done.exception
    found = _document(folder)["claims"]
    assert [c["number"] for c in found] == list(all_claims()) == list(range(1, 12))
    _whole(folder, found)


def _whole(folder: Path, found: list[dict[str, Any]]) -> None:
    """Every claim has a verdict, and every file that it names."""
    for claim in found:
        assert claim["verdict"] in ("holds", "holds in part", "does not hold", "not measured")
        assert claim["summary"] and claim["claim"] and "nan" not in claim["summary"]
        if claim["csv"]:
            rows = list(csv.reader((folder / "out" / claim["csv"]).read_text(encoding="utf-8").splitlines()))
            assert len(rows) > 1 and len({len(row) for row in rows}) == 1
        for plot in claim["plots"]:
            assert (folder / "out" / f"claim-{claim['number']}-{claim['model']}-{plot}.png").stat().st_size > 1000
    page = (folder / "out" / "claims.html").read_text(encoding="utf-8")
    assert all(c["title"].split("'")[0] in page for c in found) and "{{" not in page and "<script" not in page


def test_both_sides_of_the_bound_can_be_computed_from_a_trace(folder: Path) -> None:
    """The constants of claims.json and nothing else of ours, for one layer of one video."""
    claim = next(c for c in _document(folder)["claims"] if c["number"] == 3)
    layer = 1
    of = claim["numbers"]["layers"][layer]
    model = load(str(folder / "tiny"))
    dense = next(
        (folder / "out" / "tiny" / "main" / "cells").glob(f"{SAID[0].replace(' ', '-')[:20]}*-dense-*.tokens.npz")
    )
    codes = torch.from_numpy(np.load(dense)["codes"].astype(np.int64))[None]
    passes = FRAMES * N - 1
    seen = trace(model, SAID[:1], codes, tau=float("inf"), cfg=2.5, tas="attention", mlp_tokens=range(passes))
    mlp = seen.mlp[layer].double()
    left = (mlp[N:] - mlp[:-N]).norm(dim=-1)
    x = seen.block_out[1:, layer - 1].double()
    score = (1 - seen.tas[layer, :, N:].double().T / of["S"]).clamp(min=0).sqrt()
    right = of["C"] * ((x[N:] - x[:-N]).norm(dim=-1) + score + of["gamma"] * of["M"])
    assert bool((left <= right).all())
    block = model.network.llm.blocks[layer]
    for key, linear in (("W_G", block.mlp.gate_proj), ("W_U", block.mlp.up_proj), ("W_D", block.mlp.down_proj)):
        assert of[key] == pytest.approx(float(torch.linalg.matrix_norm(linear.weight, 2)), rel=1e-4)
    assert of["L_mlp"] == pytest.approx(of["W_D"] * (of["W_U"] * of["S_G"] + 1.0998 * of["W_G"] * of["S_U"]))
    assert of["C"] == pytest.approx(of["L_mlp"] * of["L_norm"])


@pytest.mark.parametrize("width", [1200, 390])
def test_the_page_in_a_browser(look: Open, folder: Path, width: int) -> None:
    page = look(folder / "out" / "claims.html", width=width)
    # Another test may have judged all claims in this folder.
    assert page.locator(".claim").count() == len(_document(folder)["claims"]) > 0
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 300)")
    page.locator("summary").first.click()
    assert page.locator("details table").first.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_similarity_is_what_a_trace_shows(folder: Path) -> None:
    claim = next(c for c in _document(folder)["claims"] if c["number"] == 2)
    model, found = load(str(folder / "tiny")), []
    for said in SAID:
        name = said.replace(" ", "-")[:20]
        dense = next((folder / "out" / "tiny" / "main" / "cells").glob(f"{name}*-dense-*.tokens.npz"))
        codes = torch.from_numpy(np.load(dense)["codes"].astype(np.int64))[None]
        seen = trace(model, [said], codes, tau=None, cfg=2.5, mlp_tokens=range(FRAMES * N - 1))
        found.append(torch.cosine_similarity(seen.mlp[:, N:], seen.mlp[:, :-N], dim=-1).mean((1, 2)))
    np.testing.assert_allclose(claim["numbers"]["by_layer"], torch.stack(found).mean(0).numpy(), atol=1e-5)


@pytest.mark.slow
def test_videos_that_memory_holds_one_at_a_time_show_the_same(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VideoPipeline, "batch_size", lambda self, videos: 1)
    done = claims(*_options(folder)[:-1], tmp_path, "--claim", "2")
    assert done.exit_code == 0, done.exception
    alone = json.loads((tmp_path / "claims.json").read_text(encoding="utf-8"))["claims"][0]["numbers"]
    together = next(c for c in _document(folder)["claims"] if c["number"] == 2)["numbers"]
    np.testing.assert_allclose(alone["by_layer"], together["by_layer"], atol=1e-5)


@pytest.mark.slow
def test_started_again_nothing_is_decoded_and_the_page_is_the_same(folder: Path) -> None:
    files = {p: p.stat().st_mtime_ns for p in (folder / "out").rglob("cells/*")}
    before = _document(folder)["claims"]
    done = claims(*_options(folder), "--claim", "2,3")
    assert done.exit_code == 0, done.exception
    assert {p: p.stat().st_mtime_ns for p in (folder / "out").rglob("cells/*")} == files
    assert _document(folder)["claims"] == [c for c in before if c["number"] in (2, 3)]


@pytest.mark.slow
def test_a_killed_run_resumes(folder: Path, tmp_path: Path) -> None:
    asked = ["--model", str(folder / "tiny"), "--claim", "2", "--seeds", "2"]
    asked += ["--prompts-file", str(folder / "p.txt"), "-o", str(tmp_path / "out")]
    process = held("lab", "claims", *asked, at=2, suffix=".json")
    process.kill()
    process.communicate()
    cells = tmp_path / "out" / "tiny" / "main" / "cells"
    kept = {p: p.stat().st_mtime_ns for p in cells.glob("[!.]*.json")}
    assert len(kept) == 1
    done = claims(*asked)
    assert done.exit_code == 0, done.exception
    assert len(list(cells.glob("*.json"))) == 4
    assert {p: p.stat().st_mtime_ns for p in kept} == kept


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "tabel"], "unknown model 'tabel'"),
        (["--model", "mini", "--claim", "12"], "'12' is unknown"),
        (["--model", "mini", "--prompts-file", "nowhere.txt"], "no such file"),
        (["--model", "mini", "--model", "mini", "--prompts", "1"], "two have the same name"),
        (["--model", "mini", "--prompts", "100000"], "of our own"),
    ],
)
def test_wrong_requests(tmp_path: Path, arguments: list[str], said: str) -> None:
    done = claims(*arguments, "-o", tmp_path / "d")
    assert isinstance(done.exception, RequestError) and said in str(done.exception), done.exception
    assert not (tmp_path / "d").exists()


def test_the_default_model_is_a_bundled_one() -> None:
    assert default_model() in ("table-dense", "mini")
    assert issubclass(RequestError, FastcarError)
