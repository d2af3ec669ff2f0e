"""`fastcar convert`: what a converted folder loads as, and stops."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.native_toys import coded
from support.processes import SCREEN, Run
from support.vila_u import converted

from fastcar_cli.decoding import trace
from fastcar_cli.models import load
from fastcar_cli.models.checkpoint import loading_format
from fastcar_cli.models.vila_u.checkpoint import VilaUCheckpoint
from fastcar_cli.weights.formats import QuantisedLinear, multiplied_by, quantise_int4
from fastcar_lab import conversion_error

PROMPT = "a red ball"
CODES = torch.randint(0, 20, (1, 12, 3), generator=torch.Generator().manual_seed(0))
linux = pytest.mark.skipif(sys.platform != "linux", reason="memory is read the Linux way")


def held(module: torch.nn.Module) -> str:
    """What the weight of a map is stored as."""
    return module.form.name if isinstance(module, QuantisedLinear) else "floats"


def matrix(rows: int = 64, inputs: int = 96, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, inputs, generator=torch.Generator().manual_seed(seed))


# Conversion and loading


def test_bfloat16_is_what_loading_gives(make: Callable[..., Path], run: Run) -> None:
    source = make()
    found = load(str(converted(run, source, "out", "--dtype", "bfloat16")))
    wanted = load(str(source), "bfloat16")
    assert found.network.weight_format == "bfloat16" and found.network.spec.decoder == wanted.network.spec.decoder
    states = found.network.state_dict(), wanted.network.state_dict()
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(t, states[1][k]) and t.dtype == states[1][k].dtype for k, t in states[0].items())
    assert found.defaults == wanted.defaults
    assert found.tokenizer.read(PROMPT) == wanted.tokenizer.read(PROMPT)


def test_int8_blocks_are_those_of_loading(make: Callable[..., Path], run: Run) -> None:
    source = make(dtype=torch.bfloat16)
    network = load(str(converted(run, source, "out", "--dtype", "int8"))).network
    found, wanted = network.state_dict(), load(str(source), "int8").network.state_dict()
    blocks = [k for k in wanted if k.startswith("llm.")]
    assert blocks and all(torch.equal(found[k], wanted[k]) and found[k].dtype == wanted[k].dtype for k in blocks)
    assert held(network.depth.in_mlp_1) == "int8" and network.weight_format == "int8"


@pytest.mark.parametrize("changes", [{}, {"llm__attention_bias": True}, {"projector__mm_projector_type": "linear"}])
def test_native_kernels_run_all_of_int8(make: Callable[..., Path], run: Run, changes: dict[str, Any]) -> None:
    model = load(str(converted(run, make(**changes), "out", "--dtype", "int8")))

    def product(module: QuantisedLinear, x: torch.Tensor) -> torch.Tensor:
        bias = None if module.bias is None else module.bias.double()
        # As the native products do.
        inputs = coded("int8", x.double())
        return torch.nn.functional.linear(inputs, module.widened(torch.float64), bias).to(x.dtype)

    with multiplied_by(product):
        plain = trace(model, [PROMPT], CODES, tau=-1000, cfg=1.0)
    native = trace(model, [PROMPT], CODES, tau=-1000, cfg=1.0, executor="native")
    # Of 32 inputs that share a scale, one in the middle between two codes weighs much: measured 3.4e-5 and 5.5e-5.
    for found, wanted in ((native.hidden, plain.hidden), (native.logits, plain.logits)):
        assert float((found - wanted).norm()) <= 1e-4 * float(wanted.norm())


def test_int4_holds_the_rounded_weights_with_zeros_behind(make: Callable[..., Path], run: Run) -> None:
    source = make()
    model = load(str(converted(run, source, "out", "--dtype", "int4"))).network
    plain = load(str(source)).network
    assert model.weight_format == "int4" and model.spec.decoder.mlp_width == 64
    block, wanted = model.llm.blocks[1], plain.llm.blocks[1]
    down = torch.nn.functional.pad(wanted.mlp.down_proj.weight, (0, 16))
    for made, weight in ((block.self_attn.k_proj, wanted.self_attn.k_proj.weight), (block.mlp.down_proj, down)):
        assert held(made) == "int4"
        packed, scale = quantise_int4(weight)
        assert torch.equal(made.weight, packed) and torch.equal(made.scale, scale)
    assert isinstance(model.projector.layers, torch.nn.Sequential)
    assert held(model.projector.layers[0]) == "int4" and held(model.depth.in_mlp_2) == "int8"
    # What is added to the MLP makes no difference: the same weights without it give the same sums.
    x = matrix(3, 32)
    gate, up = (m.widened(torch.float32)[:48] for m in (block.mlp.gate_proj, block.mlp.up_proj))
    inside = torch.nn.functional.silu(x @ gate.T) * (x @ up.T)
    assert torch.allclose(block.mlp(x), inside @ block.mlp.down_proj.widened(torch.float32)[:, :48].T, atol=1e-5)


@pytest.mark.parametrize(
    ("width", "options", "kind"),
    [(32, [], "int8"), (32, ["--depth-dtype", "int4"], "int4"), (1024, [], "int4")],
)
def test_a_narrow_depth_transformer_stays_int8_unless_int4_is_requested(
    make: Callable[..., Path], run: Run, width: int, options: list[str], kind: str
) -> None:
    source = make(tower__rqtransformer__embed_dim=width)
    done = run("convert", str(source), "-o", "out", "--dtype", "int4", *options)
    assert done.returncode == 0 and ("the narrow depth transformer" in done.stderr) == (kind == "int8")
    network = load("out").network
    assert held(network.depth.head_transformer.blocks[0].mlp[0]) == kind
    assert held(network.llm.blocks[0].mlp.up_proj) == "int4"


def test_widths_that_int4_cant_take_leave_the_projector_in_floats(make: Callable[..., Path], run: Run) -> None:
    odd = {"tower__rqvaesiglip__embed_dim": 24, "tower__rqtransformer__input_embed_dim_1": 24}
    folder = converted(run, make(**odd))
    model = load(str(folder)).network
    kinds = [held(m) for m in (model.projector.layers[0], model.depth.in_mlp_1, model.llm.blocks[0].mlp.up_proj)]
    assert kinds == ["floats", "int8", "int4"]
    assert trace(load(str(folder)), [PROMPT], CODES, tau=None).logits.isfinite().all()


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
def test_what_stays_floats_is_as_the_source(make: Callable[..., Path], run: Run, stored: torch.dtype) -> None:
    model = load(str(converted(run, make(dtype=stored)))).network
    pixels = [model.rqvae.decoder, model.rqvae.post_quant_conv]
    drawing = {p for part in pixels for p in part.parameters()}
    assert {p.dtype for p in drawing} == {torch.float32}
    kept = {p.dtype for p in model.parameters() if p not in drawing}
    assert kept == {torch.float32 if stored == torch.float32 else torch.bfloat16}


@pytest.mark.slow
def test_the_bundled_model_in_int4_is_near_itself(run: Run) -> None:
    done = run("convert", "mini", "-o", "mini-int4", "--dtype", "int4", "--json")
    document = json.loads(done.stdout)
    lines = conversion_error.compare("mini", ["mini-int4"], conversion_error.PROMPTS[:1], 2)
    assert lines[1]["bytes"] == document["weights_bytes"] < 0.45 * lines[0]["bytes"] * 1.2
    assert lines[0]["hidden"] < 0.03 and lines[1]["hidden"] < 0.25 and lines[1]["same_first"] > 0.97
    again = run("generate", "a red ball on the grass", "--model", "mini-int4", "--frames", "1", "-o", "a.gif", "--json")
    assert again.returncode == 0, again.stderr
    report = json.loads(again.stdout)
    assert report["model"]["dtype"] == "int4" and report["memory"]["weights_bytes"] == document["weights_bytes"]
    recipe = run("generate", "--from", "a.gif", "--model", "mini-int4", "-o", "b.gif")
    assert recipe.returncode == 0 and "other weights" not in recipe.stderr, recipe.stderr
    assert Path("a.gif").read_bytes() == Path("b.gif").read_bytes()


def test_config_names_the_source_and_no_path(make: Callable[..., Path], run: Run) -> None:
    folder = converted(run, make("fox"), "out")
    data = json.loads((folder / "config.json").read_text())
    assert data["version"] == 1 and data["dtype"] == "int4" and data["group"] == 32
    assert data["source"]["name"] == "fox" and len(data["source"]["weights"]) == 64
    assert str(folder.parent) not in (folder / "config.json").read_text()
    assert {f.name for f in folder.iterdir()} == {
        "config.json", "tokenizer.model", "added_tokens.json", *data["shards"]
    }  # fmt: skip


def test_the_plan_of_a_converted_model_is_its_own(make: Callable[..., Path], run: Run) -> None:
    folder = converted(run, make(), "out")
    document = json.loads(run("generate", PROMPT, "--model", "out", "--dry-run", "--json").stdout)
    shards = sum(f.stat().st_size for f in folder.glob("*.safetensors"))
    assert document["dtype"] == "int4" and document["weights_bytes"] == load(str(folder)).network.weights_bytes()
    assert sum(document["files"].values()) == shards and 0 <= shards - document["weights_bytes"] < 20_000


MAPPED = """
import re, sys, torch
from fastcar_cli.models import load
model = load(sys.argv[1])
touched = sum(int(t.flatten().view(torch.uint8)[::64].sum()) for t in model.network.state_dict().values())
print("ready", flush=True)
sys.stdin.readline()
total = {}
ours = False
for line in open("/proc/self/smaps"):
    if re.match("[0-9a-f]+-[0-9a-f]+ ", line):
        ours = line.rstrip().endswith(".safetensors")
    elif ours and line.endswith("kB\\n"):
        name, value = line.split(":")
        total[name] = total.get(name, 0) + int(value.split()[0]) * 1024
shared = total["Shared_Clean"] + total["Shared_Dirty"]  # dirty until the file has reached the disk
print(model.network.weights_bytes(), total["Rss"], shared, total["Private_Dirty"], flush=True)
sys.stdin.readline()
"""


@pytest.mark.slow
@linux
def test_two_processes_share_the_pages_of_the_weights(run: Run) -> None:
    converted(run, "mini", "out", "--dtype", "int8")
    children = [
        subprocess.Popen(
            [sys.executable, "-c", MAPPED, "out"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for child in children:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write("\n")
        child.stdin.flush()
        size, resident, shared, dirty = map(int, child.stdout.readline().split())
        assert resident >= size and shared == resident and dirty == 0
    for child in children:
        child.communicate("\n")


PEAK = """
import resource, sys
from fastcar_cli.cli.app import main
import fastcar_cli.convert, torch
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
for arguments in (sys.argv[1:3], sys.argv[3:]):
    before = peak()
    sys.argv = ["fastcar", "convert", arguments[0], "-o", arguments[1], "-q", "--threads", "1"]
    main()
"""


@pytest.mark.slow
@linux
def test_conversion_holds_a_layer_not_the_model(make: Callable[..., Path], tmp_path: Path) -> None:
    wide = {"llm__hidden_size": 512, "llm__intermediate_size": 2048, "llm__num_hidden_layers": 40,
            "tower__rqtransformer__input_embed_dim_2": 512}  # fmt: skip
    model = make("big", **wide)
    script = PEAK.replace("    main()\n", "    try:\n        main()\n    except SystemExit:\n        pass\n")
    script += "print(peak() - before)\n"
    arguments = [str(make("tiny")), str(tmp_path / "a"), str(model), str(tmp_path / "b")]
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True)
    assert (tmp_path / "b").is_dir()
    size = sum(f.stat().st_size for f in model.rglob("*.safetensors"))
    assert size > 600 * 2**20 and int(done.stdout) < 250 * 2**20


# Stops


DYING = """
import os, signal, sys
from fastcar_cli.cli.app import main
from fastcar_cli.convert import convert
whole = convert.write_safetensors
def dies_in_the_third(path, tensors):
    whole(path, tensors)
    if "00003" in path.name:
        path.write_bytes(path.read_bytes()[:100])
        os.kill(os.getpid(), signal.SIGKILL)
convert.write_safetensors = dies_in_the_third
sys.argv = ["fastcar", "convert", *sys.argv[1:]]
main()
"""


@pytest.mark.slow
def test_after_kill_9_it_resumes_and_makes_the_same(make: Callable[..., Path], run: Run) -> None:
    source = make()
    done = subprocess.run([sys.executable, "-c", DYING, str(source), "-o", "out"], capture_output=True)
    assert done.returncode == -9 and not Path("out").exists()
    working = Path("out.partial")
    kept = {f: f.stat().st_mtime_ns for f in working.glob("model-*")}
    assert len(kept) == 2
    for model, says in (("out.partial", "unfinished"), ("out", "out.partial is unfinished")):
        used = run("generate", PROMPT, "--model", model)
        assert used.returncode == 2 and says in used.stderr, used.stderr
    other = run("convert", str(source), "-o", "out", "--dtype", "int8")
    assert other.returncode == 2 and "other options" in other.stderr
    again = run("convert", str(source), "-o", "out", "--json")
    assert again.returncode == 0 and json.loads(again.stdout)["shards_kept"] == 2, again.stderr
    assert not working.exists()
    assert {f.name: Path("out", f.name).stat().st_mtime_ns for f in kept} == {f.name: t for f, t in kept.items()}
    straight = converted(run, source, "straight")
    names = {f.name for f in straight.iterdir()}
    assert names == {f.name for f in Path("out").iterdir()}
    assert all((straight / n).read_bytes() == Path("out", n).read_bytes() for n in names)


@pytest.mark.slow
def test_another_source_does_not_resume_what_was_begun(make: Callable[..., Path], run: Run) -> None:
    source = make()
    subprocess.run([sys.executable, "-c", DYING, str(source), "-o", "out"], capture_output=True)
    file = source / "mm_projector" / "model.safetensors"
    save_file({k: t + 1 for k, t in load_file(str(file)).items()}, str(file))
    done = run("convert", str(source), "-o", "out")
    assert done.returncode == 2 and "of another model" in done.stderr


def test_it_resumes_after_a_stop_behind_the_last_shard(make: Callable[..., Path], run: Run) -> None:
    folder = converted(run, make(), "out")
    folder.rename(folder.with_name("out.partial"))
    done = run("convert", "checkpoint", "-o", "out", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["shards_kept"] == len(list(folder.glob("model-*")))


FULL = """
import resource, sys
from fastcar_cli.cli.app import main
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
sys.argv = ["fastcar", "convert", *sys.argv[1:]]
main()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no limit of file sizes there")
def test_a_write_that_fails_leaves_nothing_under_the_name(make: Callable[..., Path], run: Run) -> None:
    source = make()
    env = {**os.environ, **SCREEN}
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(source), "-o", "out"], capture_output=True, text=True, env=env
    )
    assert done.returncode == 1 and "could not be written" in done.stderr and "to resume" in done.stderr
    assert not Path("out").exists() and not list(Path("out.partial").glob(".model*"))
    assert run("convert", str(source), "-o", "out").returncode == 0


def test_a_full_disk_is_reported_before_work(
    make: Callable[..., Path], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make()
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    done = run("convert", str(source), "-o", "out")
    assert done.returncode == 1 and re.search(r"out needs another .* on the disk, but .* are free", done.stderr), (
        done.stderr
    )
    assert not Path("out").exists() and not list(Path("out.partial").glob("model*"))


def test_int8_and_bfloat16_take_any_width(make: Callable[..., Path], run: Run) -> None:
    source = make("narrow", llm__hidden_size=48, tower__rqtransformer__input_embed_dim_2=48)
    for dtype in ("int8", "bfloat16"):
        folder = converted(run, source, dtype, "--dtype", dtype)
        assert trace(load(str(folder)), [PROMPT], CODES, tau=None).logits.isfinite().all()


def test_loading_formats_are_as_before() -> None:
    assert torch.bfloat16 == VilaUCheckpoint.FLOATS
    assert loading_format("int8").depth is None
