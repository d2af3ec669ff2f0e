"""llama.cpp as a contestant: the file it is given has the shape that is compared, and it runs where it is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastcar_cli.models.decoder import DecoderSpec
from fastcar_lab.bench.llama_cpp import FORMATS, llama_cpp, write_gguf

SPEC = DecoderSpec(width=64, layers=3, heads=4, kv_heads=2, mlp_width=96, vocab=99, rope_theta=50.0, max_positions=64)
BITS = {"BF16": 16, "Q8_0": 8.5, "Q4_0": 4.5}


@pytest.mark.parametrize("kind", FORMATS)
def test_the_file_has_the_shape_that_is_compared(kind: str, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="gguf is not installed: pip install 'fastcar[llama-cpp]'")
    size = write_gguf(tmp_path / "a.gguf", SPEC, 2, kind)
    found = {t.name: t for t in gguf.GGUFReader(tmp_path / "a.gguf").tensors}
    shapes = {
        **{"attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64), "attn_output": (64, 64)},
        **{"ffn_gate": (96, 64), "ffn_up": (96, 64), "ffn_down": (64, 96)},
    }
    numbers = 0
    for layer in range(2):
        for name, (rows, columns) in shapes.items():
            tensor = found[f"blk.{layer}.{name}.weight"]
            assert tensor.tensor_type.name == kind and list(tensor.shape) == [columns, rows]
            numbers += rows * columns
    assert size == numbers * BITS[kind] / 8
    assert "blk.2.attn_q.weight" not in found


@pytest.mark.parametrize("rows", [1, 2])
def test_passes_start_over_at_their_context(rows: int) -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: pip install 'fastcar[llama-cpp]'")
    with llama_cpp(SPEC, layers=2, kind="Q8_0", rows=rows, context=20, passes=3, threads=1) as (run, size):
        assert size > 0
        for _ in range(3):
            run(3)
