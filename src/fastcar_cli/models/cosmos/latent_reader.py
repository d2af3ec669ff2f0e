"""Pictures as prompts: one picture, or nine, to the ids of one or two frames of codes."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from fastcar_cli.errors import Key, RequestError
from fastcar_cli.inputs.prompt import Clip, OnProgress, Prompt, TokenisedClip
from fastcar_cli.models.clip_reader import ClipReader
from fastcar_cli.models.cosmos.network import CONTEXTS, Cosmos


class LatentReader(ClipReader):
    """Reads clips for a network, as a text tokenizer reads texts."""

    _network: Cosmos

    def __init__(self, network: Cosmos) -> None:
        self._network = network
        # Samples of a clip, and the cells of a sweep, have one clip, whose pictures take long to encode.
        self._encoded: WeakKeyDictionary[Clip, tuple[int, ...]] = WeakKeyDictionary()

    def _checked(self, prompt: Prompt) -> Clip | TokenisedClip:
        """The prompt. Raises RequestError for a text alone, another size, another number of pictures, actions."""
        spec = self._network.spec
        if isinstance(prompt, str):
            raise RequestError(
                f"the model {spec.name!r} takes frames, no text",
                hint=("give it one picture or nine to continue from, such as ", Key("input"), " clip.mp4"),
            )
        layout, prefix = spec.layout, spec.layout.prefix or 0
        if isinstance(prompt, Clip):
            count, *size = prompt.frames.shape[:3]
            if tuple(size) != spec.frame_size:
                height, width = spec.frame_size
                needed = f"the model {spec.name!r} takes {width}x{height}"
                raise RequestError(f"{prompt.name}: frames are {size[1]}x{size[0]} pixels, {needed}")
            spec.continuing(count)
        elif len(prompt.ids) - prefix not in [c * layout.stride for c in CONTEXTS]:
            raise RequestError(f"{prompt.name}: {len(prompt.ids)} ids are not of the model {spec.name!r}")
        elif not all(0 <= i < spec.codes for i in prompt.ids[prefix:]):
            raise RequestError(f"{prompt.name}: ids are not from 0 to {spec.codes - 1}")
        if prompt.actions is not None:
            raise RequestError(f"{prompt.name}: actions are given, the model {spec.name!r} takes none")
        width = spec.decoder.source
        if (prompt.text is None) == bool(width):
            said = "no text embedding" if width else "a text embedding is given"
            raise RequestError(
                f"{prompt.name}: {said}, the model {spec.name!r} takes {'one' if width else 'none'}",
                hint=("give it with ", Key("text_embedding"), " FILE") if width else None,
            )
        if prompt.text is not None and prompt.text.shape[1:] != (width,):
            given = list(prompt.text.shape)
            raise RequestError(f"{prompt.name}: the text embedding has shape {given}, needed: [words, {width}]")
        return prompt

    def ids(self, clip: Clip, on_progress: OnProgress | None) -> tuple[int, ...]:
        """See `ClipReader`; frames in floats are not rounded to bytes before."""
        if clip not in self._encoded:
            pixels = torch.from_numpy(np.ascontiguousarray(clip.frames)).to(self._network.device)
            ids = self._network.tokenizer.encode(pixels[None], on_progress)
            self._encoded[clip] = tuple(ids.flatten().tolist())
        # A model with text begins with a token of its own, the first id after the codes.
        prefix = [self._network.spec.codes] * (self._network.spec.layout.prefix or 0)
        return (*prefix, *self._encoded[clip])

    def conditions(self, prompts: Sequence[Prompt], frames: int) -> Tensor | None:
        """Text embeddings float32 [P, words, width]; None of a model without text.

        Raises RequestError for embeddings of unequal length.
        """
        if not self._network.spec.decoder.source:
            return None
        texts = [text for prompt in prompts if (text := self._checked(prompt).text) is not None]
        if len({len(text) for text in texts}) > 1:
            raise RequestError(f"text embeddings have {sorted({len(text) for text in texts})} rows, needed: one length")
        return torch.from_numpy(np.stack(texts)).float()
