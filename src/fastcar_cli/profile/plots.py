"""Plots of a profile, as PNG and SVG."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fastcar_cli.errors import RunError
from fastcar_cli.profile.decode_profile import DecodeProfile
from fastcar_cli.system.extras import pyplot
from fastcar_cli.system.files import make_folder

COLORS = {
    "attention": "#4477aa",
    "mlp": "#ee6677",
    "depth_transformer": "#228833",
    "heads": "#ccbb44",
    "embedding": "#66ccee",
    "sampling": "#aa3377",
    "vision": "#bbbbbb",
    "python": "#555555",
}


def save_figure(
    folder: Path, name: str, draw: Callable[[Any], None], size: tuple[float, float] = (7.5, 4.2)
) -> list[Path]:
    """Draw a figure, `size` in inches, as PNG and SVG; the files. Raises RequestError without matplotlib."""
    plt = pyplot("a plot")
    figure = plt.figure(figsize=size, layout="constrained")
    draw(figure)
    files = [folder / f"{name}.png", folder / f"{name}.svg"]
    for file in files:
        figure.savefig(file, dpi=130)
    plt.close(figure)
    return files


def write_plots(
    folder: Path, lengths: list[dict[str, Any]], decode: DecodeProfile | None, unit: str = "ms"
) -> list[Path]:
    """Write what there is to plot; returns the files. Raises RequestError or RunError where they can't be written."""
    make_folder(folder)
    try:
        files = save_figure(folder, "time-by-length", lambda f: _time(f, lengths, unit)) if lengths else []
        if decode is not None:
            files += save_figure(folder, "replay-by-layer", lambda f: _by_layer(f, decode))
            files += save_figure(folder, "tas-by-layer", lambda f: _tas(f, decode))
            files += save_figure(folder, "similarity-by-layer", lambda f: _similarity(f, decode))
            columns = min(4, len(decode.images))
            rows = -(-len(decode.images) // columns)
            files += save_figure(
                folder, "replay-map", lambda f: _map(f, decode, columns, rows), (2.4 * columns, 2.6 * rows)
            )
        return files
    except OSError as e:
        raise RunError(f"{e.filename or folder} could not be written: {e.strerror}") from None


def _time(figure: Any, lengths: list[dict[str, Any]], unit: str) -> None:
    axes = figure.subplots()
    labels = [f"{length['seq']:,}" for length in lengths]
    bottom = np.zeros(len(lengths))
    for name, color in COLORS.items():
        values = np.array([length["modules"].get(name, {"ms": 0.0})["ms"] for length in lengths])
        if not values.any():
            continue
        bars = axes.bar(labels, values, bottom=bottom, width=0.6, color=color, label=name.replace("_", " "))
        for bar, value, length in zip(bars, values, lengths, strict=True):
            if value > 0.06 * length["step_ms"]:
                x, y = bar.get_x() + bar.get_width() / 2, bar.get_y() + bar.get_height() / 2
                axes.text(x, y, f"{value / length['step_ms']:.0%}", ha="center", va="center", color="white", fontsize=9)
        bottom += values
    axes.set(xlabel="context (tokens)", ylabel=f"one step ({unit})", title="Where a decode step's time goes")
    axes.legend(frameon=False, bbox_to_anchor=(1.01, 1), loc="upper left", reverse=True)


def _by_layer(figure: Any, profile: DecodeProfile) -> None:
    axes = figure.subplots()
    axes.bar(range(len(profile.replay.by_layer)), [100 * r for r in profile.replay.by_layer], color=COLORS["attention"])
    axes.axhline(100 * profile.replay.ratio, color="0.3", linewidth=1, linestyle="--")
    axes.annotate(
        f"mean {profile.replay.ratio:.1%}",
        (0.01, 100 * profile.replay.ratio),
        xycoords=("axes fraction", "data"),
        va="bottom",
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
    )
    axes.set(xlabel="layer", ylabel="replayed MLPs (% of all passes)", ylim=(0, 100))
    axes.set_xticks(range(len(profile.replay.by_layer)))
    axes.set_title(f"Replay by layer, tau {profile.tau:g} (TAS: {profile.definition})")


def _tas(figure: Any, profile: DecodeProfile) -> None:
    axes = figure.subplots()
    axes.boxplot(list(profile.tas), positions=range(len(profile.tas)), whis=(1, 99), showfliers=False, widths=0.6)
    if np.isfinite(profile.tau):
        axes.axhline(profile.tau, color=COLORS["mlp"], linewidth=1.5, label=f"tau {profile.tau:g}")
        axes.legend(frameon=False)
    axes.set(xlabel="layer", ylabel=f"TAS ({profile.definition})")
    axes.set_title("Temporal attention score by layer (box: quartiles, whiskers: 1 and 99 %)")


def _similarity(figure: Any, profile: DecodeProfile) -> None:
    axes = figure.subplots()
    values = [np.nan if v is None else v for v in profile.similarity]
    axes.plot(range(len(values)), values, marker="o", color=COLORS["depth_transformer"])
    axes.set(xlabel="layer", ylabel="cosine similarity", ylim=(min(0.0, float(np.nanmin(values))), 1.02))
    axes.set_xticks(range(len(values)))
    axes.set_title("MLP outputs of the same place in neighbouring frames (dense run)")


def _map(figure: Any, profile: DecodeProfile, columns: int, rows: int) -> None:
    grid = figure.subplots(rows, columns, squeeze=False)
    height, width = profile.images.shape[1:3]
    shown = None
    for i, axes in enumerate(grid.flat):
        axes.axis("off")
        if i >= len(profile.images):
            continue
        axes.imshow(profile.images[i])
        shares = profile.by_position[i].reshape(profile.grid)
        shown = axes.imshow(
            shares, cmap="viridis", alpha=0.4, vmin=0, vmax=1, extent=(-0.5, width - 0.5, height - 0.5, -0.5)
        )
        axes.set_title(
            f"frame {i}: {profile.replay.by_frame[i] if i < len(profile.replay.by_frame) else 0:.0%}", fontsize=9
        )
    if shown is not None:
        figure.colorbar(shown, ax=grid, label="share of layers and rows that replayed", shrink=0.8)
