"""Files that anybody may have written are refused with their name, whatever they hold."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.processes import Run
from support.sweeping import tiny_folder
from support.tiny import tiny_spec

from fastcar_cli.checkpoints.architectures import spec_from_dict
from fastcar_cli.checkpoints.names import BUNDLED
from fastcar_cli.checkpoints.open import spec_of
from fastcar_cli.errors import RequestError
from fastcar_cli.models.vila_u.checkpoint import full_spec
from fastcar_cli.system.plain_data import parse_json
from fastcar_fpga.decisions import read

DEEP = "[" * 100_000


def test_json_has_one_kind_of_error() -> None:
    for text in ("", "{", DEEP):
        with pytest.raises(ValueError):
            parse_json(text)


def test_specs_that_there_are_pass() -> None:
    for spec in (full_spec(), tiny_spec(), *map(spec_of, BUNDLED)):
        assert spec_from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("frames", "x"), ("frames", -1), ("frames", 10**30), ("frames", True), ("decoder.heads", 0),
        ("decoder.width", 255), ("decoder.rope_theta", -1), ("decoder.max_positions", -5), ("decoder", None),
        ("decoder", []), ("decoder.rms_eps", float("nan")), ("decoder.rope_periods", ["x"]), ("rqvae.norm_groups", 0),
        ("rqvae.norm_groups", 7), ("rqvae.grid", "x"), ("rqvae.grid", [2]), ("rqvae.ch_mult", []), ("depth", 3),
        ("place_tables", "no"),
    ],
)  # fmt: skip
def test_a_model_folder_with_a_wrong_size_is_refused(run: Run, tmp_path: Path, key: str, value: Any) -> None:
    folder = tiny_folder(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    *sections, last = ("spec", *key.split("."))
    at = config
    for section in sections:
        at = at[section]
    at[last] = value
    (folder / "config.json").write_text(json.dumps(config))
    done = run("generate", "a red ball", "--model", "model")
    assert done.returncode == 2 and "config.json" in done.stderr, done.stderr


@pytest.mark.parametrize(("key", "value"), [("cfg", "x"), ("cfg", float("inf")), ("temperature", -1), ("gate", 3)])
def test_wrong_defaults_are_refused(run: Run, tmp_path: Path, key: str, value: Any) -> None:
    folder = tiny_folder(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["generation"][key] = value
    (folder / "config.json").write_text(json.dumps(config))
    done = run("generate", "a red ball", "--model", "model", "--dry-run")
    assert done.returncode == 2 and key in done.stderr, done.stderr


@pytest.mark.parametrize("arguments", [["generate", "x", "--dry-run", "--model", "m"], ["convert", "m", "-o", "c"]])
def test_deep_json_is_refused(run: Run, tmp_path: Path, arguments: list[str]) -> None:
    shutil.copytree(tiny_folder(tmp_path / "whole"), tmp_path / "m")
    (tmp_path / "m" / "config.json").write_text(DEEP)
    done = run(*arguments)
    assert done.returncode == 2 and "config.json" in done.stderr


@pytest.mark.parametrize(
    "changed",
    [
        {"spec": {}}, {"spec": 3}, {"window": "x"}, {"window": -1}, {"window": 1.5}, {"prompt": -5}, {"sinks": -1},
        {"frames": True}, {"shape": [float("inf"), 1, 1]}, DEEP,
    ],
)  # fmt: skip
def test_a_file_of_decisions_is_whole_or_refused(tmp_path: Path, changed: Any) -> None:
    meta = {
        "format": "fastcar-decisions", "version": 1, "shape": [3, 1, 15], "spec": tiny_spec().to_dict(), "prompt": 4,
        "frames": 4, "window": None, "sinks": 4, "note": {},
    }  # fmt: skip
    bits = np.packbits(np.zeros((3, 1, 15), bool))
    np.savez(tmp_path / "whole.npz", bits=bits, meta=np.array(json.dumps(meta)))
    assert read(tmp_path / "whole.npz").frames == 4
    text = changed if isinstance(changed, str) else json.dumps(meta | changed)
    np.savez(tmp_path / "changed.npz", bits=bits, meta=np.array(text))
    with pytest.raises(RequestError, match=r"changed\.npz"):
        read(tmp_path / "changed.npz")
