"""A Cosmos-Predict1 checkpoint in the official form with random weights: a model folder, the tokenizer's beside it.

Layers have the same weights, which `model.pt` holds once: a model of 8 GB takes 1.5 GB of disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from fastcar_cli.models.cosmos.tokenizer import CausalVideoSpec
from fastcar_cli.models.cosmos.tokenizer_files import PUBLISHED
from fastcar_cli.profile.profiler import random_tensor
from fastcar_lab.dummy import causal_video

TOKENIZER = "Cosmos-Tokenize1-DV8x16x16-720p"


@dataclass(frozen=True)
class Shape:
    """Sizes of a transformer; `source` is the width of a text embedding, 0 of a model without text."""

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head: int
    mlp: int
    source: int = 0

    def layer(self) -> dict[str, tuple[int, ...]]:
        """Shapes of a layer's tensors by key."""
        q, kv = self.heads * self.head, self.kv_heads * self.head
        shapes: dict[str, tuple[int, ...]] = {"attention_norm.weight": (self.width,), "ffn_norm.weight": (self.width,)}
        for attention, source in (("attention", self.width), ("cross_attention", self.source)):
            if source:
                shapes |= {f"{attention}.wq.weight": (q, self.width), f"{attention}.wo.weight": (self.width, q)}
                shapes |= {f"{attention}.w{part}.weight": (kv, source) for part in "kv"}
                shapes |= {f"{attention}.{part}_norm.weight": (self.head,) for part in "qk"}
        if self.source:
            shapes["cross_attention_norm.weight"] = (self.width,)
        shapes |= {f"feed_forward.w{i}.weight": (self.mlp, self.width) for i in (1, 3)}
        return shapes | {"feed_forward.w2.weight": (self.width, self.mlp)}

    def ends(self, codes: int) -> dict[str, tuple[int, ...]]:
        """Shapes of what lies before and behind the layers."""
        rows = -(-(codes + 1) // 64) * 64 if self.source else codes
        return {
            "tok_embeddings.weight": (rows, self.width),
            "norm.weight": (self.width,),
            "output.weight": (codes, self.width),
        }


SHAPES = {
    "4b": Shape("Cosmos-Predict1-4B", 16, 4096, 32, 8, 128, 14336),
    "5b": Shape("Cosmos-Predict1-5B-Video2World", 16, 4096, 32, 8, 128, 14336, 1024),
    "12b": Shape("Cosmos-Predict1-12B", 40, 5120, 32, 8, 128, 14336),
    "13b": Shape("Cosmos-Predict1-13B-Video2World", 40, 5120, 32, 8, 128, 14336, 1024),
}
"""Of the released models."""


def write(
    folder: Path, shape: Shape, tokenizer: CausalVideoSpec = PUBLISHED, dtype: torch.dtype = torch.bfloat16
) -> Path:
    """Write the model and the tokenizer below `folder`; the model's folder."""
    model = folder / shape.name
    model.mkdir(parents=True, exist_ok=True)
    layer = {key: random_tensor(key, torch.Size(size), dtype, 0) for key, size in shape.layer().items()}
    tensors = {f"layers.{i}.{key}": tensor for i in range(shape.layers) for key, tensor in layer.items()}
    ends = shape.ends(tokenizer.codes).items()
    tensors |= {key: random_tensor(key, torch.Size(size), dtype, 0) for key, size in ends}
    torch.save(tensors, model / "model.pt")
    causal_video.write(folder / TOKENIZER, tokenizer, dtype)
    return model
