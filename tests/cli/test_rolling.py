"""Videos longer than a model has positions for: every architecture continues, or refuses in a sentence."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import cosmos, ivideogpt
from support.processes import Run
from support.sweeping import BALL, tiny_folder

from fastcar_cli.config.run_config import RunConfig
from fastcar_cli.errors import RequestError
from fastcar_cli.inputs.prompt import TokenisedClip
from fastcar_cli.media import read_frames
from fastcar_cli.models import load
from fastcar_cli.pipeline import play
from fastcar_cli.pipeline.pipeline import VideoPipeline

ROLL = ("--context-policy", "roll")
LONG = {
    "vila-u": (48, 22),
    "cosmos": (49, 1),
    "ivideogpt": (60, 6),
}
"""By architecture, frames of a long video and how often its context rolls."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    tiny_folder(folder / "vila-u")
    cosmos.write_model(folder / "cosmos", "Cosmos-Predict1-4B")
    ivideogpt.write_model(folder / "ivideogpt", 1, ivideogpt.ACTIONS)
    ivideogpt.write_clip(folder / "clip9", ivideogpt.moving_clip(9, 48, 64))
    ivideogpt.write_clip(folder / "clip1", ivideogpt.moving_clip(1))
    actions = np.random.default_rng(0).normal(size=(60, ivideogpt.ACTIONS))
    (folder / "actions.json").write_text(json.dumps(actions.tolist()))
    return folder


def _asked(folder: Path, kind: str) -> tuple[str, ...]:
    name = str(folder / "cosmos/Cosmos-Predict1-4B" if kind == "cosmos" else folder / kind)
    of = {
        "vila-u": (BALL,),
        "cosmos": ("--size", cosmos.SIZE, "--input", str(folder / "clip9")),
        "ivideogpt": ("--input", str(folder / "clip1"), "--actions", str(folder / "actions.json")),
    }
    return ("generate", "--model", name, *of[kind], "--seed", "5", "--json")


@pytest.mark.slow
@pytest.mark.parametrize("kind", LONG)
def test_a_context_rolls_where_that_is_asked(run: Run, folder: Path, kind: str) -> None:
    frames, rolls = LONG[kind]
    asked = _asked(folder, kind)
    done = run(*asked, "--frames", str(frames), *ROLL, "--tau", "0", "-o", "a.mp4")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["rolls"] == rolls and report["video"]["frames"] == len(read_frames(Path("a.mp4"))) == frames
    again = run("generate", "--from", "a.mp4", "--model", asked[2], "--json", "-o", "b.mp4", "--draft", "off")
    assert again.returncode == 0, again.stderr
    assert np.array_equal(read_frames(Path("a.mp4")), read_frames(Path("b.mp4")))
    stopped = run(*asked, "--frames", str(frames), "-o", "c.mp4")
    assert stopped.returncode == 2 and "for more frames use --context-policy roll" in stopped.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--backend", "fpga-sim"), "fpga-sim can't continue a video past its context"),
        (("--trace", "t.npz"), "--trace can't record this video, which needs more than one context"),
    ],
)
def test_what_is_of_one_context_is_refused(run: Run, folder: Path, options: tuple[str, ...], said: str) -> None:
    done = run(*_asked(folder, "vila-u"), "--frames", "5", *ROLL, *options, "-o", "a.mp4")
    assert done.returncode == 2 and said in " ".join(done.stderr.replace("│", " ").split()), done.stderr
    assert not Path("a.mp4").exists()
    assert run(*_asked(folder, "vila-u"), "--frames", "4", *ROLL, *options, "-o", "a.mp4").returncode == 0


@pytest.mark.slow
def test_saved_prefills_are_those_of_the_prompt(run: Run, folder: Path) -> None:
    """Written once, and read once; what rolls is computed."""
    videos = []
    for options in ((), ("--keep-prefill", "p.safetensors"), ("--keep-prefill", "p.safetensors")):
        asked = (*_asked(folder, "cosmos"), *ROLL, "--frames", "65", "--tau", "-0.1", *options)
        done = run(*asked, "-o", "a.mp4", "--force")
        assert done.returncode == 0 and json.loads(done.stdout)["rolls"] == 2, done.stderr
        videos.append(read_frames(Path("a.mp4")))
    assert all(np.array_equal(video, videos[0]) for video in videos)


def test_progress_never_goes_back(folder: Path) -> None:
    pipe = VideoPipeline.from_pretrained(folder / "vila-u", frames=11, context_policy="roll")
    seen, begun = list[int](), list[str]()
    pipe_videos = pipe.videos(
        [BALL, BALL], [1, 2], lambda done, total: seen.append(done), lambda part, *_: begun.append(f"{part}{len(seen)}")
    )
    assert [len(video.frames) for video in pipe_videos] == [11, 11]
    assert seen == sorted(set(seen)) and seen[-1] == 11 * 4 and set(begun) == {"prompt0"}
    with pytest.raises(RequestError, match="only videos within one context"):
        pipe.decisions()


def test_a_model_of_one_frame_does_not_roll(folder: Path) -> None:
    model = load(str(folder / "vila-u"))
    model.network.spec = replace(model.network.spec, frames=1)
    with pytest.raises(RequestError, match="has room for only one frame"):
        VideoPipeline(model, RunConfig.from_dict({"generation": {"frames": 2, "context_policy": "roll"}}))


SETTINGS: list[dict[str, Any]] = [
    {},
    {"replay": {"tau": 0.0}, "draft": {"kind": "frame"}},
    {"replay": {"tau": "-inf", "max_age": 2}},
    {"attention": {"window": 40}, "replay": {"tau": 0.0}, "draft": {"kind": "jacobi"}},
    {"attention": {"kv_dtype": "int8"}, "replay": {"tau": 0.0}},
]


@pytest.mark.slow
@pytest.mark.parametrize("room", [128, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_session_is_the_video_of_its_actions(
    folder: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], room: int
) -> None:
    """Over rolls and new tables, and with frames that are decoded ahead and taken back."""
    monkeypatch.setattr(play, "ROOM", room)
    model, rng = str(folder / "ivideogpt"), np.random.default_rng(1)
    config = {"model": model, "generation": {"frames": 16}, **settings}
    pipe = VideoPipeline.from_config(RunConfig.from_dict(config))
    world, shown = pipe.play(ivideogpt.moving_clip(1)[0], seed=3), []
    actions = [rng.normal(size=ivideogpt.ACTIONS).astype(np.float32) for _ in range(100)]
    for i, action in enumerate(actions):
        if rng.random() < 0.5:
            world.ahead()
        actions[i] = world.actions[-1] if i and rng.random() < 0.5 else action
        shown.append(world.step(actions[i])[0])
    clip = TokenisedClip(world.ids, np.stack([*actions, np.zeros(ivideogpt.ACTIONS, np.float32)]))
    generation = {"frames": 101, "context_policy": "roll"}
    long = VideoPipeline.from_config(RunConfig.from_dict({**config, "generation": generation}))
    (video,) = long([clip], seed=3)
    assert long.decode is not None and long.decode.rolls == 11 and (world.hits > 5 or "attention" in settings)
    assert np.array_equal(long.codes[0], world.codes)
    assert np.array_equal(video.frames[1:], np.stack(shown))
