"""Number formats of the compiled CPU kernels.

Formats of a weight or cache tensor: float32; bfloat16, seen as uint32 with two neighbours a word;
int8 with a scale an output. Vectors that meet bfloat16 are kept "split": even places first, then odd
ones, so that both halves of a word meet contiguous numbers.

numba notices a changed kernel by its own file only: after a change here, delete `__pycache__`.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
from numba import types
from numba.extending import intrinsic, overload

F = np.float32
U = np.uint32
jit = nb.njit(cache=True, fastmath=True, error_model="numpy")
inline = nb.njit(fastmath=True, inline="always", error_model="numpy")
parallel = nb.njit(cache=True, fastmath=True, parallel=True, error_model="numpy")


def _make_pointer(typing: Any, address: Any, like: Any) -> Any:
    """The pointer of an integer address, to elements of the type of `like`."""
    pointer = types.CPointer(like)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(pointer))

    return pointer(address, like), generate


pointer: Any = intrinsic(_make_pointer)
tensor: Any = nb.__dict__["carray"]


@inline
def _low(word: Any) -> Any:
    return U(word << U(16)).view(F)


@inline
def _high(word: Any) -> Any:
    return U(word & U(0xFFFF0000)).view(F)


@inline
def _word(low: Any, high: Any) -> Any:
    """Two float32 rounded to bfloat16 (to nearest, ties to even) in one word, the first one low."""
    a, b = F(low).view(U), F(high).view(U)
    a = U(a + U(0x7FFF) + U(U(a >> U(16)) & U(1)))
    b = U(b + U(0x7FFF) + U(U(b >> U(16)) & U(1)))
    return U(U(a >> U(16)) | U(b & U(0xFFFF0000)))


def _packed(array: Any) -> bool:
    return array.dtype == types.uint32


def dot1(x: Any, a: Any) -> Any:
    """Product of a vector with a weight row."""


def spread(x: Any, out: Any, like: Any) -> Any:
    """Copy a vector into the order that meets rows of the type of `like`."""


def load(row: Any, out: Any) -> Any:
    """A stored row as float32 in natural order."""


def store(x: Any, row: Any) -> Any:
    """A float32 vector in natural order into a stored row."""


def gather(x: Any, out: Any, like: Any) -> Any:
    """The reverse of `spread`."""


def numbers_a_word(like: Any) -> Any:
    """Numbers that an element holds."""


def has_scales(like: Any) -> Any:
    """1 for the format with a scale an output, else 0."""


@overload(numbers_a_word, inline="always")
def _numbers_a_word(like: Any) -> Any:
    def one(like: Any) -> Any:
        return 1

    def two(like: Any) -> Any:
        return 2

    return two if like == types.uint32 else one


@overload(has_scales, inline="always")
def _has_scales(like: Any) -> Any:
    def no(like: Any) -> Any:
        return 0

    def yes(like: Any) -> Any:
        return 1

    return yes if like == types.int8 else no


@overload(gather, inline="always")
def _gather(x: Any, out: Any, like: Any) -> Any:
    def plain(x: Any, out: Any, like: Any) -> Any:
        for k in range(x.shape[0]):
            out[k] = x[k]

    def packed(x: Any, out: Any, like: Any) -> Any:
        n = x.shape[0] // 2
        for k in range(n):
            out[2 * k] = x[k]
            out[2 * k + 1] = x[n + k]

    return packed if like == types.uint32 else plain


@overload(dot1, inline="always")
def _dot1(x: Any, a: Any) -> Any:
    def plain(x: Any, a: Any) -> Any:
        total = F(0)
        for k in range(a.shape[0]):
            total += x[k] * F(a[k])
        return total

    def packed(x: Any, a: Any) -> Any:
        n = a.shape[0]
        total = F(0)
        for k in range(n):
            total += x[k] * _low(a[k]) + x[n + k] * _high(a[k])
        return total

    return packed if _packed(a) else plain


@overload(spread, inline="always")
def _spread(x: Any, out: Any, like: Any) -> Any:
    def plain(x: Any, out: Any, like: Any) -> Any:
        for k in range(x.shape[0]):
            out[k] = x[k]

    def packed(x: Any, out: Any, like: Any) -> Any:
        n = x.shape[0] // 2
        for k in range(n):
            out[k] = x[2 * k]
            out[n + k] = x[2 * k + 1]

    return packed if like == types.uint32 else plain


@overload(load, inline="always")
def _load(row: Any, out: Any) -> Any:
    def plain(row: Any, out: Any) -> Any:
        for k in range(row.shape[0]):
            out[k] = row[k]

    def packed(row: Any, out: Any) -> Any:
        for k in range(row.shape[0]):
            out[2 * k] = _low(row[k])
            out[2 * k + 1] = _high(row[k])

    return packed if _packed(row) else plain


@overload(store, inline="always")
def _store(x: Any, row: Any) -> Any:
    def plain(x: Any, row: Any) -> Any:
        for k in range(row.shape[0]):
            row[k] = x[k]

    def packed(x: Any, row: Any) -> Any:
        for k in range(row.shape[0]):
            row[k] = _word(x[2 * k], x[2 * k + 1])

    return packed if _packed(row) else plain


@inline
def exp(x: Any) -> Any:
    """e^x in float32 by range reduction and a polynomial of degree 5 (Cephes), which vectorises; x <= 88."""
    x = max(x, F(-87.0))
    z = np.floor(x * F(1.44269504) + F(0.5))
    r = x - z * F(0.693359375) + z * F(2.12194440e-4)
    p = F(1.9875691500e-4)
    p = p * r + F(1.3981999507e-3)
    p = p * r + F(8.3334519073e-3)
    p = p * r + F(4.1665795894e-2)
    p = p * r + F(1.6666665459e-1)
    p = p * r + F(5.0000001201e-1)
    p = p * r * r + r + F(1)
    return p * np.int32((np.int32(z) + np.int32(127)) << np.int32(23)).view(F)


@jit
def empty_rows(rows: Any, n: Any) -> Any:
    """An empty array [rows, at least n] float32 whose rows begin with a cache line: vectors that cross lines load
    half as fast.
    """
    stride = (n + 15) // 16 * 16
    memory = np.empty(rows * stride + 16, F)
    first = (-(memory.ctypes.data // 4)) % 16
    return memory[first : first + rows * stride].reshape(rows, stride)
