"""The rotary positions of a released config.json, in the words of transformers 4 and 5."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fastcar_cli.errors import RequestError
from fastcar_cli.models.llama_config import read_decoder

SIZES = {
    "hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 48, "vocab_size": 11,
}  # fmt: skip


def _read(folder: Path, **more: Any) -> tuple[float, float]:
    (folder / "config.json").write_text(json.dumps(SIZES | more))
    spec = read_decoder(folder / "config.json")
    return spec.rope_theta, spec.rope_factor


def test_both_ways_say_the_same(tmp_path: Path) -> None:
    new = {"rope_theta": 500000.0, "rope_type": "linear", "factor": 2.0}
    assert _read(tmp_path, rope_theta=500000.0, rope_scaling={"type": "linear", "factor": 2.0}) == (500000.0, 2.0)
    assert _read(tmp_path, rope_parameters=new) == (500000.0, 2.0)
    assert _read(tmp_path, rope_parameters=new, rope_theta=500000.0) == (500000.0, 2.0)
    assert _read(tmp_path, rope_parameters={"rope_theta": 20.0, "rope_type": "default"}) == (20.0, 1.0)
    assert _read(tmp_path, rope_parameters=None) == _read(tmp_path) == (10000.0, 1.0)


@pytest.mark.parametrize(
    "more",
    [
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}},
        {"rope_parameters": {"rope_theta": 20.0, "rope_type": "default"}, "rope_theta": 30.0},
        {"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_parameters": 3},
    ],
)
def test_what_is_not_known_or_does_not_agree_is_refused(tmp_path: Path, more: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=r"config\.json: key '.*rope"):
        _read(tmp_path, **more)


def test_what_transformers_writes_is_read(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    rope = {"rope_type": "linear", "factor": 2.0}
    made = (
        transformers.LlamaConfig(**SIZES, rope_parameters=rope | {"rope_theta": 500000.0})
        if int(transformers.__version__.split(".")[0]) >= 5
        else transformers.LlamaConfig(**SIZES, rope_theta=500000.0, rope_scaling={"type": "linear", "factor": 2.0})
    )
    made.save_pretrained(tmp_path)
    spec = read_decoder(tmp_path / "config.json")
    assert (spec.rope_theta, spec.rope_factor) == (500000.0, 2.0)
