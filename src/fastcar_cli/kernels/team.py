"""A team of threads within one parallel region: one leads through a pass, the others help with its stages.

A region costs tens of microseconds to enter and shares work out beforehand, so a thread that is held up for a moment
holds up all. Here a pass is one region. Its leader publishes a stage at a time, in chunks that every thread takes as
it gets to them, and waits for the last. A helper that starts late, or never, costs time but blocks nothing, as the
leader takes chunks like the others. Each thread begins with a share of neighbouring chunks, so that it reads memory
in order, and takes from the shares of others when its own is worked off.

`state` int64 is what they share: a ticket a thread (number of the stage, chunks left of its share), the number of
chunks done, and what the stage works on. What a chunk works on may be read once it is claimed: the stage can't end
before.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from fastcar_cli.kernels.formats import F, exp, inline, jit, pointer, tensor
from fastcar_cli.kernels.stream import AHEAD, one_by_one, one_by_two, rows_at_once, several_by_one, several_by_two

# Places in the state; what threads write in turn lies cache lines apart.
DONE, CHUNKS, THREADS, WORK, TICKETS, APART = 0, 16, 17, 18, 48, 16
(KIND, WEIGHT, OUTPUTS, INPUTS, ROW_BYTES, SCALE, X, X_BYTES, ROWS, Y, Y_STRIDE, SIZE, GATE, GATE_SCALE, Z) = range(
    WORK, WORK + 15
)
PRODUCT = 0
"""Kind of a stage; others belong to who publishes them."""

_LEFT = 0xFFFFFFFF
_CLOSED = -1
_CHUNK_BYTES = 2**18
_CHUNKS_A_THREAD = 8
_SPINS = 64
_yield = types.ExternalFunction("SwitchToThread" if sys.platform == "win32" else "sched_yield", types.int32())


def _place(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    return builder.gep(context.make_array(kind)(context, builder, array).data, [index])


def _make_load(typing: Any, array: Any, index: Any) -> Any:
    """array[index] of int64, seen after all that was written before it was stored."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_place(context, builder, signature.args[0], args[0], args[1]), "seq_cst", 8)

    return types.int64(array, types.int64), generate


def _make_store(typing: Any, array: Any, index: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _place(context, builder, signature.args[0], args[0], args[1])
        builder.store_atomic(args[2], place, "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64), generate


def _make_add(typing: Any, array: Any, index: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _place(context, builder, signature.args[0], args[0], args[1])
        return builder.atomic_rmw("add", place, args[2], "seq_cst")

    return types.int64(array, types.int64, types.int64), generate


def _make_swap(typing: Any, array: Any, index: Any, old: Any, new: Any) -> Any:
    """Whether array[index] was `old` and is `new` now."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _place(context, builder, signature.args[0], args[0], args[1])
        return builder.extract_value(builder.cmpxchg(place, args[2], args[3], "seq_cst", "seq_cst"), 1)

    return types.boolean(array, types.int64, types.int64, types.int64), generate


_load: Any = intrinsic(_make_load)
_store: Any = intrinsic(_make_store)
_add: Any = intrinsic(_make_add)
_swap: Any = intrinsic(_make_swap)


def new_state(threads: int) -> NDArray[np.int64]:
    """The shared state of a team."""
    state = np.zeros(TICKETS + APART * threads, np.int64)
    state[THREADS] = threads
    return state


@jit
def publish(state: Any, chunks: Any) -> Any:
    """Open the stage that the state describes, in so many chunks."""
    state[CHUNKS] = chunks
    _store(state, DONE, 0)
    threads = state[THREADS]
    stage = (_load(state, TICKETS) >> 32) + 1
    for member in range(threads):
        share = chunks * (member + 1) // threads - chunks * member // threads
        _store(state, TICKETS + APART * member, (stage << 32) | share)


@jit
def claim(state: Any, member: Any) -> Any:
    """Index of a chunk of the open stage that is the caller's now, or -1 where none is left."""
    threads = state[THREADS]
    for k in range(threads):
        owner = (member + k) % threads
        at = TICKETS + APART * owner
        while True:
            ticket = _load(state, at)
            left = ticket & _LEFT
            if ticket < 0 or left == 0:
                break
            if _swap(state, at, ticket, ticket - 1):
                return state[CHUNKS] * (owner + 1) // threads - left
    return -1


@jit
def done(state: Any) -> Any:
    """Tell that a claimed chunk is worked off."""
    _add(state, DONE, 1)


@jit
def wait(state: Any) -> Any:
    """Until every chunk of the stage is worked off."""
    spins = 0
    while _load(state, DONE) < state[CHUNKS]:
        spins += 1
        if spins % _SPINS == 0:
            _yield()


@jit
def idle(state: Any) -> Any:
    """Until a stage has chunks left; False where the pass is over."""
    spins = 0
    while True:
        for member in range(state[THREADS]):
            ticket = _load(state, TICKETS + APART * member)
            if ticket < 0:
                return False
            if ticket & _LEFT:
                return True
        spins += 1
        if spins % _SPINS == 0:
            _yield()


@jit
def begin(state: Any) -> Any:
    """A new pass, before its region is entered."""
    for member in range(state[THREADS]):
        _store(state, TICKETS + APART * member, 0)


@jit
def end(state: Any) -> Any:
    """The pass is over: helpers leave."""
    _store(state, TICKETS, _CLOSED)


@jit
def _outputs(
    like: Any,
    w: Any,
    words: Any,
    row: Any,
    x: Any,
    step: Any,
    rows: Any,
    y: Any,
    stride: Any,
    first: Any,
    last: Any,
    then: Any,
) -> Any:
    """Outputs first to last of w x for each row of x; a weight is read once for two rows of the batch.

    w, x, y: addresses; row, step, stride: bytes between their rows. `then`: address of the weights that come next.
    """
    at_once = rows_at_once(like)
    skip = (at_once - 1) * row
    o = first
    while o + at_once <= last:
        at, to = w + o * row, y + 4 * o
        if o + 2 * at_once > last:
            skip += then - (w + (o + at_once) * row)
        for r in range(0, rows - 1, 2):
            x_at = x + r * step
            several_by_two(like, at, words, AHEAD, skip, x_at, x_at + step, to + r * stride, stride)
        if rows % 2:
            several_by_one(like, at, words, AHEAD, skip, x + (rows - 1) * step, to + (rows - 1) * stride)
        o += at_once
    while o < last:
        at, to = w + o * row, y + 4 * o
        for r in range(0, rows - 1, 2):
            x_at = x + r * step
            one_by_two(like, at, words, AHEAD, 0, x_at, x_at + step, to + r * stride, stride)
        if rows % 2:
            one_by_one(like, at, words, AHEAD, 0, x + (rows - 1) * step, to + (rows - 1) * stride)
        o += 1


@jit
def _scale(factors: Any, outputs: Any, y: Any, rows: Any, first: Any, last: Any) -> Any:
    """Outputs of rows of int8 weights times their scales, at the address `factors` unless it is 0."""
    if factors:
        scale = tensor(pointer(factors, F(0)), (outputs,))
        for r in range(rows):
            for o in range(first, last):
                y[r, o] *= scale[o]


@jit
def product_chunk(state: Any, index: Any, like: Any) -> Any:
    """Outputs of one chunk of a product."""
    outputs, words, rows, size, row = state[OUTPUTS], state[INPUTS], state[ROWS], state[SIZE], state[ROW_BYTES]
    x, step = state[X], state[X_BYTES]
    first, last = index * size, min((index + 1) * size, outputs)
    y = tensor(pointer(state[Y], F(0)), (rows, state[Y_STRIDE]))
    w, gate, stride = state[WEIGHT], state[GATE], 4 * state[Y_STRIDE]
    after = w + last * row
    then = gate + first * row if gate else after
    _outputs(like, w, words, row, x, step, rows, state[Y], stride, first, last, then)
    _scale(state[SCALE], outputs, y, rows, first, last)
    if gate:
        z = tensor(pointer(state[Z], F(0)), (rows, state[Y_STRIDE]))
        _outputs(like, gate, words, row, x, step, rows, state[Z], stride, first, last, after)
        _scale(state[GATE_SCALE], outputs, z, rows, first, last)
        for r in range(rows):
            for o in range(first, last):
                y[r, o] *= z[r, o] / (F(1) + exp(min(-z[r, o], F(87))))


@jit
def take_products(state: Any, like: Any, member: Any) -> Any:
    """Chunks of an open product until none is left."""
    index = claim(state, member)
    while index >= 0:
        product_chunk(state, index, like)
        done(state)
        index = claim(state, member)


@jit
def _product(state: Any, like: Any, x: Any, rows: Any, w: Any, scale: Any, y: Any) -> Any:
    """Describe a product and share it out; called by the leader."""
    outputs, words = w.shape
    threads, row = state[THREADS], words * w.itemsize
    size = outputs
    if threads > 1:
        # Chunks large enough to be worth claiming, and enough of them that no thread waits long for the last; none ends
        # within rows that are worked on at once.
        at_once = rows_at_once(like)
        size = max(1, min(_CHUNK_BYTES // row, outputs // (_CHUNKS_A_THREAD * threads)) // at_once) * at_once
    state[KIND], state[WEIGHT], state[OUTPUTS], state[INPUTS] = PRODUCT, w.ctypes.data, outputs, words
    state[SCALE] = scale.ctypes.data if scale.shape[0] else 0
    state[X], state[X_BYTES], state[ROWS] = x.ctypes.data, x.strides[0], rows
    state[Y], state[Y_STRIDE], state[SIZE], state[ROW_BYTES] = y.ctypes.data, y.strides[0] // 4, size, row
    publish(state, (outputs + size - 1) // size)
    take_products(state, like, 0)
    wait(state)


@inline
def multiply(state: Any, like: Any, x: Any, rows: Any, w: Any, scale: Any, y: Any) -> Any:
    """Y[r] = w x[r] * scale for the first rows, with the team; called by its leader.

    w [out, words], of the type of `like`; x in the order that meets w; scale [out], or empty for none.
    """
    state[GATE] = 0
    _product(state, like, x, rows, w, scale, y)


@inline
def multiply_gated(
    state: Any, like: Any, x: Any, rows: Any, up: Any, up_scale: Any, gate: Any, gate_scale: Any, y: Any, z: Any
) -> Any:
    """Y[r] = silu(gate x[r]) * (up x[r]) as `multiply` has it; z, shaped like y, is overwritten."""
    state[GATE], state[Z] = gate.ctypes.data, z.ctypes.data
    state[GATE_SCALE] = gate_scale.ctypes.data if gate_scale.shape[0] else 0
    _product(state, like, x, rows, up, up_scale, y)


@jit
def help_products(state: Any, like: Any, member: Any) -> Any:
    """What a helper does in a pass whose stages are all products."""
    while idle(state):
        take_products(state, like, member)
