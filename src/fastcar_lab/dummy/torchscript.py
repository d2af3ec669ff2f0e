"""Archives as TorchScript writes them, without a program: a module of tensors by path of attributes."""

from __future__ import annotations

import io
import pickle
import sys
import types
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

CLASSES = types.ModuleType("__torch__")  # where the classes of pickled objects lie for as long as they are written


class Module:
    """An object with attributes."""


Module.__module__ = CLASSES.__name__
CLASSES.Module = Module  # type: ignore[attr-defined]


def module_of(tensors: Mapping[str, Tensor]) -> Module:
    """A module that holds tensors by path."""
    root = Module()
    for key, tensor in tensors.items():
        *path, last = key.split(".")
        at = root
        for name in path:
            at = vars(at).setdefault(name, Module())
        vars(at)[last] = tensor
    return root


class Storage:
    """What a pickle says of a storage: ("storage", kind, key, device, count)."""

    def __init__(self, id_: Any) -> None:
        self.id = id_


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=2)
        self.stored: list[bytes] = []

    def persistent_id(self, obj: Any) -> Any:
        return obj.id if isinstance(obj, Storage) else None

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, Tensor):
            return NotImplemented
        whole = torch.empty(0, dtype=obj.dtype).set_(obj.untyped_storage())
        kind = getattr(torch, f"{_KINDS[obj.dtype]}Storage")
        storage = Storage(("storage", kind, str(len(self.stored)), "cpu", len(whole)))
        self.stored.append(whole.view(torch.uint8).numpy().tobytes())
        place = obj.storage_offset(), tuple(obj.shape), obj.stride()
        return torch._utils._rebuild_tensor_v2, (storage, *place, False, {})


_KINDS = {torch.float32: "Float", torch.bfloat16: "BFloat16", torch.int32: "Int", torch.int64: "Long"}


def write_archive(path: Path, root: Any, name: str = "archive") -> None:
    """Write an archive whose object is `root`."""
    data = io.BytesIO()
    pickler = _Pickler(data)
    sys.modules[CLASSES.__name__] = CLASSES
    try:
        pickler.dump(root)
    finally:
        del sys.modules[CLASSES.__name__]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/data.pkl", data.getvalue())
        archive.writestr(f"{name}/byteorder", "little")
        for key, stored in enumerate(pickler.stored):
            archive.writestr(f"{name}/data/{key}", stored)
