"""`fastcar generate` with random models in RLVR-World's layout: frames and actions in, frames out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from support.ivideogpt import moving_clip, write_clip
from support.processes import Run, refused, report_of, runs_small_and_emulated
from support.rlvr import write_model

from fastcar_cli.checkpoints.open import checkpoint_of
from fastcar_cli.config.run_config import RunConfig
from fastcar_cli.media import read_frames
from fastcar_cli.pipeline.resolve import memory_plans

KINDS = ["single", "multi"]
CONTEXT = {"single": 4, "multi": 2}
STRIDE = {"single": 334, "multi": 93}


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    return {kind: write_model(folder, kind) for kind in KINDS}


def _moves(count: int, width: int = 13) -> str:
    rows = np.random.default_rng(3).uniform(-1, 1, (count, width))
    Path("moves.json").write_text(json.dumps(rows.tolist()))
    return "moves.json"


def _begun(model: str, frames: int = 10, actions: int = 13) -> list[str]:
    if not Path(f"clip{frames}").exists():
        write_clip(Path(f"clip{frames}"), moving_clip(frames, 64, 80))
    asked = ["--input", f"clip{frames}", "--actions", _moves(24, actions), "--seed", "5", "--json"]
    return ["generate", "--model", model, *asked]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_clip_and_actions_give_frames(run: Run, models: dict[str, str], kind: str) -> None:
    frames = CONTEXT[kind] + 2
    report = report_of(run(*_begun(models[kind]), "--frames", str(frames), "--tau", "-0.15", "-o", "out"))
    assert report["input"]["context"] == CONTEXT[kind]
    assert report["video"] == {"path": "out", "frames": frames, "height": 64, "width": 80, "fps": 3}
    assert report["tokens"]["visual"] == 2 * STRIDE[kind]
    # The frames of the prompt are in the replay cache, so that the first decoded one replays too.
    assert report["replay"]["by_frame"][0] > 0
    assert len(read_frames(Path("out"))) == frames


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options",
    [["--draft", "jacobi", "--draft-window", "4"], ["--draft", "frame"], ["--executor", "torch"], ["--window", "1800"]],
    ids=" ".join,
)
def test_the_same_frames_however_they_are_decoded(
    run: Run, models: dict[str, str], kind: str, options: list[str]
) -> None:
    """All tokens lie within the window, or are decoded several a pass, or by the plain executor."""
    begun = [*_begun(models[kind]), "--frames", str(CONTEXT[kind] + 2), "--tau", "-0.15"]
    report_of(run(*begun, "--draft", "off", "-o", "plain"))
    report_of(run(*begun, *options, "-o", "other"))
    assert (read_frames(Path("plain")) == read_frames(Path("other"))).all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_actions_change_the_frames_after_them(run: Run, models: dict[str, str], kind: str) -> None:
    begun = [*_begun(models[kind]), "--frames", str(CONTEXT[kind] + 2)]
    report_of(run(*begun, "-o", "one"))
    rows = json.loads(Path("moves.json").read_text())
    # The action that leads to the last frame is that of the frame before it.
    rows[CONTEXT[kind]] = [0.9] * 13
    Path("moves.json").write_text(json.dumps(rows))
    report_of(run(*begun, "-o", "two"))
    one, two = (read_frames(Path(name)) for name in ("one", "two"))
    assert (one[:-1] == two[:-1]).all() and (one[-1] != two[-1]).any()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_int8_keys_a_short_window_and_the_accelerator(run: Run, models: dict[str, str], kind: str) -> None:
    begun = [*_begun(models[kind]), "--frames", str(CONTEXT[kind] + 1), "--tau", "-0.15"]
    runs_small_and_emulated(run, begun, "400")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_recipe_makes_the_video_again(run: Run, models: dict[str, str], kind: str) -> None:
    options = ["--frames", str(CONTEXT[kind] + 1), "--tau", "-0.15", "-o", "first.mp4"]
    report_of(run(*_begun(models[kind]), *options))
    report_of(run("generate", "--from", "first.mp4", "--model", models[kind], "--json", "-o", "again.mp4"))
    assert Path("first.mp4").read_bytes() == Path("again.mp4").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["int4", "int8", "bfloat16"])
def test_a_converted_folder_holds_model_and_tokenizer(run: Run, models: dict[str, str], kind: str, dtype: str) -> None:
    done = run("convert", models[kind], "-o", "packed", "--dtype", dtype)
    assert done.returncode == 0, done.stderr
    report = report_of(run(*_begun("packed"), "--frames", str(CONTEXT[kind] + 1), "-o", "out"))
    assert report["model"]["dtype"] == dtype and report["video"]["frames"] == CONTEXT[kind] + 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_frames_drawn_in_bfloat16_have_the_same_codes(run: Run, models: dict[str, str], kind: str) -> None:
    begun = [*_begun(models[kind]), "--frames", str(CONTEXT[kind] + 1), "--trace"]
    report_of(run(*begun, "whole.npz", "-o", "whole"))
    report_of(run(*begun, "half.npz", "--set", "runtime.pixel_dtype=bfloat16", "-o", "half"))
    whole, half = (read_frames(Path(name)).astype(int) for name in ("whole", "half"))
    assert 0 < np.abs(whole - half).mean() < 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_extended_video_equals_the_longer_one(run: Run, models: dict[str, str], kind: str) -> None:
    """Past the trained length, where the context rolls."""
    first, whole = (5, 6) if kind == "single" else (9, 11)
    report_of(run(*_begun(models[kind]), "--frames", str(first), "-o", "a.mp4"))
    # Rows for the new frames, of which the first belongs to the last frame that there is.
    Path("more.json").write_text(json.dumps(json.loads(Path("moves.json").read_text())[first - 1 :]))
    more = ["--frames", str(whole - first), "--actions", "more.json", "--json", "-o", "b.mp4"]
    report_of(run("generate", "--continue", "a.mp4", "--model", models[kind], *more))
    report_of(run(*_begun(models[kind]), "--frames", str(whole), "-o", "c.mp4"))
    assert len(read_frames(Path("b.mp4"))) == whole
    assert (read_frames(Path("b.mp4")) == read_frames(Path("c.mp4"))).all()


@pytest.mark.slow
def test_truth_beside_the_frames(run: Run, models: dict[str, str]) -> None:
    report = report_of(run(*_begun(models["multi"]), "--frames", "4", "--truth", "-o", "both"))
    assert report["truth"]["first_frame"] == 2 and len(report["truth"]["by_frame"]["ssim"]) == 2
    assert (read_frames(Path("both"))[:, :, :80] == moving_clip(10, 64, 80)[:4]).all()


@pytest.mark.slow
def test_frames_of_another_size_are_resized_as_in_training(run: Run, models: dict[str, str]) -> None:
    """Bilinear with antialias, whatever the aspect."""
    wide = moving_clip(4, 96, 200)
    whole = torch.from_numpy(wide).permute(0, 3, 1, 2).float() / 255
    small = torch.nn.functional.interpolate(whole, (64, 80), mode="bilinear", antialias=True).permute(0, 2, 3, 1)
    np.savez("wide.npz", image=wide)
    np.savez("small.npz", image=255 * small.numpy())
    asked = ["generate", "--model", models["single"], "--actions", _moves(8), "--seed", "5", "--json"]
    for name in ("wide", "small"):
        report_of(run(*asked, "--input", f"{name}.npz", "-o", name))
    assert (read_frames(Path("wide")) == read_frames(Path("small"))).all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_sweep_decodes_every_cell(run: Run, models: dict[str, str], kind: str) -> None:
    asked = _begun(models[kind])[3:7]
    frames = CONTEXT[kind] + 1
    options = ["--frames", str(frames), "--tau", "off,-0.15", "--repeats", "1", "-o", "sweep"]
    done = run("sweep", "--model", models[kind], *asked, *options)
    assert done.returncode == 0, done.stderr
    dense, replayed = json.loads(Path("sweep/results.json").read_text())["cells"]
    assert not np.any(dense["replay"]["map"]) and np.any(replayed["replay"]["map"][-1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_dry_run_and_profile_without_frames(run: Run, models: dict[str, str], kind: str) -> None:
    report = report_of(run("generate", "--model", models[kind], "--dry-run", "--json"))
    beside = {"single": "rt1-frame-tokenizer", "multi": "rt1-compressive-tokenizer"}[kind]
    assert sorted(report["files"]) == [f"../{beside}/diffusion_pytorch_model.safetensors", "model.safetensors"]
    done = run("profile", "--model", models[kind], "--repeats", "1", "--seq", "1400", "--json")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("name", "tokenizer", "model"), [("single", 104.41, 120.38), ("multi", 129.45, 127.10)])
def test_published_models_are_planned_without_their_files(name: str, tokenizer: float, model: float) -> None:
    name = f"rt1-world-model-{name}-step-rlvr"
    plan = memory_plans(RunConfig(model=name), device="cpu", checkpoint=checkpoint_of(name))["float32"]
    assert plan.weights / 4e6 == pytest.approx(tokenizer + model, abs=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_wrong_requests(run: Run, models: dict[str, str], kind: str) -> None:
    model = models[kind]
    refused(run(*_begun(model, actions=7)), "7", "13")
    refused(run(*_begun(model, actions=12)), "12", "13")
    refused(run("generate", "a robot", "--model", model), "takes")
    short = _begun(model)
    Path("moves.json").write_text(json.dumps([[0.0] * 13] * 2))
    refused(run(*short, "--frames", str(CONTEXT[kind] + 3)), "actions")
    if kind == "single":
        refused(run(*_begun(model, frames=3)), "has 3 frames")


@pytest.mark.slow
def test_wrong_folders(run: Run, models: dict[str, str], tmp_path: Path) -> None:
    here = {kind: Path(shutil.copytree(folder, tmp_path / kind / kind)) for kind, folder in models.items()}
    beside = Path(models["single"]).parent
    refused(run("generate", "--model", str(here["single"]), "--dry-run"), "no tokenizer beside it", "rt1-frame-token")
    refused(run("generate", "--model", str(beside / "rt1-frame-tokenizer"), "--dry-run"), "folder of a tokenizer")
    frame = Path(shutil.copytree(beside / "rt1-frame-tokenizer", tmp_path / "multi" / "rt1-frame-tokenizer"))
    refused(run("generate", "--model", str(here["multi"]), "--dry-run"), "'vocab_size' is 738, expected 498", "bins")
    (here["single"] / "model.safetensors").rename(here["single"] / "pytorch_model.bin")
    shutil.copytree(frame, tmp_path / "single" / "rt1-frame-tokenizer")
    refused(run(*_begun(str(here["single"]))), "safetensors file, not pytorch_model.bin")
