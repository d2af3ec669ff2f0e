"""`fastcar fpga rtl`: a command of the laboratory, which has the RTL that the emulator is compared with."""

from __future__ import annotations

from fastcar_cli import plugins
from fastcar_cli.errors import RequestError

if (load := plugins.command("rtl", plugins.FPGA_COMMANDS)) is None:
    raise RequestError(
        "fastcar fpga rtl is of the package fastcar_lab, which is not installed",
        hint="pip install -e . in a checkout of fastcar",
    )
rtl = load()
