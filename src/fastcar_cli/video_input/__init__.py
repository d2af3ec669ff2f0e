"""Frames and actions that a user gives a model: from videos, pictures, folders and arrays to checked tensors."""

from fastcar_cli.video_input.clip import Excerpt, Wanted, read_clip, resized
from fastcar_cli.video_input.inputs import Inputs

__all__ = ["Excerpt", "Inputs", "Wanted", "read_clip", "resized"]
