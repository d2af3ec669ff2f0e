"""Links videos under the names that VBench reads: `{prompt}-{index}.mp4` at 8 fps, in a folder per setting."""

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
SAMPLES = 5  # videos per prompt that VBench needs for most dimensions
_LONGEST = 255


def check_names(prompts: Sequence[str], seeds: int, fps: int) -> list[str]:
    """Notices for the user. Raises RequestError for prompts that can't be file names, and for another frame rate."""
    refused = partial(RequestError, key="names", value="vbench")
    if fps != VBENCH_FPS:
        raise refused(f"needs {VBENCH_FPS} fps, not {fps}", hint=("leave out ", Key("video.fps")))
    if len(set(prompts)) < len(prompts):
        raise refused("a prompt is given twice")
    for prompt in prompts:
        if set(prompt) & set("/\0") or (sys.platform == "win32" and refused_on_windows(f"{prompt}-0.mp4")):
            raise refused(f"the prompt {prompt!r} can't be a file name")
        if len(os.fsencode(f"{prompt}-{seeds - 1}.mp4")) > _LONGEST:
            raise refused(f"a file name has at most {_LONGEST} bytes, but the prompt {prompt[:60]!r}... is longer")
    few = [f"VBench needs {SAMPLES} videos per prompt for most dimensions; use --seeds 0-4"]
    return few if seeds < SAMPLES else []


def link_names(store: Store, grid: Grid) -> Path:
    """Link every finished video under its VBench name, with its seed's index; returns the folder of all settings."""
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
    """Link a video under its VBench name in a folder, or copy it if links are not supported. Raises RunError."""
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
            # Renaming a link to the name of another link of the same file leaves both.
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
