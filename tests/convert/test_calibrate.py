"""`fastcar convert --calibrate`: rounding for the inputs that a matrix meets, stops, and bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.processes import Run
from support.vila_u import converted

from fastcar_cli.convert.calibrate import Calibration, calibrated, output_error
from fastcar_cli.convert.convert import Conversion, Source, target_format
from fastcar_cli.models import load
from fastcar_cli.weights.formats import FORMATS, unpack_int4
from fastcar_lab import conversion_error

PROMPTS = ("a red ball rolls over the grass", "a boat at night", "", "a small green star bouncing")
KINDS = ("int4", "int8")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.txt"
    file.write_text("\n".join(PROMPTS) + "\n", encoding="utf-8")
    return file


# The rounding


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(
    outputs=st.integers(1, 40),
    groups=st.integers(1, 9),
    positions=st.integers(1, 400),
    rank=st.integers(0, 60),
    size=st.sampled_from([1e-4, 1.0, 1e4]),
    dead=st.booleans(),
    seed=st.integers(0, 999),
)
def test_outputs_are_never_further_off_than_plainly_rounded(
    kind: str, outputs: int, groups: int, positions: int, rank: int, size: float, dead: bool, seed: int
) -> None:
    inputs = 32 * groups
    weight = random(outputs, inputs, seed=seed)
    x = (random(positions, rank, seed=seed + 1) @ random(rank, inputs, seed=seed + 2)) * size
    if rank > 50:
        x = random(positions, inputs, seed=seed + 3) * size
    if dead:
        x[:, :: 1 + seed % 5] = 0
    gram = x.T @ x
    before = gram.clone()
    numbers, scale = calibrated(weight, gram, FORMATS[kind])
    assert torch.equal(gram, before)
    codes = unpack_int4(numbers) if kind == "int4" else numbers
    assert codes.dtype == torch.int8 and int(codes.min()) >= (-8 if kind == "int4" else -127)
    assert int(codes.max()) <= (7 if kind == "int4" else 127) and scale.isfinite().all()
    assert scale.dtype == (torch.float16 if kind == "int4" else torch.float32)
    found, plain = (
        ((FORMATS[kind].widen(*q, torch.float32) - weight).double() @ x.double().T).square().sum(1)
        for q in ((numbers, scale), FORMATS[kind].quantise(weight))
    )
    # The choice is made in float32.
    room = 1e-5 * weight.double().square().sum(1) * float(x.double().square().sum())
    assert bool((found <= plain * (1 + 1e-4) + room * 1e-3).all())


@pytest.mark.parametrize("kind", KINDS)
def test_what_plain_rounding_loses_is_halved_where_inputs_are_alike(kind: str) -> None:
    x = random(600, 256) @ (random(256, 256, seed=1) * torch.logspace(0, -2, 256)[:, None])
    weight = random(200, 256, seed=2)
    gram = x.T @ x
    found, plain = (
        output_error(FORMATS[kind].widen(*q, torch.float32) - weight, gram).sum()
        for q in (calibrated(weight, gram, FORMATS[kind]), FORMATS[kind].quantise(weight))
    )
    assert found < 0.25 * plain


def test_inputs_that_have_nothing_in_common_are_rounded_as_their_size_asks() -> None:
    # Without correlations nothing can be made up for: int8, whose scale is given, rounds to the nearest.
    weight, gram = random(30, 64), torch.eye(64) * 5.0
    assert all(map(torch.equal, calibrated(weight, gram, FORMATS["int8"]), FORMATS["int8"].quantise(weight)))


# The command


@pytest.mark.slow
def test_every_matrix_of_the_bundled_model_is_nearer(prompts: Path, run: Run) -> None:
    plain, made = (
        converted(run, "mini", "plain", "--depth-dtype", "int4"),
        converted(run, "mini", "made", "--depth-dtype", "int4", "--calibrate", str(prompts)),
    )
    lines = conversion_error.compare("mini", [str(plain), str(made)], conversion_error.PROMPTS[:1], 1)
    assert lines[1]["bytes"] == lines[2]["bytes"]
    # Of 3 prompts; 16 halve both.
    assert lines[2]["hidden"] < 0.8 * lines[1]["hidden"] and lines[2]["logits"] < 0.8 * lines[1]["logits"]
    said = json.loads((made / "config.json").read_text())["rounding"]
    assert said.startswith("GPTQ on 3 prompts (SHA-256 ")
    states = [load(str(folder)).network.state_dict() for folder in (plain, made)]
    names = [name for name in states[0] if name.endswith(".scale")]
    assert len(names) == sum(p.dtype is torch.uint8 for p in states[0].values())
    for name in names:
        weight = name.removesuffix("scale") + "weight"
        assert not torch.equal(states[0][weight], states[1][weight]), name
    rest = set(states[0]) - {n for name in names for n in (name, name.removesuffix("scale") + "weight")}
    assert all(torch.equal(states[0][name], states[1][name]) for name in rest)


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--dtype", "int8"], []])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"llm__attention_bias": True, "projector__mm_projector_type": "linear"},
        {"tower__rqvaesiglip__embed_dim": 24, "tower__rqtransformer__input_embed_dim_1": 24},
    ],
    ids=["plain", "biased", "projector in floats"],
)
def test_checkpoints_of_all_shapes(make, prompts: Path, run: Run, changes, options) -> None:  # type: ignore[no-untyped-def]
    source = make(**changes)
    plain, made = (
        converted(run, source, "plain", *options),
        converted(run, source, "made", "--calibrate", str(prompts), *options),
    )
    assert [f.name for f in sorted(made.iterdir())] == [f.name for f in sorted(plain.iterdir())]
    states = [load(str(folder)).network.state_dict() for folder in (plain, made)]
    assert all(a.shape == b.shape and a.dtype == b.dtype for a, b in zip(*(s.values() for s in states), strict=True))
    lines = conversion_error.compare(str(source), [str(plain), str(made)], conversion_error.PROMPTS[:1], 1)
    assert lines[2]["hidden"] < lines[1]["hidden"]


DYING = """
import os, signal, sys
from fastcar_cli.cli.app import main
from fastcar_cli.convert import convert
part = sys.argv.pop(1)
whole = convert.write_safetensors
def dies(path, tensors):
    whole(path, tensors)
    if part in str(path):
        path.write_bytes(path.read_bytes()[:100])
        os.kill(os.getpid(), signal.SIGKILL)
convert.write_safetensors = dies
sys.argv = ["fastcar", "convert", *sys.argv[1:]]
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "kept"),
    [
        (".plain.partial/.model-00003", 0),
        (".states-model-00001", 0),
        (".states-model-00003", 2),
        ("/.model-00003", 2),
    ],
)
def test_after_kill_9_it_resumes_and_makes_the_same(make, prompts: Path, run: Run, part: str, kept: int) -> None:  # type: ignore[no-untyped-def]
    source, option = make(), ("--calibrate", str(prompts))
    # The plain conversion before it writes shards of the same names.
    converted(run, source, "straight", *option)
    if part.startswith("/"):
        first = [sys.executable, "-c", DYING, ".states-model-00001", str(source), "-o", "out", *option]
        assert subprocess.run(first, capture_output=True).returncode == -9
    done = subprocess.run([sys.executable, "-c", DYING, part, str(source), "-o", "out", *option], capture_output=True)
    assert done.returncode == -9 and not Path("out").exists()
    for others in ((), ("--calibrate", str(other_prompts(prompts)))):
        refused = run("convert", str(source), "-o", "out", *others)
        assert refused.returncode == 2 and "other options" in refused.stderr
    again = run("convert", str(source), "-o", "out", *option, "--json")
    assert again.returncode == 0 and json.loads(again.stdout)["shards_kept"] == kept, again.stderr
    names = {f.name for f in Path("straight").iterdir()}
    assert names == {f.name for f in Path("out").iterdir()} and not Path("out.partial").exists()
    assert all(Path("straight", n).read_bytes() == Path("out", n).read_bytes() for n in names)


def other_prompts(file: Path) -> Path:
    other = file.with_name("others.txt")
    other.write_text("a yellow star\n", encoding="utf-8")
    return other


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs a list of mapped files")
def test_what_was_rounded_plainly_is_gone_when_rounding_begins(make, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    source, seen = Source(str(make())), []

    def look(what: str, done: int, total: int) -> None:
        if what == "converting":
            seen.append("/.plain/" in Path("/proc/self/maps").read_text())

    form = target_format(source, source.spec, "int8", None)
    Conversion(source, tmp_path / "made", form, source.spec, Calibration(PROMPTS[:1])).run(look)
    assert seen and not any(seen)


@pytest.mark.slow
def test_lost_states_are_reported(make, prompts: Path, run: Run) -> None:  # type: ignore[no-untyped-def]
    command = [str(make()), "-o", "out", "--calibrate", str(prompts)]
    subprocess.run([sys.executable, "-c", DYING, ".states-model-00003", *command], capture_output=True)
    for file in Path("out.partial").glob(".states-*"):
        file.unlink()
    done = run("convert", *command)
    assert done.returncode == 2 and "the saved calibration can't be read" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("text", "more", "says"),
    [
        (None, (), "--calibrate prompts: there is no such file"),
        ("", (), "--calibrate prompts: has no prompt"),
        ("\n  \n", (), "--calibrate prompts: has no prompt"),
        (b"\xff\xfe\xff", (), "--calibrate prompts: is not UTF-8"),
        ("a red ball\n" * 33, (), "--calibrate: 33 prompts"),
        ("a red ball\nzzz qqq\n", (), "--calibrate: the model knows no word of the prompt 'zzz qqq'"),
        ("a red ball", ("--dtype", "bfloat16"), "--calibrate has no effect with --dtype bfloat16"),
    ],
)
def test_bad_requests(run: Run, text: str | bytes | None, more: tuple[str, ...], says: str) -> None:
    if text is not None:
        Path("prompts").write_bytes(text if isinstance(text, bytes) else text.encode())
    done = run("convert", "mini", "-o", "new", "--calibrate", "prompts", *more)
    assert done.returncode == 2, done.stderr
    assert says in " ".join(done.stderr.replace("│", " ").split()), done.stderr
    assert not Path("new").exists() and not Path("new.partial").exists()
