"""How far a replayed video is from the dense one of the same prompt and seed, on decoded uint8 frames.

PSNR and SSIM are scikit-image's, MS-SSIM is torchmetrics', LPIPS the `lpips` package's. Nothing is downloaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.analysis.sweep.plan import parse_names
from fastcar_cli.errors import RequestError, RunError

Images = NDArray[np.uint8]
"""Frames [T, H, W, 3]."""

KEYS = {"psnr": "psnr_db", "ssim": "ssim", "ms-ssim": "ms_ssim", "temporal": "temporal", "lpips": "lpips"}
"""Names on the command line and keys in results; `fidelity` is a key of its own there."""
NAMES = (*KEYS, "fidelity")
DEFAULT = ("psnr", "ssim", "ms-ssim", "temporal", "fidelity")

_MS_WEIGHTS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)
"""Of the five scales (Wang, Simoncelli, Bovik 2003), finest first."""
_GAUSS = 11
"""Side of MS-SSIM's window in pixels (sigma 1.5)."""
_SSIM_WINDOW = 7
"""Side of scikit-image's default SSIM window in pixels."""


def parse_metrics(text: str | None, lpips: Path | None) -> tuple[str, ...]:
    """Metrics of "psnr,ssim", in a fixed order; without a text all that need no extra, and LPIPS with its weights.

    Raises RequestError for an unknown one, and for LPIPS without weights or weights without LPIPS.
    """
    chosen = (*DEFAULT, *(["lpips"] if lpips else [])) if text is None else parse_names("metrics", text, NAMES)
    if "lpips" in chosen and lpips is None:
        raise RequestError(
            "`metrics` lpips: needs the weights of its network in a file, nothing is downloaded",
            hint="`lpips_weights` PATH: torchvision's AlexNet or VGG16 state dict (alexnet-owt-7be5be79.pth)",
        )
    if lpips is not None and "lpips" not in chosen:
        raise RequestError("`lpips_weights`: lpips is not among `metrics`", hint="add it there")
    return tuple(n for n in NAMES if n in chosen)


def psnr_of(mean_squared_error: float) -> float | None:
    """PSNR in dB of 8-bit pixels; None for no error (infinite)."""
    return None if mean_squared_error == 0 else 10 * math.log10(255.0**2 / mean_squared_error)


def error_of(psnr_db: float | None) -> float:
    """The mean squared error behind a PSNR."""
    return 0.0 if psnr_db is None else 255.0**2 / 10 ** (psnr_db / 10)


def psnr(video: Images, reference: Images) -> tuple[list[float | None], float | None]:
    """PSNR (dB) of each frame and of the whole video, from the mean squared error over all its pixels.

    None stands for identical pixels. A mean of the frames' decibels would be infinite whenever one frame is
    identical, and the first one always is.
    """
    from skimage.metrics import mean_squared_error

    frames = [psnr_of(float(mean_squared_error(r, v))) for v, r in zip(video, reference, strict=True)]
    return frames, psnr_of(float(mean_squared_error(reference, video)))


def ssim(video: Images, reference: Images) -> list[float]:
    """SSIM of each frame: `structural_similarity(reference, video, channel_axis=2, data_range=255)`."""
    from skimage.metrics import structural_similarity

    pairs = zip(video, reference, strict=True)
    return [float(structural_similarity(r, v, channel_axis=2, data_range=255)) for v, r in pairs]


def scales_of(side: int) -> int:
    """How many of MS-SSIM's five scales fit frames whose shorter side this is; 0 where none does.

    The coarsest scale must be larger than the window; torchmetrics asks the same of side / (scales - 1)^2.
    """
    return max((n for n in range(1, 6) if side // max(2 ** (n - 1), (n - 1) ** 2) >= _GAUSS), default=0)


def ms_ssim(video: Images, reference: Images) -> list[float]:
    """MS-SSIM of each frame with as many scales as fit, their weights renormalised to sum 1."""
    import torch
    from torchmetrics.functional.image import multiscale_structural_similarity_index_measure

    count = scales_of(min(video.shape[1:3]))
    total = sum(_MS_WEIGHTS[:count])
    v, r = (torch.from_numpy(a).permute(0, 3, 1, 2).double() for a in (video, reference))
    values = multiscale_structural_similarity_index_measure(
        v,
        r,
        gaussian_kernel=True,
        sigma=1.5,
        kernel_size=_GAUSS,
        reduction="none",
        data_range=255.0,
        betas=tuple(w / total for w in _MS_WEIGHTS[:count]),
        normalize="relu",
    )
    return [float(x) for x in values.reshape(-1)]


def temporal(video: Images, reference: Images) -> list[float | None]:
    """Mean absolute error of the difference to the frame before, 0..255; None for the first frame."""
    v, r = (np.diff(a.astype(np.int16), axis=0) for a in (video, reference))
    return [None, *(float(x) for x in np.abs(v - r).mean((1, 2, 3)))]


@dataclass
class Scorer:
    """The metrics of a sweep, ready to compare videos.

    names: of `NAMES`, without `fidelity`; lpips: file of the network's weights.
    """

    names: tuple[str, ...]
    lpips: Path | None = None
    _lpips: Callable[[Images, Images], list[float]] | None = field(default=None, init=False, repr=False)

    @property
    def keys(self) -> list[str]:
        """Keys in results."""
        return [KEYS[n] for n in self.names]

    def check(self, height: int, width: int) -> None:
        """Refuse metrics that can't be had here or for frames of this size. Raises RequestError."""
        side = min(height, width)
        for name, least in (("ssim", _SSIM_WINDOW), ("ms-ssim", _GAUSS)):
            if name in self.names and side < least:
                rest = ",".join(n for n in self.names if n not in ("ssim", "ms-ssim")) or "psnr"
                raise RequestError(
                    f"`metrics` {name}: needs frames of {least} x {least} pixels, the model's have {height} x {width}",
                    hint=f"`metrics` {rest}",
                )
        if "lpips" in self.names and self._lpips is None:
            from fastcar_cli.analysis.sweep.lpips_metric import load_lpips

            assert self.lpips is not None
            self._lpips = load_lpips(self.lpips)

    def score(self, video: Images, reference: Images) -> tuple[dict[str, float | None], dict[str, Sequence[Any]]]:
        """Means of the video and values of its frames, by key. Both videos [T, H, W, 3] uint8."""
        if video.shape != reference.shape:
            raise ValueError(f"video {list(video.shape)}, reference {list(reference.shape)}")
        means: dict[str, float | None] = {}
        frames: dict[str, Sequence[Any]] = {}
        for name in self.names:
            values: Sequence[float | None]
            if name == "psnr":
                values, means["psnr_db"] = psnr(video, reference)
            else:
                values = self._values(name, video, reference)
                known = [x for x in values if x is not None]
                means[KEYS[name]] = float(np.mean(known)) if known else None
            if not all(x is None or math.isfinite(x) for x in values):
                raise RunError(f"`metrics` {name}: gives values that are not finite", hint="are its weights damaged?")
            frames[KEYS[name]] = list(values)
        return means, frames

    def _values(self, name: str, video: Images, reference: Images) -> Sequence[float | None]:
        if name == "lpips":
            if self._lpips is None:
                self.check(*video.shape[1:3])
            assert self._lpips is not None
            return self._lpips(video, reference)
        kinds: dict[str, Callable[[Images, Images], Sequence[float | None]]] = {
            "ssim": ssim,
            "ms-ssim": ms_ssim,
            "temporal": temporal,
        }
        return kinds[name](video, reference)
