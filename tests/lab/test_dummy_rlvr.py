"""Random checkpoints in RLVR-World's layout have the names and shapes of the official ones, and make videos."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from support.ivideogpt import moving_clip
from support.paths import GOLDEN_ROBOT
from support.rlvr import write_model

from fastcar_cli import Pipeline
from fastcar_cli.inputs.prompt import Clip
from fastcar_cli.models.checkpoint import empty_network
from fastcar_cli.models.rlvr.checkpoint import RLVRCheckpoint
from fastcar_lab.dummy.rlvr import KINDS, shape_of, write

WEIGHTS = "diffusion_pytorch_model.safetensors", "model.safetensors"


def shapes(file: Path) -> dict[str, list[int]]:
    with safe_open(file, "pt") as stored:
        # Files of safetensors are no mappings.
        return {key: stored.get_slice(key).get_shape() for key in stored.keys()}  # noqa: SIM118


@pytest.mark.parametrize("kind", KINDS)
def test_names_and_shapes_are_those_of_the_released_code(kind: str, tmp_path: Path) -> None:
    official = GOLDEN_ROBOT / "checkpoint"
    if not official.exists():
        pytest.skip("no shared/golden-rlvr here")
    checkpoint = RLVRCheckpoint(official / f"rt1-world-model-{kind}-step-base")
    write(tmp_path, checkpoint.read_spec())
    for folder in checkpoint.folders:
        (file,) = (folder / name for name in WEIGHTS if (folder / name).exists())
        assert shapes(file) == shapes(tmp_path / folder.name / file.name)
    again = RLVRCheckpoint(tmp_path / checkpoint.folder.name)
    assert again.read_spec() == checkpoint.read_spec()


@pytest.mark.parametrize(("kind", "millions"), [("single", 120.38), ("multi", 127.10)])
def test_released_shapes_have_the_published_sizes(kind: str, millions: float) -> None:
    state = empty_network(shape_of(kind)).state_dict()
    size = sum(tensor.numel() for name, tensor in state.items() if not name.startswith("tokenizer."))
    assert size / 1e6 == pytest.approx(millions, abs=0.005)


@pytest.mark.parametrize(("kind", "context"), [("single", 4), ("multi", 2)])
def test_a_random_model_makes_frames(kind: str, context: int, tmp_path: Path) -> None:
    clip = Clip(moving_clip(context, 64, 80), np.zeros((context + 2, 13), np.float32), "clip")
    (video,) = Pipeline.from_pretrained(write_model(tmp_path, kind), frames=context + 2)([clip], seed=1)
    assert video.frames.shape == (context + 2, 64, 80, 3)
    assert video.frames[context:].std() > 1


def test_the_tokenizer_of_the_other_kind_is_refused(tmp_path: Path) -> None:
    model, other = Path(write_model(tmp_path / "a", "multi")), Path(write_model(tmp_path / "b", "single"))
    shutil.copytree(other.parent / "rt1-frame-tokenizer", tmp_path / "a" / "rt1-frame-tokenizer")
    shutil.rmtree(tmp_path / "a" / "rt1-compressive-tokenizer")
    with pytest.raises(
        Exception, match=r"key 'vocab_size' is 738, expected 498 = 240 codes \+ 256 action bins \+ bos and eos"
    ):
        RLVRCheckpoint(model).read_spec()
