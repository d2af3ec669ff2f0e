"""Videos read and written from Python: the public names of `fastcar_cli.media`."""

from fastcar_cli.media import Writer, default_name, frames_of, open_writer, read_frames, read_recipe

__all__ = ["Writer", "default_name", "frames_of", "open_writer", "read_frames", "read_recipe"]
