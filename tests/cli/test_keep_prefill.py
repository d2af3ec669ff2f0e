"""`--keep-prefill`: what a prompt leaves, kept in a file and read by later runs."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from support.cosmos import SIZE, write_model
from support.ivideogpt import moving_clip, write_clip
from support.processes import Run

from fastcar_cli.config.run_config import RunConfig
from fastcar_cli.errors import RequestError
from fastcar_cli.inputs.prompt import Clip
from fastcar_cli.media import read_frames
from fastcar_cli.models.cosmos.tokenizer import CausalVideoTokenizer
from fastcar_cli.pipeline.pipeline import VideoPipeline
from fastcar_cli.pipeline.saved_prefill import PrefillFile


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("models"))


def pipeline(model: str, **settings: Any) -> VideoPipeline:
    return VideoPipeline.from_config(RunConfig.from_dict({"model": model, "generation": {"size": SIZE}, **settings}))


CLIP = Clip(moving_clip(9, 48, 64))
REPLAY = {"replay": {"tau": -0.1}}


def kept(file: str, **runtime: Any) -> dict[str, Any]:
    return {"runtime": {"keep_prefill": file, **runtime}}


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [{}, {"attention": {"kv_dtype": "int8"}}, {"draft": {"kind": "jacobi", "window": 4}}, {"sampling": {"top_p": 0.5}}],
    ids=str,
)
def test_a_run_that_reads_the_file_makes_the_same_video(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    pipeline(model, **kept("kept.safetensors")).run([CLIP], [1])
    written = Path("kept.safetensors").read_bytes()
    assert [p.name for p in tmp_path.iterdir()] == ["kept.safetensors"]
    own = pipeline(model, **REPLAY, **settings)
    wanted = own.run([CLIP], [5])
    reading = pipeline(model, **REPLAY, **settings, **kept("kept.safetensors"))
    monkeypatch.setattr(PrefillFile, "take", None)
    found = reading.run([CLIP], [5])
    assert found.replay is not None and wanted.replay is not None
    assert (found.codes == wanted.codes).all() and (found.replay.replayed == wanted.replay.replayed).all()
    assert Path("kept.safetensors").read_bytes() == written


def test_what_the_file_holds(model: str, tmp_path: Path) -> None:
    file = tmp_path / "kept.safetensors"
    decode = pipeline(model, **kept(str(file))).run([CLIP], [1])
    with safe_open(str(file), "np") as tensors:
        assert {*tensors.keys()} == {
            "hidden",
            *(f"{i}.{part}" for i in (0, 1) for part in ("keys", "values", "outputs")),
        }
        for layer in (0, 1):
            assert (tensors.get_tensor(f"{layer}.keys") == decode.cache.k[layer, :, :, :24].numpy()).all()
        assert tensors.get_tensor("0.outputs").shape == (1, 12, 64)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "clip", "said"),
    [
        ({"runtime": {"dtype": "bfloat16"}}, CLIP, "a different dtype"),
        ({}, Clip(CLIP.frames[::-1].copy()), "a different prompt"),
        ({"attention": {"window": 20}}, CLIP, "a different window"),
        ({"runtime": {"executor": "torch"}}, CLIP, "a different executor"),
    ],
    ids=["dtype", "prompt", "window", "executor"],
)
def test_the_file_of_another_run_is_refused(
    model: str, tmp_path: Path, settings: dict[str, Any], clip: Clip, said: str
) -> None:
    file = str(tmp_path / "kept.safetensors")
    pipeline(model, **kept(file)).run([CLIP], [1])
    runtime = kept(file, **settings.pop("runtime", {})) if "runtime" in settings else kept(file)
    with pytest.raises(RequestError, match=f"was saved with {said}"):
        pipeline(model, **settings, **runtime).run([clip], [1])


@pytest.mark.slow
def test_another_model_and_files_of_other_kinds_are_refused(model: str, tmp_path: Path) -> None:
    file = tmp_path / "kept.safetensors"
    pipeline(model, **kept(str(file))).run([CLIP], [1])
    other = Path(write_model(tmp_path / "other"))
    tensors = torch.load(other / "model.pt", weights_only=True)
    torch.save(tensors | {"norm.weight": tensors["norm.weight"] + 1}, other / "model.pt")
    with pytest.raises(RequestError, match="was saved with a different model"):
        pipeline(str(other), **kept(str(file))).run([CLIP], [1])
    whole = file.read_bytes()
    for wrong, said in ((whole[:5000], "does not contain a saved KV"), (b"", "does not contain a saved KV cache")):
        file.write_bytes(wrong)
        with pytest.raises(RequestError, match=said):
            pipeline(model, **kept(str(file))).run([CLIP], [1])


@pytest.mark.slow
def test_by_the_command_line(run: Run, model: str, tmp_path: Path) -> None:
    write_clip(tmp_path / "clip", moving_clip(9, 48, 64))
    begun = ["generate", "--model", model, "--size", SIZE, "--input", "clip", "--seed", "5", "--json"]
    videos = []
    for i in range(2):
        done = run(*begun, "--tau", "-0.1", "--keep-prefill", "kept.safetensors", "-o", f"out{i}")
        assert done.returncode == 0, done.stderr
        videos.append(read_frames(Path(f"out{i}")))
        timing = json.loads(done.stdout)["timing"]
        assert 0 < timing["encode_s"] < timing["vision_s"]
    assert (videos[0] == videos[1]).all()
    done = run(*begun, "--context", "1", "--keep-prefill", "kept.safetensors", "-o", "other")
    assert done.returncode == 2 and "a different prompt" in done.stderr and "Traceback" not in done.stderr
    assert not Path("other").exists()
    done = run(*begun, "--keep-prefill", "nowhere/kept.safetensors", "-o", "other")
    assert done.returncode == 2 and "--keep-prefill" in done.stderr and "nowhere" in done.stderr
    assert not np.array_equal(videos[0][8], videos[0][32])


def test_a_run_that_is_stopped_in_the_prompt_leaves_no_file(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(part: str, done: int, total: int) -> None:
        if part == "prompt":
            raise KeyboardInterrupt

    pipe = pipeline(model, **kept(str(tmp_path / "kept.safetensors")))
    with pytest.raises(KeyboardInterrupt):
        list(pipe.stream([CLIP], [1], on_begin=stop))
    del pipe
    gc.collect()
    assert [p.name for p in tmp_path.iterdir()] == []


@pytest.mark.slow
def test_a_clip_of_several_samples_is_encoded_once(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded, of = list[int](), CausalVideoTokenizer.encode

    def counted(*arguments: Any) -> Any:
        encoded.append(1)
        return of(*arguments)

    monkeypatch.setattr(CausalVideoTokenizer, "encode", counted)
    pipe = pipeline(model)
    for _ in range(2):
        pipe.run([CLIP] * 3, [1, 2, 3])
    assert len(encoded) == 1
