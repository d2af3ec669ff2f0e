"""A predicted clip beside the true one: the frames next to each other, and how far they are apart."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastcar_cli.media.metrics import Images, psnr, ssim, temporal


def beside(truth: Images, predicted: Images) -> Images:
    """One frame of both, uint8 [H, W, 3] each, as [H, 2 W, 3]: the truth on the left."""
    return np.concatenate([truth, predicted], axis=1)


def compare(predicted: Images, truth: Images, context: int) -> dict[str, Any]:
    """How far the predicted frames are from the true ones, in total and frame by frame.

    Both are uint8 [T, H, W, 3] and begin with `context` frames that are given, which are not counted: what a model
    makes of them is its tokenizer's work. PSNR (dB, None where frames are identical) is that of all predicted pixels
    together, SSIM and the temporal error (mean absolute error of the difference to the frame before, 0..255) are
    means over frames; the first predicted frame's difference is to the last of the context. All totals are None
    where no frame was predicted. Raises ValueError for clips of different shapes.
    """
    if predicted.shape != truth.shape:
        raise ValueError(f"predicted {list(predicted.shape)}, truth {list(truth.shape)}")
    if len(predicted) <= context:
        nothing = dict.fromkeys(("psnr_db", "ssim", "temporal"))
        return {**nothing, "first_frame": context, "by_frame": {name: [] for name in nothing}}
    each, whole = psnr(predicted[context:], truth[context:])
    structure = ssim(predicted[context:], truth[context:])
    motion = temporal(predicted[context - 1 :], truth[context - 1 :])[1:]
    return {
        "psnr_db": whole,
        "ssim": float(np.mean(structure)),
        "temporal": float(np.mean([x for x in motion if x is not None])),
        "first_frame": context,
        "by_frame": {"psnr_db": each, "ssim": structure, "temporal": motion},
    }
