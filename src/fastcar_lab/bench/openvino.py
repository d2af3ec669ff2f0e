"""OpenVINO as a contestant: a LLaMA of random weights with the paged attention of OpenVINO GenAI."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from fastcar_cli.models.decoder import DecoderSpec
from fastcar_cli.system.plugins import need
from fastcar_lab.bench.rival import Rival, Run

_GROUP, _PAGE, _PIECE = 32, 32, 256
"""Weights of a scale in INT4, as in ours; tokens of a page of its cache; most tokens of a pass before the context."""


def _model(ov: Any, spec: DecoderSpec, layers: int, kind: str) -> tuple[Any, int, list[Any]]:
    """A decoder as OpenVINO's exporter writes it, so that its fusions apply; bytes and memory of its matrices."""
    ops, width, d, generator = need("openvino.opset13", "OpenVINO"), spec.width, spec.head_dim, np.random.default_rng(0)
    inputs, sinks, kept = [], [], list[Any]()
    for name, shape in {"inputs_embeds": [-1, -1, width], "position_ids": [-1, -1], "beam_idx": [-1]}.items():
        inputs.append(ops.parameter(shape, {"inputs_embeds": np.float32}.get(name, np.int64)))
        inputs[-1].set_friendly_name(name)
        inputs[-1].output(0).set_names({name})
    x, positions, beams = inputs
    frequencies = spec.rope_theta ** (-np.arange(0, d, 2, dtype=np.float32) / d)
    angles = ops.multiply(ops.convert(ops.unsqueeze(positions, 2), "f32"), frequencies)
    angles = ops.concat([angles, angles], -1)
    cos, sin = (ops.unsqueeze(wave(angles), 1) for wave in (ops.cos, ops.sin))
    slots = ov.PartialShape([-1, spec.kv_heads, -1, d])
    empty = ops.concat([ops.gather(ops.shape_of(x), [0], 0), [spec.kv_heads, 0, d]], 0)

    def linear(x: Any, outputs: int, inputs: int) -> Any:
        form = getattr(ov.Type, {"BF16": "bf16", "INT8": "i8", "INT4": "i4"}[kind])
        shape = [outputs, inputs // _GROUP, _GROUP] if kind == "INT4" else [outputs, inputs]
        packed: Any = generator.integers(-128, 128, (256, inputs * form.bitwidth // 8), np.int8)
        if kind == "BF16":  # 0.008 to 0.03
            packed = generator.integers(0x3C00, 0x3D00, (256, inputs), np.int16)
        # A tensor of such a type does not own its memory.
        kept.append(np.tile(packed, (-(-outputs // 256), 1))[:outputs].copy())
        weights = ops.constant(ov.Tensor(kept[-1], shape, form))
        if kind != "BF16":
            kept.append(np.full((*shape[:-1], 1), inputs**-0.5 / 2 ** (form.bitwidth - 2), np.float16))
            weights = ops.reshape(ops.multiply(ops.convert(weights, "f16"), kept[-1]), [outputs, inputs], False)
        return ops.matmul(x, ops.convert(weights, "f32"), False, True)

    def norm(x: Any) -> Any:
        mean = ops.reduce_mean(ops.power(x, np.float32(2)), [-1], True)
        x = ops.multiply(x, ops.divide(np.float32(1), ops.sqrt(ops.add(mean, np.float32(spec.rms_eps)))))
        return ops.multiply(np.ones((1, 1, width), np.float32), x)

    def heads(x: Any, count: int) -> Any:
        return ops.transpose(ops.reshape(linear(x, count * d, width), [0, 0, count, d], True), [0, 2, 1, 3])

    def rotated(x: Any) -> Any:
        low, high = (ops.slice(x, [a], [b], [1], [3]) for a, b in ((0, d // 2), (d // 2, 2**31 - 1)))
        return ops.add(
            ops.multiply(x, cos), ops.multiply(ops.concat([ops.multiply(high, np.float32(-1)), low], -1), sin)
        )

    def cached(new: Any, name: str) -> Any:
        old = ops.read_value(ops.broadcast(np.float32(0), empty), name, ov.Type.f32, slots)
        whole = ops.concat([ops.gather(old, beams, 0), new], -2)
        sinks.append(ops.assign(whole, name))
        shape = [1, spec.kv_heads, spec.heads // spec.kv_heads, 1, d]
        wide = ops.broadcast(ops.unsqueeze(whole, 2), shape, broadcast_spec="BIDIRECTIONAL")
        return ops.reshape(wide, [0, spec.heads, -1, d], True)

    for layer in range(layers):
        y = norm(x)
        key = cached(rotated(heads(y, spec.kv_heads)), f"{layer}.key")
        value = cached(heads(y, spec.kv_heads), f"{layer}.value")
        y = ops.scaled_dot_product_attention(rotated(heads(y, spec.heads)), key, value, np.float32(0))
        y = ops.reshape(ops.transpose(y, [0, 2, 1, 3]), [0, 0, spec.heads * d], True)
        x = ops.add(x, linear(y, width, spec.heads * d))
        y = norm(x)
        y = ops.multiply(ops.swish(linear(y, spec.mlp_width, width)), linear(y, spec.mlp_width, width))
        x = ops.add(x, linear(y, width, spec.mlp_width))
    model = ov.Model([ops.result(norm(x))], sinks, inputs)
    need("openvino._offline_transformations", "OpenVINO").paged_attention_transformation(model)
    return model, sum(array.nbytes for array in kept), kept


@cache
def _core(ov: Any) -> Any:
    """One for the process: when the last goes, its CPU plugin frees the stack that this thread takes signals on, and
    leaves it in use, so that the next signal ends the process.
    """
    return ov.Core()


@contextmanager
def _session(
    rival: Rival, spec: DecoderSpec, *, layers: int, kind: str, rows: int, context: int, passes: int, threads: int
) -> Iterator[tuple[Run, int]]:
    """As `Session` has it."""
    ov = need(rival.module, f"the comparison with {rival.name}")
    model, size, _kept = _model(ov, spec, layers, kind)
    # Where the CPU has bfloat16 it computes in that, which is slower with packed weights.
    options = {"INFERENCE_NUM_THREADS": threads} | ({} if kind == "BF16" else {"INFERENCE_PRECISION_HINT": "f32"})
    compiled = _core(ov).compile_model(model, "CPU", options | {"PERFORMANCE_HINT": "LATENCY"})
    request, pages = compiled.create_infer_request(), -(-(context + passes) // _PAGE)
    for port in compiled.inputs:
        if "_cache." in port.any_name:
            shape = [rows * pages, *(part.get_length() for part in list(port.partial_shape)[1:])]
            request.set_tensor(port.any_name, slots := ov.Tensor(port.element_type, shape))
            size += slots.byte_size * context // (pages * _PAGE)
    embeddings = np.random.default_rng(0).standard_normal((rows * max(_PIECE, passes), spec.width), dtype=np.float32)

    def run(count: int, window: int = 1, start: int = context) -> None:
        for first in range(start, start + count * window, window):
            used = -(-(first + window) // _PAGE)
            tensors = {
                "inputs_embeds": embeddings[: rows * window],
                "position_ids": np.tile(np.arange(first, first + window), rows),
                "past_lens": np.full(rows, first, np.int32),
                "subsequence_begins": np.arange(rows + 1, dtype=np.int32) * window,
                "block_indices": (np.arange(rows)[:, None] * pages + np.arange(used)).reshape(-1).astype(np.int32),
                "block_indices_begins": np.arange(rows + 1, dtype=np.int32) * used,
                "max_context_len": np.array(first + window, np.int32),
            }
            request.infer(tensors)

    for first in range(0, context, _PIECE):
        run(1, min(_PIECE, context - first), first)
    yield run, size


_FORMATS = {"bfloat16": ("BF16",), "int8": ("INT8",), "int4": ("INT4",)}
OPENVINO = Rival("OpenVINO", "openvino", "openvino", _FORMATS, _session)
