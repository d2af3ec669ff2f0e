"""llama.cpp and ik_llama.cpp as contestants: a GGUF file of the same shape with random weights."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fastcar_cli.errors import RunError
from fastcar_cli.models.decoder import DecoderSpec
from fastcar_cli.system.plugins import need
from fastcar_lab.bench.rival import Rival, Run

IK = "ik_llama.cpp"
VOCABULARY = 256  # tokens of the file, so few that embedding and head weigh nothing


def write_gguf(path: Path, spec: DecoderSpec, layers: int, kind: str) -> int:
    """Write a LLaMA of these widths in a format of a `Rival`; returns the bytes of its matrices. All layers have the
    same random numbers, each in memory of its own once the file is mapped.
    """
    gguf = need("gguf", "a GGUF file")
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
        block = _iq4_xs(generator, some.shape) if kind == "IQ4_XS" else gguf.quants.quantize(some, form)
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


def _iq4_xs(generator: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Random blocks of IQ4_XS, which gguf can't write: 256 weights in 136 bytes, the first two a float16 scale."""
    blocks = generator.integers(0, 256, (shape[0], shape[1] // 256, 136), dtype=np.uint8)
    blocks[..., :2] = np.frombuffer(np.float16(1e-4).tobytes(), np.uint8)
    return blocks.reshape(shape[0], -1)


@cache
def _silence(rival: Rival) -> Any:
    """Send its log nowhere. It keeps the callback's address for good: the cache keeps the callback."""
    api = need(rival.module, f"the comparison with {rival.name}")
    if rival.name != IK:
        callback = api.llama_log_callback(lambda *_: None)
        api.llama_log_set(callback, ctypes.c_void_p(0))
    else:
        callback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
        api._lib.llama_log_set(callback, None)
    return callback


def _checked(pointer: Any, what: str) -> Any:
    if not pointer:
        raise RunError(f"{what} failed")
    return pointer


@contextmanager
def session(
    rival: Rival, spec: DecoderSpec, *, layers: int, kind: str, rows: int, context: int, passes: int, threads: int
) -> Iterator[tuple[Run, int]]:
    """As `Session` has it."""
    api: Any = need(rival.module, f"the comparison with {rival.name}")
    ik = rival.name == IK
    with TemporaryDirectory() as folder:
        file = Path(folder) / "model.gguf"
        # Keys and values are float16.
        size = write_gguf(file, spec, layers, kind) + 4 * rows * context * layers * spec.kv_heads * spec.head_dim
        _silence(rival)
        api.llama_backend_init()
        reading = api.llama_model_default_params()
        if ik:
            # Weights in the layout of its fastest kernels, as its option -rtr has it.
            reading.repack_tensors, reading.use_mmap = True, False
        model = _checked(api.llama_model_load_from_file(str(file).encode(), reading), f"{rival.name}: loading the file")
        options = api.llama_context_default_params()
        slots = context + passes + 1
        options.n_ctx, options.n_batch, options.n_ubatch = rows * (-(-slots // 256) * 256), 512, 512
        options.n_seq_max = rows
        if not ik:
            options.kv_unified = False
        options.n_threads = options.n_threads_batch = threads
        held = _checked(api.llama_init_from_model(model, options), f"{rival.name}: making a context")
        batch = api.llama_batch_init(512, 0, 1)
        if ik:
            remove, copy, at = api._lib.llama_kv_cache_seq_rm, api._lib.llama_kv_cache_seq_cp, ctypes.c_void_p(held)
        else:
            remove, copy, at = api.llama_memory_seq_rm, api.llama_memory_seq_cp, api.llama_get_memory(held)

        def decode(tokens: list[tuple[int, int]], wanted: int) -> None:
            """Tokens as (row, position); the logits of the last `wanted` are computed."""
            batch.n_tokens = len(tokens)
            for i, (row, position) in enumerate(tokens):
                batch.token[i], batch.pos[i] = 1 + position % (VOCABULARY - 1), position
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, row
                batch.logits[i] = i >= len(tokens) - wanted
            if api.llama_decode(held, batch):
                raise RunError(f"{rival.name}: decoding failed")

        def run(count: int, window: int = 1) -> None:
            for first in range(context, context + count * window, window):
                tokens = [(row, position) for row in range(rows) for position in range(first, first + window)]
                decode(tokens, len(tokens))
            for row in range(rows):
                remove(at, row, context, -1)

        try:
            for first in range(0, context, 512):
                decode([(0, p) for p in range(first, min(context, first + 512))], 1)
            for row in range(1, rows):
                copy(at, 0, row, -1, -1)
            yield run, size
        finally:
            api.llama_batch_free(batch)
            api.llama_free(held)
            (api.llama_free_model if ik else api.llama_model_free)(model)


def _build(api: Any) -> str:
    """The widest vectors that its library is compiled for."""
    system_info = getattr(api, "_lib", api).llama_print_system_info
    system_info.restype = ctypes.c_char_p
    flags = system_info().decode()
    return next((name for name in ("AVX512", "AVX2") if f"{name} = 1" in flags), "")


LLAMA_CPP = Rival(
    "llama.cpp",
    "llama-cpp-python",
    "llama_cpp",
    {"bfloat16": ("BF16",), "int8": ("Q8_0",), "int4": ("Q4_0",)},
    session,
    _build,
)
IK_LLAMA_CPP = Rival(
    IK,
    "ik-llama-cpp-python",
    "ik_llama_cpp._ctypes_api",
    {"bfloat16": ("BF16",), "int8": ("Q8_0",), "int4": ("Q4_0", "IQ4_XS")},
    session,
    _build,
)
