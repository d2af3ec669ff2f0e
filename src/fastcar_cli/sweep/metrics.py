"""Compares a video with the dense video of its prompt and seed, on decoded uint8 frames; downloads nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fastcar_cli.errors import Key, RequestError, RunError
from fastcar_cli.media.metrics import GAUSS, SSIM_WINDOW, Images, load_lpips, ms_ssim, psnr, ssim, temporal
from fastcar_cli.sweep.grid import parse_names

KEYS = {"psnr": "psnr_db", "ssim": "ssim", "ms-ssim": "ms_ssim", "temporal": "temporal", "lpips": "lpips"}
"""Keys in results by name on the command line. Results store `fidelity` separately."""
NAMES = (*KEYS, "fidelity")
DEFAULT = ("psnr", "ssim", "ms-ssim", "temporal", "fidelity")
_Kind = Callable[[Images, Images], Sequence[float | None]]
_KINDS: dict[str, _Kind] = {"ssim": ssim, "ms-ssim": ms_ssim, "temporal": temporal}


def parse_metrics(text: str | None, lpips: Path | None) -> tuple[str, ...]:
    """Parse "psnr,ssim" to metrics in a fixed order, by default all whose weights are given. Raises RequestError."""
    chosen = (*DEFAULT, *(["lpips"] if lpips else [])) if text is None else parse_names("metrics", text, NAMES)
    if "lpips" in chosen and lpips is None:
        said = "needs a file with the weights of its network, which fastcar does not download"
        hint = ("add ", Key("lpips_weights"), " FILE: torchvision's AlexNet (alexnet-owt-7be5be79.pth) or VGG16")
        raise RequestError(said, key="metrics", value="lpips", hint=hint)
    if lpips is not None and "lpips" not in chosen:
        ways = ("add lpips to ", Key("metrics"), ", or leave ", Key("lpips_weights"), " out")
        raise RequestError(("no effect, because ", Key("metrics"), " lacks lpips"), key="lpips_weights", hint=ways)
    return tuple(n for n in NAMES if n in chosen)


@dataclass
class Scorer:
    """The metrics of a sweep. names: from `NAMES`, without `fidelity`; lpips: file with the network's weights."""

    names: tuple[str, ...]
    lpips: Path | None = None

    @property
    def keys(self) -> list[str]:
        """Keys in results."""
        return [KEYS[n] for n in self.names]

    def check(self, height: int, width: int) -> None:
        """Raise RequestError for metrics that are unavailable here or for this frame size."""
        for name, least in (("ssim", SSIM_WINDOW), ("ms-ssim", GAUSS)):
            if name in self.names and min(height, width) < least:
                rest = ",".join(n for n in self.names if n not in ("ssim", "ms-ssim")) or "psnr"
                said = f"needs frames of {least} x {least} pixels or more, but the model makes {height} x {width}"
                raise RequestError(said, key="metrics", value=name, hint=("use ", Key("metrics"), f" {rest}"))
        if self.lpips is not None:
            load_lpips(self.lpips)

    def score(self, video: Images, reference: Images) -> tuple[dict[str, float | None], dict[str, list[Any]]]:
        """Means of the video and values of its frames, by key. Both videos [T, H, W, 3] uint8."""
        means, frames = dict[str, float | None](), dict[str, list[Any]]()
        kinds = _KINDS if self.lpips is None else _KINDS | {"lpips": load_lpips(self.lpips)}
        for name, key in zip(self.names, self.keys, strict=True):
            values: Sequence[float | None]
            if name == "psnr":
                values, means[key] = psnr(video, reference)
            else:
                values = kinds[name](video, reference)
                known = [x for x in values if x is not None]
                means[key] = float(np.mean(known)) if known else None
            if not all(x is None or math.isfinite(x) for x in values):
                said = "returned values that are not finite"
                raise RunError(said, key="metrics", value=name, hint="download the weights file again")
            frames[key] = list(values)
        return means, frames
