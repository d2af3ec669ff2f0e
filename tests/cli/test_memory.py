"""Memory: what commands take is what they plan. Two children run each command, as the process itself takes some too."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from support.vila_u import small

from fastcar_cli.convert.convert import Conversion, Source
from fastcar_cli.errors import RequestError
from fastcar_cli.models.weight_format import WeightFormat
from fastcar_lab.dummy.vila_u import write_configs, write_tokenizer, write_weights

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="Linux reports the peak")]

WIDE = {
    "vocab_size": 1020,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
}
# The peak of the child's own memory: that of getrusage includes what its parent had.
CHILD = """
import atexit, pathlib, sys
atexit.register(lambda: print(pathlib.Path("/proc/self/status").read_text(), file=sys.stderr))
from fastcar_cli.cli.app import main
main()
"""


def model_of(folder: Path, **changes: int) -> Path:
    """A model in float32 whose decoder is WIDE with changes."""
    write_configs(folder, **small(**{f"llm__{k}": v for k, v in (WIDE | changes).items()},
                                  tower__rqtransformer__input_embed_dim_2=1024))  # fmt: skip
    write_tokenizer(folder, 1000)
    write_weights(folder, torch.float32)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Models of 2 and 8 layers, which take 64 MiB each in float32."""
    return [model_of(tmp_path_factory.mktemp(f"layers{layers}"), num_hidden_layers=layers) for layers in (2, 8)]


def _ran(*arguments: str) -> tuple[str, int]:
    """Standard output of a command, and its peak in bytes."""
    done = subprocess.run([sys.executable, "-c", CHILD, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    peak = re.search(r"VmHWM:\s+(\d+) kB", done.stderr)
    assert peak is not None
    return done.stdout, int(peak[1]) * 1024


@pytest.mark.parametrize(
    ("command", "planned"),
    [
        ("generate fox --frames 16 -o VIDEO --json", "generate fox --frames 16"),
        ("generate fox --tau 0 --dtype bfloat16 -o VIDEO --json", "generate fox --tau 0 --dtype bfloat16"),
        ("sweep fox --frames 4 --seeds 0 --tau off,0 --metrics psnr -o FOLDER", "generate fox --frames 4 --tau 0"),
        ("profile --seq 1k --rows 8 --repeats 1 --json", "profile --seq 1k --rows 8 --repeats 1"),
    ],
)
def test_more_layers_take_what_the_plan_adds(command: str, planned: str, models: list[Path], tmp_path: Path) -> None:
    plans, peaks = [], []
    for number, model in enumerate(models):
        places = {"VIDEO": str(tmp_path / f"{number}.mp4"), "FOLDER": str(tmp_path / f"sweep{number}")}
        options = [places.get(word, word) for word in command.split()]
        plan, _ = _ran(*planned.split(), "--model", str(model), "--dry-run", "--json")
        plans.append(json.loads(plan)["needed_bytes"])
        peaks.append(_ran(*options, "--model", str(model))[1])
    assert peaks[1] - peaks[0] == pytest.approx(plans[1] - plans[0], rel=0.1)


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
def test_a_conversion_takes_what_it_plans(dtype: str, tmp_path: Path) -> None:
    plans, peaks = [], []
    for width in (32768, 98304):  # matrices of 128 and 384 MiB
        (folder := tmp_path / f"{width}").mkdir()
        model = model_of(folder, num_hidden_layers=1, intermediate_size=width)
        said, peak = _ran("convert", str(model), "-o", str(tmp_path / f"out{width}"), "--dtype", dtype, "--json")
        plans.append(json.loads(said)["needed_bytes"])
        peaks.append(peak)
        assert peak <= plans[-1]
    assert peaks[1] - peaks[0] == pytest.approx(plans[1] - plans[0], rel=0.1)


def test_a_conversion_that_does_not_fit_is_refused(
    models: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversion = Conversion(
        source := Source(str(models[0])), tmp_path / "out", WeightFormat("bfloat16", torch.bfloat16), source.spec
    )
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=2**28))
    with pytest.raises(RequestError, match=r"the conversion needs 504.0 MiB of memory, but 256.0 MiB are free"):
        conversion.run()


HELD = """
import pathlib, re, sys
from fastcar_cli.models import load
def anonymous():
    return int(re.search(r"RssAnon:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1]) * 1024
load(sys.argv[1], "int8")
before = anonymous()
model = load(sys.argv[2], "int8")
print((anonymous() - before) / model.network.weights_bytes())
"""


def test_loading_in_int8_leaves_no_holes_in_memory(models: list[Path]) -> None:
    small_one, large = map(str, models)
    done = subprocess.run([sys.executable, "-c", HELD, small_one, large], capture_output=True, text=True, check=True)
    assert float(done.stdout) <= 1.2
