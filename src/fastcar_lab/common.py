"""What rooms of the laboratory share: the checkout they run from, pipelines of models, tables and plots."""

from __future__ import annotations

import io
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from fastcar_cli.config.run_config import load_config
from fastcar_cli.pipeline.pipeline import VideoPipeline
from fastcar_cli.system.plugins import need


def commit() -> str | None:
    """Of the checkout that the package lies in; None elsewhere."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def pipeline_of(model: str, keys: Sequence[str] = (), **flags: Any) -> VideoPipeline:
    """A model with these settings: keys as `--set` has them, then flags with __ for a point."""
    named = {key.replace("__", "."): value for key, value in flags.items()}
    return VideoPipeline.from_config(load_config(None, list(keys), {"model": model, **named}))


def markdown(names: Sequence[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """Lines of a table."""
    lines = (f"| {' | '.join(map(str, row))} |" for row in rows)
    return [f"| {' | '.join(names)} |", "|" + "---|" * len(names), *lines]


def pyplot(what: str) -> Any:
    """Pyplot of matplotlib, drawing to files only. Raises RequestError where it is missing."""
    need("matplotlib", what).use("Agg")
    return need("matplotlib.pyplot", what)


def drawn(draw: Callable[[Any], None], size: tuple[float, float], title: str | None = None) -> dict[str, bytes]:
    """A figure of `size` inches that `draw(figure)` draws, by suffix: png and svg. Raises RequestError."""
    plt = pyplot("a plot")
    figure = plt.figure(figsize=size, layout="constrained")
    draw(figure)
    if title is not None:
        figure.suptitle(title, fontsize=11)
    files = {}
    for suffix in ("png", "svg"):
        out = io.BytesIO()
        figure.savefig(out, format=suffix, dpi=130)
        files[suffix] = out.getvalue()
    plt.close(figure)
    return files
