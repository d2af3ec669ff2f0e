"""Products of rows of a weight matrix with one or two vectors, in LLVM's vectors.

What bounds a step is how fast a core draws weights from memory. A loop left to the compiler's vectoriser asks for a
line when it needs it; here every line is asked for `AHEAD` bytes before, while the rows stream by in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

AHEAD = 3072
"""Bytes between the line that is worked on and the one that is asked for."""
_LINE = 64
_LANES = 16
_FLOAT, _WORD = ir.FloatType(), ir.IntType(32)
_FAST = ("fast",)


def _bytes(kind: Any) -> int:
    """Of a word."""
    return 1 if kind == types.int8 else 4


def _index(value: int) -> ir.Constant:
    return ir.Constant(ir.IntType(64), value)


def _vector(kind: ir.Type, lanes: int) -> ir.VectorType:
    return ir.VectorType(kind, lanes)


def _constant(kind: ir.Type, value: int, lanes: int) -> ir.Constant:
    return ir.Constant(_vector(kind, lanes), [value] * lanes)


def _load(builder: ir.IRBuilder, address: ir.Value, kind: ir.Type, lanes: int) -> ir.Value:
    """`lanes` neighbours at an address, aligned as one of them."""
    pointer = builder.inttoptr(address, _vector(kind, lanes).as_pointer())
    loaded = builder.load(pointer)
    loaded.align = kind.width // 8 if isinstance(kind, ir.IntType) else 4
    return loaded


def _unpack(builder: ir.IRBuilder, kind: Any, address: ir.Value, lanes: int) -> Iterator[tuple[ir.Value, int, bool]]:
    """Float vectors of the words of a line: each with the place in the line of its first word, and whether it meets
    the second half of a split vector. With lanes 1: of the one word at the address.
    """
    if kind == types.uint32:
        words = _load(builder, address, _WORD, lanes)
        floats = _vector(_FLOAT, lanes)
        yield builder.bitcast(builder.shl(words, _constant(_WORD, 16, lanes)), floats), 0, False
        yield builder.bitcast(builder.and_(words, _constant(_WORD, 0xFFFF0000, lanes)), floats), 0, True
    elif kind == types.int8:
        for first in range(0, _LINE if lanes > 1 else 1, lanes):
            at = builder.add(address, _index(first))
            wide = builder.sext(_load(builder, at, ir.IntType(8), lanes), _vector(_WORD, lanes))
            yield builder.sitofp(wide, _vector(_FLOAT, lanes)), first, False
    else:
        yield _load(builder, address, _FLOAT, lanes), 0, False


def _prefetch(builder: ir.IRBuilder, address: ir.Value) -> None:
    """Ask for the line at an address, for reading, to stay in all caches."""
    byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
    function = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
    arguments = [ir.Constant(word, value) for value in (0, 3, 1)]
    builder.call(function, [builder.inttoptr(address, byte), *arguments])


def _sum(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Sum of a vector's lanes, a power of two, halves added up."""
    lanes = value.type.count
    while lanes > 1:
        lanes //= 2
        low, high = (ir.Constant(_vector(_WORD, lanes), list(range(n, n + lanes))) for n in (0, lanes))
        low, high = (builder.shuffle_vector(value, value, mask) for mask in (low, high))
        value = builder.fadd(low, high, flags=_FAST)
    return builder.extract_element(value, ir.Constant(_WORD, 0))


def _loop(
    builder: ir.IRBuilder,
    kind: Any,
    rows: list[ir.Value],
    inputs: list[ir.Value],
    words: ir.Value,
    span: tuple[ir.Value, ir.Value],
    lanes: int,
) -> list[ir.Value]:
    """Sums over words span[0] to span[1] of the row at an address with each input; lanes 16 takes a line at a time,
    lanes 1 a word. Every vector of a line has a sum of its own, or each product would wait for the one before.
    """
    step = _LINE // _bytes(kind) if lanes > 1 else 1
    zero = ir.Constant(_vector(_FLOAT, lanes), [0.0] * lanes)
    parts = {types.uint32: 2, types.int8: step // lanes}.get(kind, 1)
    sums = [[[cgutils.alloca_once_value(builder, zero) for _ in range(parts)] for _ in inputs] for _ in rows]
    k_at = cgutils.alloca_once_value(builder, span[0])
    head, body, after = (builder.append_basic_block(name) for name in ("stream", "stream.line", "stream.end"))
    builder.branch(head)
    builder.position_at_end(head)
    k = builder.load(k_at)
    builder.cbranch(builder.icmp_signed("<", k, span[1]), body, after)
    builder.position_at_end(body)
    met: dict[tuple[int, int], ir.Value] = {}
    for row, mine in zip(rows, sums, strict=True):
        at = builder.add(row, builder.mul(k, _index(_bytes(kind))))
        if lanes > 1:
            _prefetch(builder, builder.add(at, _index(AHEAD)))
        for part, (weights, first, odd) in enumerate(_unpack(builder, kind, at, lanes)):
            for i, x in enumerate(inputs):
                if (part, i) not in met:
                    place = builder.add(k, _index(first))
                    place = builder.add(place, words) if odd else place
                    met[part, i] = _load(builder, builder.add(x, builder.mul(place, _index(4))), _FLOAT, lanes)
                product = builder.fmul(weights, met[part, i], flags=_FAST)
                total = mine[i][part]
                builder.store(builder.fadd(builder.load(total), product, flags=_FAST), total)
    builder.store(builder.add(k, _index(step)), k_at)
    builder.branch(head)
    builder.position_at_end(after)
    found = []
    for several in (several for mine in sums for several in mine):
        value = builder.load(several[0])
        for total in several[1:]:
            value = builder.fadd(value, builder.load(total), flags=_FAST)
        found.append(_sum(builder, value))
    return found


def _typed(like: Any, rows: int, inputs: int) -> tuple[Any, Callable[..., Any]]:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        kind = signature.args[0]
        _, row, words, *vectors = args
        lines = builder.and_(words, _index(-(_LINE // _bytes(kind))))
        step = builder.mul(words, _index(_bytes(kind)))
        at = [builder.add(row, builder.mul(step, _index(r))) for r in range(rows)]
        spans = (((_index(0), lines), _LANES), ((lines, words), 1))
        parts = [_loop(builder, kind, at, vectors, words, span, lanes) for span, lanes in spans]
        values = [builder.fadd(a, b, flags=_FAST) for a, b in zip(*parts, strict=True)]
        return context.make_tuple(builder, signature.return_type, values)

    return types.UniTuple(types.float32, rows * inputs)(like, *[types.int64] * (2 + inputs)), generate


def _one_row(typing: Any, like: Any, row: Any, words: Any, x: Any, y: Any) -> Any:
    """The products of a row of `words` words at an address, of the type of `like`, with the float32 vectors at the
    addresses x and y, which are in the order that meets it.
    """
    return _typed(like, 1, 2)


def _one_row_once(typing: Any, like: Any, row: Any, words: Any, x: Any) -> Any:
    """A tuple of one: the product with x."""
    return _typed(like, 1, 1)


def _four_rows(typing: Any, like: Any, row: Any, words: Any, x: Any, y: Any) -> Any:
    """The products of four rows that follow one another: of the first with x, of the first with y, of the second .."""
    return _typed(like, 4, 2)


def _four_rows_once(typing: Any, like: Any, row: Any, words: Any, x: Any) -> Any:
    """The products of four rows with x."""
    return _typed(like, 4, 1)


one_row: Any = intrinsic(_one_row)
one_row_once: Any = intrinsic(_one_row_once)
four_rows: Any = intrinsic(_four_rows)
four_rows_once: Any = intrinsic(_four_rows_once)


def _ask(typing: Any, address: Any) -> Any:
    """Ask for the line `AHEAD` bytes behind an address."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        _prefetch(builder, builder.add(args[0], _index(AHEAD)))
        return context.get_dummy_value()

    return types.void(types.int64), generate


ask: Any = intrinsic(_ask)
