"""Writing model folders: what training ends with, and with smaller files what `fastcar lab store` makes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fastcar_cli.checkpoints.open import folder_of
from fastcar_cli.convert.convert import check_folder
from fastcar_cli.errors import RequestError
from fastcar_cli.models.bundled.checkpoint import FORMAT, BundledCheckpoint
from fastcar_cli.models.checkpoint import GenerationDefaults
from fastcar_cli.models.network import Network
from fastcar_cli.weights.formats import GROUP, LOW, SCALE, inverse_of, pack_int4
from fastcar_cli.weights.tensors import write_safetensors

_FEW = 4096  # a tensor with fewer numbers stays float16


def save(
    folder: Path, network: Network, text: Mapping[str, Any], defaults: GenerationDefaults, dtype: torch.dtype
) -> None:
    """Write a model folder that `load` reads; weights are stored in `dtype`."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"format": FORMAT, "spec": network.spec.to_dict(), "generation": asdict(defaults), "text": dict(text)}
    # A part a line: layouts are many small numbers.
    lines = (f"{json.dumps(key)}: {json.dumps(part)}" for key, part in config.items())
    (folder / "config.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    weights = {k: v.detach().to("cpu", dtype).contiguous() for k, v in network.state_dict().items()}
    save_file(weights, str(folder / "model.safetensors"))
    (folder / "model.safetensors").chmod(0o644)


def packed(name: str, tensor: Tensor, fine: bool) -> dict[str, Tensor]:
    """What a file holds of a tensor, by name: numbers of 8 bits, or 12 where `fine`, in groups with a scale. Vectors,
    small tensors and those whose rows groups don't divide are float16.
    """
    if tensor.dim() < 2 or tensor.numel() < _FEW or tensor[0].numel() % GROUP:
        return {name: tensor.half()}
    groups = tensor.float().reshape(len(tensor), -1, GROUP)
    scale = (groups.abs().amax(2) / 127).half()
    steps = 16 if fine else 1
    most = 127 * steps + (steps - 1) // 2
    numbers = (groups * (steps * inverse_of(scale.float()))[:, :, None]).round().clamp(-most, most).int().flatten(1)
    high = (numbers + steps // 2).div(steps, rounding_mode="floor")
    result = {name: high.to(torch.int8).view(tensor.shape), name + SCALE: scale}
    return result | ({name + LOW: pack_int4((numbers - high * steps).to(torch.int8))} if fine else {})


def store(
    model: str, output: Path, base: str | None = None, fine: Sequence[str] = (), whole: Sequence[str] = ()
) -> tuple[int, int]:
    """Write the folder of a model again with smaller files of weights; returns the bytes of both folders.

    Matrices whose names begin with one of `fine` get 12 bits, of `whole` float16, others 8 bits. `base` is a folder of
    fastcar beside the output: the new folder leaves out tensors and keys of config.json that are equal there. Raises
    RequestError for a folder that is stored so already, and for an output that exists.
    """
    folder = folder_of(model)
    check_folder(output)
    beside = None if base is None else output.parent / base
    if beside is not None:
        shared = BundledCheckpoint(beside).document
    for file in sorted(f for f in folder.rglob("*") if f.suffix in (".json", ".safetensors")):
        target = output / file.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".safetensors":
            read = load_file(str(file))
            if any(name.endswith(SCALE) for name in read):
                raise RequestError(f"{file} is stored in few bits already", key="model", value=model)
            tensors: dict[str, Tensor] = {}
            for name, tensor in sorted(read.items()):
                kept = name.startswith(tuple(whole))
                tensors |= {name: tensor.half()} if kept else packed(name, tensor, name.startswith(tuple(fine)))
            if beside is not None:
                same = load_file(str(beside / file.name))
                tensors = {k: t for k, t in tensors.items() if k not in same or not torch.equal(t, same[k])}
            if tensors:
                write_safetensors(target, tensors)
        elif beside is None:
            shutil.copyfile(file, target)
        else:
            own = {k: v for k, v in BundledCheckpoint(folder).document.items() if k == "format" or shared.get(k) != v}
            lines = (f"{json.dumps(key)}: {json.dumps(part)}" for key, part in {"base": base, **own}.items())
            target.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    before, after = (sum(f.stat().st_size for f in at.rglob("*") if f.is_file()) for at in (folder, output))
    return before, after
