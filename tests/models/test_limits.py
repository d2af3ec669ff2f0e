"""What the process may use: quotas and limits of its own control group and of those above."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fastcar_cli.system import limits

GIB = 2**30


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty tree of control groups that stands for the machine's."""
    monkeypatch.setattr(limits, "ROOT", tmp_path)
    monkeypatch.setattr(limits, "OWN", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {*range(8)}, raising=False)
    return tmp_path


def _put(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(text + "\n")


def test_nothing_set_leaves_affinity_and_machine(groups: Path) -> None:
    assert (limits.cores(), limits.free_memory(5)) == (8, 5)
    _put(groups, cpu_max="max 100000", memory_max="max", memory_current="7")
    assert (limits.cores(), limits.free_memory(5)) == (8, 5)


@pytest.mark.parametrize(("quota", "cores"), [("250000 100000", 2), ("50000 100000", 1), ("100000 20000", 5)])
def test_quota(groups: Path, quota: str, cores: int) -> None:
    (groups / "own").write_text("0::/a/b\n")
    _put(groups / "a" / "b", cpu_max=quota)
    assert limits.cores() == cores


def test_groups_above_count(groups: Path) -> None:
    (groups / "own").write_text("0::/a/b/c\n")
    _put(groups / "a", cpu_max="300000 100000", memory_max=f"{3 * GIB}", memory_current=f"{GIB}")
    _put(groups / "a" / "b" / "c", cpu_max="max 100000", memory_max=f"{8 * GIB}", memory_current="0")
    assert (limits.cores(), limits.free_memory(100 * GIB)) == (3, 2 * GIB)


def test_the_path_of_a_host_of_which_the_root_is_mounted(groups: Path) -> None:
    (groups / "own").write_text("4:memory:/other\n0::/docker/1\n")
    _put(groups, cpu_max="200000 100000", memory_max=f"{4 * GIB}", memory_current=f"{3 * GIB}")
    assert (limits.cores(), limits.free_memory(100 * GIB)) == (2, GIB)


def test_page_cache_is_free_but_for_what_is_to_be_written(groups: Path) -> None:
    stat = (
        "anon 100\nfile 900\ninactive_file 600\nactive_file 300\nfile_dirty 50\nfile_writeback 10\nslab_reclaimable 5"
    )
    _put(groups, memory_max="1000", memory_current="1000", memory_stat=stat)
    assert limits.free_memory(10**6) == 845


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_freed_memory_goes_back_to_the_system() -> None:
    # In a process of its own: blocks of 64 KiB lie on the heap, and the last one keeps those below it there.
    program = """
from pathlib import Path
from fastcar_cli.system.limits import give_back_memory
def resident(): return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
before = resident()
blocks = [bytearray(1 << 16) for _ in range(3200)]
last = bytearray(1 << 16)
del blocks
kept = resident() - before
give_back_memory()
print(kept, resident() - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    kept, after = map(int, done.stdout.split())
    assert kept > 100 << 20
    assert after < 20 << 20
