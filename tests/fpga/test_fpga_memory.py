"""The timing of a memory against closed forms, published streams, and what a preset may request of a device."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fpga_presets import constant, preset

from fastcar_cli.config.presets import fpga_presets, preset_folder
from fastcar_cli.errors import RequestError
from fastcar_fpga.device import Dram, Order, Part, ReadStream, load_part, share
from fastcar_fpga.preset import load_preset
from fastcar_lab.accelerator.points import Next, closed, stream_share, streams


@pytest.mark.parametrize(
    "name", ["DDR4-1600", "DDR4-1866", "DDR4-2133", "DDR4-2400", "DDR4-2666", "HBM2-1800", "LPDDR4-3200"]
)
@pytest.mark.parametrize("order", ["groups", "rows", "bank"])
def test_an_endless_stream_has_the_share_of_the_formula(name: str, order: Next) -> None:
    assert stream_share(name, order) == pytest.approx(closed(name, order), abs=0.012)


@pytest.mark.parametrize("name", ["DDR4-1600", "DDR4-2133", "DDR4-2400", "DDR4-2666"])
@pytest.mark.parametrize("order", ["apart", "meet"])
def test_two_streams_in_a_channel_have_the_share_of_the_formula(name: str, order: Next) -> None:
    assert stream_share(name, order) == pytest.approx(closed(name, order), abs=0.012)


def test_streams_that_meet_are_served_a_request_each() -> None:
    stream = ReadStream(load_part("DDR4-2400"), "groups", 1, 64, streams=3, turn=2, apart=1000)
    assert [stream.burst(n) for n in range(8)] == [0, 1, 1000, 1001, 2000, 2001, 2, 3]


def test_cores_with_weights_of_their_own_meet_where_channels_are_fewer() -> None:
    own = {"hbm__weights": "private", "hbm__port_clock": 200}
    one, four = (preset(cores=cores, **own) for cores in (1, 4))
    assert (one.meeting, one.dealt, four.meeting, four.dealt) == (1, 1.0, 4, 0.25)
    # They close each other's rows: less than a quarter of what one has, and more than in rows of one bank.
    quarter = one.rate() / 4
    assert 0.5 * quarter < four.rate() * four.dealt < quarter
    u280 = load_preset("u280-int8")
    private = u280.model_copy(update={"hbm": u280.hbm.model_copy(update={"weights": "private"})})
    assert (private.meeting, private.dealt, private.rate()) == (1, 1 / 8, u280.rate())
    # Three cores on four channels have one each; five share them two by two.
    ddr = load_preset("hummingbird-u250")
    hbm = ddr.hbm.model_copy(update={"weights": "private"})
    three, five = (ddr.model_copy(update={"cores": cores, "hbm": hbm}) for cores in (3, 5))
    assert (three.dealt, five.meeting, five.dealt) == (1 / 4, 2, 1 / 8)


def test_published_streams() -> None:
    known = [(row[2], row[4]) for row in streams() if row[4] is not None]
    assert len(known) == 4
    for emulated, published in known:
        assert emulated == pytest.approx(published, abs=0.02)


def test_a_port_slower_than_the_memory_sets_the_rate() -> None:
    part = load_part("HBM2-1800")
    # 256 bit at 225 MHz: half of the peak, and the refresh passes while the port works off what is there.
    half = share(ReadStream(part, "groups", round(32e6 / (32 * 225)), 256))
    assert half == pytest.approx(225 / 450, rel=0.01)
    assert share(ReadStream(part, "groups", round(32e6 / (32 * 225)), 64)) < half


def test_a_port_that_passes_less_than_a_burst_between_refreshes() -> None:
    part = load_part("HBM2-1800")
    assert share(ReadStream(part, "groups", 10**9, 64)) == pytest.approx(32 / 1e6 / part.peak, rel=0.01)


def test_few_bursts_under_way_are_bound_by_their_latency() -> None:
    part = load_part("DDR4-2400")
    alone = share(ReadStream(part, "groups", 1, 1))
    # One after another: tCL and the burst, and a row is opened now and then.
    assert 0.6 * 3.33 / (14.16 + 3.33) < alone < 3.34 / (14.16 + 3.33)


@pytest.mark.parametrize(("ahead", "least", "most"), [(64, 0.4, 0.6), (256, 0.92, 0.94)])
def test_channels_that_refresh_out_of_step_cost_nothing_where_ports_hold_what_a_refresh_delays(
    ahead: int, least: float, most: float
) -> None:
    stream = ReadStream(load_part("HBM2-1800"), "groups", 1, ahead)
    channels = [Dram(stream) for _ in range(24)]
    turns = [channel.refi * i // 24 for i, channel in enumerate(channels)]
    # A burst of each is used once all have theirs, and makes room for a later one.
    used = deque([0] * ahead, ahead)
    ends = []
    for burst in range(8000):
        used.append(max(c.read(burst, used[0] + turn) - turn for c, turn in zip(channels, turns, strict=True)))
        ends.append(used[-1])
    share_of_peak = 6000 * stream.part.burst_bytes / (ends[-1] - ends[1999]) * 1e3 / stream.part.peak
    assert least < share_of_peak < most


def test_requests_under_way_within_a_latency_bound_a_rate() -> None:
    free = preset(hbm__burst=4)
    rates = [preset(hbm__burst=4, hbm__requests=constant(n, "requests")).rate() for n in (1, 2, 1000)]
    hbm = free.hbm
    beats = 4 * free.clock.value / hbm.port_clock.value
    one = hbm.ports.value * 4 * hbm.beat.value / (hbm.latency.value + beats)
    assert rates == pytest.approx([one, 2 * one, free.rate()]) and 2 * one < free.rate()
    without = load_preset("flightllm-u280")
    assert without.rate() == without.peak * 1e3 * share(without.stream()) / 225


def test_pieces_of_a_row_cost_opening_one_each() -> None:
    part = load_part("DDR4-2400")
    shares = [share(ReadStream(part, "rows", 1, 4, chunk, 4096)) for chunk in (1, 4, 32, 128)]
    assert shares == sorted(shares) and shares[0] < 0.2 < 0.55 < shares[-1]
    keys = preset(hbm__keys="token").keys_per_cycle(6, 256)
    assert keys < preset().keys_per_cycle(6, 256) == preset().rate()


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["DDR4-2400", "HBM2-1800", "LPDDR4-3200"]), st.sampled_from(["groups", "rows"]), st.data())
def test_commands_keep_the_distances_of_the_data_sheet(name: str, order: Order, data: st.DataObject) -> None:
    part = load_part(name)
    dram = Dram(ReadStream(part, order, 1, data.draw(st.sampled_from([1, 4, 64]))))
    seen: list[tuple[int, int, tuple[int, int, int]]] = []
    for burst in range(600):
        done = dram.read(burst)
        seen.append((dram.last[0], done, dram.place(burst)))
    for (first, _, a), (second, _, b) in pairwise(seen):
        assert second - first >= dram.ccd[a[0] == b[0]]
    for command, done, (group, bank, row) in seen:
        assert done >= command + dram.cl + dram.data
        # No read within the quiet time of a refresh.
        assert not 0 <= command % dram.refi < dram.rfc or command < dram.refi
        assert 0 <= group < part.groups and 0 <= bank < part.banks and row >= 0


def _file(tmp_path: Path, change: Any) -> str:
    data = yaml.safe_load((preset_folder() / "fpga" / "memory" / "DDR4-2400.yaml").read_text())
    change(data)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(data))
    return str(tmp_path / "mine.yaml")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("timing"), "key 'timing' is missing"),
        (lambda d: d["timing"].pop("tRFC"), "key 'timing.tRFC' is missing"),
        (lambda d: d["timing"].update(tREFI=300), "tREFI is 300, expected above tRFC + tRP + tRCD = 378.32"),
        (lambda d: d["timing"].update(tCCD_L=0), "key 'timing.tCCD_L' is 0"),
        (lambda d: d["timing"].update(tREFI=1e9), "key 'timing.tREFI' is 1000000000.0"),
        (lambda d: d.update(rate=1e9), "key 'rate' is 1000000000.0"),
        (lambda d: d.update(burst=4096), "row is 8192 bytes, expected a multiple of a burst (64 bits x 4096 transfers"),
    ],
)  # fmt: skip
def test_a_part_without_a_timing_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        load_part(_file(tmp_path, change))
    assert message in str(caught.value) and "mine.yaml" in str(caught.value)


def test_a_part_that_there_is_not_and_one_that_a_device_has_not() -> None:
    with pytest.raises(RequestError, match="memory part DDR5-4800: unknown preset"):
        load_part("DDR5-4800")
    with pytest.raises(RequestError, match="memory part DDR5-4800: unknown preset"):
        preset(hbm__part="DDR5-4800")
    with pytest.raises(RequestError, match="device edge has no memory DDR4-2400"):
        preset(hbm__part="DDR4-2400")


def test_presets_have_devices_whose_memory_has_a_timing(tmp_path: Path) -> None:
    for name in fpga_presets():
        p = load_preset(name)
        assert isinstance(p.part, Part) and 0 < p.rate() * p.clock.value / 1e3 <= p.peak
    (tmp_path / "mine.yaml").write_text("base: u280-int8\nname: mine\ncores: 4\n")
    mine = load_preset(str(tmp_path / "mine.yaml"))
    assert (mine.name, mine.cores, mine.hbm) == ("mine", 4, load_preset("u280-int8").hbm)
    (tmp_path / "mine.yaml").write_text(f"base: {tmp_path / 'mine.yaml'}\n")
    with pytest.raises(RequestError, match="has itself as base"):
        load_preset(str(tmp_path / "mine.yaml"))
