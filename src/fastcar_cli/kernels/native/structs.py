"""What the native kernels are handed, as `source/structs.h` declares it, and how tensors get there."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_double, c_int64, c_void_p
from dataclasses import dataclass

import torch
from torch import Tensor

FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2, torch.uint8: 3}
"""Numbers of the formats in `source/formats.h`, by the dtype of weights; caches have the first two."""
GROUP = 32
"""Inputs that share a scale in int4."""


@dataclass(frozen=True)
class Linear:
    """A linear map: weight [out, in] float32, bfloat16 or int8, or uint8 [out, in / 2], which is int4.

    scale: float32 [out] with int8, float16 [out, in / 32] with int4, else None. bias: float32 [out] or None. Byte k of
    a group of 32 int4 weights holds weight k in its low half and weight 16 + k in its high one, each plus 8; `in` is a
    multiple of 32. Inputs of int8 and int4 are coded as integers for the product, in 16 and 8 bits, with a scale for
    each 64 and 32 of them.
    """

    weight: Tensor
    scale: Tensor | None = None
    bias: Tensor | None = None

    @property
    def outputs(self) -> int:
        """Rows of the weight."""
        return self.weight.shape[0]

    @property
    def inputs(self) -> int:
        """Columns of the weight, unpacked."""
        return self.weight.shape[1] * (2 if self.weight.dtype is torch.uint8 else 1)


def expect(name: str, tensor: Tensor, shape: tuple[int, ...], *dtypes: torch.dtype) -> int:
    """The address of a contiguous CPU tensor of this shape and one of these dtypes; else ValueError with its name."""
    if tensor.shape != shape or tensor.dtype not in dtypes:
        allowed = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        given = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
        raise ValueError(f"{name} is {given}, expected {allowed} {list(shape)}")
    if not (tensor.is_cpu and tensor.is_contiguous()):
        raise ValueError(f"{name} must be contiguous and on the CPU")
    return tensor.data_ptr()


class Matrix(ctypes.Structure):
    """A linear map."""

    _fields_ = (
        *((name, c_void_p) for name in ("weight", "scale", "bias")),
        *((name, c_int64) for name in ("outputs", "inputs", "format")),
    )


def matrix(name: str, linear: Linear, outputs: int | None = None, inputs: int | None = None) -> Matrix:
    """Its addresses, checked; sizes that are None are taken as they are."""
    weight = linear.weight
    if weight.dim() != 2 or 0 in weight.shape:
        raise ValueError(f"{name}.weight is {list(weight.shape)}, expected [out, in]")
    outputs = linear.outputs if outputs is None else outputs
    inputs = linear.inputs if inputs is None else inputs
    packed = weight.dtype is torch.uint8
    if packed and inputs % GROUP:
        raise ValueError(f"{name}.weight has {inputs} inputs, int4 needs a multiple of {GROUP}")
    at = expect(f"{name}.weight", weight, (outputs, inputs // 2 if packed else inputs), *FORMATS)
    if (linear.scale is not None) != (weight.dtype in (torch.int8, torch.uint8)):
        raise ValueError(f"{name}.scale: int8 and int4 weights have one, others none")
    scale = bias = None
    if linear.scale is not None:
        shape, dtype = ((outputs, inputs // GROUP), torch.float16) if packed else ((outputs,), torch.float32)
        scale = expect(f"{name}.scale", linear.scale, shape, dtype)
    if linear.bias is not None:
        bias = expect(f"{name}.bias", linear.bias, (outputs,), torch.float32)
    return Matrix(at, scale, bias, outputs, inputs, FORMATS[weight.dtype])


def same_format(name: str, *linears: Linear) -> None:
    """ValueError with this name where maps of the same inputs have weights of several formats."""
    found = sorted({str(linear.weight.dtype).removeprefix("torch.") for linear in linears})
    if len(found) > 1:
        raise ValueError(f"{name}: weights are {' and '.join(found)}, expected one format")


class Block(ctypes.Structure):
    """A decoder block with its memory."""

    _fields_ = (
        ("norm1", c_void_p),
        *((name, Matrix) for name in "qkvo"),
        ("norm2", c_void_p),
        *((name, Matrix) for name in ("gate", "up", "down")),
        *((name, c_void_p) for name in ("keys", "values", "aligned", "outputs", "key_scales", "value_scales")),
    )


class Decoder(ctypes.Structure):
    """A decode pass."""

    _fields_ = (
        *((name, c_int64) for name in ("layers", "rows", "width", "heads", "kv_heads", "head_width", "slots", "ring")),
        *((name, c_int64) for name in ("positions", "cache_format", "aligned_format", "output_format")),
        *((name, c_int64) for name in ("pairs", "released", "threads")),
        ("eps", c_double),
        ("blocks", POINTER(Block)),
        *((name, c_void_p) for name in ("norm", "start", "scratch")),
    )


class Step(ctypes.Structure):
    """What one pass is called with."""

    _fields_ = (
        *((name, c_void_p) for name in ("x", "cos", "sin")),
        *((name, c_int64) for name in ("angles", "slot", "length", "aligned_from", "aligned_to", "position")),
        *((name, c_void_p) for name in ("mask", "thresholds", "scored", "scores", "replayed")),
        ("mlp_ns", c_int64),
    )


class Product(ctypes.Structure):
    """A linear map and what it maps."""

    _fields_ = (
        ("matrix", Matrix),
        ("x", c_void_p),
        ("y", c_void_p),
        ("rows", c_int64),
        ("threads", c_int64),
        ("scratch", c_void_p),
    )


class DepthBlock(ctypes.Structure):
    """A block of the depth transformer."""

    _fields_ = (
        ("norm1", c_void_p),
        ("norm1_bias", c_void_p),
        *((name, Matrix) for name in "qkvo"),
        ("norm2", c_void_p),
        ("norm2_bias", c_void_p),
        ("up", Matrix),
        ("down", Matrix),
    )


class Depth(ctypes.Structure):
    """The depth transformer."""

    _fields_ = (
        *((name, c_int64) for name in ("blocks_count", "rows", "width", "heads", "depth", "threads")),
        ("blocks", POINTER(DepthBlock)),
        ("first", Matrix),
        ("later", Matrix),
        *((name, c_void_p) for name in ("place", "norm", "norm_bias")),
        ("classes", Matrix),
        ("books", POINTER(c_void_p)),
        *((name, c_void_p) for name in ("keys", "values", "scratch")),
    )


class Draw(ctypes.Structure):
    """Drawing the codes of a position."""

    _fields_ = (
        *((name, c_int64) for name in ("tokens", "index")),
        *((name, c_double) for name in ("guidance", "temperature", "top_p")),
        ("top_k", c_int64),
        *((name, c_void_p) for name in ("hidden", "uniforms", "given", "codes", "latent", "logits")),
    )


class Kernels(ctypes.Structure):
    """The functions of one instruction set."""

    _fields_ = (
        ("decoder_bytes", ctypes.CFUNCTYPE(c_int64, POINTER(Decoder))),
        ("decode", ctypes.CFUNCTYPE(None, POINTER(Decoder), POINTER(Step))),
        ("mlps", ctypes.CFUNCTYPE(None, POINTER(Decoder), c_void_p, c_void_p, c_int64)),
        ("depth_bytes", ctypes.CFUNCTYPE(c_int64, POINTER(Depth))),
        ("draw", ctypes.CFUNCTYPE(c_int64, POINTER(Depth), POINTER(Draw))),
        ("product_bytes", ctypes.CFUNCTYPE(c_int64, POINTER(Product))),
        ("product", ctypes.CFUNCTYPE(None, POINTER(Product))),
    )
