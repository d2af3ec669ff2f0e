"""Products shared by a team of threads, in every number format, against float64."""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastcar_cli.decoding.compiled import new_team
from fastcar_cli.kernels.formats import empty_rows, inline, parallel, spread
from fastcar_cli.kernels.team import THREADS, begin, end, help_products, multiply, multiply_gated


@inline
def _lead(state: Any, like: Any, x: Any, w: Any, scale: Any, gate: Any, y: Any, gated: Any) -> None:
    rows = x.shape[0]
    a, b, c = empty_rows(rows, x.shape[1]), empty_rows(rows, w.shape[0]), empty_rows(rows, w.shape[0])
    for r in range(rows):
        spread(x[r], a[r], like)
    multiply(state, like, a, rows, w, scale, b)
    for r in range(rows):
        y[r] = b[r, : w.shape[0]]
    multiply_gated(state, like, a, rows, w, scale, gate, scale, b, c)
    for r in range(rows):
        gated[r] = b[r, : w.shape[0]]
    end(state)


@parallel
def _together(state: Any, like: Any, x: Any, w: Any, scale: Any, gate: Any, y: Any, gated: Any) -> None:
    begin(state)
    for member in nb.prange(state[THREADS]):
        if member:
            help_products(state, like, member)
        else:
            _lead(state, like, x, w, scale, gate, y, gated)


@nb.njit
def _leader_alone(state: Any, like: Any, x: Any, w: Any, scale: Any, gate: Any, y: Any, gated: Any) -> None:
    begin(state)
    _lead(state, like, x, w, scale, gate, y, gated)


def _weights(kind: str, outputs: int, inputs: int, seed: int) -> tuple[Any, np.ndarray, Any]:
    """The matrix as the kernels see it, in float64, and a number of its type."""
    plain = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed))
    if kind == "int8":
        whole = (plain * 40).round().clamp(-127, 127).to(torch.int8)
        return whole.numpy(), whole.double().numpy(), np.int8(0)
    if kind == "bfloat16":
        half = plain.bfloat16()
        return half.view(torch.int32).numpy().view(np.uint32), half.double().numpy(), np.uint32(0)
    return plain.numpy(), plain.double().numpy(), np.float32(0)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8"])
@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 5),
    outputs=st.integers(1, 70),
    # Beyond 20,000 bytes an input takes the way of four rows at once.
    inputs=st.one_of(st.integers(1, 150), st.integers(2600, 2620)),
    threads=st.sampled_from([1, 2]),
    alone=st.booleans(),
    seed=st.integers(0, 9),
)
def test_products_of_a_team(
    kind: str, rows: int, outputs: int, inputs: int, threads: int, alone: bool, seed: int
) -> None:
    w, exact, like = _weights(kind, outputs, 2 * inputs, seed)
    gate, exact_gate, _ = _weights(kind, outputs, 2 * inputs, seed + 10)
    x = np.random.default_rng(seed).standard_normal((rows, 2 * inputs)).astype(np.float32)
    scale = np.linspace(0.5, 2, outputs).astype(np.float32) if kind == "int8" else np.zeros(0, np.float32)
    factor = scale.astype(np.float64) if kind == "int8" else 1.0
    state = new_team(min(threads, nb.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    state[THREADS] = threads
    y, gated = np.zeros((2, rows, outputs), np.float32)
    # A helper that never comes leaves all chunks to the leader.
    (_leader_alone if alone else _together)(state, like, x, w, scale, gate, y, gated)
    want, z = x.astype(np.float64) @ exact.T * factor, x.astype(np.float64) @ exact_gate.T * factor
    size = np.abs(x).astype(np.float64) @ np.abs(exact).T * factor
    assert np.all(np.abs(y - want) <= 1e-6 * size)
    silu = z / (1 + np.exp(-np.clip(z, -700, 700)))
    other = np.abs(x).astype(np.float64) @ np.abs(exact_gate).T * factor
    assert np.all(np.abs(gated - silu * want) <= 3e-6 * size * other + 1e-6)


def test_a_team_keeps_its_sums_over_many_stages() -> None:
    w, _, like = _weights("float32", 256, 64, 0)
    gate, _, _ = _weights("float32", 256, 64, 1)
    x = np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)
    none = np.zeros(0, np.float32)
    state = new_team(min(2, nb.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    first, gated = np.zeros((2, 2, 256), np.float32)
    _leader_alone(state, like, x, w, none, gate, first, gated)
    for _ in range(3000):
        y, again = np.zeros((2, 2, 256), np.float32)
        _together(state, like, x, w, none, gate, y, again)
        assert np.array_equal(y, first)
        assert np.array_equal(again, gated)
