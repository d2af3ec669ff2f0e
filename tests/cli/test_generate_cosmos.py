"""`fastcar generate` with random models in Cosmos-Predict1's layout, whose frames of codes stand for 8 pictures."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.cosmos import SIZE, write_model
from support.ivideogpt import moving_clip, write_clip
from support.processes import Run, refused, report_of, runs_small_and_emulated

from fastcar_cli.checkpoints.open import checkpoint_of
from fastcar_cli.config.run_config import RunConfig
from fastcar_cli.media import read_frames
from fastcar_cli.pipeline.resolve import memory_plans
from fastcar_lab.dummy.cosmos import TOKENIZER

N = 12
"""Tokens of a frame of codes."""


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def texted(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("models"), "Cosmos-Predict1-13B-Video2World", 64)


def _begun(model: str, tmp_path: Path, pictures: int = 12) -> list[str]:
    clip = tmp_path / f"clip{pictures}"
    if not clip.exists():
        write_clip(clip, moving_clip(pictures, 48, 64))
    return ["generate", "--model", model, "--size", SIZE, "--input", str(clip), "--seed", "5", "--json"]


@pytest.mark.slow
def test_a_video_gives_its_last_nine_pictures(run: Run, model: str, tmp_path: Path) -> None:
    report = report_of(run(*_begun(model, tmp_path), "--tau", "-0.1", "-o", "out"))
    assert report["input"]["context"] == 9 and report["input"]["frames"] == list(range(3, 12))
    assert report["video"] == {"path": "out", "frames": 33, "height": 48, "width": 64, "fps": 25}
    assert report["tokens"] == {"text": 2 * N, "visual": 3 * N, "rows": 1}
    assert len(report["replay"]["by_frame"]) == 3 and report["replay"]["by_frame"][0] > 0
    assert report["replay"]["ratio"] == report["replay"]["eligible_ratio"]
    assert len(read_frames(Path("out"))) == 33


def test_a_picture_is_continued_too(run: Run, model: str, tmp_path: Path) -> None:
    report = report_of(run(*_begun(model, tmp_path, 1), "--frames", "17", "-o", "out"))
    assert report["input"]["context"] == 1 and report["video"]["frames"] == 17
    assert report["tokens"] == {"text": N, "visual": 2 * N, "rows": 1}


def test_replay_may_begin_at_the_second_frame_of_codes(run: Run, model: str, tmp_path: Path) -> None:
    settings = ["--tau", "-9", "--set", "replay.first_frame=1"]
    replay = report_of(run(*_begun(model, tmp_path), *settings, "-o", "out"))["replay"]
    assert replay["by_frame"] == [0, 1, 1] and replay["eligible_ratio"] == 1


def test_a_ratio_is_kept_from_the_first_frame_on(run: Run, model: str, tmp_path: Path) -> None:
    replay = report_of(run(*_begun(model, tmp_path), "--replay-ratio", "0.8", "-o", "out"))["replay"]
    assert replay["ratio"] == pytest.approx(0.8, abs=0.03) and replay["by_frame"][0] > 0.5


def test_truth_beside_all_pictures_behind_the_last_nine(run: Run, model: str, tmp_path: Path) -> None:
    report = report_of(run(*_begun(model, tmp_path, 35), "--truth", "-o", "both"))
    assert report["input"]["frames"] == list(range(2, 35))
    assert report["truth"]["first_frame"] == 9 and len(report["truth"]["by_frame"]["ssim"]) == 24
    assert (read_frames(Path("both"))[:, :, :64] == moving_clip(35, 48, 64)[2:]).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [["--draft", "jacobi", "--draft-window", "4"], ["--draft", "frame"], ["--executor", "torch"], ["--window", "60"]],
    ids=" ".join,
)
def test_the_same_codes_however_they_are_decoded(run: Run, model: str, tmp_path: Path, options: list[str]) -> None:
    """All tokens lie within the window, or are decoded several a pass, or by the plain executor."""
    begun = [*_begun(model, tmp_path), "--tau", "-0.1"]
    report_of(run(*begun, "--draft", "off", "-o", "plain"))
    report_of(run(*begun, *options, "-o", "other"))
    assert (read_frames(Path("plain")) == read_frames(Path("other"))).all()


@pytest.mark.slow
def test_int8_keys_a_short_window_and_the_accelerator(run: Run, model: str, tmp_path: Path) -> None:
    begun = [*_begun(model, tmp_path), "--tau", "-0.1"]
    runs_small_and_emulated(run, begun, "20")


@pytest.mark.slow
def test_a_sweep_shows_what_each_picture_has(run: Run, model: str, tmp_path: Path) -> None:
    clip = _begun(model, tmp_path)[6]
    options = ["--tau", "off,-0.1", "--repeats", "1", "--set", f"generation.size={SIZE}", "--set", "draft.kind=frame"]
    kept = ["--set", "runtime.keep_prefill=kept.safetensors"]
    done = run("sweep", "--model", model, "--input", clip, *options, *kept, "-o", "sweep")
    assert done.returncode == 0, done.stderr
    dense, replayed = json.loads(Path("sweep/results.json").read_text())["cells"]
    for cell in (dense, replayed):
        shown = cell["drafts"]["map"], cell["replay"]["map"]
        assert [len(pictures) for pictures in shown] == [33, 33] and len(cell["drafts"]["tokens_by_frame"]) == 33
        # Pictures of a frame of codes have what it has.
        assert all(pictures[9] == pictures[16] and not np.any(pictures[8]) for pictures in shown)
    assert np.any(replayed["replay"]["map"][9]) and Path("kept.safetensors").exists()


@pytest.mark.slow
def test_a_recipe_makes_the_video_again(run: Run, model: str, tmp_path: Path) -> None:
    report_of(run(*_begun(model, tmp_path, 1), "--frames", "25", "--tau", "-0.1", "-o", "first.mp4"))
    report_of(run("generate", "--from", "first.mp4", "--model", model, "--json", "-o", "again.mp4"))
    assert Path("first.mp4").read_bytes() == Path("again.mp4").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int4", "int8", "bfloat16"])
def test_a_converted_folder_holds_model_and_tokenizer(run: Run, model: str, tmp_path: Path, dtype: str) -> None:
    assert run("convert", model, "-o", "packed", "--dtype", dtype).returncode == 0
    report = report_of(run(*_begun("packed", tmp_path), "-o", "out"))
    assert report["model"]["dtype"] == dtype and report["video"]["frames"] == 33


@pytest.mark.slow
def test_a_text_as_vectors(run: Run, texted: str, tmp_path: Path) -> None:
    videos = []
    for i, row in enumerate((0.0, 3.0)):
        vectors = np.full((512, 64), row, np.float32)
        np.save("text.npy", vectors)
        # As encoders return it, a batch of one.
        torch.save(torch.from_numpy(vectors)[None], "text.pt")
        file = ("text.npy", "text.pt")[i]
        report_of(run(*_begun(texted, tmp_path), "--temperature", "0", "--text-embedding", file, "-o", f"out{i}"))
        videos.append(read_frames(Path(f"out{i}")))
    assert (videos[0][:9] == videos[1][:9]).all() and (videos[0] != videos[1]).any()


@pytest.mark.slow
def test_dry_run_names_both_folders(run: Run, model: str) -> None:
    report = report_of(run("generate", "--model", model, "--dry-run", "--json"))
    beside = f"../{TOKENIZER}"
    assert sorted(report["files"]) == [f"{beside}/decoder.jit", f"{beside}/encoder.jit", "model.pt"]
    # Of 640 x 1024 pixels: 12,799 tokens of 2 KV heads of 32 numbers in 2 layers, twice, in float32.
    assert report["kv_cache_bytes"] == 12799 * 2 * 32 * 2 * 2 * 4 and report["max_replay_ratio"] == 1


@pytest.mark.parametrize("name", ["cosmos-predict1-4b", "cosmos-predict1-12b", "cosmos-predict1-13b-video2world"])
def test_published_models_are_planned_without_their_files(name: str) -> None:
    plan = memory_plans(RunConfig(model=name), device="cpu", checkpoint=checkpoint_of(name))["bfloat16"]
    billions = {"4b": 4.014, "12b": 11.561, "13b-video2world": 13.323}[name.removeprefix("cosmos-predict1-")]
    # The tokenizer's 0.11 billion are held in float32; the table of a model with text has 64 rows more.
    assert plan.weights / 1e9 == pytest.approx(2 * billions + 4 * 0.111, abs=0.01)


def test_the_gate_of_the_hub_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub.errors import GatedRepoError

    from fastcar_cli.checkpoints.hub import fetch
    from fastcar_cli.errors import RunError

    def gated(*_: Any, **__: Any) -> None:
        raise GatedRepoError("403", response=type("R", (), {"headers": {}, "request": None})())

    for name in ("hf_hub_download", "snapshot_download"):
        monkeypatch.setattr(huggingface_hub, name, gated)
    with pytest.raises(RunError, match="you must accept its terms first") as caught:
        fetch("nvidia/Cosmos-Predict1-4B")
    assert "https://huggingface.co/nvidia/" in str(caught.value.hint) and "hf auth login" in str(caught.value.hint)


class _Calls:
    def __reduce__(self) -> Any:
        return os.system, ("touch ran",)


@pytest.mark.slow
def test_wrong_requests(run: Run, model: str, texted: str, tmp_path: Path) -> None:
    begun = _begun(model, tmp_path)
    refused(run(*begun, "--frames", "20"), "decodes 8 frames at a time after the first", "17, 25, 33")
    refused(run(*begun, "--frames", "41"), "33 frames")
    refused(run(*begun, "--context", "5"), "1 or 9")
    refused(run(*_begun(model, tmp_path, 5)), "has 5 frames", "expected 9 context frames")
    refused(run(*begun, "--size", "65x48"), "width and height in multiples of 16 up to 1024x640")
    refused(run("generate", "a ball", "--model", model), "takes no text")
    refused(run(*_begun(texted, tmp_path)), "no text embedding", "--text-embedding FILE")
    np.save("text.npy", np.zeros((513, 64), np.float32))
    refused(run(*_begun(texted, tmp_path), "--text-embedding", "text.npy"), "[513, 64]", "1 to 512")
    refused(run(*begun, "--actions", begun[6]), "takes no actions")


def _save(folder: Path, tensors: Any, **options: Any) -> None:
    torch.save(tensors, folder / "model.pt", **options)


@pytest.mark.slow
def test_wrong_files(run: Run, model: str, tmp_path: Path) -> None:
    tensors = torch.load(Path(model) / "model.pt", weights_only=True)
    folder = Path(shutil.copytree(model, tmp_path / "Cosmos"))
    beside = Path(shutil.copytree(Path(model).parent / TOKENIZER, tmp_path / TOKENIZER))
    begun = ["generate", "--model", str(folder), "--dry-run"]
    _save(folder, {"model": {**{f"model.{k}": t for k, t in tensors.items()}, "model.x._extra_state": b"1"}})
    assert run(*begun).returncode == 0
    for wrong, *said in (
        ({k: t for k, t in tensors.items() if k != "output.weight"}, "lacks key 'output.weight'"),
        ({**tensors, "output.weight": torch.zeros(9, 64)}, "9 rows", "48 codes"),
        ({"a": _Calls()}, "holds objects other than tensors", "fastcar did not load the file"),
        ([1], "a mapping from names to tensors"),
    ):
        _save(folder, wrong)
        refused(run(*begun), "model.pt", *said)
    assert not Path("ran").exists()
    _save(folder, tensors, _use_new_zipfile_serialization=False)
    refused(run(*begun), "is damaged")
    (folder / "model.pt").write_bytes((Path(model) / "model.pt").read_bytes()[:20000])
    refused(run(*begun), "is damaged")
    refused(run("generate", "--model", str(beside), "--dry-run"), "is the folder of Cosmos' tokenizer", "model.pt")
    shutil.rmtree(beside)
    refused(run(*begun), "no tokenizer beside it", "Cosmos-Tokenize1-DV8x16x16-720p")
