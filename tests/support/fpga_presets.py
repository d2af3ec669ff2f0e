"""What the tests of the emulated accelerator share: a preset and a workload with single values changed."""

from __future__ import annotations

from typing import Any

import yaml

from fastcar_cli.config.presets import preset_folder
from fastcar_fpga.preset import Preset
from fastcar_fpga.workload import Workload


def constant(value: float, unit: str) -> dict[str, Any]:
    """A constant that edge-small has not."""
    return {"value": value, "unit": unit, "source": "test", "kind": "assumption"}


def preset(**changes: Any) -> Preset:
    """edge-small with other values: `core.mac_array=8` sets that constant's value."""
    data = yaml.safe_load((preset_folder() / "fpga" / "edge-small.yaml").read_text())
    for path, value in changes.items():
        node = data
        *sections, last = path.split("__")
        for name in sections:
            node = node[name]
        if isinstance(node.get(last), dict) and not isinstance(value, dict):
            node[last]["value"] = value
        else:
            node[last] = value
    if data["hbm"]["weights"] == "multicast":
        data["hbm"].setdefault("window", constant(2, "tiles"))
    return Preset.model_validate(data)


def work(**changes: Any) -> Workload:
    values: dict[str, Any] = {
        "name": "toy", "layers": 2, "rows": 6, "width": 16, "mlp_width": 48, "kv_width": 16, "heads": 2,
        "projection_weights": 1024, "depth_weights": 2048, "depth_outputs": 32, "resident_weights": 10_000,
        "tokens_per_frame": 3, "frames": 3, "prompt": 5,
    }  # fmt: skip
    return Workload(**values | changes)
