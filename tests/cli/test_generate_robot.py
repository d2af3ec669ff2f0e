"""`fastcar generate` and `play` with random models in RLVR-World's layout: actions of 13 numbers, rolls, refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.ivideogpt import moving_clip
from support.processes import Run, report_of
from support.rlvr import write_model

from fastcar_cli import VideoPipeline
from fastcar_cli.demo.play import Player
from fastcar_cli.errors import RequestError
from fastcar_cli.inputs.actions import read_actions
from fastcar_cli.media import read_frames, read_recipe
from fastcar_cli.models.rlvr.actions import BINS, PARTS, STEERING, bins_of
from fastcar_cli.pipeline.session import PlaySession

LOW, HIGH = (np.array([n for part in PARTS for n in getattr(part, end)], np.float32) for end in ("low", "high"))
MOVES = np.random.default_rng(3).uniform(-0.3, 0.3, (12, 13)).astype(np.float32).clip(LOW, HIGH)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both kinds and their tokenizers."""
    folder = tmp_path_factory.mktemp("robots")
    for kind in ("single", "multi"):
        write_model(folder, kind)
    return folder


def _model(folder: Path, kind: str) -> Path:
    return folder / f"rt1-world-model-{kind}-step-base"


def _clip(frames: int, height: int = 64, width: int = 80) -> str:
    np.savez("clip.npz", image=moving_clip(frames, height, width))
    Path("moves.json").write_text(json.dumps(MOVES.tolist()))
    return "clip.npz"


def _begun(model: Path, frames: int, *more: str) -> list[str]:
    command = ["generate", "--model", str(model), "--input", _clip(frames), "--actions", "moves.json"]
    return [*command, "--seed", "4", "--json", *more]


def _by_name(moves: np.ndarray) -> dict[str, list[list[float]]]:
    ends = np.cumsum([len(part.low) for part in PARTS])[:-1]
    return {part.name: own.tolist() for part, own in zip(PARTS, np.split(moves, ends, 1), strict=True)}


def _write(name: str) -> Path:
    """The moves in one of the forms that files may have."""
    named, bins, file = _by_name(MOVES), bins_of(torch.from_numpy(MOVES)).numpy(), Path(name)
    frames = [{key: value[t] for key, value in named.items()} for t in range(len(MOVES))]
    if file.suffix == ".npz":
        arrays: dict[str, Any] = {"numbers.npz": {"actions": MOVES}, "named.npz": named}
        arrays["bins.npz"] = {"action_bins": bins}
        np.savez(file, **arrays[name])
    elif file.suffix == ".csv":
        names = "bin" if name == "bins.csv" else "number"
        rows = [",".join(map(str, row)) for row in (bins if name == "bins.csv" else MOVES).tolist()]
        file.write_text("\n".join([",".join(f"{names}{d}" for d in range(13)), *rows]))
    else:
        steps = [
            {"action": {**frame, "gripper_closedness_action": frame["gripper_closedness_action"][0]}}
            for frame in frames
        ]
        forms = {
            "named.json": named,
            "frames.json": frames,
            "steps.json": steps,
            "bins.json": {"action_bins": bins.tolist()},
        }
        file.write_text(json.dumps(forms[name]))
    return file


FORMS = (
    *("numbers.npz", "named.npz", "bins.npz", "numbers.csv", "bins.csv"),
    *("named.json", "frames.json", "steps.json", "bins.json"),
)


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_actions_gives_the_same_ids(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = read_actions(_write(name), 13, parts=PARTS)
    assert torch.equal(bins_of(torch.from_numpy(found)), bins_of(torch.from_numpy(MOVES)))
    if not name.startswith("bins"):
        assert np.allclose(found, MOVES)


def test_bins_at_their_edges() -> None:
    """Both ends of the range, beyond them, and both sides of an edge between two bins."""
    width = HIGH - LOW
    for numbers, wanted in ((LOW, 0), (HIGH, BINS - 1), (LOW - 1, 0), (HIGH + 1, BINS - 1)):
        assert (bins_of(torch.from_numpy(numbers)) == wanted).all()
    middle = torch.from_numpy(LOW + width * np.float32(0.5))
    assert (bins_of(middle - 1e-3 * torch.from_numpy(width)) == 127).all()
    assert (bins_of(middle + 1e-3 * torch.from_numpy(width)) == 128).all()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ([[0.0] * 7], "row 0 has 7 numbers, but the model takes 13 per frame"),
        ([[0.0] * 12], "row 0 has 12 numbers, but the model takes 13 per frame"),
        ({"action_bins": [[0] * 12 + [256]]}, "row 0 has bins that are not whole numbers from 0 to 255"),
        ([{"world_vector": [0, 0, 0]}], "has no key 'gripper_closedness_action'"),
        ({**_by_name(MOVES), "speed": [[1.0]] * 12}, "has an unknown key 'speed'"),
        ({**_by_name(MOVES), "world_vector": [[1.0]] * 12}, r"'world_vector' has shape \[12, 1\], expected 3 numbers"),
        ({**_by_name(MOVES), "world_vector": [[1.0, 2, 3]]}, "different numbers of frames"),
    ],
)
def test_actions_that_do_not_fit_are_refused(text: Any, said: str, tmp_path: Path) -> None:
    (tmp_path / "moves.json").write_text(json.dumps(text))
    with pytest.raises(RequestError, match=said):
        read_actions(tmp_path / "moves.json", 13, range(3), PARTS)


def test_a_missing_base_displacement_is_zero(tmp_path: Path) -> None:
    (tmp_path / "moves.json").write_text(json.dumps({k: v for k, v in _by_name(MOVES).items() if "base" not in k}))
    found = read_actions(tmp_path / "moves.json", 13, parts=PARTS)
    assert not found[:, :3].any() and np.allclose(found[:, 3:], MOVES[:, 3:])


@pytest.mark.parametrize(("kind", "frames", "rolls"), [("single", 6, 1), ("multi", 4, 0)])
def test_a_recipe_makes_the_video_again(folder: Path, run: Run, kind: str, frames: int, rolls: int) -> None:
    report = report_of(run(*_begun(_model(folder, kind), 5, "--frames", str(frames), "-o", "a.mp4")))
    assert report["rolls"] == rolls and report["video"]["frames"] == frames and report["video"]["fps"] == 3
    again = run("generate", "--from", "a.mp4", "--model", str(_model(folder, kind)), "-o", "b.mp4", "--quiet")
    assert again.returncode == 0, again.stderr
    assert np.array_equal(read_frames(Path("a.mp4")), read_frames(Path("b.mp4")))
    assert len(read_recipe(Path("a.mp4"))["input"]["ids"]) == {"single": 1319, "multi": 1360}[kind]


def test_a_longer_video_begins_as_the_shorter_one(folder: Path, run: Run) -> None:
    begun = _begun(_model(folder, "single"), 4)
    assert run(*begun, "--frames", "5", "-o", "a.mp4").returncode == 0
    assert run(*begun, "--frames", "7", "-o", "whole.mp4").returncode == 0
    Path("more.json").write_text(json.dumps(MOVES[4:].tolist()))
    more = ["--actions", "more.json", "--frames", "2", "--model", str(_model(folder, "single"))]
    done = run("generate", "--continue", "a.mp4", *more, "-o", "longer.mp4", "--quiet")
    assert done.returncode == 0, done.stderr
    assert np.array_equal(read_frames(Path("longer.mp4")), read_frames(Path("whole.mp4")))


def test_one_image_is_context_and_first_frame(folder: Path, run: Run) -> None:
    """The first action leads from the image to the frame after it."""
    _clip(4)
    Image.fromarray(moving_clip(1, 64, 80)[0]).save("one.png")
    np.savez("two.npz", image=moving_clip(1, 64, 80).repeat(2, 0))
    Path("moves.json").write_text(json.dumps(MOVES.tolist()))
    Path("later.json").write_text(json.dumps([[0.0] * 13, *MOVES.tolist()]))
    for image, moves, out in (("one.png", "moves.json", "a.mp4"), ("two.npz", "later.json", "b.mp4")):
        command = ["generate", "--model", str(_model(folder, "multi")), "--input", image, "--actions", moves]
        done = run(*command, "--frames", "4", "--seed", "1", "-o", out, "--quiet")
        assert done.returncode == 0, done.stderr
    assert np.array_equal(read_frames(Path("a.mp4")), read_frames(Path("b.mp4")))


def test_what_is_changed_is_said_once(folder: Path, run: Run) -> None:
    """Frames of another shape, and numbers out of range."""
    begun = _begun(_model(folder, "multi"), 3, "--frames", "3", "--samples", "2", "-o", "out/")
    _clip(3, 64, 64)
    Path("moves.json").write_text(json.dumps([[9.0, *row[1:]] for row in MOVES.tolist()]))
    said = run(*[word for word in begun if word != "--json"]).stderr
    assert said.count("64x64 frames are stretched to 80x64") == 1
    assert said.count("3 action values (base_displacement_vector) exceed the model's ranges and are clipped") == 1


def test_fewer_frames_than_the_context_are_refused(folder: Path, run: Run) -> None:
    done = run(*_begun(_model(folder, "single"), 3, "-o", "a.mp4"))
    assert done.returncode == 2 and "has 3 frames, expected 5, or at least 4 for the context" in done.stderr


def test_folders_that_are_not_a_model(folder: Path, tmp_path: Path) -> None:
    single, frame, context = (
        _model(folder, "single"),
        folder / "rt1-frame-tokenizer",
        folder / "rt1-compressive-tokenizer",
    )
    alone = shutil.copytree(single, tmp_path / "alone" / "model")

    def refused(said: str, model: Path = alone, tokenizer: Path | None = None) -> None:
        with pytest.raises(RequestError, match=said):
            VideoPipeline.from_pretrained(model, **({} if tokenizer is None else {"tokenizer": tokenizer}))

    refused("has no tokenizer beside it")
    refused("is the folder of a tokenizer, not of a model", frame)
    refused(
        r"is 498, expected 738 = 240 codes of context \+ 240 of other frames \+ 256 action bins \+ bos and eos",
        tokenizer=context,
    )
    refused("the tokenizer's folder has no config.json", tokenizer=tmp_path)
    assert VideoPipeline.from_pretrained(alone, tokenizer=frame).frames == 5
    refused("has its own tokenizer", Path("mini"), frame)
    other = shutil.copytree(frame, tmp_path / "other")
    (other / "config.json").write_text(json.dumps({"_class_name": "VQModel"}))
    refused("key '_class_name' is 'VQModel', expected CNNFSQModel256 or CompressiveVQModelFSQ", other)
    weights = alone / "model.safetensors"
    weights.rename(alone / "pytorch_model.bin")
    with pytest.raises(RequestError, match="model.safetensors is missing") as error:
        VideoPipeline.from_pretrained(alone, tokenizer=frame)
    assert "safetensors file, not pytorch_model.bin" in str(error.value.hint)


@pytest.mark.parametrize("kind", [pytest.param("single", marks=pytest.mark.slow), "multi"])
def test_a_policy_may_name_its_numbers(folder: Path, kind: str) -> None:
    """What a step decodes is what a video of the same actions has, drafted or not, ahead or not."""
    steps = 3 if kind == "single" else 8
    pipe = VideoPipeline.from_pretrained(_model(folder, kind))
    frames, sessions = moving_clip(4, 64, 80), []
    for drafts, ahead in (("off", False), ("frame", True)):
        world = pipe.with_config(pipe.config.changed({"draft.kind": drafts})).play(frames, seed=2)
        for move in MOVES[:steps]:
            if ahead:
                world.ahead()
            named = {name: values[0] for name, values in _by_name(move[None]).items()}
            image, _ = world.step(named if ahead else move)
            assert image.shape == (64, 80, 3)
        sessions.append(world.codes)
    assert np.array_equal(sessions[0], sessions[1])
    with pytest.raises(RequestError, match="the action") as error:
        world.step([0.0] * 7)
    assert "13 finite numbers" in str(error.value.hint)
    assert world.spec.steering.rest == STEERING.rest


def test_models_show_names_the_numbers(folder: Path, run: Run) -> None:
    done = run("models", "show", str(_model(folder, "multi")))
    assert done.returncode == 0, done.stderr
    assert "gripper_closedness_action: -1 to 1" in done.stdout and "rotation_delta: -1.57 to 1.571" in done.stdout
    document = report_of(run("models", "show", "rt1-world-model-single-step-rlvr", "--json"))
    assert [part["name"] for part in document["actions"]] == [part.name for part in PARTS]
    assert sum(len(part["low"]) for part in document["actions"]) == 13


@pytest.mark.parametrize("value", [[[1.0, 2], [3.0]], None, "fast", {}])
def test_a_value_that_is_no_table_is_refused(value: Any, tmp_path: Path) -> None:
    (tmp_path / "moves.json").write_text(json.dumps({**_by_name(MOVES), "world_vector": value}))
    with pytest.raises(RequestError, match="'world_vector' has shape"):
        read_actions(tmp_path / "moves.json", 13, range(3), PARTS)


def test_one_action_by_name_is_a_row(tmp_path: Path) -> None:
    (tmp_path / "moves.json").write_text(json.dumps({name: rows[0] for name, rows in _by_name(MOVES[:1]).items()}))
    assert np.allclose(read_actions(tmp_path / "moves.json", 13, parts=PARTS), MOVES[:1])


@pytest.mark.parametrize("kind", ["single", "multi"])
def test_both_repositories_come_from_the_hub(folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub in which each repository is one of the folders; the model finds its tokenizer in the cache."""
    import huggingface_hub

    from fastcar_cli.checkpoints.hub import fetch

    fetched = list[str]()

    def file(repository: str, name: str, **_: Any) -> str:
        fetched.append(f"{repository}/{name}")
        return str(folder / repository.removeprefix("thuml/") / name)

    def cached(repository: str, name: str, **_: Any) -> str | None:
        return file(repository, name) if f"{repository}/{name}" in fetched else None

    def snapshot(repository: str, local_files_only: bool = False, **_: Any) -> str:
        if local_files_only:
            raise OSError
        fetched.append(repository)
        return str(folder / repository.removeprefix("thuml/").replace("-rlvr", "-base"))

    for name, fake in (("hf_hub_download", file), ("try_to_load_from_cache", cached), ("snapshot_download", snapshot)):
        monkeypatch.setattr(huggingface_hub, name, fake)
    found = fetch(f"thuml/rt1-world-model-{kind}-step-rlvr")
    tokenizer = {"single": "rt1-frame-tokenizer", "multi": "rt1-compressive-tokenizer"}[kind]
    files = [f"thuml/{tokenizer}/{name}" for name in ("config.json", "diffusion_pytorch_model.safetensors")]
    assert fetched == [*files, f"thuml/rt1-world-model-{kind}-step-rlvr"] and found == _model(folder, kind)
    alone = shutil.copytree(found, folder.parent / f"snapshot-{kind}" / "model")
    assert VideoPipeline.from_pretrained(alone).checkpoint.folders == (folder / tokenizer, alone)


def test_the_page_of_a_player_has_the_keys_of_the_model(folder: Path, tmp_path: Path) -> None:
    pipe = VideoPipeline.from_pretrained(_model(folder, "multi"))
    player = Player(PlaySession(pipe, moving_clip(1, 64, 80), 1, tmp_path / "s.mp4"), 3)
    try:
        page = player.page().decode()
        assert '"w":[10,0.1]' in page.replace(" ", "") and "Z closes and X opens the gripper" in page
        player.take({"action": [*STEERING.rest], "key": "a-1"})
        with pytest.raises(RequestError, match="the action"):
            player.take({"action": [0.0, 1.0]})
    finally:
        player.server_close()
