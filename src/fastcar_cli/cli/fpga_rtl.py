"""`fastcar fpga rtl`: a command of the laboratory, which has the RTL that the emulator is compared with."""

from __future__ import annotations

from fastcar_cli.system import plugins

rtl = plugins.of_fpga("rtl", "rtl")
