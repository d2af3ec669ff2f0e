"""Masks of pixels against scipy's, in every number."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from fastcar_lab.worlds.masks import connected, dilated, opened, regions, share_around


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 40), st.floats(0, 1))
def test_masks_are_grown_opened_and_cut_as_by_scipy(seed: int, height: int, width: int, density: float) -> None:
    mask = np.random.default_rng(seed).random((height, width)) < density
    for times in (1, 2):
        assert np.array_equal(dilated(mask, times), ndimage.binary_dilation(mask, iterations=times))
    assert np.array_equal(opened(mask), ndimage.binary_opening(mask, np.ones((2, 2))))
    assert share_around(mask) == pytest.approx(ndimage.uniform_filter(mask.astype(np.float64), 5), abs=1e-9)
    labels, count = ndimage.label(mask, structure=np.ones((3, 3)))
    parts = connected(mask)
    assert len(parts) == count
    for i, part in enumerate(parts):
        assert np.array_equal(part, labels == i + 1)


def test_regions_join_over_a_gap_and_specks_are_dropped() -> None:
    mask = np.zeros((20, 20), bool)
    mask[2:5, 2:5] = mask[2:5, 6:9] = True
    mask[10:12, 10:12] = True
    mask[18, 18] = True
    assert [int(part.sum()) for part in regions(mask, 2)] == [18, 4]
