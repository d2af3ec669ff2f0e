"""What `-o` names: a file for one video, or a folder that gets a file a video."""

from __future__ import annotations

import os
from pathlib import Path

from fastcar_cli.errors import RequestError
from fastcar_cli.media import check_target
from fastcar_cli.system.files import make_folder

FILES = (".mp4", ".gif", ".mov", ".mkv", ".webm", ".avi", ".png", ".jpg", ".jpeg", ".webp", ".apng")
"""Suffixes of one video or picture, whether or not it can be written."""


def names_file(output: str) -> bool:
    """Whether a name has the suffix of one video or picture and is not a folder."""
    return Path(output).suffix.lower() in FILES and not output.endswith("/") and not os.path.isdir(output)


def folder_for(output: str | None, videos: int, *, listed: bool, force: bool) -> Path | None:
    """The folder, made, that gets a file a video; None for a single file, or without `-o`, for the current folder.

    A name stands for a folder with several videos, with a trailing slash, where that folder exists, and for a list
    without a suffix. Raises RequestError for a file for several videos, and for a name that can't be written.
    """
    if output is None:
        make_folder(Path("."))
        return None
    if output == "-":
        raise RequestError("-o -: videos are not written to standard output", hint="name a file")
    path = Path(output)
    if videos > 1 and names_file(output):
        raise RequestError(f"-o {output}: a single file for {videos} videos", hint=f"a folder, such as {path.stem}")
    if videos > 1 or output.endswith("/") or os.path.isdir(path) or (listed and not path.suffix):
        make_folder(path)
        return path
    check_target(path, force=force)
    return None
