"""Predictions against what really came."""

from __future__ import annotations

import numpy as np
import pytest
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from fastcar_cli.media.metrics import beside, compare


def _clip(seed: int, frames: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (frames, 16, 16, 3)).astype(np.uint8)


def test_only_predicted_frames_count() -> None:
    truth = _clip(0)
    predicted = truth.copy()
    predicted[:2] = 0
    found = compare(predicted, truth, 2)
    assert found["psnr_db"] is None and found["by_frame"]["psnr_db"] == [None] * 3
    assert found["ssim"] == pytest.approx(1) and found["first_frame"] == 2
    # The context is given as its tokenizer shows it, so the step out of it has an error of its own.
    assert found["by_frame"]["temporal"][0] > 0 and found["by_frame"]["temporal"][1:] == [0, 0]


def test_each_frame_has_the_libraries_own_figures() -> None:
    truth, predicted = _clip(0), _clip(1)
    found = compare(predicted, truth, 1)
    for i, t in enumerate(range(1, 5)):
        psnr = peak_signal_noise_ratio(truth[t], predicted[t], data_range=255)
        ssim = structural_similarity(truth[t], predicted[t], channel_axis=2, data_range=255)
        change = [np.diff(v[t - 1 : t + 1].astype(int), axis=0) for v in (predicted, truth)]
        assert found["by_frame"]["psnr_db"][i] == pytest.approx(psnr)
        assert found["by_frame"]["ssim"][i] == pytest.approx(ssim)
        assert found["by_frame"]["temporal"][i] == pytest.approx(np.abs(change[0] - change[1]).mean())
    assert found["psnr_db"] == pytest.approx(peak_signal_noise_ratio(truth[1:], predicted[1:], data_range=255))


def test_a_run_that_was_stopped_in_the_context_has_no_figures() -> None:
    found = compare(_clip(0, 2), _clip(1, 2), 2)
    assert (found["psnr_db"], found["ssim"], found["temporal"]) == (None, None, None)
    with pytest.raises(ValueError, match="predicted"):
        compare(_clip(0, 2), _clip(1, 3), 2)


def test_both_are_next_to_each_other() -> None:
    truth, predicted = _clip(0)[0], _clip(1)[0]
    image = beside(truth, predicted)
    assert image.shape == (16, 32, 3) and (image[:, :16] == truth).all() and (image[:, 16:] == predicted).all()
