"""Frames and actions that a user gives a model: from videos, pictures, folders and arrays to checked tensors."""

from fastcar_cli.video_input.clip import Clip, Wanted, read_clip, resized

__all__ = ["Clip", "Wanted", "read_clip", "resized"]
