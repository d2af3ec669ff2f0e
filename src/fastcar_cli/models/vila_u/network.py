"""The text-to-video network as one module: decoder, projector, depth transformer, RQ-VAE.
VILA-U and the bundled text-to-video models are specifications of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fastcar_cli.inputs.worlds.physics import MapSpec
from fastcar_cli.models.bundled.placement_map import PlacementMap
from fastcar_cli.models.decoder import Decoder, table
from fastcar_cli.models.depth import DepthSpec, DepthTransformer
from fastcar_cli.models.network import FrameDecoder, FrameSpec, Layout, Network, Projector, SamplingWeights, Spec
from fastcar_cli.models.vila_u.rqvae import RQVAE, RQVAESpec
from fastcar_cli.system.plain_data import WHOLE, Flag, MaybeLayers


@dataclass(frozen=True, config=WHOLE)
class ModelSpec(Spec):
    """Everything that fixes the shapes of a model."""

    depth: DepthSpec
    rqvae: RQVAESpec
    projector_layers: MaybeLayers = 1  # linear layers from code width to decoder width
    place_tables: Flag = False  # learned vectors for frame and position, added to a visual token (VILA-U has none)
    map: MapSpec | None = None  # how placements are embedded into visual tokens, see `placement_map.py`

    @property
    def layout(self) -> Layout:
        """See `Spec`."""
        return Layout(stride=self.rqvae.tokens_per_frame)

    @property
    def frame_spec(self) -> FrameSpec:
        """See `Spec`."""
        d, r = self.depth, self.rqvae
        return FrameSpec(d.depth, d.codes, r.code_width, r.grid, r.frame_size, channels=r.ch * r.ch_mult[0])

    @property
    def sampling_weights(self) -> SamplingWeights:
        """See `Spec`: each depth reads the depth transformer once."""
        d, width, layers = self.depth, self.decoder.width, self.projector_layers
        block, head = 12 * d.width * d.width, d.codes * d.width
        first, later = d.hidden * d.width, d.code_width * d.width
        return SamplingWeights(
            transformer=d.depth * d.blocks * block + first + (d.depth - 1) * later,
            heads=d.depth * head,
            stored=d.blocks * block + first + later + head,
            projector=layers and d.code_width * width + (layers - 1) * width * width,
        )

    @property
    def longest(self) -> int:
        """See `Spec`."""
        return min(self.frames, super().longest) if self.place_tables else super().longest

    def network(self) -> VideoModel:
        """See `Spec`."""
        return VideoModel(self)


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


def placement_map(spec: ModelSpec) -> PlacementMap | None:
    """The embedding of placements into visual tokens, if the model has one."""
    if spec.map is None:
        return None
    patch = spec.rqvae.frame_size[0] // spec.rqvae.grid[0]
    return PlacementMap(spec.map, spec.rqvae.grid, patch, spec.decoder.width)


class VideoModel(Network):
    """Text-to-video network."""

    spec: ModelSpec
    depth: DepthTransformer

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.llm = Decoder(spec.decoder)
        self.projector = Projector(spec.rqvae.code_width, spec.decoder.width, spec.projector_layers)
        self.places = PlaceTables(spec.frames, spec.tokens_per_frame, spec.decoder.width) if spec.place_tables else None
        self.map = placement_map(spec)
        self.depth = DepthTransformer(spec.depth)
        self.lm_head = None
        self.rqvae = RQVAE(spec.rqvae)

    @property
    def codebooks(self) -> Sequence[nn.Embedding]:
        """See `Network`."""
        return self.rqvae.quantizer.codebooks

    def feedback_latent(self, latent: Tensor, index: Tensor | None = None) -> Tensor:
        """See `Network`; with the tokens' indices [...] in the video, the result includes their position vectors."""
        x = self.projector(latent)
        return x if self.places is None or index is None else x + self.places(index)

    def added(self, tokens: int, prompts: Tensor, conditions: Tensor | None, begin: int = 0) -> Tensor | None:
        """See `Network`: vectors for positions and placements, if the model has them."""
        index = torch.arange(tokens, device=self.device)
        places = None if self.places is None else self.places(index)[:, None]
        if self.map is None:
            return places
        embedding = self.map(prompts, index[None] + begin + 1).transpose(0, 1)
        return embedding if places is None else embedding + places

    def shared(self) -> dict[str, str]:
        """See `Network`: a codebook shared by all depths has the name of each."""
        first, *others = (f"rqvae.quantizer.codebooks.{d}.weight" for d in range(self.spec.rqvae.depth))
        return dict.fromkeys(others, first) if self.spec.rqvae.shared_codebook else {}

    def pixels(self) -> Sequence[nn.Module]:
        """See `Network`."""
        return self.rqvae.post_quant_conv, self.rqvae.decoder

    def frame_decoder(self, prompts: Tensor) -> FrameDecoder:
        """See `Network`."""
        return self.rqvae
