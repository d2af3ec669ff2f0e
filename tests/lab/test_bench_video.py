"""A whole video on the clock: what is counted, and that a stopped one resumes. No timing is asserted."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support.cosmos import write_model

from fastcar_cli.cli.app import main
from fastcar_cli.errors import RequestError
from fastcar_cli.models import load
from fastcar_lab.bench.video import WholeVideo, whole_video

PLAN = WholeVideo("mini", frames=3, ratio=0.5)


@pytest.mark.slow
def test_bytes_are_those_of_the_mlps_that_are_computed() -> None:
    model = load("mini")
    lines = whole_video(model, PLAN)["variants"]
    mlps = sum(p.nbytes for name, p in model.network.named_parameters() if ".mlp." in name and "layers" in name)
    passes = 3 * model.network.spec.tokens_per_frame - 1
    saved = lines["dense"]["bytes"] - lines["replay"]["bytes"]
    assert saved == pytest.approx(0.5 * passes * mlps, rel=0.01)
    for line in lines.values():
        assert line["seconds"] == pytest.approx(line["prefill_s"] + line["decode_s"] + line["vision_s"])
        assert 0 < line["mlp_s"] < line["decode_s"] and 0 < line["draw_s"] < line["decode_s"]
        assert line["published_s"] is None


@pytest.mark.slow
def test_a_stretch_is_extrapolated_to_the_whole_video() -> None:
    model = load("mini")
    part = whole_video(model, WholeVideo("mini", frames=3, ratio=0.5, tokens=20))
    whole = whole_video(model, PLAN)
    assert (part["decoded"], whole["decoded"], part["tokens"]) == (20, 192, 192)
    for variant in ("dense", "replay"):
        assert part["variants"][variant]["bytes"] == pytest.approx(whole["variants"][variant]["bytes"], rel=0.02)


@pytest.mark.slow
def test_keys_and_values_in_int8_are_read_as_such() -> None:
    model = load("mini")
    dense, packed = (whole_video(model, WholeVideo("mini", frames=2, ratio=0.4, kv_dtype=d)) for d in ("auto", "int8"))
    assert packed["kv_dtype"] == "int8"
    saved = dense["variants"]["dense"]["bytes"] - packed["variants"]["dense"]["bytes"]
    spec = model.network.spec.decoder
    # A byte a number in place of four, and a scale of four a head, of all but the last 65 tokens.
    token = 2 * spec.layers * spec.kv_heads * (spec.head_dim * 3 - 4)
    assert saved == token * sum(max(0, index - 65) for index in range(1, 128))


@pytest.mark.slow
def test_a_stopped_video_resumes_behind_its_last_frame(tmp_path: Path) -> None:
    model, file = load("mini"), tmp_path / "video.json"

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        whole_video(model, PLAN, file, lambda done, total: None if done < 4 * 64 else stop(done, total))
    kept = json.loads(file.read_text())["variants"]
    assert [p["first"] for p in kept["dense"]["pieces"]] == [0, 64, 128]
    assert [p["first"] for p in kept["replay"]["pieces"]] == [0]
    heard: list[int] = []
    again = whole_video(model, PLAN, file, lambda done, total: heard.append(done))
    assert heard == [5 * 64, 6 * 64]
    assert json.loads(file.read_text())["variants"]["dense"]["pieces"] == kept["dense"]["pieces"]
    whole = whole_video(model, PLAN)["variants"]
    for variant, line in again["variants"].items():
        assert line["bytes"] == whole[variant]["bytes"]
    with pytest.raises(RequestError, match="another model, plan"):
        whole_video(model, WholeVideo("mini", frames=3, ratio=0.25), file)
    earlier = json.loads(file.read_text())
    del earlier["variants"]["dense"]["pieces"][0]["memory_gb_s"]
    file.write_text(json.dumps(earlier))
    with pytest.raises(RequestError, match=r"not a record of a whole video \(KeyError\)"):
        whole_video(model, PLAN, file)
    file.write_text("[]")
    with pytest.raises(RequestError, match="not a record of a whole video"):
        whole_video(model, PLAN, file)


@pytest.mark.slow
def test_drafts_that_are_always_right_fill_their_windows() -> None:
    model = load("mini")
    right, wrong = (whole_video(model, WholeVideo("mini", frames=3, ratio=0.5, drafts=((8, a),))) for a in (1.0, 0.0))
    # 192 positions; the first has a pass of its own.
    assert right["variants"]["drafts"]["tokens_per_pass"] == pytest.approx(192 / 25)
    assert wrong["variants"]["drafts"]["tokens_per_pass"] == 1.0
    dense, drafts, both = (right["variants"][v]["bytes"] for v in ("dense", "drafts", "both"))
    # The weights of an MLP are spared where all tokens of a pass replay: 0.75^8 of later frames.
    assert dense / 9 < drafts < dense / 7 and 0.9 * drafts < both < drafts


@pytest.mark.slow
def test_a_stretch_with_drafts_is_as_long_as_its_passes_make_it() -> None:
    result = whole_video(load("mini"), WholeVideo("mini", frames=3, ratio=0.5, tokens=20, drafts=((8, 1.0),)))
    assert result["variants"]["drafts"]["tokens_per_pass"] == 8.0
    assert result["variants"]["dense"]["tokens_per_pass"] == 1.0


@pytest.mark.slow
def test_a_video_that_continues_frames_replays_from_its_first_token_on(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    model = load(folder, size=(48, 64))
    whole = whole_video(model, WholeVideo(folder, frames=33, ratio=1.0))
    # Three frames of 12 codes behind the two of the prompt.
    assert whole["tokens"] == 36 and whole["ratio"] == 1.0
    assert whole["variants"]["replay"]["bytes"] < 0.7 * whole["variants"]["dense"]["bytes"]
    drafts = ((4, 1.0), (2, 0.0))
    part = whole_video(model, WholeVideo(folder, 25, 0.5, tokens=8, kv_dtype="int8", drafts=drafts))
    assert list(part["variants"]) == ["dense", "replay", "drafts 1", "both 1", "drafts 0", "both 0"]
    assert [line["tokens_per_pass"] for line in part["variants"].values()] == [1, 1, 4, 4, 1, 1]
    assert len({line["prefill_s"] for line in part["variants"].values()}) == 1
    with pytest.raises(RequestError, match="not made") as caught:
        whole_video(model, WholeVideo(folder, 20, 0.5))
    assert str(caught.value.allowed).startswith("17, 25")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--video", "mini", "--replay-ratio", "0.9"), "allowed: at most 0.875"),
        (("--video", "mini", "--turns", "2"), "--turns has no effect"),
        (("--video", "mini", "--draft", "4,8"), "one is needed for each window"),
        (("--video", "mini", "--draft", "65"), "a frame has 64 tokens"),
        (("--accept", "0.5"), "--accept needs --draft W"),
        (("--draft", "4", "--generate", "2"), "--generate has no effect"),
        (("--draft", "4096"), "a pass takes tokens of one frame"),
        (("--draft", "4", "--window", "4"), "can't be used together"),
        (("--video", "nowhere"), "unknown model"),
        (("--tokens", "5"), "--tokens has no effect"),
    ],
)
def test_what_can_not_be_timed_is_refused(
    arguments: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fastcar", "lab", "bench", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    printed = capsys.readouterr()
    assert stop.value.code == 2 and said in printed.err and printed.out == ""
