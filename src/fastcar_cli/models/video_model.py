"""The whole network as one module: decoder, projector, depth transformer, RQ-VAE.

VILA-U and the bundled model are two specifications of it. Nothing here knows of replay, caches or
the command line.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fastcar_cli.models.decoder import Decoder, DecoderSpec, table
from fastcar_cli.models.depth import DepthSpec, DepthTransformer
from fastcar_cli.models.quantised import QuantisedLinear
from fastcar_cli.models.rqvae import RQVAE, RQVAESpec


@dataclass(frozen=True)
class ModelSpec:
    """Everything that fixes the shapes of a model.

    `frames` is the length it was trained on; `place_tables` adds learned vectors for the frame and
    for the position within the frame to the embedding of a visual token (VILA-U has none);
    `projector_layers` counts the linear maps from code width to decoder width.
    """

    name: str
    frames: int
    fps: int
    decoder: DecoderSpec
    depth: DepthSpec
    rqvae: RQVAESpec
    projector_layers: int = 1
    place_tables: bool = False

    @property
    def tokens_per_frame(self) -> int:
        """N, positions a frame."""
        return self.rqvae.tokens_per_frame

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for config.json."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ModelSpec:
        """From what `to_dict` gave, after a round trip through JSON."""

        def part(name: str) -> dict[str, Any]:
            return {k: tuple(v) if isinstance(v, list) else v for k, v in data[name].items()}

        return cls(
            **{
                **data,
                "decoder": DecoderSpec(**part("decoder")),
                "depth": DepthSpec(**part("depth")),
                "rqvae": RQVAESpec(**part("rqvae")),
            }
        )


class Projector(nn.Module):
    """Code width to decoder width: linear maps with GELU (erf) between them; none is the identity."""

    def __init__(self, code_width: int, width: int, count: int) -> None:
        super().__init__()
        if count == 0:
            self.layers: nn.Module = nn.Identity()
        elif count == 1:
            self.layers = nn.Linear(code_width, width)
        else:
            parts: list[nn.Module] = [nn.Linear(code_width, width)]
            for _ in range(count - 1):
                parts += [nn.GELU(), nn.Linear(width, width)]
            self.layers = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        """[..., code_width] -> [..., width]."""
        return self.layers(x)


class PlaceTables(nn.Module):
    """Learned vectors for the frame and for the position within the frame of a visual token."""

    def __init__(self, frames: int, tokens_per_frame: int, width: int) -> None:
        super().__init__()
        self.frame = table(frames, width)
        self.place = table(tokens_per_frame, width)

    def forward(self, index: Tensor) -> Tensor:
        """Vectors [..., width] of visual token indices [...]; frames past the last share its vector."""
        n = self.place.num_embeddings
        t = (index // n).clamp(max=self.frame.num_embeddings - 1)
        return self.frame(t) + self.place(index % n)


class VideoModel(nn.Module):
    """Text-to-video network; the engine drives its parts."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.llm = Decoder(spec.decoder)
        self.projector = Projector(spec.rqvae.code_width, spec.decoder.width, spec.projector_layers)
        self.places = PlaceTables(spec.frames, spec.tokens_per_frame, spec.decoder.width) if spec.place_tables else None
        self.depth = DepthTransformer(spec.depth)
        self.rqvae = RQVAE(spec.rqvae)

    def feedback(self, codes: Tensor, index: Tensor) -> Tensor:
        """Decoder input [..., width] of visual tokens with codes [..., depth] and indices [...] in the video."""
        return self.feedback_latent(self.rqvae.embed(codes), index)

    def feedback_latent(self, latent: Tensor, index: Tensor | None = None) -> Tensor:
        """As `feedback`, from summed code vectors [..., code_width]; without an index nothing is added for places."""
        x = self.projector(latent)
        return x if self.places is None or index is None else x + self.places(index)

    def quantised(self) -> list[QuantisedLinear]:
        """The maps that are stored in few bits."""
        return [m for m in self.modules() if isinstance(m, QuantisedLinear)]

    def parameter_count(self) -> int:
        """Number of weights."""
        return sum(p.numel() for p in self.parameters()) + sum(m.in_features * m.out_features for m in self.quantised())

    def weights_bytes(self, *parts: str) -> int:
        """Bytes of the weights and their scales, of those whose name contains all `parts`."""
        packed = [(name, m.stored_bytes) for name, m in self.named_modules() if isinstance(m, QuantisedLinear)]
        sizes = [*((name, p.nbytes) for name, p in self.named_parameters()), *packed]
        return sum(size for name, size in sizes if all(part in name for part in parts))

    @property
    def weight_format(self) -> str:
        """What the matrices of the decoder blocks are stored as: a dtype's name, int8 or int4."""
        first = self.llm.blocks[0].mlp.gate_proj
        return first.kind if isinstance(first, QuantisedLinear) else str(first.weight.dtype).removeprefix("torch.")

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the decoder's weights."""
        return self.llm.norm.weight.dtype

    @property
    def device(self) -> torch.device:
        """Device of the decoder's weights."""
        return self.llm.norm.weight.device
