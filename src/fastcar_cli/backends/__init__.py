"""Who executes an MLP."""

from fastcar_cli.backends.base import MLPBackend
from fastcar_cli.backends.torch_backend import TorchBackend

__all__ = ["MLPBackend", "TorchBackend"]
