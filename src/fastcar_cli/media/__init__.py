"""Reads and writes videos and images with their recipes; image metrics."""

from fastcar_cli.media.reader import frames_of, read_frames, read_recipe
from fastcar_cli.media.writer import Writer, check_target, default_name, open_writer

__all__ = ["Writer", "check_target", "default_name", "frames_of", "open_writer", "read_frames", "read_recipe"]
