"""Clips as prompts of frame models: their ids and conditions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from fastcar_cli.errors import Key, RequestError, Text
from fastcar_cli.inputs.prompt import ActionPart, Clip, OnProgress, Prompt, Reading, TokenisedClip, ranges_of
from fastcar_cli.models.network import FramesNetwork


class ClipReader:
    """Reads clips for a network, like a text tokenizer reads texts.

    familiar: minimum PSNR in dB of the tokenizer's reconstruction of frames like the training's; None: unknown.
    """

    familiar: float | None = None

    def __init__(self, network: FramesNetwork) -> None:
        self._network = network
        # Samples of a clip and cells of a sweep share a clip, and encoding its frames may take long.
        self._encoded: WeakKeyDictionary[Clip, tuple[int, ...]] = WeakKeyDictionary()

    def _checked(self, prompt: Prompt) -> Clip | TokenisedClip:
        """Check the prompt. Raises RequestError for text, and for frames, ids, actions or embeddings that don't fit."""
        spec, model = self._network.spec, f"the model {self._network.spec.name!r}"
        if isinstance(prompt, str):
            counts = " or ".join(map(str, spec.contexts)) or f"at least {spec.layout.context}"
            hint: Text = ("add the frames: ", Key("input"), f" clip.mp4 (number of frames: {counts})")
            raise RequestError(f"{model} takes frames, not text", hint=hint)
        self._check_frames(prompt, model)
        self._check_numbers(prompt, model)
        return prompt

    def _check_frames(self, prompt: Clip | TokenisedClip, model: str) -> None:
        spec, layout = self._network.spec, self._network.spec.layout
        if isinstance(prompt, TokenisedClip):
            lengths = [spec.continuing(count).layout.prompt for count in spec.contexts or (None,)]
            # A prefix may contain ids that no frame has.
            most = [spec.decoder.vocab if t < (layout.prefix or 0) else spec.codes for t in range(len(prompt.ids))]
            if len(prompt.ids) not in lengths or not all(0 <= i < n for i, n in zip(prompt.ids, most, strict=True)):
                needed = f"{' or '.join(map(str, lengths))} ids from 0 to {spec.codes - 1}"
                raise RequestError(f"{prompt.name}: the token ids do not fit {model}, which takes {needed}")
            return
        count, *size, _ = prompt.frames.shape
        if tuple(size) != spec.frame_spec.size:
            height, width = spec.frame_spec.size
            raise RequestError(f"{prompt.name}: frames are {size[1]}x{size[0]}, but {model} needs {width}x{height}")
        if spec.contexts:
            spec.continuing(count)
        elif count < layout.context:
            raise RequestError(f"{prompt.name} has {count} frames, but {model} needs at least {layout.context}")

    def _check_numbers(self, prompt: Clip | TokenisedClip, model: str) -> None:
        """Refuse actions and text embeddings that don't fit. Raises RequestError."""
        spec = self._network.spec
        for what, each, given, width, example in (
            ("actions", "frame", prompt.actions, spec.conditions, (Key("actions"), " moves.csv")),
            ("text embeddings", "word", prompt.text, spec.decoder.source, (Key("text_embedding"), " FILE")),
        ):
            if given is None and width:
                hint: Text = (f"add {what}: ", *example)
                raise RequestError(f"{prompt.name}: no {what}, but {model} takes {width} numbers per {each}", hint=hint)
            if given is not None and not width:
                raise RequestError(f"{prompt.name}: {model} takes no {what}")
            if given is not None and given.shape[1:] != (width,):
                needed = f"{model} takes {width} numbers per {each}"
                raise RequestError(f"{prompt.name}: {what} have shape {list(given.shape)}, but {needed}")

    @torch.inference_mode()
    def _ids(self, clip: Clip, frames: int | None, on_progress: OnProgress | None = None) -> tuple[int, ...]:
        """Ids of the first `frames` frames of a clip; None: of all. Float frames are not rounded to bytes."""
        device = self._network.device
        pixels = torch.from_numpy(np.ascontiguousarray(clip.frames[:frames])).to(device)
        actions = None if clip.actions is None else torch.from_numpy(clip.actions).to(device)[None]
        return tuple(self._network.encode(pixels[None], on_progress, actions)[0].tolist())

    def read(self, prompt: Prompt, on_progress: OnProgress | None = None) -> Reading:
        """The prompt's ids. Raises RequestError for an invalid prompt."""
        clip = self._checked(prompt)
        if isinstance(clip, TokenisedClip):
            return Reading(clip.ids, (), ())
        if clip not in self._encoded:
            spec = self._network.spec
            self._encoded[clip] = self._ids(clip, None if spec.contexts else spec.layout.context, on_progress)
        return Reading(self._encoded[clip], (), ())

    def read_all(self, clip: Clip) -> list[int]:
        """Ids of the frames after those that a prompt holds. Raises like `read`."""
        self._checked(clip)
        return [*self._ids(clip, None)][self._network.spec.layout.prompt :]

    def complete(self, reading: Reading, seed: int) -> Reading:
        """The reading unchanged, since frames leave nothing open."""
        return reading

    def blank(self) -> tuple[int, ...]:
        """Raises RequestError, since there is no blank prompt without guidance."""
        raise RequestError(f"the model {self._network.spec.name!r} has no guidance", key="cfg", allowed="1")

    def notices(self, prompt: Prompt, model: str) -> list[str]:
        """A note if the first frame differs from the training frames, if those are known. Raises like `read`."""
        clip = self._checked(prompt)
        clipped = _clipped(clip, self._network.spec.steering.parts)
        if self.familiar is None or isinstance(clip, TokenisedClip):
            return clipped
        first = torch.from_numpy(np.ascontiguousarray(clip.frames[0]))
        given = first.float() / (1 if first.is_floating_point() else 255)
        with torch.inference_mode():
            shown = self._network.frame_decoder(
                torch.tensor([self.read(clip).ids], device=self._network.device)
            ).context()
        assert shown is not None
        error = float((shown[0, 0].cpu() / 255 - given).square().mean())
        if error <= 10 ** (-self.familiar / 10):
            return []
        back = f"a PSNR of {-10 * math.log10(error):.0f} dB, training frames with at least {self.familiar:.0f} dB"
        unlike = f"{clip.name} is unlike the training frames of the model {model!r}"
        return [f"{unlike}, so the video may be wrong: the tokenizer reconstructs the first frame with {back}"]

    def conditions(self, prompts: Sequence[Prompt], frames: int) -> Tensor | None:
        """Conditions of videos of `frames` frames, context included, float32; None: there are none.

        Actions are [P, frames, A], text embeddings [P, words, width]. Raises RequestError for too few actions and for
        texts of different lengths.
        """
        clips = [self._checked(prompt) for prompt in prompts]
        if width := self._network.spec.conditions:
            actions = torch.zeros(len(clips), frames, width)
            for row, clip in zip(actions, clips, strict=True):
                assert clip.actions is not None
                # No frame is decoded after the last action.
                if len(clip.actions) < frames - 1:
                    raise RequestError(
                        f"{clip.name}: {len(clip.actions)} actions, but {frames} frames need at least {frames - 1}",
                        hint="give more actions, or choose fewer frames",
                    )
                given = torch.from_numpy(np.asarray(clip.actions[:frames], dtype=np.float32))
                row[: len(given)] = given
            return actions
        texts = [clip.text for clip in clips if clip.text is not None]
        if len(lengths := sorted({len(text) for text in texts})) > 1:
            raise RequestError(f"the videos' text embeddings have {lengths} words; all must have the same number")
        return torch.from_numpy(np.stack(texts)).float() if texts else None


def _clipped(clip: Clip | TokenisedClip, parts: Sequence[ActionPart]) -> list[str]:
    """A note on numbers of actions that exceed the ranges of a model, which clips them."""
    if clip.actions is None or not parts:
        return []
    low, high = ranges_of(parts).astype(np.float32)
    names = [part.name for part in parts for _ in part.low]
    outside = (clip.actions < low) | (clip.actions > high)
    if not outside.any():
        return []
    found = ", ".join(dict.fromkeys(name for name, out in zip(names, outside.T, strict=True) if out.any()))
    return [f"{clip.name}: {int(outside.sum()):,} action values ({found}) exceed the model's ranges and are clipped"]
