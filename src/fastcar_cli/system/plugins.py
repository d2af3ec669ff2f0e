"""Commands, functions of `fastcar fpga` and worlds that other packages, such as fastcar_lab, add by entry points."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from fastcar_cli.errors import RequestError, Text

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

    import numpy as np
    from numpy.typing import NDArray


COMMANDS = "fastcar.commands"
FPGA_COMMANDS = "fastcar.fpga"
WORLDS = "fastcar.worlds"


class JudgedWorld(Protocol):
    """The world of a model, which can judge its videos."""

    def judge(self, video: NDArray[np.uint8], tokens: Sequence[str]) -> dict[str, bool | None]:
        """Whether a video [T, H, W, 3] is right in each respect that the tokens of a completed reading describe; None:
        not described. `persists`: whether objects stay what they are; `all_right`: whether all is right.
        """


Recogniser: TypeAlias = "Callable[[Any, int, int], JudgedWorld | None]"
"""The world of a model with this prompt reader, frame height and width, or None."""


def _entries(group: str) -> EntryPoints:
    # Most commands need no entry points, and this import takes a tenth of the shortest command's time.
    from importlib.metadata import EntryPoint, EntryPoints, entry_points

    installed, project = entry_points(group=group), Path(__file__).parents[3] / "pyproject.toml"
    # For a checkout that is on the path but not installed, read the entry points in pyproject.toml.
    if not installed and sys.version_info >= (3, 11) and project.is_file():
        import tomllib

        declared = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["entry-points"].get(group, {})
        return EntryPoints(EntryPoint(name, value, group) for name, value in declared.items())
    return installed


def command_names() -> list[str]:
    """Names of the added commands."""
    return sorted(_entries(COMMANDS).names)


def command(name: str, group: str = COMMANDS) -> Callable[[], Any] | None:
    """The loader of an added command; None for unknown names."""
    return next((entry.load for entry in _entries(group) if entry.name == name), None)


def of_fpga(name: str, what: str) -> Callable[..., None]:
    """The plug-in `name` of `fastcar fpga`. Raises RequestError, naming the command `what`, if it is not installed."""
    if (load := command(name, FPGA_COMMANDS)) is None:
        said = f"fastcar fpga {what} needs the package fastcar_lab, which is not installed"
        raise RequestError(said, hint="run pip install -e . in a checkout of fastcar")
    return load()


def can_judge() -> bool:
    """Whether an installed package judges videos."""
    return bool(_entries(WORLDS))


def world_of(reader: Any, height: int, width: int) -> JudgedWorld | None:
    """The world of a model, see `Recogniser`."""
    recognisers: list[Recogniser] = [entry.load() for entry in _entries(WORLDS)]
    return next((world for recognise in recognisers if (world := recognise(reader, height, width))), None)


EXTRAS = {
    **{"lpips": "lpips", "matplotlib": "plots", "pyarrow": "parquet", "ray": "ray", "scipy": "claims"},
    **dict.fromkeys(("llama_cpp", "gguf"), "llama-cpp"),
    **{"ik_llama_cpp": "ik-llama-cpp", "openvino": "openvino"},
}
"""Packages, and the extras in pyproject.toml that install them."""


def need(module: str, what: Text) -> Any:
    """Import a module of an optional package. Raises RequestError: `what` (a plot, a metric) requires its extra."""
    try:
        return importlib.import_module(module)
    except (ImportError, RuntimeError) as e:  # RuntimeError: a torchvision built for another torch
        extra, why = EXTRAS[module.split(".")[0]], str(e).partition("\n")[0]
        hint = f"run pip install 'fastcar[{extra}]'"
        raise RequestError((what, f" needs the extra fastcar[{extra}]: {why}"), hint=hint) from None
