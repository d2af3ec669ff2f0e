"""llama.cpp and ik_llama.cpp as contestants: their files have the shape that is compared; they run where installed."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fastcar_cli.errors import RequestError
from fastcar_cli.models.decoder import DecoderSpec
from fastcar_lab.bench.llama_cpp import write_gguf
from fastcar_lab.bench.measure import RIVALS
from fastcar_lab.bench.rival import Rival

SPEC = DecoderSpec(width=256, layers=3, heads=4, kv_heads=2, mlp_width=512, vocab=99, rope_theta=50.0, max_positions=64)
BITS = {"BF16": 16, "Q8_0": 8.5, "Q4_0": 4.5, "IQ4_XS": 4.25}


@pytest.mark.parametrize("kind", BITS)
def test_the_file_has_the_shape_that_is_compared(kind: str, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="gguf is not installed: pip install 'fastcar[llama-cpp]'")
    size = write_gguf(tmp_path / "a.gguf", SPEC, 2, kind)
    found = {t.name: t for t in gguf.GGUFReader(tmp_path / "a.gguf").tensors}
    shapes = {
        **{"attn_q": (256, 256), "attn_k": (128, 256), "attn_v": (128, 256), "attn_output": (256, 256)},
        **{"ffn_gate": (512, 256), "ffn_up": (512, 256), "ffn_down": (256, 512)},
    }
    numbers = 0
    for layer in range(2):
        for name, (rows, columns) in shapes.items():
            tensor = found[f"blk.{layer}.{name}.weight"]
            assert tensor.tensor_type.name == kind and list(tensor.shape) == [columns, rows]
            numbers += rows * columns
    assert size == numbers * BITS[kind] / 8
    assert "blk.2.attn_q.weight" not in found


@pytest.mark.parametrize("rival", RIVALS.values(), ids=RIVALS)
@pytest.mark.parametrize("rows", [1, 2])
def test_passes_start_over_at_their_context(rival: Rival, rows: int) -> None:
    pytest.importorskip(rival.module, reason=f"{rival.package} is not installed")
    if "llama" in rival.name:
        pytest.importorskip("gguf", reason="gguf is not installed: pip install 'fastcar[llama-cpp]'")
    for kind in {kind for kinds in rival.formats.values() for kind in kinds}:
        with rival.session(rival, SPEC, layers=2, kind=kind, rows=rows, context=20, passes=12, threads=1) as (
            run,
            size,
        ):
            assert size > 0
            for window in (1, 4, 4, 1):
                run(3, window)


SIGNALLED = """
import faulthandler, os, signal
from contextlib import ExitStack
from fastcar_lab.bench.openvino import OPENVINO
from test_bench_llama_cpp import SPEC

faulthandler.enable()
with ExitStack() as stack:
    sessions = [
        stack.enter_context(
            OPENVINO.session(OPENVINO, SPEC, layers=1, kind="INT8", rows=1, context=4, passes=1, threads=1)
        )
        for _ in range(2)
    ]
while sessions:
    del sessions[0]
signal.signal(signal.SIGUSR1, lambda number, frame: print("handled"))
os.kill(os.getpid(), signal.SIGUSR1)
"""


def test_a_process_handles_signals_after_sessions_of_openvino() -> None:
    pytest.importorskip("openvino", reason="openvino is not installed")
    done = subprocess.run([sys.executable, "-c", SIGNALLED], capture_output=True, text=True, cwd=Path(__file__).parent)
    assert (done.returncode, done.stdout) == (0, "handled\n"), done.stderr


def test_a_rival_that_is_not_installed_is_named() -> None:
    rival = replace(RIVALS["ik_llama_cpp"], module="ik_llama_cpp.missing")
    with pytest.raises(RequestError, match=r"ik_llama\.cpp needs the extra fastcar\[ik-llama-cpp\]"):
        _ = rival.version
