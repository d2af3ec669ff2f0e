"""results.json, and one tidy row a cell as results.csv and, with the extra `parquet`, results.parquet."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastcar_cli.errors import RequestError
from fastcar_cli.system.extras import need
from fastcar_cli.system.files import csv_of, write_whole

PARQUET = "results.parquet"


def rows(results: dict[str, Any]) -> list[dict[str, Any]]:
    """One flat row a cell. `tau` is a number (-inf possible), empty for a dense cell, which `dense` names."""
    table = []
    judged = next((list(c["fidelity"]) for c in results["cells"] if c["fidelity"]), [])
    for c in results["cells"]:
        decode = c["speed"]["decode_s"]
        row: dict[str, Any] = {k: c[k] for k in ("id", "prompt", "seed")}
        row |= {"dense": c["reference"] is None, "tau": None if c["tau"] is None else float(c["tau"])}
        row |= {"kept_ratio": c["ratio"], "score": c["score"]}
        row |= {k: c[k] for k in ("window", "gate", "backend", "draft", "reference", "video")}
        row |= {k: c["replay"][k] for k in ("ratio", "eligible_ratio")}
        row |= {"tokens_per_pass": (c["drafts"] or {}).get("tokens_per_pass"), "same_video": c["same_video"]}
        row |= {f"decode_s_{k}": decode[k] for k in ("median", "min", "max")}
        row |= {
            "kernels": c["speed"]["kernels"],
            "runs": len(decode["runs"]),
            **{k: c["speed"][k] for k in ("tokens_per_s", "speedup")},
        }
        row |= {key: None if c["metrics"] is None else c["metrics"][key] for key in results["metrics"]}
        row |= {f"right_{k.removesuffix('_right')}": (c["fidelity"] or {}).get(k) for k in judged}
        row |= {f"fpga_{k}": (c["fpga"] or {}).get(k) for k in ("cycles", "latency_s", "energy_j")}
        table.append(row)
    return table


def _parquet(table: Sequence[dict[str, Any]]) -> bytes:
    pyarrow, parquet = (need(name, PARQUET) for name in ("pyarrow", "pyarrow.parquet"))
    whole, flags = (
        {"seed", "window", "runs", "fpga_cycles"},
        {"dense", "same_video", *(k for k in table[0] if k.startswith("right_"))},
    )
    words = {"id", "prompt", "score", "gate", "backend", "draft", "reference", "video", "kernels"}

    def kind(name: str) -> Any:
        if name in words:
            return pyarrow.string()
        return pyarrow.int64() if name in whole else pyarrow.bool_() if name in flags else pyarrow.float64()

    schema = pyarrow.schema([(name, kind(name)) for name in table[0]])
    out = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(list(table), schema=schema), out)
    return out.getvalue()


def write_tables(folder: Path, results: dict[str, Any]) -> list[str]:
    """Write the files, each whole; notes for the user where one needs a package that is missing. Raises RunError."""
    table, notes = rows(results), []
    if table:
        cells = ([str(v).lower() if isinstance(v, bool) else v for v in row.values()] for row in table)
        write_whole(folder / "results.csv", csv_of(list(table[0]), cells))
        try:
            write_whole(folder / PARQUET, _parquet(table))
        except RequestError as e:
            # One of an earlier run would hold other numbers.
            (folder / PARQUET).unlink(missing_ok=True)
            notes.append(f"{e}; {e.hint}")
    write_whole(folder / "results.json", json.dumps(results, ensure_ascii=False, allow_nan=False) + "\n")
    return notes
