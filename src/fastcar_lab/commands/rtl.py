"""`fastcar fpga rtl`: the accelerator in SystemVerilog, checked against the emulator, synthesised, watched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fastcar_cli.cli.options import Accelerator, Debug, Format, Json
from fastcar_cli.errors import RequestError


def rtl(
    trace: Annotated[Path | None, typer.Argument(metavar="[TRACE]", help="File that `generate --trace` saved.")] = None,
    preset: Accelerator = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Folder for the RTL and its inputs.")] = None,
    passes: Annotated[
        int | None, typer.Option(help="Use only this many passes from the start of the trace. [default: all]", min=1)
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compare the RTL with the emulator; exit with 1 on a difference.")
    ] = False,
    synth: Annotated[bool, typer.Option("--synth", help="Estimate the required FPGA resources with yosys.")] = False,
    saif: Annotated[bool, typer.Option("--saif", help="Count signal changes, in a SAIF file for AMD Vivado.")] = False,
    as_json: Json = False,
    form: Format = "table",
    debug: Debug = False,
) -> None:
    """Write the emulated accelerator's RTL, with input data and expected results."""
    from fastcar_fpga.decisions import read
    from fastcar_fpga.preset import load_preset
    from fastcar_fpga.workload import preset_for
    from fastcar_lab.accelerator.rtl import bundle, tools
    from fastcar_lab.accelerator.rtl import synth as synthesis

    if output is None:
        raise RequestError("-o is missing: it names the folder for the RTL", hint="run fastcar fpga rtl -o DIR")
    if passes is not None and trace is None:
        raise RequestError("--passes has no effect without a file of decisions", hint="run fastcar fpga rtl TRACE.npz")
    saved = None if trace is None else read(trace)
    accelerator = load_preset(preset or "edge-small") if saved is None else preset_for(preset, saved.spec)
    document = bundle.write(output, accelerator, saved, passes)
    for name in document["kept"]:
        typer.echo(f"{output / name} was changed there, so it is not overwritten", err=True)
    if not as_json:
        layers = f"{document['layers']:,} layers"
        typer.echo(f"{output}: RTL of {accelerator.name} and {layers}; run.sh compares them with the emulator")
    if synth:
        document["resources"] = synthesis.synthesise(output, document["parameters"], accelerator)
        document["by_preset"] = synthesis.arithmetic(accelerator)
        if not as_json:
            _resources(document["resources"], document["by_preset"])
    if saif:
        document["saif"] = str(tools.activity(output, document["parameters"], accelerator.clock.value))
        if not as_json:
            typer.echo(f"{document['saif']}, for {output / 'power.tcl'}, which needs the vendor's tool; not run yet")
    if check:
        same, line = tools.simulate(output)
        document["check"] = {"same": same, "result": line}
        if not as_json:
            typer.echo(line)
    if as_json:
        typer.echo(json.dumps(document))
    if check and not same:
        raise typer.Exit(1)


def _resources(rows: list[dict[str, Any]], by_preset: dict[str, float]) -> None:
    from fastcar_cli.cli.render import Results, columns
    from fastcar_lab.accelerator.rtl.synth import CARDS

    shown = columns(
        "resources (yosys estimates, not vendor figures)",
        *("unit", "LUT", "FF", "DSP", "BRAM36", "URAM", *CARDS),
        caption=f"According to the preset, the weight buffers of all cores take {by_preset['RAMB36']:,.0f} RAMB36 or "
        f"{by_preset['URAM288']:,.0f} URAM288, and the MAC arrays {by_preset['DSP']:,.0f} DSP. A core counts its "
        "sequencer, its vector unit (in int8-exact), one DSP per MAC and its weight buffer in RAMB36, but not LUT and "
        "FF of the MAC array. A device's column has the largest share of its resources, with the resource if the unit "
        "does not fit. resources.csv lists cells and caveats.",
    )
    for row in rows:
        used = [f"{row[k]:g}" for k in ("LUT", "FF", "DSP", "BRAM36", "URAM")]
        most = (max((share, kind) for kind, share in row["share"][card].items()) for card in CARDS)
        shares = (f"{share:.3%}" + (f" {kind}" if share > 1 else "") for share, kind in most)
        shown.add_row(row["unit"], *used, *shares)
    Results().print(shown)
