"""Saves the prompts' KV cache to a file, so that several runs with one input compute the prefill once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from fastcar_cli.decoding.engine import Decode
from fastcar_cli.errors import RequestError
from fastcar_cli.system.files import write_whole
from fastcar_cli.weights.tensors import write_safetensors

FORMAT = "fastcar prompts 1"
_PARTS = ("keys", "values", "outputs")


class PrefillFile:
    """A safetensors file for `Decode.saved`, read if it exists, otherwise written. Its metadata list all that its
    values depend on. Raises RequestError for a file of another batch, RunError if a write fails.
    """

    def __init__(self, path: Path, decode: Decode, weights: str) -> None:
        spec, prompts, settings = decode.model.spec, decode.prompts, decode.settings
        self._path, self._decode = path, decode
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
        self._tensors: dict[str, Tensor] = {}

    def _opened(self) -> Any:
        said = "does not contain a saved KV cache"
        try:
            file: Any = safe_open(str(self._path), framework="pt", device=str(self._decode.model.device))
            metadata = file.metadata() or {}
            other = next((part for part, value in self._key.items() if metadata.get(part) != value), None)
            if other is None:
                if all(file.get_slice(name).get_shape() == shape for name, shape in self._shapes.items()):
                    return file
                said = "is damaged"
            elif other != "format":
                said = f"was saved with a different {other}"
        except (SafetensorError, OSError, ValueError) as e:
            said = f"{said}: {e}"
        hint = "name a different file, or delete this one"
        raise RequestError(said, key="keep_prefill", value=self._path, hint=hint) from None

    def prefill(self, compute: Callable[[], Tensor]) -> Tensor:
        """The last hidden states of the prompts, [rows, width]; fills the caches from the file, or by `compute`."""
        decode, layers = self._decode, self._decode.model.spec.decoder.layers
        if self._file is None:
            decode.observers.on_prompt = self.take
            tensors = {"hidden": (hidden := compute()).cpu(), **self._tensors}
            write_whole(self._path, partial(write_safetensors, tensors=tensors, metadata=self._key))
            return hidden
        for layer in range(layers):
            keys, values, outputs = (self._file.get_tensor(f"{layer}.{part}") for part in _PARTS)
            decode.fill(layer, keys, values, outputs)
            decode.observers.prefilled(layer + 1, layers)
        # A view would keep the whole file mapped.
        return self._file.get_tensor("hidden").clone()

    def take(self, layer: int, keys: Tensor, values: Tensor, outputs: Tensor) -> None:
        """Collect a layer's keys, values and MLP outputs for the prompts."""
        tensors = (keys, values, outputs[:, outputs.shape[1] - self._last :])
        for part, tensor in zip(_PARTS, tensors, strict=True):
            self._tensors[f"{layer}.{part}"] = tensor.to("cpu", copy=True)
