"""Who executes an MLP."""

from fastcar_cli.backends.base import MLPBackend, TorchBackend

__all__ = ["MLPBackend", "TorchBackend"]
