"""Cosmos-Predict1 (arXiv 2501.03575): a LLaMA over the ids of `tokenizer.py`, from one or nine frames to 33.

A video has five latent frames: the first stands for one frame, each other for eight. Their tokens are in raster order
and are rotated by frame, row and column. A model with text begins with a special token, reads text embeddings by
cross-attention, and adds embeddings of positions to the input of every block.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from pydantic.dataclasses import dataclass
from torch import Tensor

from fastcar_cli.errors import RequestError
from fastcar_cli.inputs.prompt import OnProgress
from fastcar_cli.models.cosmos.tokenizer import CausalVideoSpec, CausalVideoTokenizer, work_of
from fastcar_cli.models.cosmos.tokenizer_blocks import Past
from fastcar_cli.models.network import FramesNetwork, FrameSpec, Layout, Spec
from fastcar_cli.system.plain_data import WHOLE, Size

if TYPE_CHECKING:
    from typing_extensions import Self

CONTEXTS = (1, 2)  # numbers of latent frames in a prompt, for one frame or nine


@dataclass(frozen=True, config=WHOLE)
class CosmosSpec(Spec):
    """Everything that fixes the shapes of a model; `context`: latent frames that it continues from.
    `decoder.axes` has the grid of a frame, and a prefix of one token in models with text.
    """

    tokenizer: CausalVideoSpec
    context: Size = 2

    @property
    def layout(self) -> Layout:
        """See `Spec`."""
        rows, columns = self.grid
        prefix = 0 if self.decoder.axes is None else self.decoder.axes.lead
        return Layout(rows * columns, prefix=prefix, context=self.context, prompt_frames=self.context, guided=False)

    @property
    def grid(self) -> tuple[int, int]:
        """See `FrameSpec`."""
        assert self.decoder.axes is not None
        return self.decoder.axes.grid

    @property
    def frame_spec(self) -> FrameSpec:
        """See `Spec`."""
        t, (rows, columns) = self.tokenizer, self.grid
        size = rows * t.space, columns * t.space
        # Of all frames of a latent frame; a position covers a patch in time and space.
        channels = -(-t.channels * t.time // t.patch**3)
        return FrameSpec(1, t.codes, self.decoder.width, self.grid, size, channels=channels, per_latent=t.time)

    @property
    def pixel_bytes(self) -> int:
        """See `Spec`; working feature maps take 0.6 times what is held between frames (measured)."""
        return int(1.6 * 4 * work_of(self.tokenizer, *self.grid, encode=False).held)

    @property
    def longest(self) -> int:
        """See `Spec`: the trained number; there are no positions after it."""
        return self.frames

    @property
    def contexts(self) -> tuple[int, ...]:
        """See `Spec`."""
        return tuple(self.frames_of(frames) for frames in CONTEXTS)

    def continuing(self, frames: int | None) -> Self:
        """See `Spec`."""
        if frames is None:
            return self
        if frames not in self.contexts:
            allowed = " or ".join(map(str, self.contexts))
            raise RequestError(
                f"the model {self.name!r} continues from {allowed} frames", key="context", value=frames, allowed=allowed
            )
        return replace(self, context=CONTEXTS[self.contexts.index(frames)])

    def sized(self, size: tuple[int, int] | None) -> Self:
        """See `Spec`: multiples of the side that a code covers, up to the trained size."""
        if size in (None, self.frame_spec.size):
            return self
        assert self.decoder.axes is not None
        step, (height, width) = self.tokenizer.space, size
        most_height, most_width = self.frame_spec.size
        if height % step or width % step or not 0 < height <= most_height or not 0 < width <= most_width:
            allowed = f"width and height in multiples of {step} up to {most_width}x{most_height}"
            raise RequestError("not supported by this model", key="size", value=f"{width}x{height}", allowed=allowed)
        axes = replace(self.decoder.axes, grid=(height // step, width // step))
        positions = axes.lead + (1 + self.frames // self.tokenizer.time) * axes.grid[0] * axes.grid[1]
        return replace(self, decoder=replace(self.decoder, axes=axes, max_positions=positions))

    def network(self) -> Cosmos:
        """See `Spec`."""
        return Cosmos(self)


class LatentFrameDecoder:
    """Decodes latent frames one after another, first those of the prompts."""

    def __init__(self, network: Cosmos, prompts: Tensor) -> None:
        self._grid, self._tokenizer = network.spec.grid, network.tokenizer
        self._prompts = prompts[:, network.spec.layout.prefix :]
        self._past: Past | None = None

    def context(self) -> Tensor:
        """See `FrameDecoder`; restarts the video."""
        self._past = Past()
        return torch.cat([self.frame(ids[..., None]) for ids in self._prompts.split(math.prod(self._grid), 1)], 1)

    def frame(self, codes: Tensor) -> Tensor:
        """See `FrameDecoder`."""
        if self._past is None:
            self.context()
        assert self._past is not None
        return self._tokenizer.decode(codes[..., 0].unflatten(1, self._grid), self._past)


class Cosmos(FramesNetwork):
    """Video continuation network."""

    spec: CosmosSpec
    tokenizer: CausalVideoTokenizer

    def __init__(self, spec: CosmosSpec) -> None:
        super().__init__(spec)
        self.tokenizer = CausalVideoTokenizer(spec.tokenizer)

    def decode_pixels_in(self, dtype: torch.dtype) -> None:
        """See `Network`."""
        self.tokenizer.decode_pixels_in(dtype)

    def encode(self, frames: Tensor, on_progress: OnProgress | None = None, actions: Tensor | None = None) -> Tensor:
        """See `FramesNetwork`; a model with text begins with a special token, the first id after the codes."""
        ids = self.tokenizer.encode(frames, on_progress).flatten(1)
        return F.pad(ids, (self.spec.layout.prefix or 0, 0), value=self.spec.codes)

    def frame_decoder(self, prompts: Tensor) -> LatentFrameDecoder:
        """See `Network`."""
        return LatentFrameDecoder(self, prompts)
