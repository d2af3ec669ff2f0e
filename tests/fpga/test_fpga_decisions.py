"""Decisions for the emulated accelerator: saved, damaged and drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fpga_presets import work
from support.tiny import tiny_spec

from fastcar_cli.errors import RequestError
from fastcar_fpga.decisions import Decisions, draw, read, save


@settings(deadline=None)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 9)),
    seed=st.integers(0, 99),
    window=st.none() | st.integers(1, 9),
)
def test_saved_decisions_come_back(
    tmp_path_factory: Any, shape: tuple[int, ...], seed: int, window: int | None
) -> None:
    file = tmp_path_factory.mktemp("d") / "run.npz"
    bits = np.random.default_rng(seed).random(shape) < 0.5
    before = Decisions(bits, tiny_spec(), 3, 2, window, 4, {"tau": -2})
    save(file, before)
    after = read(file)
    assert np.array_equal(after.replayed, bits)
    assert (after.spec, after.prompt, after.window, after.note) == (before.spec, 3, window, {"tau": -2})


def test_damaged_decisions_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.npz"
    save(file, Decisions(np.ones((2, 2, 99), dtype=bool), tiny_spec(), 1, 1, None, 4, {}))
    whole = file.read_bytes()
    for content in (whole[:-60], b"nothing", b""):
        file.write_bytes(content)
        with pytest.raises(RequestError, match=r"run\.npz"):
            read(file)
    with pytest.raises(RequestError, match="no such file"):
        read(tmp_path / "none.npz")


def test_drawn_decisions_have_the_requested_ratio() -> None:
    shape = work(layers=12, rows=4, frames=4, tokens_per_frame=64)
    for profile in ("flat", "valley"):
        bits = draw(shape, ratio=0.5, profile=profile)
        assert bits.mean() == pytest.approx(0.5, abs=0.01) and not bits[:, :, :64].any()
    by_layer = bits.mean((1, 2))
    assert by_layer[0] > by_layer[6] + 0.1
    together = draw(shape, ratio=0.5, pair_correlation=1.0)
    assert np.array_equal(together[:, :2], together[:, 2:])
    with pytest.raises(RequestError, match=r"at most 0\.749"):
        draw(shape, ratio=0.9)
    assert draw(shape, ratio=0.9, spread="all")[:, :, :64].any()
