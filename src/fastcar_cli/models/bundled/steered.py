"""Frames to frames, steered by actions: a LLaMA over the codes of 16 x 16 px patches, frame after frame.

A prompt holds one or more frames, with the same codes as decoded frames. Each token's input has added vectors for its
position in the frame, and for the action that leads to the frame whose code it predicts.
"""

from __future__ import annotations

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fastcar_cli.inputs.prompt import OnProgress
from fastcar_cli.models.bundled.patch_tokenizer import PatchTokenizer, PatchTokenizerSpec
from fastcar_cli.models.ivideogpt.blocks import network_pixels
from fastcar_cli.models.network import FramesNetwork, FrameSpec, Layout, Spec
from fastcar_cli.system.plain_data import WHOLE, Size


@dataclass(frozen=True, config=WHOLE)
class SteeredSpec(Spec):
    """Everything that fixes the shapes of a model; `actions` is the width of an action, `context` frames are given."""

    tokenizer: PatchTokenizerSpec
    actions: Size
    context: Size = 1

    @property
    def layout(self) -> Layout:
        """See `Spec`."""
        return Layout(self.tokenizer.places, prefix=0, context=self.context, prompt_frames=self.context, guided=False)

    @property
    def conditions(self) -> int:
        """See `Spec`."""
        return self.actions

    @property
    def frame_spec(self) -> FrameSpec:
        """See `Spec`."""
        t = self.tokenizer
        square = (t.grid, t.grid), (t.resolution, t.resolution)
        return FrameSpec(1, t.codes, self.decoder.width, *square, channels=3)

    def network(self) -> Steered:
        """See `Spec`."""
        return Steered(self)


class PatchFrameDecoder:
    """Decodes each frame from its own codes."""

    def __init__(self, network: Steered, prompts: Tensor) -> None:
        self._tokenizer, self._prompts = network.tokenizer, prompts

    def context(self) -> Tensor:
        """See `FrameDecoder`."""
        return self._tokenizer.render(self._prompts.unflatten(1, (-1, self._tokenizer.spec.places)))

    def frame(self, codes: Tensor) -> Tensor:
        """See `FrameDecoder`."""
        return self._tokenizer.render(codes[..., 0])


class Steered(FramesNetwork):
    """Network that continues frames by actions."""

    spec: SteeredSpec
    tokenizer: PatchTokenizer

    def __init__(self, spec: SteeredSpec) -> None:
        super().__init__(spec)
        self.action_linear = nn.Linear(spec.actions, spec.decoder.width, bias=False)
        self.places = nn.Parameter(torch.empty(spec.tokenizer.places, spec.decoder.width))
        self.tokenizer = PatchTokenizer(spec.tokenizer)

    def added(self, tokens: int, prompts: Tensor, conditions: Tensor | None, begin: int = 0) -> Tensor:
        """See `Network`: for token t its position, and the action that leads to the frame of token t + 1. `conditions`:
        actions float32 [P, S, A], one per frame of the video; none is added in a context's first frame.
        """
        n, like = len(self.places), self.places
        t = torch.arange(tokens, device=like.device)
        result = like[t % n][:, None]
        if conditions is None:
            return result
        frame = (t + 1) // n
        actions = conditions.new_zeros(tokens, *conditions[:, 0].shape)
        given = (frame > 0) & (begin // n + frame <= conditions.shape[1])
        actions[given] = conditions.transpose(0, 1)[begin // n + frame[given] - 1]
        return result + self.action_linear(actions.to(like))

    def encode(self, frames: Tensor, on_progress: OnProgress | None = None, actions: Tensor | None = None) -> Tensor:
        """See `FramesNetwork`."""
        return self.tokenizer.tokenize(network_pixels(frames))

    def rolled(self, seen: Tensor) -> Tensor:
        """See `Network`; the new context's frames get the objects of the first frame (`PatchTokenizer.settled`)."""
        frames = self.tokenizer.settled(seen.unflatten(1, (-1, len(self.places))))
        return frames[:, -self.spec.context :].flatten(1)

    def frame_decoder(self, prompts: Tensor) -> PatchFrameDecoder:
        """See `Network`."""
        return PatchFrameDecoder(self, prompts)
