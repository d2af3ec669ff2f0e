"""The world of `table-actions`: how things move, what codes say, and that what is trained is what decodes."""

from __future__ import annotations

import functools
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from fastcar_cli.checkpoints.open import folder_of
from fastcar_cli.cli.app import app
from fastcar_cli.config.run_config import load_config
from fastcar_cli.decoding.batch import DecodeSettings
from fastcar_cli.decoding.engine import Decode
from fastcar_cli.inputs.prompt import Clip, TokenisedClip
from fastcar_cli.models.bundled.patch_tokenizer import PatchTokenizer
from fastcar_cli.models.bundled.steered import SteeredSpec
from fastcar_cli.models.sampling import SamplingSettings
from fastcar_cli.pipeline.pipeline import VideoPipeline
from fastcar_lab.worlds.table.scene import GROUNDS, LIGHTS
from fastcar_lab.worlds.table_actions import scene as world
from fastcar_lab.worlds.table_actions import sessions, train_tokenizer, train_transformer
from fastcar_lab.worlds.table_actions.codes import GROUND_CODES, PLACES, encode, object_code, objects
from fastcar_lab.worlds.table_actions.evaluate import judge, seen_in, steps_right
from fastcar_lab.worlds.table_actions.frames import render, watch
from fastcar_lab.worlds.table_actions.hyperparameters import TABLE_ACTIONS, TOKENIZER
from fastcar_lab.worlds.table_actions.learner import Learner, Logits, initialise, network_of
from fastcar_lab.worlds.table_actions.mistakes import clips, wanted
from fastcar_lab.worlds.table_actions.samples import held_out, kept_places, play
from fastcar_lab.worlds.table_actions.scene import Look, Scene, State, step
from fastcar_lab.worlds.table_actions.train_tokenizer import ActionsTokenizer, evaluate, frames_of
from fastcar_lab.worlds.table_actions.train_transformer import ActionSettings, draw, loss_of
from fastcar_lab.worlds.table_actions.world import TableActions, export, write

RIGHT, LEFT, FRONT, NOTHING = (1, 0), (-1, 0), (0, 1), (0, 0)
BALL, CUBE, RING = Look("ball", "metal", "red"), Look("cube", "rubber", "blue"), Look("ring", "metal", "green")


def _played(looks: tuple[Look, ...], state: State, actions: list[tuple[int, int]]) -> list[State]:
    halves = Scene(looks, "wood", "day").halves
    states = [state, state]
    for action in actions:
        states.append(step(states[-2], states[-1], action, halves))
    return states[1:]


def test_the_ball_gains_speed_and_loses_it() -> None:
    xs = [state[0][0] for state in _played((BALL,), ((10, 30),), [RIGHT] * 4 + [NOTHING] * 4)]
    assert np.diff(xs).tolist() == [1, 2, 3, 3, 2, 1, 0, 0]
    ys = [state[0][1] for state in _played((BALL,), ((10, 30),), [FRONT, FRONT, RIGHT, RIGHT])]
    assert np.diff(ys).tolist() == [1, 2, 1, 0]


def test_what_is_hit_slides_on_by_itself() -> None:
    states = _played((BALL, CUBE), ((10, 30), (30, 32)), [RIGHT] * 4 + [NOTHING] * 6)
    cube = np.diff([state[1][0] for state in states])
    assert cube.max() == 4 and cube[-1] == 0 and (np.diff(cube[cube.argmax() :]) <= 0).all()
    assert states[-1][1][0] - states[-1][0][0] > 14 and all(state[1][1] == 32 for state in states)
    # Beside it, not at it.
    assert all(state[1] == (30, 38) for state in _played((BALL, CUBE), ((10, 30), (30, 38)), [RIGHT] * 12))


def test_what_is_hit_hits_what_is_behind_it() -> None:
    states = _played((BALL, CUBE, RING), ((8, 30), (24, 30), (39, 30)), [RIGHT] * 5 + [NOTHING] * 6)
    assert states[-1][2][0] > 39 and states[-1][1][0] > 24


def test_at_the_border_all_of_them_stop() -> None:
    states = _played((BALL, CUBE), ((30, 30), (50, 30)), [RIGHT] * 20)
    assert states[-1] == states[-2] == ((43, 30), (57, 30))
    states = _played((BALL, CUBE), ((30, 30), (31, 50)), [FRONT] * 20)
    assert states[-1][1][1] == world.BOTTOM and states[-1][0][1] == world.BOTTOM - world.DEPTH


def test_nothing_overlaps_leaves_the_frame_or_shares_a_place_of_codes() -> None:
    for seed in range(40):
        session = play(random.Random(seed), 60)
        codes = encode(session.scene, session.states)
        halves = session.scene.halves
        for before, state, row in zip(session.states, session.states[1:], codes[1:], strict=False):
            assert not world.touches(state, halves)
            assert all(half <= x <= 64 - half for (x, _), half in zip(state, halves, strict=True))
            steps = np.abs(np.subtract(state, before)).max(1)
            assert steps[0] <= world.FASTEST and steps.max() <= world.KICKED
            assert list(objects(row)) and sorted(map(repr, objects(row))) == sorted(
                map(repr, zip(session.scene.looks, state, strict=True))
            )
        # Under an object the ground is that of the border, where no object can be.
        assert (codes[:, [*range(8), *range(56, 64)]] < GROUND_CODES).all()


def test_sessions_push_things_and_scenes_are_held_out() -> None:
    played = [play(random.Random(seed), 48) for seed in range(60)]
    assert sum(any(s[1:] != p.states[0][1:] for s in p.states) for p in played) >= 30
    assert not any(held_out(p.scene) for p in played) and held_out(play(random.Random(1), 2, kept_out=True).scene)
    assert {len(p.scene.looks) for p in played} == {2, 3, 4}


def test_frames_are_those_of_table() -> None:
    session = play(random.Random(3), 2)
    frames = render(session.scene, session.states)
    assert frames.shape == (2, 128, 128, 3) and len(np.unique(frames.reshape(-1, 3), axis=0)) > 500


def test_places_that_are_trained_on_are_those_of_objects_first() -> None:
    for clip, _ in zip(clips(random.Random(2), 6, 0.2), range(50), strict=False):
        chosen = kept_places(clip, 20, random.Random(0))
        there = set(np.nonzero(clip.right >= GROUND_CODES)[1].tolist())
        assert len(chosen) == 20 and (len(there) > 8 or there <= set(chosen))


def test_the_judge_knows_right_from_wrong() -> None:
    played = [play(random.Random(seed), 17) for seed in range(30)]
    scenes, truths = [p.scene for p in played], [p.states for p in played]
    right = [[seen_in(row) for row in encode(p.scene, p.states)] for p in played]
    shares = judge(scenes, truths, right)
    assert (shares.obeys, shares.kept, shares.pushed, shares.all_near) == (1, 1, 1, 1)
    still = [[frames[0]] * len(frames) for frames in right]
    shares = judge(scenes, truths, still)
    assert shares.obeys < 0.5 and shares.pushed == 0 and shares.kept == 1
    gone = [[*frames[:-1], dict(list(frames[-1].items())[1:])] for frames in right]
    assert judge(scenes, truths, gone).kept == 0


def test_what_should_be_drawn_follows_from_what_was_drawn_before() -> None:
    scene, state = Scene((BALL, CUBE), "wood", "day"), ((24, 30), (48, 30))
    right = encode(scene, [state])[0]
    assert (wanted(scene, state, right) == right).all()
    (at, code), (other, _) = (object_code(look, place) for look, place in zip(scene.looks, state, strict=True))
    empty = encode(Scene((), "wood", "day"), [()])[0]
    # It was drawn a place too early, so it is not drawn again.
    early = right.copy()
    early[[at - 1, at]] = object_code(BALL, (23, 30))[1], empty[at]
    assert (wanted(scene, state, early) == np.where(np.arange(PLACES) == at, empty, right)).sum() == PLACES
    # It was left out: at its place's left border too far from the next one, at the right one beside that.
    gone = np.where(np.arange(PLACES) == at, empty, right)
    assert (wanted(scene, state, gone) == right).all()
    state = ((31, 30), (48, 30))
    again = wanted(scene, state, np.where(np.arange(PLACES) == at, empty, encode(scene, [state])[0]))
    assert (
        again[at + 1] == object_code(BALL, (32, 30))[1] and (np.delete(again, [at, at + 1, other]) < GROUND_CODES).all()
    )
    assert code == right[at]


def test_clips_with_many_mistakes_say_how_to_continue() -> None:
    source = clips(random.Random(2), 8, 0.2)
    some = [next(source) for _ in range(200)]
    wrong = np.array([(clip.seen != clip.right).any(1) for clip in some])
    assert not wrong[:, :2].any() and 0.1 < wrong[:, 2:].mean() < 0.25
    assert not any(clip.counts[0] for clip in some) and all(clip.counts[2:].all() for clip in some)
    for clip in some:
        first = {look for look, _ in objects(clip.seen[0])}
        clean = [frame for frame, off in zip(clip.seen, (clip.seen != clip.right).any(1), strict=True) if not off]
        # Whatever was lost is there again.
        assert sum({look for look, _ in objects(frame)} == first for frame in clean) >= len(clean) - 1
    batch = draw(iter(some), 2, PLACES, random.Random(0), 6.0)
    assert batch.codes.shape == (2, 511) and not batch.weights[:, : PLACES - 1].any()


@pytest.fixture(scope="module")
def learner() -> Learner:
    torch.manual_seed(0)
    model = Learner()
    initialise(model, 0)
    # Of as likely codes the engine may choose another one.
    with torch.no_grad():
        for part in (model.outputs.ground, *model.outputs.parts, model.outputs.object):
            part.normal_()
    return model


@pytest.fixture(scope="module")
def folder(learner: Learner, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("model")
    # Of equally likely codes the first is taken, so that every frame takes two passes.
    weights = {k: torch.zeros_like(v) if k.startswith("outputs.") else v for k, v in learner.state_dict().items()}
    torch.save({"model": weights}, out / "checkpoint.pt")
    ActionsTokenizer().save(out / "tokenizer.safetensors")
    export(TABLE_ACTIONS, out / "table-actions", out / "checkpoint.pt", out / "tokenizer.safetensors")
    return out / "table-actions"


def test_logits_by_part_are_those_of_the_whole_vocabulary(learner: Learner) -> None:
    batch = draw(clips(random.Random(0), 6, 0.0), 3, 20, random.Random(0), 6.0)
    hidden, _, _ = learner.hidden(batch.codes, batch.actions, batch.index)
    network, logits = network_of(learner), Logits(hidden, learner.outputs)
    whole = network.lm_head(hidden)
    wanted = torch.nn.functional.cross_entropy(whole.flatten(0, 1), batch.right.flatten(), reduction="none")
    torch.testing.assert_close(logits.losses(batch.right).flatten(), wanted, rtol=1e-4, atol=1e-4)
    assert (logits.best() == whole.argmax(-1)).all()
    torch.testing.assert_close(learner.inputs(batch.codes), network.llm.embed_tokens(batch.codes))
    loss, _ = loss_of(learner, batch, ActionSettings(1, bfloat16=False))
    loss.backward()
    assert all(p.grad is not None for name, p in learner.named_parameters() if "embed" not in name)


def test_the_engine_computes_what_training_does(learner: Learner) -> None:
    session = play(random.Random(5), 8)
    codes = torch.from_numpy(encode(session.scene, session.states)).view(1, -1)
    actions = torch.tensor([session.actions], dtype=torch.float32)
    trained, _, _ = learner.hidden(codes[:, :-1], actions, torch.arange(codes.shape[1] - 1)[None])
    network = network_of(learner).eval().requires_grad_(False)
    dense = DecodeSettings(5, SamplingSettings(cfg=1.0, temperature=0.0), executor="torch")
    prompt, rest = codes[:, : 3 * PLACES], codes[:, 3 * PLACES :, None]
    decode = Decode.of(network, prompt.tolist(), dense, torch.zeros(rest.shape), None, actions)
    decoded = torch.stack([step.hidden[:, 0] for step in decode.steps(rest)], 1)
    torch.testing.assert_close(decoded, trained[:, 3 * PLACES - 1 :], rtol=1e-3, atol=1e-3)


def test_a_trained_model_is_a_folder_that_runs_and_is_steered(folder: Path) -> None:
    scene, prompt = TableActions().held_out(1, 5)[0]
    pipe = VideoPipeline.from_config(load_config(None, [], {"model": str(folder), "generation.frames": 6}))
    assert isinstance(pipe.spec, SteeredSpec) and pipe.spec == TABLE_ACTIONS
    codes = encode(scene.scene, scene.states[:3]).ravel()
    assert isinstance(prompt, Clip) and len(scene.states) == 19 and scene.states[0] == scene.states[2]
    frames = list(pipe.stream([TokenisedClip(tuple(codes.tolist()), prompt.actions)], seeds=[1]))
    assert len(frames) == 6 and frames[0].image.shape == (128, 128, 3) and len(pipe.prompt_ids(0)) == 3 * PLACES
    assert len(list(pipe.stream([prompt], seeds=[1]))) == 6
    world = pipe.play(prompt.frames[0], seed=1)
    for action in [RIGHT, LEFT, NOTHING, FRONT] * 3:
        image, _ = world.step(action)
    assert image.shape == (128, 128, 3) and world.codes.shape == (12 * PLACES, 1)


def test_a_context_that_rolls_has_the_objects_of_its_first_frame() -> None:
    scene, states = Scene((BALL, CUBE), "wood", "day"), [((20 + t, 30), (48, 30)) for t in range(5)]
    right = torch.from_numpy(encode(scene, states))
    tokenizer, wrong = PatchTokenizer(TOKENIZER), right.clone()
    assert (tokenizer.settled(right[None])[0] == right).all()
    wrong[1, 40], wrong[2, 41] = object_code(BALL, (2, 45))[1], object_code(RING, (12, 45))[1]
    for t, look in ((3, 1), (4, 1), (4, 0)):
        at = object_code(scene.looks[look], states[t][look])[0]
        wrong[t, at] = right[0, at % 2]
    settled = tokenizer.settled(wrong[None])[0]
    # Another ball and a ring go, the cube that is missing is where it was, and the ball too in the last frame.
    assert (settled[:4] == right[:4]).all()
    assert (settled[4] == torch.from_numpy(encode(scene, [(states[3][0], states[4][1])])[0])).all()


@pytest.mark.slow
@torch.no_grad()
def test_the_tokenizer_draws_and_reads_what_it_has_to() -> None:
    model = ActionsTokenizer()
    frames, codes = frames_of(random.Random(0), 4)
    tokenizer = model.finished()
    drawn = tokenizer.render(codes).detach().round().numpy()
    # Before it has learned anything, it draws the empty ground.
    empty = np.stack([render(Scene((), s.ground, s.light), [()])[0] for s in _scenes_of(codes)])
    assert np.abs(drawn - empty).max() <= 1 and (drawn != frames).any()
    assert tokenizer.tokenize(torch.zeros(2, 3, 3, 128, 128)).shape == (2, 192)
    numbers = torch.zeros(1, 1 + TOKENIZER.plain + sum(TOKENIZER.parts), 8, 8)
    at, code = object_code(CUBE, (20, 40))
    kind, color, right, down = (int(n) for n in np.unravel_index(code - GROUND_CODES, TOKENIZER.parts))
    begins = [int(n) for n in np.cumsum([1 + TOKENIZER.plain, *TOKENIZER.parts])]
    numbers[0, 0] = -1
    for begin, value in zip((0, *begins), (0, kind, color, right, down), strict=False):
        numbers[0, begin + value, at // 8, at % 8] = 1
    made, choices = tokenizer.choices(numbers[0])
    assert made.argmax() == at and (made > 0).sum() == 1 and choices[at, 1] == code and (choices[:, 0] < 32).all()
    assert set(evaluate(tokenizer, 4)) == {"psnr_db", "objects_psnr_db", "read_objects", "read_frames"}


def _scenes_of(codes: torch.Tensor) -> list[Scene]:
    grounds = [(g, light) for g in GROUNDS for light in LIGHTS]
    return [Scene((), *grounds[int(row[0]) // 4]) for row in codes]


def test_single_steps_are_judged_from_what_is_seen() -> None:
    pushed = 0
    for seed in range(20):
        session = play(random.Random(seed), 40)
        frames = [seen_in(row) for row in encode(session.scene, session.states)]
        steps = steps_right(session.scene, frames, session.actions)
        assert steps.steered == (39, 39) and steps.pushed[0] == steps.pushed[1]
        pushed += steps.pushed[1]
        # An object that is missing, and frames in another order.
        gone = [*frames[:5], dict(list(frames[5].items())[1:]), *frames[6:]]
        assert steps_right(session.scene, gone, session.actions).steered[1] == 36
        assert steps_right(session.scene, frames[::-1], session.actions).steered[0] < 39
    assert pushed > 10


def test_sessions_of_a_model_are_measured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # It takes long to look at frames as such a model makes them.
    monkeypatch.setattr(sessions, "watch", lambda video: [{} for _ in video])
    pipe = VideoPipeline.from_config(load_config(None, [], {"model": str(folder)}))
    found = sessions.measure(pipe, 1, 20)
    assert found["kept"] == 0 and found["kept_frames"] < 1 and found["steered_of"] <= 19


def test_the_analyser_sees_what_is_rendered() -> None:
    played = [play(random.Random(seed), 8) for seed in (100, 102, 103)]
    videos = [watch(render(p.scene, p.states)) for p in played]
    shares = judge([p.scene for p in played], [p.states for p in played], videos)
    assert shares.obeys == 1 and shares.kept == 1


@pytest.fixture(scope="module")
def bundled() -> VideoPipeline:
    return VideoPipeline.from_config(load_config(None, [], {"model": "table-actions"}))


@pytest.mark.slow
def test_the_bundled_ball_obeys_and_pushes(bundled: VideoPipeline) -> None:
    # One session in which the ball misses an object loses most of its frames: fewer are too few for a share.
    played = [play(random.Random(seed), 13, kept_out=True) for seed in range(64)]
    seen = []
    for session in played:
        steered = bundled.play(render(session.scene, session.states[:1])[0], seed=1)
        for action in session.actions:
            steered.step(action)
        codes = np.concatenate([steered.ids[-PLACES:], steered.codes[:, 0]]).reshape(-1, PLACES)
        seen.append([seen_in(frame) for frame in codes])
    scenes, truths = [session.scene for session in played], [session.states for session in played]
    shares = judge(scenes, truths, seen)
    assert shares.obeys >= 0.9 and shares.kept > 0.95
    # The same sessions are wrong for other keys.
    others = [[session.states[0], *session.states[:0:-1]] for session in played]
    assert judge(scenes, others, seen).obeys < 0.6
    found = sessions.measure(bundled, 1, 24)
    assert found["kept"] == 1 and found["kept_frames"] > 0.9 and found["steered"] > 0.9


@pytest.mark.slow
def test_the_bundled_example_is_a_held_out_session(bundled: VideoPipeline, tmp_path: Path) -> None:
    write(tmp_path, 1, 9)
    own, file = np.load(tmp_path / "0.npz"), np.load(folder_of("table-actions") / "example.npz")
    assert all(np.array_equal(own[key], file[key]) for key in ("image", "action"))
    clip = Clip(file["image"][:3], file["action"])
    assert bundled.notices([clip]) == []
    noise = np.random.default_rng(0).integers(0, 256, (3, 128, 128, 3), dtype=np.uint8)
    [note] = bundled.notices([replace(clip, frames=noise)])
    assert "is unlike the training frames of the model 'table-actions'" in note


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), wrong=st.integers(0, 6))
def test_what_is_settled_has_the_same_objects_in_all_frames(seed: int, wrong: int) -> None:
    rng = random.Random(seed)
    session = play(rng, 8)
    codes = torch.from_numpy(encode(session.scene, session.states))
    for _ in range(wrong):
        codes[rng.randrange(1, 8), rng.randrange(PLACES)] = rng.choice(
            [int(codes[0, 0]), rng.randrange(TOKENIZER.codes)]
        )
    settled = PatchTokenizer(TOKENIZER).settled(codes[None])
    assert (settled[0, 0] == codes[0]).all() and (PatchTokenizer(TOKENIZER).settled(settled) == settled).all()
    for frame in settled[0].numpy():
        assert sorted(repr(look) for look, _ in objects(frame)) == sorted(map(repr, session.scene.looks))
    assert wrong or (settled[0] == codes).all()


@pytest.mark.slow
def test_train_export_play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train_transformer, "validate", functools.partial(train_transformer.validate, videos=1))
    monkeypatch.setattr(train_tokenizer, "evaluate", functools.partial(train_tokenizer.evaluate, count=1))
    steps = ["--tokenizer-steps", "1", "--base-steps", "1", "--replay-steps", "1", "--batch", "1", "--dtype", "float32"]
    done = CliRunner().invoke(app, ["train", "--world", "table-actions", "-o", "made", *steps])
    assert done.exit_code == 0 and "made/table-actions" in done.output, done.exception
    (tmp_path / "keys.csv").write_text("1,0\n0,1\n")
    np.save(tmp_path / "frame.npy", np.zeros((1, 128, 128, 3), np.uint8))
    for folder in ("made/table-actions", "made/table-actions-dense"):
        done = CliRunner().invoke(app, ["play", "--model", folder, "--input", "frame.npy", "--actions", "keys.csv"])
        assert done.exit_code == 0, done.exception
