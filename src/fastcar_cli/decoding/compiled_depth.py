"""The depth transformer through compiled kernels: what `DepthTransformer.step` does."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastcar_cli.decoding.compiled import NUMBERS, new_team
from fastcar_cli.models.depth import DepthTransformer


class CompiledDepth:
    """Steps of the depth transformer for a fixed number of rows; weights are not copied."""

    def __init__(self, depth: DepthTransformer, rows: int) -> None:
        from fastcar_cli.kernels import cpu_depth

        spec = depth.spec
        # What an address points to must live as long as this object.
        self._held: list[Tensor] = []
        self._kernel = cpu_depth.depth_step
        blocks = []
        for block in depth.blocks:
            attention, mlp = block.attn, block.mlp
            parts = {
                "norm1": block.ln1,
                "q": attention.query,
                "k": attention.key,
                "v": attention.value,
                "o": attention.proj,
                "norm2": block.ln2,
                "up": mlp[0],
                "down": mlp[2],
            }
            blocks.append(self._addresses(parts, cpu_depth.COLUMNS))
        self._table = np.array(blocks, np.int64).reshape(len(blocks), len(cpu_depth.COLUMNS))
        last = {"norm": depth.classifier_mlp.layer_norm, "classes": depth.classifier_mlp.linear}
        self._ends = [
            np.array(self._addresses({"first": first, **last}, cpu_depth.ENDS), np.int64)
            for first in (depth.in_mlp_2, depth.in_mlp_1)
        ]
        self._like = NUMBERS[depth.in_mlp_1.weight.dtype]
        self._heads = spec.heads
        self._places = depth.pos_emb_d[0].float().numpy()
        self._keys, self._values = np.zeros((2, spec.blocks, rows, spec.depth, spec.width), np.float32)
        self._logits = [torch.empty(rows, spec.codes) for _ in range(spec.depth)]
        self._state = new_team()

    def _addresses(self, parts: dict[str, Any], columns: tuple[str, ...]) -> list[int]:
        found = {}
        for name, module in parts.items():
            # Vectors are float32 in the kernels, matrices stay in their dtype.
            matrix = module.weight.dim() == 2
            found[name] = module.weight if matrix else module.weight.float()
            found[f"{name}_bias"] = module.bias.float()
        for name, tensor in found.items():
            if not tensor.is_contiguous():
                raise ValueError(f"{name} of the depth transformer is not contiguous")
            self._held.append(tensor)
        return [found[name].data_ptr() for name in columns]

    def __call__(self, x: Tensor, d: int) -> Tensor:
        """Logits [rows, codes], float32, of depth d, for x as `DepthTransformer.step` has it; valid for one token."""
        out = self._logits[d]
        self._kernel(
            self._state,
            x.float().contiguous().numpy(),
            d,
            self._places[d],
            self._table,
            self._ends[min(d, 1)],
            self._like,
            self._heads,
            self._keys,
            self._values,
            out.numpy(),
        )
        return out
