"""Compares two videos on decoded uint8 frames: PSNR, SSIM, MS-SSIM, LPIPS and the temporal error.

MS-SSIM is torchmetrics'; PSNR and SSIM equal scikit-image's to 1e-9 (torchmetrics' SSIM has a different variance).
"""

from __future__ import annotations

import contextlib
import io
import math
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.errors import Key, RequestError
from fastcar_cli.system.files import why_unread
from fastcar_cli.system.plugins import need

Images = NDArray[np.uint8]  # frames [T, H, W, 3]
SSIM_WINDOW = 7  # side of SSIM's uniform window in pixels (scikit-image's default)
GAUSS = 11  # side of MS-SSIM's window in pixels (sigma 1.5)

_MS_WEIGHTS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)
"""Weights of the five scales (Wang, Simoncelli, Bovik 2003), finest first."""


def psnr_of(mean_squared_error: float) -> float | None:
    """PSNR in dB of 8-bit pixels; None without error (infinite)."""
    return None if mean_squared_error == 0 else 10 * math.log10(255.0**2 / mean_squared_error)


def error_of(psnr_db: float | None) -> float:
    """The mean squared error of a PSNR."""
    return 0.0 if psnr_db is None else 255.0**2 / 10 ** (psnr_db / 10)


def psnr(video: Images, reference: Images) -> tuple[list[float | None], float | None]:
    """PSNR (dB) of each frame, and of the whole video from the error of all its pixels; None if they are identical."""
    errors = np.square(video.astype(np.float64) - reference).mean((1, 2, 3))
    return [psnr_of(float(error)) for error in errors], psnr_of(float(errors.mean()))


def ssim(video: Images, reference: Images) -> list[float]:
    """SSIM of each frame, the mean of its channels (Wang, Bovik, Sheikh, Simoncelli 2004; K1 0.01, K2 0.03)."""
    n = SSIM_WINDOW**2
    c1, c2 = (0.01 * 255 * n) ** 2, (0.03 * 255) ** 2 * n * (n - 1)
    x, y = video.astype(np.int64), reference.astype(np.int64)
    # Means, variances and covariance times a power of n are whole numbers, so equal frames give exactly 1.
    sx, sy = _window_sums(x), _window_sums(y)
    variances = n * _window_sums(x * x + y * y) - (sx * sx + sy * sy)
    covariance = n * _window_sums(x * y) - sx * sy
    values = (2 * sx * sy + c1) * (2 * covariance + c2) / ((sx * sx + sy * sy + c1) * (variances + c2))
    return values.mean((1, 2, 3)).tolist()


def _window_sums(images: NDArray[np.int64]) -> NDArray[np.int64]:
    """Exact sums over all windows inside frames [T, H, W, 3]."""
    sums = np.pad(images.cumsum(1).cumsum(2), ((0, 0), (1, 0), (1, 0), (0, 0)))
    rows = sums[:, SSIM_WINDOW:] - sums[:, :-SSIM_WINDOW]
    return rows[:, :, SSIM_WINDOW:] - rows[:, :, :-SSIM_WINDOW]


def scales_of(side: int) -> int:
    """How many of MS-SSIM's five scales torchmetrics allows for frames with this shorter side."""
    return max((n for n in range(1, 6) if side // max(2 ** (n - 1), (n - 1) ** 2) >= GAUSS), default=0)


def ms_ssim(video: Images, reference: Images) -> list[float]:
    """MS-SSIM of each frame with as many scales as fit, their weights renormalised to sum 1."""
    import torch
    from torchmetrics.functional.image import multiscale_structural_similarity_index_measure

    count = scales_of(min(video.shape[1:3]))
    total = sum(_MS_WEIGHTS[:count])
    # float32 is within 1e-5 of float64, whose convolution per channel takes fifty times as long.
    v, r = (torch.from_numpy(a).permute(0, 3, 1, 2).float() for a in (video, reference))
    betas = tuple(w / total for w in _MS_WEIGHTS[:count])
    values = multiscale_structural_similarity_index_measure(
        v, r, sigma=1.5, kernel_size=GAUSS, reduction="none", data_range=255.0, betas=betas, normalize="relu"
    )
    return values.reshape(-1).tolist()


def temporal(video: Images, reference: Images) -> list[float | None]:
    """Mean absolute error of each frame's difference to the previous frame, 0..255; None for the first frame."""
    v, r = (np.diff(a.astype(np.int16), axis=0) for a in (video, reference))
    return [None, *(float(x) for x in np.abs(v - r).mean((1, 2, 3)))]


def beside(truth: Images, predicted: Images) -> Images:
    """Two frames uint8 [H, W, 3] side by side, [H, 2 W, 3], the truth on the left."""
    return np.concatenate([truth, predicted], axis=1)


def compare(predicted: Images, truth: Images, context: int) -> dict[str, Any]:
    """Errors of a clip's predicted frames, those after its `context`, in total and by frame.

    The total PSNR (dB, None if identical) is that of all pixels; total SSIM and temporal error are means over frames.
    Totals are None if no frame was predicted. Raises ValueError for clips of different shapes.
    """
    if predicted.shape != truth.shape:
        raise ValueError(f"predicted has shape {list(predicted.shape)}, but truth {list(truth.shape)}")
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


@cache
def load_lpips(file: Path) -> Callable[[Images, Images], list[float]]:
    """A function that computes LPIPS by frame of two videos (Zhang et al. 2018, package `lpips`).

    The backbone's ImageNet weights, which the package would download, are read from a file: torchvision's state dict of
    AlexNet or VGG16. Raises RequestError if the package or the file is missing, or the file has other contents.
    """
    import torch

    package = need("lpips", (Key("metrics"), " lpips"))
    if not file.is_file():
        hint = "download torchvision's weights of AlexNet (alexnet-owt-7be5be79.pth) or VGG16"
        raise RequestError("there is no such file", key="lpips_weights", value=file, hint=hint)
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
        kind = {(64, 3, 11, 11): "alex", (64, 3, 3, 3): "vgg"}[tuple(state["features.0.weight"].shape)]
    except Exception as e:  # a damaged or foreign file can make the unpickler raise anything
        said = f"is not a state dict of AlexNet or VGG16: {why_unread(e)}"
        raise RequestError(said, key="lpips_weights", value=file) from None
    # The package prints a line to standard output, which is for results only.
    with contextlib.redirect_stdout(io.StringIO()), open(os.devnull, "w") as null, contextlib.redirect_stderr(null):
        network = package.LPIPS(net=kind, pretrained=True, pnet_rand=True, verbose=False).eval()
    backbone = network.net.state_dict()
    try:
        # slice3.6.weight of the package is features.6.weight of torchvision.
        network.net.load_state_dict({k: state["features." + k.split(".", 1)[1]] for k in backbone})
    except (KeyError, RuntimeError) as e:
        raise RequestError(f"does not fit {kind}: {str(e).splitlines()[0]}", key="lpips_weights", value=file) from None

    def by_frame(video: Images, reference: Images) -> list[float]:
        v, r = (torch.from_numpy(a).permute(0, 3, 1, 2).float() / 127.5 - 1 for a in (video, reference))
        with torch.inference_mode():
            return [float(x) for x in network(v, r).reshape(-1)]

    return by_frame
