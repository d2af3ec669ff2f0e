"""Products with a single matrix."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from fastcar_cli.kernels.native.library import kernels, scratch
from fastcar_cli.kernels.native.structs import STRUCTS, Linear, expect, matrix


class Product:
    """A linear map for a fixed number of rows; its weights are used in place."""

    def __init__(self, linear: Linear, rows: int, threads: int = 1) -> None:
        if rows < 1 or threads < 1:
            raise ValueError(f"{rows} rows and {threads} threads, expected at least one of each")
        self._kernels, self._linear = kernels(), linear
        self.product = STRUCTS.Product(matrix=matrix("linear", linear), rows=rows, threads=threads)
        self._shape = rows, linear.outputs, linear.inputs
        self._scratch = scratch(self._kernels.product_bytes(self.product))
        self.product.scratch = self._scratch.data_ptr()

    def __call__(self, x: Tensor) -> Tensor:
        """Float32 [..., in] to float32 [..., out], of `rows` inputs in all."""
        p, (rows, outputs, inputs), shape = self.product, self._shape, x.shape[:-1]
        if shape.numel() != rows:
            raise ValueError(f"x has {shape.numel()} rows, expected {rows}")
        y = torch.empty(*shape, outputs)
        p.x, p.y = expect("x", x, (*shape, inputs), torch.float32), y.data_ptr()
        self._kernels.product(ctypes.byref(p))
        return y


def linear(x: Tensor, weight: Linear, threads: int = 1) -> Tensor:
    """Float32 [rows, in] to float32 [rows, out]; `Product` does the same repeatedly."""
    return Product(weight, len(x), threads)(x)
