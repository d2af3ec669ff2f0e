"""Products of rows of a matrix with one or two vectors, and weighted sums of rows, in LLVM's vectors.

What bounds a step is how fast a core draws weights, keys and values from memory. A loop left to the compiler's
vectoriser asks for a line when it needs it; here the caller says how far ahead lines are asked for. All of `row`, `x`,
`y`, `p`, `out` are addresses; rows are of `words` words of the type of `like`, vectors float32 in the order that meets
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

AHEAD = 2560
"""Bytes between the line that is worked on and the one that is asked for, where nobody knows better."""
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


def _rows_at_once(kind: Any) -> int:
    """Rows that share the loads of a vector: widening int8 leaves less time for them."""
    return 4 if kind == types.int8 else 2


def _prefetch(builder: ir.IRBuilder, address: ir.Value) -> None:
    """Ask for the line at an address, for reading, to stay in all caches."""
    byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
    function = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
    arguments = [ir.Constant(word, value) for value in (0, 3, 1)]
    builder.call(function, [builder.inttoptr(address, byte), *arguments])


def _add_product(builder: ir.IRBuilder, total: ir.Value, a: ir.Value, b: ir.Value) -> None:
    """Total += a b, of a sum in memory that will be a register."""
    builder.store(builder.fadd(builder.load(total), builder.fmul(a, b, flags=_FAST), flags=_FAST), total)


def _sum(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Sum of a vector's lanes, a power of two, halves added up."""
    lanes = value.type.count
    while lanes > 1:
        lanes //= 2
        low, high = (ir.Constant(_vector(_WORD, lanes), list(range(n, n + lanes))) for n in (0, lanes))
        low, high = (builder.shuffle_vector(value, value, mask) for mask in (low, high))
        value = builder.fadd(low, high, flags=_FAST)
    return builder.extract_element(value, ir.Constant(_WORD, 0))


@dataclass(frozen=True)
class _Rows:
    """Rows at addresses, and the line that is asked for with each of theirs: `ahead` bytes on, and `skip` bytes more
    where that lies behind the end of its row.
    """

    kind: Any
    at: list[ir.Value]
    words: ir.Value
    ahead: ir.Value
    skip: ir.Value

    def distance(self, builder: ir.IRBuilder, k: ir.Value) -> ir.Value:
        """Bytes from word k to the line to ask for."""
        behind = builder.add(k, builder.sdiv(self.ahead, _index(_bytes(self.kind))))
        beyond = builder.icmp_signed(">=", behind, self.words)
        return builder.select(beyond, builder.add(self.ahead, self.skip), self.ahead)


def _sums(
    builder: ir.IRBuilder, rows: _Rows, inputs: list[ir.Value], span: tuple[ir.Value, ir.Value], lanes: int
) -> list[ir.Value]:
    """Sums over words span[0] to span[1] of each row with each input, a line at a time, or a word where lanes is 1."""
    kind, size = rows.kind, _bytes(rows.kind)
    step = _LINE // size if lanes > 1 else 1
    zero = ir.Constant(_vector(_FLOAT, lanes), [0.0] * lanes)
    # Every vector of a line has a sum of its own, or each product would wait for the one before; eight sums are enough
    # to wait for none, and more of int8 would not fit the registers.
    parts = {types.uint32: 2, types.int8: step // lanes}.get(kind, 1) if len(rows.at) * len(inputs) < 8 else 1
    sums = [[[cgutils.alloca_once_value(builder, zero) for _ in range(parts)] for _ in inputs] for _ in rows.at]
    with cgutils.for_range_slice(builder, *span, _index(step), intp=ir.IntType(64)) as (k, _):
        met: dict[tuple[int, int], ir.Value] = {}
        distance = rows.distance(builder, k)
        for row, mine in zip(rows.at, sums, strict=True):
            at = builder.add(row, builder.mul(k, _index(size)))
            if lanes > 1:
                _prefetch(builder, builder.add(at, distance))
            for part, (weights, first, odd) in enumerate(_unpack(builder, kind, at, lanes)):
                for i, x in enumerate(inputs):
                    if (part, i) not in met:
                        place = builder.add(k, _index(first))
                        place = builder.add(place, rows.words) if odd else place
                        met[part, i] = _load(builder, builder.add(x, builder.mul(place, _index(4))), _FLOAT, lanes)
                    _add_product(builder, mine[i][part % parts], weights, met[part, i])
    found = []
    for several in (several for mine in sums for several in mine):
        value = builder.load(several[0])
        for total in several[1:]:
            value = builder.fadd(value, builder.load(total), flags=_FAST)
        found.append(_sum(builder, value))
    return found


def _products(like: Any, several: bool, inputs: int) -> tuple[Any, Callable[..., Any]]:
    """Stores the product of row r with input i at out + i * step + 4 * r."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        kind = signature.args[0]
        _, row, words, ahead, skip, *vectors = args
        vectors, out, step = (vectors[:2], *vectors[2:]) if inputs == 2 else (vectors[:1], vectors[1], _index(0))
        size = builder.mul(words, _index(_bytes(kind)))
        at = [builder.add(row, builder.mul(size, _index(r))) for r in range(_rows_at_once(kind) if several else 1)]
        rows = _Rows(kind, at, words, ahead, skip)
        lines = builder.and_(words, _index(-(_LINE // _bytes(kind))))
        wide = _sums(builder, rows, vectors, (_index(0), lines), _LANES)
        rest = _sums(builder, rows, vectors, (lines, words), 1)
        for n, (a, b) in enumerate(zip(wide, rest, strict=True)):
            to = builder.add(out, builder.add(builder.mul(step, _index(n % inputs)), _index(4 * (n // inputs))))
            builder.store(builder.fadd(a, b, flags=_FAST), builder.inttoptr(to, _FLOAT.as_pointer()))
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * (6 if inputs == 1 else 8)), generate


def _several_by_two(
    typing: Any, like: Any, row: Any, words: Any, ahead: Any, skip: Any, x: Any, y: Any, out: Any, step: Any
) -> Any:
    """The products of `rows_at_once(like)` rows that follow one another with x and y: with x to `out`, one after the
    other, with y `step` bytes behind. With each line the one `ahead` bytes on is asked for, and where that lies
    behind the end of its row, the one `skip` bytes farther.
    """
    return _products(like, True, 2)


def _several_by_one(typing: Any, like: Any, row: Any, words: Any, ahead: Any, skip: Any, x: Any, out: Any) -> Any:
    """The products of `rows_at_once(like)` rows with x."""
    return _products(like, True, 1)


def _one_by_two(
    typing: Any, like: Any, row: Any, words: Any, ahead: Any, skip: Any, x: Any, y: Any, out: Any, step: Any
) -> Any:
    """The products of a row with x and y."""
    return _products(like, False, 2)


def _one_by_one(typing: Any, like: Any, row: Any, words: Any, ahead: Any, skip: Any, x: Any, out: Any) -> Any:
    """The product of a row with x."""
    return _products(like, False, 1)


def _at_once(typing: Any, like: Any) -> Any:
    """Rows that `several_by_two` and `several_by_one` take."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        return _index(_rows_at_once(signature.args[0]))

    return types.int64(like), generate


def _weigh(
    builder: ir.IRBuilder,
    rows: _Rows,
    step: ir.Value,
    p: ir.Value,
    count: ir.Value,
    out: ir.Value,
    first: ir.Value,
    lines: int,
) -> None:
    """Columns of `add_rows` from word `first` on: `lines` lines, or one word where that is 0."""
    lanes, size = (_LANES if lines else 1), _bytes(rows.kind)
    begins = [builder.add(first, _index(line * _LINE // size)) for line in range(max(lines, 1))]
    places = [(word, builder.add(word, rows.words)) if rows.kind == types.uint32 else (word,) for word in begins]
    to = [builder.add(out, builder.mul(place, _index(4))) for several in places for place in several]
    totals = [cgutils.alloca_once_value(builder, _load(builder, at, _FLOAT, lanes)) for at in to]
    with cgutils.for_range(builder, count, intp=ir.IntType(64)) as loop:
        row = builder.add(rows.at[0], builder.mul(loop.index, step))
        weight = _load(builder, builder.add(p, builder.mul(loop.index, _index(4))), _FLOAT, 1)
        if lanes > 1:
            weight = builder.shuffle_vector(weight, weight, _constant(_WORD, 0, lanes))
        todo = iter(totals)
        for word in begins:
            at = builder.add(row, builder.mul(word, _index(size)))
            if lines:
                _prefetch(builder, builder.add(at, rows.ahead))
            for values, _, _ in _unpack(builder, rows.kind, at, lanes):
                _add_product(builder, next(todo), values, weight)
    for at, total in zip(to, totals, strict=True):
        where = builder.inttoptr(at, _vector(_FLOAT, lanes).as_pointer())
        builder.store(builder.load(total), where).align = 4


def _add_rows(typing: Any, like: Any, row: Any, words: Any, step: Any, ahead: Any, p: Any, count: Any, out: Any) -> Any:
    """Add the sum of p[s] times row s to `out`: `count` rows, `step` bytes apart, float32 or bfloat16. With each line
    the one `ahead` bytes on is asked for.
    """

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        kind = signature.args[0]
        _, row, words, step, ahead, p, count, out = args
        rows = _Rows(kind, [row], words, ahead, _index(0))
        first, line = _index(0), _LINE // _bytes(kind)
        # Sums of two lines stay in registers; more would not everywhere.
        for lines, width in ((2, 2 * line), (1, line), (0, 1)):
            blocks = builder.udiv(builder.sub(words, first), _index(width))
            with cgutils.for_range(builder, blocks, intp=ir.IntType(64)) as loop:
                word = builder.add(first, builder.mul(loop.index, _index(width)))
                _weigh(builder, rows, step, p, count, out, word, lines)
            first = builder.add(first, builder.mul(blocks, _index(width)))
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * 7), generate


several_by_two: Any = intrinsic(_several_by_two)
several_by_one: Any = intrinsic(_several_by_one)
one_by_two: Any = intrinsic(_one_by_two)
one_by_one: Any = intrinsic(_one_by_one)
rows_at_once: Any = intrinsic(_at_once)
add_rows: Any = intrinsic(_add_rows)
