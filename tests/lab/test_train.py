"""Training: steps that depend on nothing but their number, and the command from nothing to a model that generates."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file
from support.processes import Run
from support.training import kill_at, same, stop_before
from typer.testing import CliRunner

from fastcar_cli.cli.app import app
from fastcar_cli.errors import RequestError
from fastcar_lab import worlds
from fastcar_lab.training import decoder
from fastcar_lab.training import loop as steps
from fastcar_lab.training.decoder import TrainSettings
from fastcar_lab.training.loop import Watch
from fastcar_lab.worlds.mini import train_decoder, train_tokenizer
from fastcar_lab.worlds.mini.hyperparameters import MINI

SMALL = replace(
    MINI,
    decoder=replace(MINI.decoder, width=64, layers=2, mlp_width=64),
    depth=replace(MINI.depth, width=32, hidden=64),
)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder that trains in no time, checked on two videos."""
    monkeypatch.setattr(type(worlds.world("mini")), "spec", SMALL)
    monkeypatch.setattr(train_decoder, "train", functools.partial(train_decoder.train, spec=SMALL))
    monkeypatch.setattr(train_decoder, "validate", functools.partial(train_decoder.validate, videos=2))
    monkeypatch.setattr(train_tokenizer, "evaluate", functools.partial(train_tokenizer.evaluate, count=2))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its file, in a folder where the codes of the world are kept."""
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.safetensors"
    train_tokenizer.Tokenizer.with_dictionary().save(file)
    return file


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("stage", ["base", "replay"])
@pytest.mark.slow
def test_stopped_and_killed_training_resumes_as_if_it_had_not_been(
    tokenizer: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    settings = TrainSettings(steps=5, batch=1, bfloat16=False)
    if stage == "replay":
        settings = settings.replay_stage()
    monkeypatch.setattr(steps, "CHECKPOINT_EVERY", 2)
    whole, parts = (tokenizer.parent / f"{stage}-{k}" for k in ("whole", "parts"))
    train_decoder.train(whole, tokenizer, settings)
    with monkeypatch.context() as patch, pytest.raises(steps.OutOfTime, match="step 1 of 5"):
        train_decoder.train(parts, tokenizer, settings, watch=Watch(deadline=stop_before(1, patch)))
    with pytest.raises(KeyboardInterrupt):
        train_decoder.train(parts, tokenizer, settings, watch=Watch(kill_at(4)))
    said: list[str] = []
    train_decoder.train(parts, tokenizer, settings, watch=Watch(said.append))
    assert "resumed at step 2 of 5" in said
    rows = [json.loads(line) for line in (parts / "log.jsonl").read_text().splitlines()]
    assert [r["step"] for r in rows] == [1, 2, 3, 4, 5]
    assert (parts / "log.jsonl").read_text() == (whole / "log.jsonl").read_text()
    ends = [torch.load(p / "checkpoint.pt", weights_only=True) for p in (whole, parts)]
    assert same(*ends)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_a_stopped_tokenizer_resumes_as_if_it_had_not_been(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / k / "tokenizer.safetensors" for k in ("whole", "parts")]
    train_tokenizer.train(files[0], steps=8)
    for part in ("1 of 2", "3 of 6"):
        # The second call's clock ticks in the encoder's one step left too.
        deadline = stop_before({"1 of 2": 1, "3 of 6": 4}[part], monkeypatch)
        with pytest.raises(steps.OutOfTime, match=part):
            train_tokenizer.train(files[1], steps=8, watch=Watch(deadline=deadline))
        assert not files[1].exists()
    train_tokenizer.train(files[1], steps=8)
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_a_run_resumes_with_its_own_settings_only(tokenizer: Path) -> None:
    settings = TrainSettings(steps=1, batch=1, bfloat16=False)
    train_decoder.train(tokenizer.parent / "base", tokenizer, settings)
    with pytest.raises(RequestError, match="steps was 1, is 2; batch was 1, is 3"):
        train_decoder.train(tokenizer.parent / "base", tokenizer, replace(settings, steps=2, batch=3))


def _train(*arguments: str) -> str:
    short = ["--tokenizer-steps", "4", "--base-steps", "1", "--replay-steps", "1", "--batch", "1"]
    done = CliRunner().invoke(app, ["train", "-o", "made", *short, "--dtype", "float32", *arguments])
    assert done.exit_code == 0, done.exception
    return done.output


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_train_export_generate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "stopped at step 0 of 1 of tokenizer" in _train("--minutes", "0")
    assert not (tmp_path / "made" / "mini").exists()
    assert "fastcar generate --model" in _train()
    done = CliRunner().invoke(app, ["generate", "a red ball", "--model", "made/mini", "--frames", "2", "-o", "a.mp4"])
    assert done.exit_code == 0, done.exception
    assert (tmp_path / "a.mp4").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_training_begins_from_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "made/mini-dense" in _train("--stage", "tokenizer", "--stage", "base", "--stage", "export")
    before = load_file("made/mini-dense/model.safetensors")
    monkeypatch.setattr(decoder, "factor", lambda part, warmup: 0.0)
    _train("-o", "more", "--model", "made/mini-dense", "--stage", "replay", "--stage", "export")
    assert (tmp_path / "more" / "replay" / "checkpoint.pt").exists()
    after = load_file("more/mini/model.safetensors")
    assert before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in before)
    assert not (tmp_path / "more" / "mini-dense").exists()
    for model, said in (("mini", "made of other parts"), ("none", "unknown model")):
        done = CliRunner().invoke(app, ["train", "-o", "new", "--model", model])
        assert isinstance(done.exception, RequestError) and said in str(done.exception)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_a_trained_tokenizer_replaces_its_stage(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _train("--tokenizer", str(tokenizer), "--stage", "base")
    assert (tmp_path / "made" / "tokenizer.safetensors").read_bytes() == tokenizer.read_bytes()
    assert (tmp_path / "made" / "base" / "checkpoint.pt").exists()
    other = tmp_path / "other.safetensors"
    train_tokenizer.Tokenizer().save(other)
    (tmp_path / "broken.safetensors").write_bytes(b"no tokenizer")
    for file, said in (
        (other, "is another one"),
        ("broken.safetensors", "not a tokenizer"),
        ("none", "not a tokenizer"),
    ):
        done = CliRunner().invoke(app, ["train", "-o", "made", "--tokenizer", str(file)])
        assert isinstance(done.exception, RequestError) and said in str(done.exception)
    done = CliRunner().invoke(app, ["train", "-o", "made", "--tokenizer", str(other), "--stage", "tokenizer"])
    assert "replaces --stage tokenizer" in str(done.exception)


def test_two_runs_do_not_train_in_one_folder(tmp_path: Path) -> None:
    with FileLock(tmp_path / ".lock"):
        done = CliRunner().invoke(app, ["train", "-o", str(tmp_path)])
    assert isinstance(done.exception, RequestError) and "another run trains there" in str(done.exception)


@pytest.mark.long
@pytest.mark.slow
def test_the_real_model_trains_resumes_exports_and_generates(process: Run, tmp_path: Path) -> None:
    short = ["--tokenizer-steps", "8", "--base-steps", "2", "--replay-steps", "1", "--batch", "1", "--dtype", "float32"]
    done = process("train", "-o", "made", *short, "--stage", "tokenizer", "--stage", "base")
    assert done.returncode == 0, done.stderr
    log = tmp_path / "made" / "base" / "log.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert [r["step"] for r in rows] == [1, 2]
    done = process("train", "-o", "made", *short)
    assert done.returncode == 0, done.stderr
    assert "resumed at step 2 of 2" in done.stderr
    assert [json.loads(line) for line in log.read_text().splitlines()] == rows
    done = process("generate", "a red ball", "--model", "made/mini", "--frames", "2", "-o", "a.mp4")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.mp4").exists()


@pytest.mark.parametrize(
    "arguments",
    [["--stage", "all"], ["--stage", "replay"], ["--device", "tpu"], ["--dtype", "int8"], ["--base-steps", "0"]],
)
def test_train_refuses_what_it_can_not_do(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["train", "-o", "made", *arguments])
    assert done.exit_code == 2 or isinstance(done.exception, RequestError), done.exception
