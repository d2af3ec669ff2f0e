from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.tiny import tiny_model

from fastcar_cli.checkpoints.open import load
from fastcar_cli.errors import RequestError
from fastcar_cli.models.checkpoint import GenerationDefaults
from fastcar_lab.storage import save
from fastcar_lab.worlds.mini.hyperparameters import mini_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tmp_path / "m", tiny_model(), mini_tokenizer().to_dict(), GenerationDefaults(cfg=2.5), torch.float32)
    return tmp_path / "m"


def _change(folder: Path, **tensors: torch.Tensor | None) -> None:
    file = folder / "model.safetensors"
    data = load_file(str(file))
    for key, value in tensors.items():
        name = key.replace("__", ".")
        if value is None:
            del data[name]
        else:
            data[name] = value
    save_file(data, str(file))


def test_round_trip(folder: Path) -> None:
    model = load(str(folder))
    for name, tensor in tiny_model().state_dict().items():
        assert torch.equal(model.network.state_dict()[name], tensor)
    assert model.defaults.cfg == 2.5


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_dtype(folder: Path, dtype: str) -> None:
    network = load(str(folder), dtype).network
    drawing = ("rqvae.decoder.", "rqvae.post_quant_conv.")
    for name, p in network.named_parameters():
        assert p.dtype == (torch.float32 if name.startswith(drawing) else getattr(torch, dtype)), name
    assert network.llm.rotary.inv_freq.dtype == torch.float32


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"llm__norm__weight": torch.full((16,), float("nan"))}, "NaN"),
        ({"llm__norm__weight": torch.ones(5)}, "shape \\[5\\], expected \\[16\\]"),
        ({"llm__norm__weight": None}, "lacks key 'llm.norm.weight'"),
        ({"extra": torch.ones(1)}, "unexpected key 'extra'"),
    ],
)
def test_wrong_weights_are_named(folder: Path, tensors: dict, says: str) -> None:
    _change(folder, **tensors)
    with pytest.raises(RequestError, match=says):
        load(str(folder))


def test_wrong_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"format": "other"}')
    with pytest.raises(RequestError, match="'format' is 'other'"):
        load(str(folder))
    with pytest.raises(RequestError, match="no config.json"):
        load(str(folder.parent))
