"""Videos by the names that VBench reads, `{prompt}-{index}.mp4` at 8 frames a second, alone in a folder a setting."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fastcar_cli.config.tau import Tau
from fastcar_cli.decoding.replay.scores import DEFAULT
from fastcar_cli.errors import Key, RequestError, RunError
from fastcar_cli.sweep.grid import OFF, Grid
from fastcar_cli.sweep.store import Store
from fastcar_cli.system.files import refused_on_windows
from fastcar_cli.system.signals import uninterrupted

VBENCH_FPS = 8
SAMPLES = 5  # videos a prompt that VBench takes for most of its dimensions
_LONGEST = 255


def check_names(prompts: Sequence[str], seeds: int, fps: int) -> list[str]:
    """Refuse prompts that can't be file names, and another frame rate; notices. Raises RequestError."""
    refused = partial(RequestError, key="names", value="vbench")
    if fps != VBENCH_FPS:
        raise refused(f"needs {VBENCH_FPS} fps, not {fps}", hint=("leave out ", Key("video.fps")))
    if len(set(prompts)) < len(prompts):
        raise refused("a prompt is given twice")
    for prompt in prompts:
        if set(prompt) & set("/\0") or (sys.platform == "win32" and refused_on_windows(f"{prompt}-0.mp4")):
            raise refused(f"the prompt {prompt!r} can't be a file name")
        if len(os.fsencode(f"{prompt}-{seeds - 1}.mp4")) > _LONGEST:
            raise refused(f"a file name has at most {_LONGEST} bytes, the prompt {prompt[:60]!r}... is longer")
    few = [f"VBench takes {SAMPLES} videos a prompt for most dimensions; seeds 0-4 make them"]
    return few if seeds < SAMPLES else []


def link_names(store: Store, grid: Grid) -> Path:
    """Give every finished video its VBench name, its index the place of its seed; the folder with one per setting."""
    top = store.folder / "vbench"
    for cell in (cell for cell in grid.cells() if cell.id in store.cells):
        level = f"tau{Tau.read(cell.tau)}" if cell.ratio is None else f"ratio{cell.ratio:g}"
        dense = cell.tau is None and cell.ratio is None
        parts = ["dense" if dense else level]
        parts += [] if cell.window is None else [f"window{cell.window}"]
        parts += [] if dense else [cell.gate, *([] if cell.score == DEFAULT else [cell.score])]
        parts += [] if cell.draft == OFF else [cell.draft]
        source, folder = store.cells_folder / f"{cell.id}.mp4", top / "_".join([*parts, cell.backend])
        link_name(source, folder, cell.prompt, grid.seeds.index(cell.seed))
    return top


def link_name(source: Path, folder: Path, prompt: str, index: int) -> None:
    """Give a video its VBench name in a folder: a link, or a copy where there are none. Raises RunError."""
    target, temporary = folder / f"{prompt}-{index}.mp4", folder / f".{source.name}"
    with uninterrupted():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            temporary.unlink(missing_ok=True)
            try:
                os.link(source, temporary)
            except OSError:
                shutil.copyfile(source, temporary)
            os.replace(temporary, target)
        except OSError as e:
            raise RunError(f"{target} could not be written: {e.strerror}") from None
        finally:
            # Renaming a link onto another link of the same file leaves both.
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
