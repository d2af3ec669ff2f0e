"""Runs under signals, full disks and failing fsync: files are whole or absent, and the same command completes them."""

from __future__ import annotations

import http.client
import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from support.faults import SIGNALS, Ended, Fault, Processes, processes
from support.sweeping import BALL, STAR, TINY_METRICS, tiny_folder

from fastcar_cli.media import read_frames, read_recipe
from fastcar_cli.system.files import sha256_of

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")]
LOCKS = {".lock", ".lock-whole"}
"""Of a sweep's folder and of a conversion that is not done: empty files that stay."""
SMALL = ["--model", "../tiny", "--frames", "2"]
COMMANDS: dict[str, list[str]] = {
    "one": ["generate", BALL, *SMALL, "--seed", "1", "-o", "one.mp4"],
    "gif": ["generate", BALL, *SMALL, "--seed", "1", "-o", "one.gif"],
    "several": ["generate", BALL, *SMALL, "--seed", "1", "--samples", "3", "-o", "out"],
    "list": ["generate", "--prompts", "../prompts.txt", "--seeds", "0-4", *SMALL, "-o", "out"],
    "vbench": ["generate", "--prompts", "../prompts.txt", "--seeds", "0-2", *SMALL, "--names", "vbench", "-o", "out"],
    "sweep": ["sweep", "--prompts", "../prompts.txt", *SMALL, "--seeds", "0", "--tau", "-1", "--repeats", "1",
              "--metrics", TINY_METRICS, "-o", "out"],
    "convert": ["convert", "../tiny", "--dtype", "int8", "-o", "out"],
}  # fmt: skip


@dataclass
class World:
    """A folder with a model and prompts, and what each command makes undisturbed: seconds, and hashes of files."""

    top: Path
    runs: Processes = field(repr=False)
    undisturbed: dict[str, tuple[float, dict[str, str]]] = field(repr=False, default_factory=dict)

    def of(self, name: str) -> tuple[float, dict[str, str]]:
        if name not in self.undisturbed:
            with tempfile.TemporaryDirectory(dir=self.top) as made:
                began = time.perf_counter()
                done = self.runs.run(Path(made), *COMMANDS[name])
                seconds = time.perf_counter() - began
                assert done.status == 0, done.output
                self.undisturbed[name] = seconds, products(Path(made))
        return self.undisturbed[name]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with processes() as runs, tempfile.TemporaryDirectory() as top:
        tiny_folder(Path(top) / "tiny")
        (Path(top) / "prompts.txt").write_text(f"{BALL}\n{STAR}\n")
        yield World(Path(top), runs)


def products(folder: Path) -> dict[str, str]:
    """Hashes of the files that hold no times: equal however they are made."""
    kinds = {".mp4", ".gif", ".npz", ".safetensors"}
    return {p.relative_to(folder).as_posix(): sha256_of(p) for p in folder.rglob("*") if p.suffix in kinds}


def whole(file: Path) -> None:
    """Check that a file under its final name is not a part of one."""
    if file.suffix in (".mp4", ".gif"):
        assert len(read_frames(file)) in (1, 2), file
        assert read_recipe(file)["seed"] in range(5), file
    elif file.suffix == ".json":
        json.loads(file.read_text())
    elif file.suffix == ".npz":
        with np.load(file) as arrays:
            assert all(arrays[name].size for name in arrays.files), file
    elif file.suffix == ".safetensors":
        with safe_open(file, "pt") as tensors:
            assert all(tensors.get_tensor(name) is not None for name in tensors.keys()), file  # noqa: SIM118
    elif file.suffix == ".html":
        assert file.read_text().rstrip().endswith("</html>"), file
    elif file.name not in LOCKS:
        assert file.stat().st_size, file


def hidden(folder: Path) -> list[str]:
    left = [p for p in folder.rglob(".*") if p.name not in LOCKS or p.stat().st_size]
    return [p.relative_to(folder).as_posix() for p in left]


def statuses(fault: Fault) -> set[int]:
    """How a run may end. The system ends one that has not set its handlers yet, and one that is at its very end."""
    stopped = {128 + fault.number, -fault.number} if fault.number else set()
    return {0, *stopped, *([1, 2] if fault.disk else [])}


def check(folder: Path, done: Ended, fault: Fault) -> None:
    assert done.status in statuses(fault), (done.status, done.output)
    assert "Traceback" not in done.output, done.output
    assert "fault of fastcar" not in done.output, done.output
    for file in folder.rglob("[!.]*"):
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(folder).parts):
            whole(file)
    if not fault.killed:
        assert hidden(folder) == [], done.output
        assert done.status < 0 or done.temporary == ()


def disturbed(world: World, name: str, fault: Fault, share: float) -> None:
    """Run a command under a fault and then again without: the second completes what the first has begun."""
    seconds, right = world.of(name)
    if fault.number and not fault.event:
        fault = replace(fault, after=seconds * share)
    with tempfile.TemporaryDirectory(dir=world.top) as made:
        folder = Path(made)
        done = world.runs.run(folder, *COMMANDS[name], fault=fault)
        check(folder, done, fault)
        if done.status == 0:
            assert products(folder) == right
        finished = name == "convert" and (folder / "out").is_dir()
        again = world.runs.run(folder, *COMMANDS[name])
        # A conversion that is finished is not made again.
        assert again.status == (2 if finished else 0), again.output
        check(folder, replace(again, status=0), Fault())
        # Files of several samples get free names beside those that are there.
        assert products(folder) == right or (name == "several" and len(products(folder)) >= len(right))


numbers = st.sampled_from([int(number) for number in SIGNALS])
events = st.integers(1, 85)
faults = st.one_of(
    st.builds(Fault, number=numbers),
    st.builds(Fault, number=numbers, event=events),
    st.builds(Fault, number=numbers, event=events),
    st.builds(Fault, full=st.just(True), event=events),
    st.builds(Fault, most=st.sampled_from([0, 100, 1000, 2000, 4000, 20_000])),
    st.builds(Fault, fsync=st.sampled_from(["EINVAL", "ENOTSUP", "ENOSPC", "EIO"])),
    st.builds(Fault, number=numbers, fsync=st.sampled_from(["EINVAL", "ENOTSUP"])),
)
shares = st.floats(0, 1.2)
names = st.sampled_from([*COMMANDS])


def test_a_kill_at_the_very_end_of_a_list_leaves_nothing_for_good(world: World) -> None:
    for event in (82, 83):  # before the hidden folder of its unfinished files is removed
        disturbed(world, "list", Fault(signal.SIGKILL, event=event), 0)


@given(name=names, fault=faults, share=shares)
@settings(max_examples=30, derandomize=True, database=None, phases=(Phase.generate,))
def test_a_disturbed_run_is_completed_by_the_next(world: World, name: str, fault: Fault, share: float) -> None:
    disturbed(world, name, fault, share)


@pytest.mark.long
@given(name=names, fault=faults, share=shares)
@settings(max_examples=200, database=None, phases=(Phase.generate,))
def test_many_disturbed_runs_are_completed_by_the_next(world: World, name: str, fault: Fault, share: float) -> None:
    disturbed(world, name, fault, share)


def _make(url: str) -> None:
    """Ask a page for a video, and do not wait for it."""
    host, _, path = url.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(host, timeout=60)
    form = {"prompt": BALL, "model": "mini", "tau": "-2", "draft": "auto", "seed": "7"}
    connection.request("POST", f"/{path}make", json.dumps(form), {"Host": host})


@given(number=st.sampled_from([int(n) for n in SIGNALS[:-1]]), after=st.floats(0, 1.5))
@settings(max_examples=3, derandomize=True, database=None, phases=(Phase.generate,))
def test_a_signal_ends_the_demo(world: World, number: int, after: float) -> None:
    with tempfile.TemporaryDirectory(dir=world.top) as made:
        folder = Path(made)
        log = world.runs.start(folder, "demo", "--no-browser", fault=Fault(number, after=0.5 + after))
        began = time.perf_counter()
        while time.perf_counter() - began < 0.5 + after and not (log.exists() and "/\n" in log.read_text()):
            time.sleep(0.02)
        if log.exists() and "/\n" in log.read_text():
            _make(log.read_text().splitlines()[0])
        done = world.runs.end(log)
        check(folder, done, Fault(number))
        assert done.status in (128 + number, -number)
        assert [*folder.iterdir()] == []
