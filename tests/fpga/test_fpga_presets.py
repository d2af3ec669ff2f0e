"""Presets of the emulated accelerator that are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.fpga_presets import constant, preset, work

from fastcar_cli.config.presets import fpga_presets, preset_folder
from fastcar_cli.errors import RequestError
from fastcar_fpga.device import constants
from fastcar_fpga.emulator import Emulator
from fastcar_fpga.preset import load_preset


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(speed=3), "key 'speed' is unknown"),
        (lambda d: d["core"]["mac_array"].update(unit="GOPS"), "key 'core.mac_array': unit is 'GOPS'"),
        (lambda d: d["clock"].pop("source"), "key 'clock.source'"),
        (lambda d: d["core"]["utilisation"].update(value=1.5), "key 'core.utilisation': value is 1.5"),
        (lambda d: d["hbm"].update(efficiency=0.7), "key 'hbm.efficiency' is unknown"),
        (lambda d: d["hbm"]["ports"].update(value=2), "hbm.ports: 2 ports, but device edge has 1 (LPDDR4-3200)"),
        (lambda d: d["hbm"]["channels"].update(value=4), "hbm.channels: 4 channels, but device edge has 1"),
        (lambda d: d["hbm"]["beat"].update(value=128), "hbm.beat: 1024 bits of a port, but device edge has 512"),
        (lambda d: d["core"]["mac_array"].update(value=float("inf")), "finite number"),
        (lambda d: d["rest"].update(mode="constant"), "seconds_per_step: required for mode 'constant'"),
        (lambda d: [d["hbm"][k].update(kind="fitted") for k in ("port_clock", "channels", "ahead")], "3 constants"),
        (lambda d: d.update(cores=0), "key 'cores'"),
        (lambda d: d["hbm"]["beat"].update(value=0.5), "key 'hbm.beat': value is 0.5, expected an integer"),
        (lambda d: d["drs"]["queue"].update(value=0), "key 'drs.queue': value is 0"),
        (lambda d: d["hbm"]["ahead"].update(value=1e9), "key 'hbm.ahead': value is 1e+09, expected at most 4096"),
        (lambda d: d["hbm"].update(weights="broadcast"), "'lockstep', 'multicast' or 'private'"),
        (lambda d: d["hbm"].update(weights="multicast"), "hbm.window: required if hbm.weights is multicast"),
        (lambda d: d["hbm"].update(requests=constant(0, "requests")), "'hbm.requests': value is 0, expected above 0"),
        (lambda d: d["hbm"].update(scales={"size": constant(8, "bytes/output")}), "key 'hbm.scales.piece'"),
        (lambda d: d.update(chain={"trips": constant(0.5, "1")}), "'chain.trips': value is 0.5, expected an integer"),
        (lambda d: d.update(chain={"skips": constant(1, "1")}), "key 'chain.skips' is unknown"),
        (lambda d: d.update(ring={"gathers": constant(4, "a layer")}), "key 'ring."),
    ],
)  # fmt: skip
def test_bad_presets_are_refused(tmp_path: Path, change: Any, message: str) -> None:
    data = yaml.safe_load((preset_folder() / "fpga" / "edge-small.yaml").read_text())
    change(data)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(data))
    with pytest.raises(RequestError) as caught:
        load_preset(str(tmp_path / "mine.yaml"))
    assert message in str(caught.value) and "mine.yaml" in str(caught.value)


def test_weights_and_keys_that_do_not_fit_are_refused_with_the_arithmetic() -> None:
    with pytest.raises(RequestError, match=r"x 16 bits / 8 = 18.63 GiB, .* \(1 x LPDDR4-3200\) has 0.5 GiB"):
        Emulator(preset(), work(resident_weights=10**10))
    # 64 MiB of weights; a token has 2 layers x 2 x 2,048 x 2 bytes of keys and values: 16 KiB.
    long = work(resident_weights=2**25, kv_width=2048, rows=4, prompt=1, frames=1, tokens_per_frame=7 * 2**10)
    Emulator(preset(), long)
    with pytest.raises(RequestError, match=r"= 0.06 GiB, and 4 rows x 7,169 tokens x 16,384 bytes .* = 0.44 GiB"):
        Emulator(preset(), replace(long, prompt=2))
    Emulator(preset(), replace(long, prompt=2, window=1024))
    Emulator(preset(hbm__capacity=constant(1, "GiB")), replace(long, prompt=2))


def test_what_a_source_calls_an_assumption_is_marked_as_one() -> None:
    known = [load_preset(name) for name in fpga_presets()]
    parts = known + [part for p in known for part in (p.card.power, *p.card.memories.values())]
    assert {c.kind for part in parts for c in constants(part).values() if c.source.startswith("assumption")} == {
        "assumption"
    }
