"""Quality of cells as numbers by prompt, for the claims that compare settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastcar_cli.media.metrics import error_of
from fastcar_lab.claims.stats import Values, by_prompt

EQUAL = 60.0  # PSNR in dB that stands for that of equal videos

KEYS = {
    "ssim": "SSIM",
    "ms_ssim": "MS-SSIM",
    "psnr_db": "PSNR (dB)",
    "temporal": "temporal error",
    "right": "all right",
}


def value_of(cell: dict[str, Any], key: str) -> float:
    """One number of a cell; NaN where it was not measured. Identical videos count as 60 dB."""
    if key == "right":
        return float("nan") if cell["fidelity"] is None else float(cell["fidelity"]["all_right"])
    if key == "ratio":
        return float(cell["replay"]["ratio"])
    metrics = cell["metrics"]
    if metrics is None:
        return {"ssim": 1.0, "ms_ssim": 1.0, "psnr_db": EQUAL, "temporal": 0.0}[key]
    if key not in metrics:
        return float("nan")
    if key == "psnr_db":
        return EQUAL if error_of(metrics[key]) < 65025 / 1e6 else float(metrics[key])
    return float(metrics[key])


def values(cells: Sequence[dict[str, Any]], key: str) -> Values:
    """Numbers of cells by prompt."""
    return by_prompt([(c["prompt"], value_of(c, key)) for c in cells])


def measure(cells: Sequence[dict[str, Any]]) -> str:
    """The measure of quality: SSIM, or PSNR where frames are too small for it."""
    return "ssim" if any(c["metrics"] and "ssim" in c["metrics"] for c in cells) else "psnr_db"
