"""llama.cpp as a contestant: a GGUF file of the same shape with random weights, one token of every row a pass."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fastcar_cli.errors import RunError
from fastcar_cli.extras import need
from fastcar_cli.models.decoder import DecoderSpec

FORMATS = ("BF16", "Q8_0", "Q4_0")
VOCABULARY = 256
"""Tokens of the file, so few that embedding and head weigh nothing."""


def write_gguf(path: Path, spec: DecoderSpec, layers: int, kind: str) -> int:
    """Write a LLaMA of these widths in one of FORMATS; returns the bytes of its matrices.

    All layers have the same random numbers, each in memory of its own once the file is mapped.
    """
    gguf = need("gguf", "the comparison with llama.cpp")
    form = gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(VOCABULARY)
    writer.add_context_length(2**16)
    writer.add_embedding_length(spec.width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(spec.mlp_width)
    writer.add_head_count(spec.heads)
    writer.add_head_count_kv(spec.kv_heads)
    writer.add_rope_dimension_count(spec.head_dim)
    writer.add_rope_freq_base(spec.rope_theta)
    writer.add_layer_norm_rms_eps(spec.rms_eps)
    generator = np.random.default_rng(0)

    def packed(rows: int, columns: int) -> Any:
        # A block of rows over and over: drawing and packing every number would take minutes.
        some = generator.standard_normal((min(rows, 256), columns), dtype=np.float32) * np.float32(columns**-0.5)
        block = gguf.quants.quantize(some, form)
        return np.tile(block, (-(-rows // len(block)), 1))[:rows]

    inner, cached = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    matrices = {
        "attn_q": packed(inner, spec.width),
        "attn_k": packed(cached, spec.width),
        "attn_v": packed(cached, spec.width),
        "attn_output": packed(spec.width, inner),
        "ffn_gate": packed(spec.mlp_width, spec.width),
        "ffn_up": packed(spec.mlp_width, spec.width),
        "ffn_down": packed(spec.width, spec.mlp_width),
    }
    ones = np.ones(spec.width, np.float32)
    edge = generator.standard_normal((VOCABULARY, spec.width), dtype=np.float32)
    writer.add_tensor("token_embd.weight", edge)
    for layer in range(layers):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", ones)
        for name, data in matrices.items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", data, raw_dtype=form)
    writer.add_tensor("output_norm.weight", ones)
    writer.add_tensor("output.weight", edge)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return layers * sum(int(data.nbytes) for data in matrices.values())


@cache
def _silence() -> Any:
    """Where llama.cpp sends its log: nowhere. It keeps the address for good, so this must live as long."""
    return need("llama_cpp", "the comparison with llama.cpp").llama_log_callback(lambda *_: None)


def _checked(found: Any, what: str) -> Any:
    if not found:
        raise RunError(f"llama.cpp: {what} failed")
    return found


@contextmanager
def llama_cpp(
    spec: DecoderSpec, *, layers: int, kind: str, rows: int, context: int, passes: int, threads: int
) -> Iterator[tuple[Callable[[int], None], int]]:
    """A function that makes passes at a context length, and the bytes of the weights.

    Raises RequestError where the packages are missing, RunError where llama.cpp fails.
    """
    api: Any = need("llama_cpp", "the comparison with llama.cpp")
    with TemporaryDirectory() as folder:
        file = Path(folder) / "model.gguf"
        size = write_gguf(file, spec, layers, kind)
        api.llama_log_set(_silence(), ctypes.c_void_p(0))
        api.llama_backend_init()
        model = _checked(
            api.llama_model_load_from_file(str(file).encode(), api.llama_model_default_params()), "loading the file"
        )
        options = api.llama_context_default_params()
        slots = context + passes + 1
        options.n_ctx, options.n_batch, options.n_ubatch = rows * (-(-slots // 256) * 256), 512, 512
        options.n_seq_max, options.kv_unified = rows, False
        options.n_threads = options.n_threads_batch = threads
        session = _checked(api.llama_init_from_model(model, options), "making a context")
        batch = api.llama_batch_init(512, 0, 1)
        memory = api.llama_get_memory(session)

        def decode(tokens: list[tuple[int, int]]) -> None:
            """Tokens as (row, position); the logits of the last of each row are wanted."""
            batch.n_tokens = len(tokens)
            for i, (row, position) in enumerate(tokens):
                batch.token[i], batch.pos[i] = 1 + position % (VOCABULARY - 1), position
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, row
                batch.logits[i] = i >= len(tokens) - rows
            if api.llama_decode(session, batch):
                raise RunError("llama.cpp: decoding failed")

        def run(count: int) -> None:
            for position in range(context, context + count):
                decode([(row, position) for row in range(rows)])
            for row in range(rows):
                api.llama_memory_seq_rm(memory, row, context, -1)

        try:
            for first in range(0, context, 512):
                decode([(0, p) for p in range(first, min(context, first + 512))])
            for row in range(1, rows):
                api.llama_memory_seq_cp(memory, 0, row, -1, -1)
            yield run, size
        finally:
            api.llama_batch_free(batch)
            api.llama_free(session)
            api.llama_model_free(model)
