"""A causal video tokenizer in the official form with random weights, for tests and for measuring."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from fastcar_cli.models.cosmos.checkpoint import HALVES, PUBLISHED
from fastcar_cli.models.cosmos.tokenizer import CausalVideoSpec, CausalVideoTokenizer
from fastcar_cli.profile.profiler import random_tensor
from fastcar_lab.dummy.torchscript import module_of, write_archive


def tensors_of(spec: CausalVideoSpec, dtype: torch.dtype, seed: int = 0) -> dict[str, dict[str, Tensor]]:
    """The tensors of each file by key, those included that no reader needs."""
    with torch.device("meta"):
        shapes = {key: like.shape for key, like in CausalVideoTokenizer(spec).state_dict().items()}
    random = {key: random_tensor(key, shape, dtype, seed) for key, shape in shapes.items()}
    halves = zip(("encoder", "decoder"), HALVES.values(), strict=True)
    files = {half: {k: t for k, t in random.items() if k.startswith(keys)} for half, keys in halves}
    levels = torch.tensor(spec.levels, dtype=torch.int32)
    files["encoder"] |= {
        "quantizer._levels": levels,
        "encoder.patcher3d.patch_size_buffer": torch.tensor([spec.patch], dtype=torch.int32),
    }
    files["decoder"] |= {"inv_quant.quantizer._levels": levels}
    return files


def write(folder: Path, spec: CausalVideoSpec = PUBLISHED, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> None:
    """Write `encoder.jit` and `decoder.jit`."""
    folder.mkdir(parents=True, exist_ok=True)
    for half, tensors in tensors_of(spec, dtype, seed).items():
        write_archive(folder / f"{half}.jit", module_of(tensors), half)
