"""The structs that the native kernels take, parsed from `source/structs.h`, and the checks of tensors for them."""

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

from fastcar_cli.weights.formats import FORMATS, PACKED, Format

BY_DTYPE = {form.dtype: form for form in reversed(FORMATS.values())}  # the first format whose numbers have a dtype


@dataclass(frozen=True)
class Linear:
    """A linear map: weight and scale in their format (`formats.py`), bias float32 [out] or None.

    The product quantises the inputs too: to 16 bits with int8 weights, with a scale for each 64 inputs; to 8 bits with
    int4 weights, with a scale for each 32, a multiple of one power of two for each row.
    """

    weight: Tensor
    scale: Tensor | None = None
    bias: Tensor | None = None
    form: Format | None = None

    @property
    def format(self) -> Format:
        """`form`, or if it is None the first format whose numbers have the weight's dtype."""
        return self.form or BY_DTYPE.get(self.weight.dtype, FORMATS["float32"])

    @property
    def outputs(self) -> int:
        """Rows of the weight."""
        return self.weight.shape[0]

    @property
    def inputs(self) -> int:
        """Columns of the unpacked weight."""
        return self.weight.shape[1] * 8 * self.weight.itemsize // self.format.bits


def expect(name: str, tensor: Tensor, shape: tuple[int | None, ...], *dtypes: torch.dtype) -> int:
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
    structs: dict[str, type[ctypes.Structure]] = {}
    for name, body in re.findall(r"^struct (\w+) {(.*?)^};", re.sub("//.*", "", header), re.DOTALL | re.MULTILINE):
        fields: list[tuple[str, Any]] = []
        for line in filter(None, map(str.strip, body.split(";"))):
            if function := re.fullmatch(r"(\w+) \(\*(\w+)\)\((.*)\)", line):
                parameters = [_ctype(part, structs) for part in function[3].split(",")]
                fields.append((function[2], ctypes.CFUNCTYPE(_ctype(function[1], structs), *parameters)))
                continue
            first, *others = line.split(",")
            c_type, field = re.fullmatch(r"(.*[ *])(\w+)", first, re.DOTALL).groups()  # type: ignore[union-attr]
            fields.append((field, _ctype(c_type, structs)))
            base = c_type.replace("*", "")
            fields += [(part.strip(" *\n"), _ctype(base + "*" * part.count("*"), structs)) for part in others]
        structs[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    return structs


_HEADER = (Path(__file__).parent / "source" / "structs.h").read_text(encoding="utf-8")

STRUCTS: Any = SimpleNamespace(**_parse(_HEADER))  # the structs of `source/structs.h` by name
MOST_ROWS = int(re.findall(r"MOST_ROWS = (\d+);", _HEADER)[0])  # maximum rows of a decode pass


def matrix(name: str, linear: Linear, outputs: int | None = None, inputs: int | None = None) -> Any:
    """A linear map as a `Matrix`, after checks; a size that is None is not checked."""
    weight = linear.weight
    if weight.dim() != 2 or 0 in weight.shape:
        raise ValueError(f"{name}.weight is {list(weight.shape)}, expected [out, in]")
    outputs = linear.outputs if outputs is None else outputs
    inputs = linear.inputs if inputs is None else inputs
    form = linear.format
    if inputs % (form.group or 1):
        raise ValueError(f"{name}.weight has {inputs} inputs, {form.name} needs a multiple of {form.group}")
    dtypes = BY_DTYPE if linear.form is None else [form.dtype]
    address = expect(f"{name}.weight", weight, form.shape(outputs, inputs), *dtypes)
    if (linear.scale is None) != (form.scale is None):
        raise ValueError(f"{name}.scale: required for {' and '.join(PACKED)} weights, not allowed for others")
    scale = bias = None
    if linear.scale is not None and form.scale is not None:
        scale = expect(f"{name}.scale", linear.scale, form.scale_shape(outputs, inputs), form.scale)
    if linear.bias is not None:
        bias = expect(f"{name}.bias", linear.bias, (outputs,), torch.float32)
    return STRUCTS.Matrix(address, scale, bias, outputs, inputs, form.number)


def fill(
    struct: Any,
    name: str,
    weights: Any,
    shapes: Mapping[str, tuple[int | None, ...]],
    dtype: torch.dtype = torch.float32,
) -> None:
    """Fill fields of a struct with the attributes of `weights` of the same names, after checks; None stays null."""
    for part, shape in shapes.items():
        value: Any = getattr(weights, part)
        if isinstance(value, Linear):
            setattr(struct, part, matrix(name + part, value, *shape))
        elif value is not None:
            setattr(struct, part, expect(name + part, value, shape, dtype))


def same_format(name: str, *linears: Linear) -> None:
    """Raises ValueError with this name unless the weights of these maps have one format."""
    names = sorted({linear.format.name for linear in linears})
    if len(names) > 1:
        raise ValueError(f"{name}: weights are {' and '.join(names)}, expected one format")
