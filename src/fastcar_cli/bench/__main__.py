"""`python -m fastcar_cli.bench [--shape mini|vila-u-7b] [--json]`: decode passes timed side by side.

One run times, turn by turn: our engine dense and at forced replay ratios (rows together and alone), with
torch's and with compiled kernels and with int8 weights; transformers' LlamaModel on the same weights; and
a loop that computes every MLP and then selects. `--generate N` also times N whole `fastcar generate`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def whole_command(count: int) -> dict[str, Any]:
    """Wall seconds of `fastcar generate` as a process: to the first frame on disk, and to its end."""
    first, total = [], []
    for _ in range(count):
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            command = [sys.executable, "-m", "fastcar_cli", "generate", "a red ball rolling to the right", "-o", "f"]
            process = subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL)
            while process.poll() is None and not list(Path(folder).glob("*f*/0000.png")):
                time.sleep(0.005)
            first.append(time.perf_counter() - began)
            if process.wait():
                raise SystemExit("fastcar generate failed")
            total.append(time.perf_counter() - began)
    return {"first_frame_s": statistics.median(first), "total_s": statistics.median(total), "runs": count}


def _print(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console, machine = Console(), result["machine"]
    console.print(
        f"{machine['device']}, {machine['threads']} threads, torch {machine['torch']}; reads "
        f"{machine['read_gb_s']:.1f} GB/s, copies {machine['copy_gb_s']:.1f} GB/s; between the turns "
        f"{result['bandwidth_gb_s']:.1f} GB/s, which shares count from"
    )
    table = Table(
        title=f"{result['shape']}, {result['layers']} layers, context {result['context']}, {result['rows']} rows: "
        f"median of {result['turns']} turns of {result['passes']} passes"
    )
    for column in ("", "ms a pass", "least to most", "tokens/s", "GB/s", "of bandwidth", "speed-up", "of its ceiling"):
        table.add_column(column, justify="left" if not column else "right")
    for name, line in result["lines"].items():
        low, high = line["spread_ms"]
        cells = [name, f"{line['ms']:.3f}", f"{low:.3f} to {high:.3f}", f"{line['tokens_per_s']:,.0f}"]
        cells += [f"{line['gb_s']:.1f}", f"{line['of_bandwidth']:.0%}"] if "gb_s" in line else ["", ""]
        cells += [f"{line['speedup']:.2f}", f"{line['of_ceiling']:.1%}"] if "speedup" in line else ["", ""]
        table.add_row(*cells)
    console.print(table)
    for name, value in result["ratios"].items():
        console.print(f"{name:>34}  {value:.3f}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m fastcar_cli.bench", description=__doc__)
    parser.add_argument("--shape", choices=("mini", "vila-u-7b"), default="mini")
    parser.add_argument("--layers", type=int, default=2, help="layers of the vila-u-7b shape (default 2)")
    parser.add_argument("--context", help="tokens attended to, comma-separated (default 300, or 512,2048,8192)")
    parser.add_argument("--rows", type=int, help="rows of the batch (default 1 for mini, 2 for vila-u-7b)")
    parser.add_argument("--passes", type=int, help="passes a turn (default 48, or 6)")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--threads", type=int, help="default as generate has it: two for mini, else all")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compiled", action="store_true", help="also transformers under torch.compile (needs C++)")
    parser.add_argument("--generate", type=int, default=0, metavar="N", help="also time N whole commands")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    from fastcar_cli.bench.measure import Plan, measure
    from fastcar_cli.pipeline import use_threads

    mini = options.shape == "mini"
    use_threads(options.threads, small=mini)
    contexts = [int(c) for c in (options.context or ("300" if mini else "512,2048,8192")).split(",")]
    results = []
    for context in contexts:
        plan = Plan(
            shape=options.shape,
            layers=options.layers,
            context=context,
            rows=options.rows or (1 if mini else 2),
            passes=options.passes or (48 if mini else 6),
            turns=options.turns,
            compiled=options.compiled,
            device=options.device,
        )
        results.append(measure(plan))
        if not options.json:
            _print(results[-1])
    document: dict[str, Any] = (
        results[0] if len(results) == 1 else {"contexts": results, "ratios": results[0]["ratios"]}
    )
    if options.generate:
        document["generate"] = whole_command(options.generate)
        if not options.json:
            print(document["generate"])
    if options.json:
        print(json.dumps(document))


if __name__ == "__main__":
    main()
