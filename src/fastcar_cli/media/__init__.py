"""Video files: frames, recipes and actions read from them and written to them.

`writer` and `reader` know files alone; `inputs` and `clip` make of them what a model is given.
"""

from fastcar_cli.media.reader import frames_of, read_frames, read_recipe
from fastcar_cli.media.writer import Writer, check_target, default_name, open_writer

__all__ = [
    "Writer",
    "check_target",
    "default_name",
    "frames_of",
    "open_writer",
    "read_frames",
    "read_recipe",
]
