"""Tokens a pass with drafts: the count from codes, and that of decodes."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fastcar_cli.cli.app import app, main
from fastcar_cli.config.run_config import RunConfig
from fastcar_cli.pipeline.pipeline import VideoPipeline
from fastcar_lab.claims.prompts import prompts_for
from fastcar_lab.drafting import Counts, count_aligned, tokens_a_pass


@given(st.lists(st.booleans(), min_size=8, max_size=8), st.integers(1, 4))
def test_a_count_is_that_of_passes_made_one_by_one(right: list[bool], window: int) -> None:
    frame = 4
    codes = np.zeros((frame + len(right), 2), np.int64)
    for i, same in enumerate(right, frame):
        codes[i] = codes[i - frame] + [0, 0 if same else 1]
    counts = Counts()
    count_aligned(codes, frame, window, counts)
    # A pass ends with its W-th position, or with the first whose draft is wrong.
    passes, left = 0, 0
    for same in right:
        if not left:
            passes, left = passes + 1, window
        left = left - 1 if same else 0
    assert (counts.tokens, counts.passes) == ([0, len(right)], [0, passes])


def test_all_right_drafts_fill_every_window_and_wrong_ones_give_a_token_a_pass() -> None:
    for step, passes in ((0, 4), (1, 16)):
        counts = Counts()
        count_aligned(np.arange(20)[:, None] * step, 4, 4, counts)
        assert counts.to_dict() == {"first_frame": None, "later_frames": 16 / passes}


@pytest.mark.slow
def test_decodes_accept_what_their_codes_promise() -> None:
    pipe = VideoPipeline.from_config(
        RunConfig.from_dict({"model": "mini", "generation": {"frames": 4}, "runtime": {"threads": 1}})
    )
    measured = tokens_a_pass(pipe, ["a red ball rolling to the right on the grass"], [4, 16])
    for line in measured["windows"]:
        # The decode's passes need not begin at the first token of a frame.
        assert line["frame"]["later_frames"] == pytest.approx(line["counted"], rel=0.1)
        assert line["jacobi"]["later_frames"] > line["frame"]["later_frames"] > 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--windows", "off"), "'off' is not a length"),
        (("--windows", "65"), "a frame has 64 tokens"),
        (("--temperature", "warm"), "not numbers"),
        (("--leave-out", "e"), "no caption is left"),
    ],
)
def test_what_can_not_be_counted_is_refused(
    arguments: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fastcar", "lab", "drafts", "--model", "mini", "--prompts", "2", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    shown = capsys.readouterr()
    assert stop.value.code == 2 and said in shown.err and shown.out == ""


def test_json_has_a_line_for_every_temperature(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--model", "mini", "--prompts", "1", "--windows", "8", "--temperature", "shipped,1,0.5", "--json")
    monkeypatch.setattr(sys, "argv", ["fastcar", "lab", "drafts", *arguments, "--set", "generation.frames=2"])
    with pytest.raises(SystemExit):
        main()
    models = json.loads(capsys.readouterr().out)["models"]
    # mini ships with temperature 1.
    assert [m["temperature"] for m in models] == [1.0, 0.5]
    assert all(m["videos"] == 1 and [w["window"] for w in m["windows"]] == [8] for m in models)


def test_captions_with_a_text_are_left_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = prompts_for(VideoPipeline.from_config(RunConfig(model="mini")), 2)
    arguments = ("--model", "mini", "--prompts", "2", "--leave-out", first, "--windows", "8", "--json")
    monkeypatch.setattr(sys, "argv", ["fastcar", "lab", "drafts", *arguments, "--set", "generation.frames=2"])
    with pytest.raises(SystemExit):
        main()
    assert [m["videos"] for m in json.loads(capsys.readouterr().out)["models"]] == [1] and first not in second


def test_the_table_is_printed_as_format_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--model", "mini", "--prompts", "1", "--windows", "4", "--kinds", "frame", "--format", "csv")
    monkeypatch.setattr(sys, "argv", ["fastcar", "lab", "drafts", *arguments, "--set", "generation.frames=2"])
    with pytest.raises(SystemExit):
        main()
    title, header, row = capsys.readouterr().out.splitlines()
    assert title.startswith("# tokens a pass") and header == ",as aligned,counted 4,frame 4"
    assert row.startswith('"mini, temperature 1",')


@pytest.mark.slow
def test_auto_tries_drafts_that_all_count_as_wrong_and_stops() -> None:
    arguments = ["lab", "draft-cost", "--model", "mini", "--prompts", "1", "--set", "generation.frames=4", "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    (result,) = json.loads(done.stdout)["models"]
    # Two decodes of 256 tokens, of which windows may lose 2 %.
    assert 0 < result["passes_with_drafts"] < 2 * 256 / 4
    assert all(result[part]["off_least_ms"] > 0 < result[part]["pairs"] for part in ("decode", "first_token"))
