"""Bad input of `fastcar convert`, and of what uses a converted folder: refused in a sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from support.processes import Run
from support.vila_u import converted

PROMPT = "a red ball"


def _edit(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def _cut(folder: Path) -> None:
    file = folder / "model-00002-of-00005.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def _nan(folder: Path) -> None:
    file = folder / "model-00002-of-00005.safetensors"
    save_file({k: t[:1].contiguous() for k, t in load_file(str(file)).items()}, str(file))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "another version": (lambda f: _edit(f, version=2), "'version' is 2, but this fastcar reads version 1"),
    "no version": (lambda f: _edit(f, version=None), "'version' is None"),
    "unknown weights": (
        lambda f: _edit(f, weights={"floats": "float32", "blocks": "int3"}),
        "weights.blocks' is 'int3'",
    ),
    "no shards": (lambda f: _edit(f, shards=[]), "lack key 'llm.embed_tokens.weight'"),
    "other group": (lambda f: _edit(f, group=64), "key 'group' is 64, expected 32"),
    "missing shard": (lambda f: (f / "model-00003-of-00005.safetensors").unlink(), "00003-of-00005.safetensors is mis"),
    "cut shard": (_cut, "model-00002-of-00005.safetensors is damaged"),
    "other shapes": (_nan, "model-00002-of-00005.safetensors, key 'llm.layers.0."),
    "no tokenizer": (lambda f: (f / "tokenizer.model").unlink(), "tokenizer.model is missing"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_folder_is_refused_in_a_sentence(make: Callable[..., Path], run: Run, name: str) -> None:
    damage, says = DAMAGES[name]
    folder = converted(run, make(), "out")
    damage(folder)
    done = run("generate", PROMPT, "--model", "out")
    assert done.returncode == 2 and says in " ".join(done.stderr.replace("│", " ").split()), done.stderr


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "float16"])
def test_another_dtype_of_a_converted_model_is_refused(make: Callable[..., Path], run: Run, dtype: str) -> None:
    converted(run, make(), "out")
    done = run("generate", PROMPT, "--model", "out", "--dtype", dtype)
    assert done.returncode == 2 and f"--dtype {dtype}: the model was converted and has only int4 weights" in done.stderr


@pytest.mark.parametrize("model", ["mini", "checkpoint"])
def test_int4_without_a_conversion_says_how(make: Callable[..., Path], run: Run, model: str) -> None:
    make()
    done = run("generate", PROMPT, "--model", model, "--dtype", "int4")
    assert done.returncode == 2 and "fastcar convert MODEL -o FOLDER --dtype int4" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere", "-o", "new"], "unknown model 'nowhere'"),
        (["mini", "-o", "there"], "--output there: exists already"),
        (["mini", "-o", "nowhere/new"], "--output nowhere/new: there is no folder nowhere"),
        (["mini", "-o", "new", "--dtype", "int3"], "'int3' is not one of 'int4', 'int8', 'bfloat16'"),
        (["mini", "-o", "new", "--dtype", "int8", "--depth-dtype", "int4"], "--depth-dtype has no effect"),
        (["out", "-o", "new"], "out is already converted to int4"),
        (["begun", "-o", "new"], "begun is an unfinished conversion"),
        (
            ["narrow", "-o", "new"],
            "--dtype int4: input widths must be divisible by 32, but 'narrow' has 48 in llm.layers.0",
        ),
        (
            ["flat", "-o", "new", "--depth-dtype", "int4"],
            "--dtype int4: input widths must be divisible by 32, but 'flat' has 16 in depth.",
        ),
        (["flat", "-o", "new", "--depth-dtype", "int4"], "allowed: int8, bfloat16, or --depth-dtype int8"),
        (["nan", "-o", "new"], "holds NaN or infinite values"),
        (["mini", "-o", "taken"], "taken.partial exists and is not a conversion"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_bad_requests(make: Callable[..., Path], run: Run, arguments: list[str], says: str) -> None:
    Path("there").mkdir()
    Path("begun").mkdir()
    Path("begun", "conversion.json").write_text("{}")
    Path("taken.partial").mkdir()
    Path("taken.partial", "thesis.txt").write_text("mine")
    if arguments[0] == "out":
        converted(run, make(), "out")
    make("narrow", llm__hidden_size=48, tower__rqtransformer__input_embed_dim_2=48)
    make("flat", tower__rqtransformer__embed_dim=16)
    file = make("nan") / "mm_projector" / "model.safetensors"
    save_file({k: t / 0 for k, t in load_file(str(file)).items()}, str(file))
    done = run("convert", *arguments)
    assert done.returncode == 2, done.stderr
    assert says in " ".join(done.stderr.replace("│", " ").split()), done.stderr
    assert not Path("new").exists()


def test_int4_needs_an_accelerator_of_its_format(run: Run) -> None:
    converted(run, "mini", "out")
    done = run("generate", "a red ball", "--model", "out", "--backend", "fpga-sim")
    says = " ".join(done.stderr.replace("│", " ").split())
    assert done.returncode == 2 and "--dtype int4: can't be used with --fpga edge-small, whose format is float" in says
