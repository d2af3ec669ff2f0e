"""iVideoGPT (arXiv 2405.15223): a LLaMA over the ids of `tokenizer.py`, from frames to later frames.

The prompt holds the context frames; a later frame is a delimiter and its codes, sampled from the whole vocabulary. With
actions, the action that leads to a frame is added to its delimiter's embedding, and delimiters are given
(ivideogpt/transformer.py HeadModelWithAction).
"""

from __future__ import annotations

from functools import cached_property

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fastcar_cli.inputs.prompt import OnProgress
from fastcar_cli.models.ivideogpt.blocks import TokenizerSpec, network_pixels, shown_pixels
from fastcar_cli.models.ivideogpt.tokenizer import CrossKV, Tokenizer
from fastcar_cli.models.network import FramesNetwork, FrameSpec, Layout, Spec
from fastcar_cli.system.plain_data import WHOLE, Count


@dataclass(frozen=True, config=WHOLE)
class IVideoGPTSpec(Spec):
    """Everything that fixes the shapes of a model; `actions` is the width of an action, 0 without actions."""

    tokenizer: TokenizerSpec
    actions: Count = 0

    @property
    def layout(self) -> Layout:
        """See `Spec`."""
        tokenizer = self.tokenizer
        return Layout(
            stride=tokenizer.stride,
            delimiters=(0,),
            delimiter=tokenizer.delimiter,
            delimiters_sampled=not self.actions,
            prefix=tokenizer.prompt_tokens,
            context=tokenizer.context,
            guided=False,
        )

    @property
    def conditions(self) -> int:
        """See `Spec`."""
        return self.actions

    @property
    def frame_spec(self) -> FrameSpec:
        """See `Spec`."""
        t = self.tokenizer
        return FrameSpec(1, t.vocabulary, self.decoder.width, t.grid, t.size, channels=t.channels[0])

    def network(self) -> IVideoGPT:
        """See `Spec`."""
        return IVideoGPT(self)


class ContextFrameDecoder:
    """Decodes later frames with features of the context frames, which it computes once."""

    def __init__(self, tokenizer: Tokenizer, prompts: Tensor) -> None:
        self._tokenizer, self._prompts = tokenizer, prompts

    @cached_property
    def _context(self) -> tuple[Tensor, CrossKV]:
        return self._tokenizer.decode_context(self._prompts[:, : self._tokenizer.spec.prompt_tokens])

    def context(self) -> Tensor:
        """See `FrameDecoder`; the later frames of a longer prompt come after its context frames."""
        pixels, cross = self._context
        later = self._prompts[:, self._tokenizer.spec.prompt_tokens :]
        if later.shape[1]:
            pixels = torch.cat([pixels, self._tokenizer.decode_later(later, cross)], 1)
        return shown_pixels(pixels)

    def frame(self, codes: Tensor) -> Tensor:
        """See `FrameDecoder`."""
        return shown_pixels(self._tokenizer.decode_later(codes[..., 0], self._context[1]))[:, 0]


class IVideoGPT(FramesNetwork):
    """Frame prediction network."""

    spec: IVideoGPTSpec
    tokenizer: Tokenizer

    def __init__(self, spec: IVideoGPTSpec) -> None:
        super().__init__(spec)
        self.action_linear = nn.Linear(spec.actions, spec.decoder.width) if spec.actions else None
        self.tokenizer = Tokenizer(spec.tokenizer)

    def added(self, tokens: int, prompts: Tensor, conditions: Tensor | None, begin: int = 0) -> Tensor | None:
        """See `Network`: for the delimiter of later frame i, the embedding of action C - 1 + i of `conditions`, float32
        [P, S, A], after C context frames.
        """
        if self.action_linear is None or conditions is None:
            return None
        layout, like = self.spec.layout, self.action_linear.weight
        frames, first = -(-tokens // layout.stride), layout.context - 1 + begin // layout.stride
        actions = conditions[:, first : first + frames].to(like)
        result = like.new_zeros(tokens, len(conditions), self.spec.decoder.width)
        result[:: layout.stride] = self.action_linear(actions).transpose(0, 1)
        return result

    def encode(self, frames: Tensor, on_progress: OnProgress | None = None, actions: Tensor | None = None) -> Tensor:
        """See `FramesNetwork`."""
        return self.tokenizer.tokenize(network_pixels(frames))

    def frame_decoder(self, prompts: Tensor) -> ContextFrameDecoder:
        """See `Network`."""
        return ContextFrameDecoder(self.tokenizer, prompts)
