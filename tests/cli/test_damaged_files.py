"""Files that commands read, damaged at random: each is refused in a sentence or used; none hangs or shows a fault."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import save_file
from support import ivideogpt
from support.cosmos import SIZE, write_model
from support.damage import ODD, TEXTS, changed, damage_json, no_file, spoil
from support.processes import Run
from support.sweeping import TINY_METRICS, tiny_folder

from fastcar_cli.config.presets import preset_folder
from fastcar_cli.media import open_writer

BALL = "a red ball"
GENERATE = ("generate", "-q", "--seed", "1", "--force", "-o", "out.gif")
AGAIN = (*GENERATE[:2], *GENERATE[4:])
PUSHED = (*GENERATE, "--model", "pushed", "--frames", "2")
SWEEP = ("sweep", BALL, "--model", "tiny", "--tau", "off,-1", "--repeats", "1", "--metrics", TINY_METRICS, "-o", "s")
READS_VECTORS = "models/Cosmos-Predict1-13B-Video2World"
SECONDS = 300
"""A command takes at most; each takes about one where it does not hang."""


def _json(file: Path, rng: random.Random) -> str:
    return damage_json(file, rng, pipe=False)


def _yaml(file: Path, rng: random.Random) -> str:
    if rng.random() < 0.75:
        file.write_text(yaml.safe_dump(changed(yaml.safe_load(file.read_text()), rng), allow_unicode=False))
        return "a value"
    return _text(file, rng)


def _text(file: Path, rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.6:
        file.write_text(rng.choice([*TEXTS, *map(repr, ODD)]))
        return "another text"
    return no_file(file, rng, pipe=False) if kind < 0.7 else spoil(file, rng)


def _bytes(file: Path, rng: random.Random) -> str:
    return no_file(file, rng, pipe=False) if rng.random() < 0.1 else spoil(file, rng)


def _arrays(file: Path, rng: random.Random) -> str:
    """Damage an .npz: its JSON, an array's type, shape or values, or its bytes."""
    if rng.random() < 0.2:
        return _bytes(file, rng)
    held: dict[str, Any] = dict(np.load(file))
    name = "meta" if "meta" in held and rng.random() < 0.6 else rng.choice([*held])
    if name == "meta":
        held[name] = np.array(json.dumps(changed(json.loads(str(held[name])), rng)))
    else:
        old = held[name]
        old = old if old.dtype.kind in "iufb" else np.zeros(3)
        odd = [old.astype(t) for t in (np.float64, np.complex64, np.int8, "S4", "U4", "M8[s]")]
        shaped = [
            old[..., None],
            old.ravel(),
            old[:0],
            old[:1],
            np.array(3),
            old.astype(float) * np.nan,
            old.astype(np.int64) + 2**30,
        ]
        held[name] = rng.choice([*odd, *shaped])
    if rng.random() < 0.1:
        del held[name]
    np.savez(file, **held)
    return f"array {name}"


def _recipe(file: Path, rng: random.Random) -> str:
    """A video with a damaged recipe."""
    recipe: Any = json.loads((file.parent / "r.json").read_text())["recipe"]
    with open_writer(file, fps=8, scale=1, recipe=changed(recipe, rng)) as writer:
        writer.add(np.zeros((16, 16, 3), np.uint8))
    return "a recipe" if rng.random() < 0.7 else spoil(file, rng)


def _folder(folder: Path, rng: random.Random) -> str:
    """Damage one file of a sweep's folder."""
    file = rng.choice(sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix in (".json", ".npz", ".mp4")))
    damage = {".json": damage_json, ".npz": _arrays}.get(file.suffix, _bytes)
    return f"{file.relative_to(folder)}: {damage(file, rng)}"


class Kind(NamedTuple):
    """A file of the folder of whole files, what damages it, and the commands that read it."""

    file: str
    damage: Callable[[Path, random.Random], str]
    commands: tuple[tuple[str, ...], ...]


KINDS = {
    "sidecar": Kind("r.json", _json, ((*AGAIN, "--from", "r.json", "--model", "tiny", "--frames", "1"),)),
    "recipe": Kind("r.gif", _recipe, ((*AGAIN, "--from", "r.gif", "--model", "tiny"),)),
    "recipe of an MP4": Kind("r.mp4", _recipe, ((*AGAIN, "--from", "r.mp4"),)),
    "trace": Kind("t.npz", _arrays, (("fpga", "t.npz"), ("fpga", "rtl", "t.npz", "--passes", "1", "-o", "rtl"))),
    "accelerator": Kind("p.yaml", _yaml, (("fpga", "t.npz", "--preset", "p.yaml"),)),
    "configuration": Kind("c.yaml", _yaml, (
        ("generate", BALL, "--dry-run", "--config", "c.yaml"), ("config", "--config", "c.yaml"),
    )),
    "settings": Kind("fastcar.yaml", _yaml, (("generate", BALL, "--dry-run"), ("config", "--where"))),
    "prompts": Kind("p.txt", _text, ((*GENERATE[:-2], "--prompts", "p.txt", "--model", "tiny", "-o", "many/"),)),
    "prompts of a sweep": Kind("p.json", _json, (("sweep", "--prompts", "p.json", *SWEEP[2:]),)),
    "calibration": Kind("p.txt", _text, (
        ("convert", "tiny", "--dtype", "int8", "--calibrate", "p.txt", "-o", "int8"),
    )),
    "actions": Kind("a.json", _json, ((*PUSHED, "--input", "i.png", "--actions", "a.json"),)),
    "rows": Kind("a.csv", _text, ((*PUSHED, "--input", "i.png", "--actions", "a.csv"),)),
    "arrays": Kind("i.npz", _arrays, ((*PUSHED, "--input", "i.npz"),)),
    **{
        f"input {name}": Kind(name, _bytes, ((*PUSHED, "--input", name, "--actions", "a.json"),))
        for name in ("i.png", "i.gif", "i.webp", "r.mp4", "i.tiff")
    },
    "vectors": Kind("v.safetensors", _bytes, (
        (*GENERATE, "--model", READS_VECTORS, "--input", "i.png", "--size", SIZE, "--text-embedding", "v.safetensors"),
    )),
    "kept": Kind("k.safetensors", _bytes, ((*GENERATE, BALL, "--model", "tiny", "--keep-prefill", "k.safetensors"),)),
    "profile": Kind("profile.json", _json, (("profile", "--model", "tiny", "--seq", "16", "--repeats", "1",
                                             "--compare", "profile.json"),)),
    "sweep": Kind("s", _folder, (SWEEP,)),
}  # fmt: skip


@pytest.fixture
def whole(run: Run, tmp_path: Path) -> Path:
    """A folder of whole files; it is the current one."""
    tiny_folder(tmp_path / "tiny")
    ivideogpt.write_model(tmp_path / "pushed", 1, 2)
    write_model(tmp_path / "models", "Cosmos-Predict1-13B-Video2World", 64)
    shutil.copy(preset_folder() / "fpga" / "edge-small.yaml", "p.yaml")
    for name in ("c.yaml", "fastcar.yaml"):
        Path(name).write_text("model: tiny\nreplay: {tau: -1, max_age: 3}\nsampling: {top_p: 0.5}\nvideo: {scale: 2}\n")
    Path("p.txt").write_text(f"# two\n{BALL}\na blue car\n")
    Path("p.json").write_text(json.dumps([{"prompt_en": BALL, "dimension": ["color"]}]))
    Path("a.json").write_text(json.dumps([[1, 0.5], [0, 0]]))
    Path("a.csv").write_text("x,y\n1,0\n0,0\n")
    frames = np.random.default_rng(0).integers(0, 255, (2, 64, 64, 3), np.uint8)
    np.savez("i.npz", image=frames, action=np.zeros((2, 2)))
    images = [Image.fromarray(frame) for frame in frames]
    for name in ("i.png", "i.gif", "i.webp", "i.tiff"):
        images[0].save(name, save_all=True, append_images=images[1:])
    save_file({"text": torch.ones(4, 64)}, "v.safetensors")
    made = (
        (*GENERATE[:-2], BALL, "--model", "tiny", "--trace", "t.npz", "-o", "r.mp4"),
        (*GENERATE[:-2], BALL, "--model", "tiny", "--keep-prefill", "k.safetensors", "-o", "one/"),
        ("profile", "--model", "tiny", "--seq", "16", "--repeats", "1", "--save", "profile.json"),
        SWEEP,
    )
    Path("fastcar.yaml").rename("later.yaml")
    for command in made:
        done = run(*command)
        assert done.returncode == 0, done.stderr
    Path("later.yaml").rename("fastcar.yaml")
    Path("one/a-red-ball-s1.json").rename("r.json")
    shutil.copy("r.mp4", "r.gif")
    shutil.copytree(tmp_path, tmp_path / "whole", ignore=shutil.ignore_patterns("whole"))
    return tmp_path


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError(f"it takes more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _try(run: Run, whole: Path, seeds: Iterable[int]) -> list[str]:
    """What went wrong with the files of these seeds, a line each; each kind has its turn."""
    faults, folder = [], whole / "work"
    for seed in seeds:
        rng, name = random.Random(seed), [*KINDS][seed % len(KINDS)]
        kind = KINDS[name]
        file, command = folder / kind.file, rng.choice(kind.commands)
        shutil.copytree(whole / "whole", folder)
        if name != "settings":
            (folder / "fastcar.yaml").unlink()
        done = kind.damage(file, rng)
        os.chdir(folder)
        try:
            with _within(SECONDS):
                ended = run(*command)
            said = ended.stderr + ended.stdout
            if ended.returncode not in (0, 1, 2) or "fault of fastcar" in said or "Traceback" in said:
                faults.append(f"seed {seed}, {name}, {done}: status {ended.returncode}: {said[-300:]}")
        except Exception as e:
            faults.append(f"seed {seed}, {name}, {done}: {type(e).__name__}: {str(e)[:100]}")
        finally:
            os.chdir(whole)
            shutil.rmtree(folder)
    return faults


@pytest.mark.slow
def test_a_damaged_file_of_every_kind_is_refused_or_used(run: Run, whole: Path) -> None:
    assert _try(run, whole, range(len(KINDS))) == []


@pytest.mark.slow
def test_300_damaged_files_are_refused_or_used(run: Run, whole: Path) -> None:
    assert _try(run, whole, range(len(KINDS), len(KINDS) + 300)) == []
