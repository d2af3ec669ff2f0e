"""Hundreds of videos in one run: open files and memory stay those of a batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from support.processes import SCREEN
from support.sweeping import tiny_folder

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name == "nt", reason="counts descriptors")]
MIB = 2**20


def _few_files() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))


class Watched:
    """A run of the command line that may open 64 files: its peaks of open files and of memory."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.files = self.memory = 0
        process = psutil.Popen(
            [sys.executable, "-m", "fastcar_cli", *arguments, "--json"],
            cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **SCREEN, "OMP_NUM_THREADS": "1"}, preexec_fn=_few_files,
        )  # fmt: skip
        watcher = threading.Thread(target=self._watch, args=(process,))
        watcher.start()
        printed, said = process.communicate()
        watcher.join()
        assert process.returncode == 0, said
        self.videos = len(json.loads(printed)["videos"])

    def _watch(self, process: psutil.Popen) -> None:
        try:
            while process.is_running():
                self.files = max(self.files, process.num_fds())
                self.memory = max(self.memory, process.memory_info().rss)
                time.sleep(0.01)
        except psutil.Error:
            pass


SEVERAL = {"run": ["--samples", "{}", "--seed", "1"], "list": ["--prompts", "prompts.txt", "--seeds", "1-{}"]}


@pytest.mark.parametrize("several", SEVERAL.values(), ids=SEVERAL)
def test_two_hundred_videos_take_no_more_than_a_batch(tmp_path: Path, several: list[str]) -> None:
    tiny_folder(tmp_path / "tiny")
    (tmp_path / "prompts.txt").write_text("a red ball on the grass\n")

    def run(count: int) -> Watched:
        prompt = ["a red ball on the grass"] if "--samples" in several else []
        made = Watched(
            tmp_path, "generate", *prompt, "--model", "tiny", "--frames", "4", "-o", f"out{count}",
            *(a.format(count) for a in several),
        )  # fmt: skip
        assert made.videos == len([*(tmp_path / f"out{count}").glob("*.mp4")]) == count
        assert [*(tmp_path / f"out{count}").glob(".*")] == []
        return made

    few, many = run(64), run(200)
    assert many.files <= few.files + 4
    assert many.memory <= few.memory + 64 * MIB
