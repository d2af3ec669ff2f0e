"""The structs that the native kernels take, parsed from `source/structs.h`, and how tensors are checked for them."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from ctypes import POINTER, c_double, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2, torch.uint8: 3}
"""Numbers of the formats in `source/formats.h` by dtype; uint8 is int4."""
GROUP = 32
"""Weights that share a scale in int4."""


@dataclass(frozen=True)
class Linear:
    """A linear map: weight [out, in] float32, bfloat16 or int8, or uint8 [out, in / 2], which is int4.

    scale: float32 [out] with int8, float16 [out, in / 32] with int4, else None. bias: float32 [out] or None. Byte k of
    a group of 32 int4 weights holds weight k in its low half and weight 16 + k in its high half, each plus 8; `in` is a
    multiple of 32. The product quantises the inputs too: to 16 bits with int8 weights, with a scale for each 64 inputs;
    to 8 bits with int4 weights, with a scale for each 32.
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
        """Columns of the unpacked weight."""
        return self.weight.shape[1] * (2 if self.weight.dtype is torch.uint8 else 1)


def expect(name: str, tensor: Tensor, shape: tuple[int, ...], *dtypes: torch.dtype) -> int:
    """The address of a contiguous CPU tensor of this shape and one of these dtypes. Raises ValueError with its name."""
    if tensor.shape != shape or tensor.dtype not in dtypes:
        allowed = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        given = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
        raise ValueError(f"{name} is {given}, expected {allowed} {list(shape)}")
    if not (tensor.is_cpu and tensor.is_contiguous()):
        raise ValueError(f"{name} must be contiguous and on the CPU")
    return tensor.data_ptr()


_SCALARS: dict[str, Any] = {"int64_t": c_int64, "double": c_double, "void": None}


def _ctype(text: str, structs: Mapping[str, Any]) -> Any:
    """The ctypes type of a C type such as `const float*`. Pointers to numbers all become void pointers."""
    name, stars = text.replace("const", "").replace("*", " ").split()[0], text.count("*")
    ctype = {**_SCALARS, **structs}.get(name)
    if stars == 0:
        return ctype
    return POINTER(c_void_p) if stars > 1 else POINTER(ctype) if name in structs else c_void_p


def _parse(header: str) -> dict[str, type[ctypes.Structure]]:
    """The structs of a header by name. Their fields may be lists of one type, such as `float *x, *y`, or functions."""
    found: dict[str, type[ctypes.Structure]] = {}
    for name, body in re.findall(r"^struct (\w+) {(.*?)^};", re.sub("//.*", "", header), re.DOTALL | re.MULTILINE):
        fields: list[tuple[str, Any]] = []
        for line in filter(None, map(str.strip, body.split(";"))):
            if function := re.fullmatch(r"(\w+) \(\*(\w+)\)\((.*)\)", line):
                parameters = [_ctype(part, found) for part in function[3].split(",")]
                fields.append((function[2], ctypes.CFUNCTYPE(_ctype(function[1], found), *parameters)))
                continue
            first, *others = line.split(",")
            c_type, field = re.fullmatch(r"(.*[ *])(\w+)", first, re.DOTALL).groups()  # type: ignore[union-attr]
            fields.append((field, _ctype(c_type, found)))
            base = c_type.replace("*", "")
            fields += [(part.strip(" *\n"), _ctype(base + "*" * part.count("*"), found)) for part in others]
        found[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    return found


STRUCTS: Any = SimpleNamespace(**_parse((Path(__file__).parent / "source" / "structs.h").read_text(encoding="utf-8")))
"""The structs of `source/structs.h` by name."""


def matrix(name: str, linear: Linear, outputs: int | None = None, inputs: int | None = None) -> Any:
    """A linear map as a `Matrix`, after checks; a size that is None is not checked."""
    weight = linear.weight
    if weight.dim() != 2 or 0 in weight.shape:
        raise ValueError(f"{name}.weight is {list(weight.shape)}, expected [out, in]")
    outputs = linear.outputs if outputs is None else outputs
    inputs = linear.inputs if inputs is None else inputs
    packed = weight.dtype is torch.uint8
    if packed and inputs % GROUP:
        raise ValueError(f"{name}.weight has {inputs} inputs, int4 needs a multiple of {GROUP}")
    address = expect(f"{name}.weight", weight, (outputs, inputs // 2 if packed else inputs), *FORMATS)
    if (linear.scale is not None) != (weight.dtype in (torch.int8, torch.uint8)):
        raise ValueError(f"{name}.scale: int8 and int4 weights have one, others none")
    scale = bias = None
    if linear.scale is not None:
        shape, dtype = ((outputs, inputs // GROUP), torch.float16) if packed else ((outputs,), torch.float32)
        scale = expect(f"{name}.scale", linear.scale, shape, dtype)
    if linear.bias is not None:
        bias = expect(f"{name}.bias", linear.bias, (outputs,), torch.float32)
    return STRUCTS.Matrix(address, scale, bias, outputs, inputs, FORMATS[weight.dtype])


def same_format(name: str, *linears: Linear) -> None:
    """Raises ValueError with this name unless the weights of these maps have one format."""
    found = sorted({str(linear.weight.dtype).removeprefix("torch.") for linear in linears})
    if len(found) > 1:
        raise ValueError(f"{name}: weights are {' and '.join(found)}, expected one format")
