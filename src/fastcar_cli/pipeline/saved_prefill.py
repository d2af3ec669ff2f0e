"""The prompts' KV cache in a file, so that runs of one input under many settings compute the prefill once."""

from __future__ import annotations

import hashlib
import json
import struct
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fastcar_cli.decoding.engine import Decode
from fastcar_cli.errors import RequestError, RunError
from fastcar_cli.system.files import empty_file, hidden_beside, publish, target_of

FORMAT = "fastcar prompts 1"
_PARTS = ("keys", "values", "outputs")
_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


class PrefillFile:
    """A safetensors file, see `SavedPrefill`: written layer by layer where there is none, else read.

    What it holds is that of a model's weights, their format, an executor, the prompts and an attention window, all of
    which are in its metadata; thresholds, drafts and the format of keys and values may change. Raises RequestError
    for a file of another batch.
    """

    def __init__(self, path: Path, decode: Decode, weights: str) -> None:
        spec, prompts, settings = decode.model.spec, decode.prompts, decode.settings
        self._path, self._model = path, decode.model
        digest = hashlib.sha256(prompts.ids.cpu().numpy().tobytes() + prompts.lengths.cpu().numpy().tobytes())
        if prompts.conditions is not None:
            digest.update(prompts.conditions.cpu().float().numpy().tobytes())
        self._key = {
            "format": FORMAT,
            "model": weights,
            "dtype": decode.model.weight_format,
            "prompt": digest.hexdigest(),
            "window": "off" if settings.window is None else f"{settings.window} and {settings.sinks}",
            "executor": decode.start().name,
        }
        heads = [prompts.rows, spec.decoder.kv_heads, prompts.padded, spec.decoder.head_dim]
        self._last = min(prompts.aligned, decode.frame)
        shapes = dict(zip(_PARTS, (heads, heads, [prompts.rows, self._last, spec.decoder.width]), strict=True))
        self._shapes = {f"{layer}.{part}": shapes[part] for layer in range(spec.decoder.layers) for part in _PARTS}
        self._shapes["hidden"] = [prompts.rows, spec.decoder.width]
        self._file: Any = self._opened() if path.exists() else None
        self._to: BinaryIO | None = None

    def _opened(self) -> Any:
        """The file, checked. Raises RequestError for another one."""
        try:
            file: Any = safe_open(str(self._path), framework="pt", device=str(self._model.device))
            metadata: Mapping[str, str] = file.metadata() or {}
            unlike = [part for part, value in self._key.items() if metadata.get(part) != value]
            whole = unlike or all(file.get_slice(name).get_shape() == shape for name, shape in self._shapes.items())
        except (SafetensorError, OSError, ValueError) as e:
            raise self._refusal(f"does not hold a saved KV cache: {e}") from None
        if unlike:
            said = "does not hold a saved KV cache" if unlike[0] == "format" else f"holds those of another {unlike[0]}"
            raise self._refusal(said)
        if not whole:
            raise self._refusal("is damaged")
        return file

    def _refusal(self, said: str) -> RequestError:
        return RequestError(said, key="keep_prefill", value=self._path, hint="give another name, or delete the file")

    def read(self) -> Tensor | None:
        """See `SavedPrefill`."""
        # A view would keep the whole file mapped.
        return None if self._file is None else self._file.get_tensor("hidden").clone()

    def layer(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """See `SavedPrefill`."""
        keys, values, outputs = (self._file.get_tensor(f"{layer}.{part}") for part in _PARTS)
        return keys, values, outputs

    def take(self, layer: int, keys: Tensor, values: Tensor, outputs: Tensor) -> None:
        """See `SavedPrefill`. Raises RunError where the file can't be written."""
        self._append(keys, values, outputs[:, outputs.shape[1] - self._last :])

    def write(self, hidden: Tensor) -> None:
        """See `SavedPrefill`. Raises RunError where the file can't be written."""
        self._append(hidden)
        assert self._to is not None
        self._to.close()
        publish(self._hidden, self._path, new=False)

    def _append(self, *tensors: Tensor) -> None:
        try:
            if self._to is None:
                self._hidden = hidden_beside(target_of(self._path), empty_file)
                # A run that is stopped leaves nothing.
                weakref.finalize(self, self._hidden.unlink, missing_ok=True)
                self._to = self._hidden.open("wb")
                self._to.write(self._header())
            for tensor in tensors:
                tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().tofile(self._to)
        except OSError as e:
            raise RunError(f"{self._path} can't be written: {e.strerror}") from None

    def _header(self) -> bytes:
        """Of a safetensors file: the length of its JSON, then names with dtype, shape and place."""
        entries: dict[str, Any] = {"__metadata__": self._key}
        end, dtype = 0, self._model.dtype
        for name, shape in self._shapes.items():
            begin, end = end, end + torch.Size(shape).numel() * dtype.itemsize
            entries[name] = {"dtype": _DTYPES[dtype], "shape": shape, "data_offsets": [begin, end]}
        text = json.dumps(entries).encode()
        text += b" " * (-len(text) % 8)
        return struct.pack("<Q", len(text)) + text
