"""The world of pushes, and the training of the model that learns it."""

from __future__ import annotations

import functools
import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.training import kill_at, same, stop_before
from typer.testing import CliRunner

from fastcar_cli.cli.app import app
from fastcar_cli.config.tau import Tau
from fastcar_cli.decoding.batch import DecodeSettings
from fastcar_cli.decoding.engine import Decode
from fastcar_cli.decoding.replay.replay import ReplayRule
from fastcar_cli.media import read_frames
from fastcar_cli.models.ivideogpt.network import IVideoGPT
from fastcar_cli.models.sampling import SamplingSettings
from fastcar_lab.training import loop as steps
from fastcar_lab.training.loop import Watch
from fastcar_lab.worlds.mini.analyser import follow
from fastcar_lab.worlds.mini_actions import samples, train_tokenizer, train_transformer
from fastcar_lab.worlds.mini_actions.codes import GRID, dictionary
from fastcar_lab.worlds.mini_actions.hyperparameters import MINI_ACTIONS, TOKENIZER, initialise
from fastcar_lab.worlds.mini_actions.scene import PLACES, Look, Story, centre, draw_story, image, looks, render
from fastcar_lab.worlds.mini_actions.train_transformer import ActionSettings

SPOTS = list(itertools.product(range(PLACES), range(PLACES)))


def _story(*pushes: tuple[int, int]) -> Story:
    return Story(Look("star", "red", "night"), (2, 2), pushes)


def test_a_push_moves_the_object_and_a_wall_stops_it() -> None:
    story = Story(Look("ball", "red", "sky"), (1, 11), ((1, 0), (-2, 2), (-2, 0), (0, -1)))
    assert story.places == [(1, 11), (2, 11), (0, 12), (0, 12), (0, 11)]
    assert story.actions == [(4.0, 0.0), (-8.0, 8.0), (-8.0, 0.0), (0.0, -4.0)]
    assert [(s.shape, s.color, s.x, s.y) for s in follow(render(story)) if s] == [
        ("ball", "red", *centre(spot)) for spot in story.places
    ]


def test_held_out_looks_are_not_trained_on_and_pushes_stay_in_reach() -> None:
    trained, held_out = looks()
    assert len(trained) == 148 and len(held_out) == 20 and not set(trained) & set(held_out)
    rng = random.Random(0)
    stories = [draw_story(trained, rng) for _ in range(200)]
    moves = {axis for s in stories for push in s.pushes for axis in push}
    assert moves == {-2, -1, 0, 1, 2} and {s.start for s in stories} <= set(SPOTS)


def test_following_sees_nothing_where_there_is_no_one_object() -> None:
    frame = image(Look("box", "blue", "sand"), (2, 2))
    two = frame.copy()
    two[40:, 40:] = frame[:24, :24]
    empty = frame.copy()
    empty[:24, :24] = empty[24:48, 24:48]
    seen = follow(np.stack([frame, two, empty]))
    assert seen[0] is not None and (seen[0].x, seen[0].y) == centre((2, 2))
    assert seen[1:] == [None, None]
    assert follow(np.random.default_rng(0).random((2, 64, 64, 3))) == [None, None]


def test_codes_of_a_later_frame_say_where_the_object_is() -> None:
    d = dictionary()
    assert len({tuple(d.later(spot)) for spot in SPOTS}) == len(SPOTS)
    for spot in SPOTS:
        parts = [d.dynamics[code] for code in d.later(spot)]
        assert [patch for patch, _ in parts] == list(itertools.product(range(GRID), range(GRID)))
        assert {where for _, where in parts} == {None, spot}


def test_codes_of_a_given_frame_are_those_of_equal_cells() -> None:
    pixels: dict[Any, Any] = {}
    d = dictionary()
    for look in looks()[0]:
        spot = (3, 8)
        cells = image(look, spot).reshape(16, 4, 16, 4, 3).transpose(0, 2, 1, 3, 4).reshape(256, -1)
        for i, (code, cell) in enumerate(zip(d.given(look, spot), cells, strict=True)):
            # What is behind an object's edge, a cell of the background's 2 x 2, is in no code.
            behind = (look.background, i // 16 % 2, i % 2) if d.context[code][1] >= 0 else ()
            key = (int(code), *behind)
            assert np.array_equal(pixels.setdefault(key, cell), cell)
    assert {code for code, *_ in pixels} == set(range(TOKENIZER.codes))


@pytest.mark.slow
@pytest.mark.parametrize("tau", [float("inf"), 0.0, -0.3, float("-inf")])
def test_training_pass_equals_the_engine_with_replay(tau: float) -> None:
    model = IVideoGPT(MINI_ACTIONS)
    initialise(model, 0)
    batch = train_transformer.draw(2, looks()[0], random.Random(1), futures=2)
    with torch.no_grad():
        hidden, _, shares = train_transformer.hidden_states(model, batch, torch.tensor([tau, tau]))
    lead = TOKENIZER.prompt_tokens
    rule = ReplayRule(Tau((tau,)))
    settings = DecodeSettings(7, SamplingSettings(cfg=1.0), rule, executor="torch")
    codes = batch.ids[:, lead:, None]
    decode = Decode.of(model, batch.ids[:, :lead].tolist(), settings, torch.zeros(codes.shape), None, batch.actions)
    mine = torch.stack([s.hidden[:, 0] for s in decode.steps(codes)])[1:].transpose(0, 1)
    assert float((mine - hidden).abs().max()) < 2e-3
    ratio = float(torch.stack(shares).mean())
    if tau == float("inf"):
        assert decode.replay is None and ratio == 0.0
        return
    assert decode.replay is not None
    assert abs(decode.replay.stats(decode.passed).eligible_ratio - ratio) < 1e-6
    assert 0.0 < ratio <= 1.0


def test_scores_that_training_aims_at_follow_what_changes() -> None:
    still, moved = (_story((0, 0), push, push) for push in ((0, 0), (2, 0)))
    wanted = []
    for story in (still, moved):
        given, later = dictionary().of(story)
        ids = np.pad(later + TOKENIZER.codes, ((0, 0), (1, 0)), constant_values=TOKENIZER.delimiter)
        batch = train_transformer.Batch(
            torch.tensor(np.concatenate([given, ids.ravel()])).long()[None], torch.zeros(1, 4, 2)
        )
        found = train_transformer.target(batch)[0]
        assert found.shape == (2 * TOKENIZER.stride - 1,)
        wanted.append(found[torch.arange(len(found)) % TOKENIZER.stride != 0])
    assert set(wanted[0].tolist()) == {1.5}
    assert set(wanted[1].tolist()) == {-6.0, -1.0, 1.5}
    for before, after, found in zip(later[:-1], later[1:], wanted[1].split(16), strict=True):
        changed = (before != after).tolist()
        # A pass is fed one code and draws the next; behind a frame's last code the delimiter is given.
        assert (found == -6.0).tolist() == [a or b for a, b in zip(changed, [*changed[1:], False], strict=True)][
            : len(found)
        ]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_transformer, "validate", functools.partial(train_transformer.validate, videos=2))
    monkeypatch.setattr(train_tokenizer, "evaluate", functools.partial(train_tokenizer.evaluate, videos=2))
    monkeypatch.setattr(steps, "CHECKPOINT_EVERY", 2)


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("stage", ["base", "replay"])
def test_stopped_and_killed_training_resumes_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    settings = ActionSettings(steps=5, batch=1, bfloat16=False)
    if stage == "replay":
        replaying = settings.replay_stage()
        assert isinstance(replaying, ActionSettings) and replaying.replay
        settings = replaying
    tokenizer, whole, parts = (tmp_path / name for name in ("tokenizer.safetensors", "whole", "parts"))
    train_tokenizer.new_tokenizer().save(tokenizer)
    train_transformer.train(whole, tokenizer, settings)
    with monkeypatch.context() as patch, pytest.raises(steps.OutOfTime, match="step 1 of 5"):
        train_transformer.train(parts, tokenizer, settings, watch=Watch(deadline=stop_before(1, patch)))
    with pytest.raises(KeyboardInterrupt):
        train_transformer.train(parts, tokenizer, settings, watch=Watch(kill_at(4)))
    train_transformer.train(parts, tokenizer, settings)
    rows = [json.loads(line) for line in (parts / "log.jsonl").read_text().splitlines()]
    assert [r["step"] for r in rows] == [1, 2, 3, 4, 5] and ("replayed" in rows[0]) == (stage == "replay")
    assert (parts / "log.jsonl").read_text() == (whole / "log.jsonl").read_text()
    assert same(*(torch.load(p / "checkpoint.pt", weights_only=True) for p in (whole, parts)))


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_stopped_tokenizer_resumes_as_if_it_had_not_been(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / k / "tokenizer.safetensors" for k in ("whole", "parts")]
    said: list[str] = []
    train_tokenizer.train(files[0], steps=4, watch=Watch(said.append))
    assert "tokenizer step 4" in said[-1]
    with monkeypatch.context() as patch, pytest.raises(steps.OutOfTime, match="3 of 4"):
        train_tokenizer.train(files[1], steps=4, watch=Watch(deadline=stop_before(3, patch)))
    assert not files[1].exists()
    train_tokenizer.train(files[1], steps=4)
    assert files[0].read_bytes() == files[1].read_bytes()


def _train(*arguments: str) -> str:
    short = ["--tokenizer-steps", "3", "--base-steps", "1", "--replay-steps", "1", "--batch", "1"]
    made = ["train", "--world", "mini-actions", "-o", "made", *short, "--dtype", "float32", *arguments]
    done = CliRunner().invoke(app, made)
    assert done.exit_code == 0, done.exception
    return done.output


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_train_export_generate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "made/mini-actions" in _train()
    samples.write(Path("clips"), 1, 1)
    given = ["--input", "clips/0.mp4", "--actions", "clips/0.json"]
    for folder in ("made/mini-actions", "made/mini-actions-dense"):
        done = CliRunner().invoke(app, ["generate", "--model", folder, *given, "-o", "a.mp4"])
        assert done.exit_code == 0, done.exception
        assert len(read_frames(tmp_path / "a.mp4")) == MINI_ACTIONS.frames
    assert "more/mini-actions" in _train(
        "-o", "more", "--model", "made/mini-actions", "--stage", "replay", "--stage", "export"
    )
