"""`fastcar fpga rtl`: implemented in `fastcar_lab`, which contains the RTL."""

from __future__ import annotations

from fastcar_cli.system import plugins

rtl = plugins.of_fpga("rtl", "rtl")
