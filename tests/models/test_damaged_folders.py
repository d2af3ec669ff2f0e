"""Model folders damaged at random: each is refused in a sentence, or loads; none hangs or shows a fault of fastcar."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import cosmos, ivideogpt
from support.damage import damage_json, no_file, spoil
from support.processes import Run
from support.sweeping import tiny_folder
from support.vila_u import small

from fastcar_cli.checkpoints.open import open_model
from fastcar_cli.errors import FastcarError, RequestError
from fastcar_lab.dummy.vila_u import write_configs, write_tokenizer, write_weights


def _vila_u(folder: Path) -> None:
    write_configs(folder, **small())
    write_tokenizer(folder)
    write_weights(folder, torch.float32)


MAKERS: dict[str, Callable[[Path], Any]] = {
    "own": tiny_folder,
    "vila-u": _vila_u,
    "ivideogpt": lambda folder: ivideogpt.write_model(folder, 2, 3),
    "cosmos": lambda folder: Path(cosmos.write_model(folder)),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A whole folder of each kind, by its name."""
    folders = {name: tmp_path_factory.mktemp(name) / "model" for name in MAKERS}
    for name, folder in folders.items():
        MAKERS[name](folder)
    folders["cosmos"] /= "Cosmos-Predict1-4B"
    return folders


def damage(folder: Path, rng: random.Random) -> str:
    """Damage one file of a folder; what was done."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    documents = [p for p in files if p.suffix == ".json"] or files
    file = rng.choice(documents if rng.random() < 0.8 else files)
    damages = [damage_json] if file.suffix == ".json" else [no_file, spoil]
    return f"{file.relative_to(folder)}: {rng.choice(damages)(file, rng)}"


def _try(whole: dict[str, Path], tmp_path: Path, seeds: range) -> list[str]:
    """What went wrong of the folders of these seeds, a line each."""
    faults = []
    for seed in seeds:
        rng = random.Random(seed)
        name = rng.choice([*whole])
        folder = tmp_path / f"{seed}" / whole[name].name
        # Some formats look at folders beside theirs.
        shutil.copytree(whole[name].parent, folder.parent)
        done = damage(folder, rng)
        try:
            checkpoint = open_model(str(folder))
            spec = checkpoint.spec
            reader = checkpoint.load().tokenizer
            if spec.layout.prompt is None:
                reader.notices("a red ball", name)
                reader.complete(reader.read("a red ball"), seed)
        except FastcarError:
            pass
        except Exception as e:
            faults.append(f"seed {seed}, {name}, {done}: {type(e).__name__}: {str(e)[:100]}")
        shutil.rmtree(folder.parent)
    return faults


@pytest.mark.slow
def test_300_damaged_folders_are_refused_in_a_sentence(whole: dict[str, Path], tmp_path: Path) -> None:
    assert _try(whole, tmp_path, range(300)) == []


@pytest.mark.parametrize(("name", "file", "key"), [
    ("own", "config.json", "spec.decoder.layers"),
    ("vila-u", "llm/config.json", "num_hidden_layers"),
    ("ivideogpt", "tokenizer/config.json", "layers_per_block"),
])  # fmt: skip
def test_a_depth_that_would_take_for_ever_to_build_is_refused(
    whole: dict[str, Path], tmp_path: Path, name: str, file: str, key: str
) -> None:
    folder = shutil.copytree(whole[name], tmp_path / "model")
    config = json.loads((folder / file).read_text())
    *way, last = key.split(".")
    at = config
    for part in way:
        at = at[part]
    at[last] = 2**31 - 1
    (folder / file).write_text(json.dumps(config))
    with pytest.raises(RequestError, match=f"{last}' is 2147483647, expected less than or equal to 1024"):
        open_model(str(folder)).load()


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/dev/zero", path)], ids=["pipe", "device"])
def test_a_config_that_is_no_file_is_refused_at_once(run: Run, tmp_path: Path, make: Callable[[Path], Any]) -> None:
    folder = tiny_folder(tmp_path / "model")
    (folder / "config.json").unlink()
    make(folder / "config.json")
    done = run("generate", "a red ball", "--model", "model")
    assert done.returncode == 2 and "config.json" in done.stderr and "Traceback" not in done.stderr
