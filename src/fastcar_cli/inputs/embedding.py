"""A text as the vectors that a text encoder made of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from fastcar_cli.errors import RequestError
from fastcar_cli.system.files import MOST_TEXT, read_arrays, require_regular, why_unread

WORDS = 512
"""Rows that models with text read; those after a text are zero and are attended to like the others."""


def read_embedding(path: Path) -> NDArray[np.float32]:
    """The one array of a .npy, .npz, .safetensors or .pt file, [n, width], with zeros up to `WORDS` rows.

    Encoders return a batch of one text, [1, n, width], which is read too.

    Raises RequestError for any other file, for more rows, and for numbers that are not finite.
    """
    try:
        require_regular(path, MOST_TEXT)
        if path.suffix == ".safetensors":
            arrays = {key: tensor.float().numpy() for key, tensor in load_file(str(path)).items()}
        elif path.suffix in (".pt", ".pth"):
            loaded = torch.load(path, map_location="cpu", weights_only=True)
            named = loaded.items() if isinstance(loaded, dict) else [("", loaded)]
            arrays = {key: tensor.float().numpy() for key, tensor in named}
        else:
            arrays = read_arrays(path)
    except Exception as e:  # whatever a stranger's file makes zipfile, numpy and safetensors raise
        reason = e.strerror if isinstance(e, OSError) and e.strerror else why_unread(e)
        raise RequestError(f"can't be read: {reason}", key="text_embedding", value=path) from None
    arrays = {key: array[0] if array.ndim == 3 and len(array) == 1 else array for key, array in arrays.items()}
    shapes = [list(array.shape) for array in arrays.values()]
    if len(shapes) != 1 or len(shapes[0]) != 2 or not 1 <= shapes[0][0] <= WORDS:
        raise RequestError(
            f"holds arrays of shapes {shapes}",
            key="text_embedding",
            value=path,
            allowed=f"one of [1 to {WORDS}, width]",
        )
    (array,) = arrays.values()
    if array.dtype.kind != "f" or not np.isfinite(array).all():
        raise RequestError("holds other than finite floats", key="text_embedding", value=path)
    return np.pad(array.astype(np.float32), ((0, WORDS - len(array)), (0, 0)))
