"""Frames as prompts: the context frames of a clip to ids, and its actions checked against the model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fastcar_cli.errors import Key, RequestError
from fastcar_cli.inputs.prompt import Clip, OnProgress, Prompt, TokenisedClip
from fastcar_cli.models.clip_reader import ClipReader
from fastcar_cli.models.ivideogpt.network import IVideoGPT


class FrameReader(ClipReader):
    """Reads clips for a network, as a text tokenizer reads texts.

    familiar: PSNR in dB with which frames like those of its training come back from its tokenizer; None: not known.
    """

    _network: IVideoGPT
    familiar: float | None = None

    def __init__(self, network: IVideoGPT) -> None:
        self._network = network

    def _checked(self, prompt: Prompt) -> Clip | TokenisedClip:
        """The prompt. Raises RequestError for a text, another size, too few frames, actions that don't fit."""
        spec = self._network.spec
        context, size, width, model = spec.layout.context, spec.frame_size, spec.actions, f"the model {spec.name!r}"
        if isinstance(prompt, str):
            hint = (f"give it at least {context} to continue from, such as ", Key("input"), " clip.mp4")
            raise RequestError(f"{model} takes frames, no text", hint=hint)
        if isinstance(prompt, TokenisedClip):
            if len(prompt.ids) != spec.tokenizer.prompt_tokens or not all(0 <= i < spec.codes for i in prompt.ids):
                raise RequestError(
                    f"{prompt.name}: these ids are not of {model}",
                    hint=f"it has {spec.tokenizer.prompt_tokens} for {context} frames, from 0 to {spec.codes - 1}",
                )
        elif prompt.frames.shape[1:3] != size:
            _, h, w, _ = prompt.frames.shape
            raise RequestError(f"{prompt.name}: frames are {w}x{h} pixels, {model} takes {size[1]}x{size[0]}")
        elif len(prompt.frames) < context:
            raise RequestError(f"{prompt.name}: {len(prompt.frames)} frames, {model} continues from {context}")
        if prompt.actions is None:
            if width:
                hint = ("give it actions, such as ", Key("actions"), " moves.csv")
                raise RequestError(f"{prompt.name}: no actions, {model} takes {width} numbers a frame", hint=hint)
        elif not width:
            raise RequestError(f"{prompt.name}: actions are given, {model} takes none")
        elif (given := prompt.actions.shape[1]) != width:
            raise RequestError(f"{prompt.name}: actions have {given} numbers a frame, {model} takes {width}")
        return prompt

    def notices(self, prompt: Prompt, model: str) -> list[str]:
        """That the first frame is unlike those of the training, where these are known. Raises as its base does."""
        notices = super().notices(prompt, model)
        if self.familiar is None or not isinstance(prompt, Clip):
            return notices
        given = self.pixels(prompt, 1)[0, 0].permute(1, 2, 0)
        with torch.inference_mode():
            ids = torch.tensor([self.read(prompt).ids], device=given.device)
            shown = self._network.frame_decoder(ids).context()
        assert shown is not None
        error = float((shown[0, 0] / 255 - given).square().mean())
        if error > 10 ** (-self.familiar / 10):
            back = f"comes back at {-10 * math.log10(error):.0f} dB, theirs at {self.familiar:.0f} or more"
            unlike = f"{prompt.name} is unlike the frames that the model {model!r} was trained on"
            notices.append(f"{unlike}, and what it draws will be too: the first frame {back}")
        return notices

    def pixels(self, clip: Clip, frames: int) -> Tensor:
        """The first frames as the tokenizer takes them, float32 [1, frames, 3, H, W] in 0..1."""
        pixels = torch.from_numpy(np.ascontiguousarray(clip.frames[:frames])).to(self._network.device)
        pixels = pixels if pixels.is_floating_point() else pixels.float().div(255.0)
        return pixels.permute(0, 3, 1, 2)[None]

    def ids(self, clip: Clip, on_progress: OnProgress | None) -> tuple[int, ...]:
        """See `ClipReader`."""
        ids = self._network.tokenizer.tokenize(self.pixels(clip, self._network.spec.layout.context))
        return tuple(ids[0].tolist())

    @torch.inference_mode()
    def read_all(self, clip: Clip) -> list[int]:
        """Ids of all frames of a clip, from the first delimiter of a later frame on. Raises as `read` does."""
        self._checked(clip)
        ids = self._network.tokenizer.tokenize(self.pixels(clip, len(clip.frames)))
        return ids[0, self._network.spec.tokenizer.prompt_tokens :].tolist()

    def conditions(self, prompts: Sequence[Prompt], frames: int) -> Tensor | None:
        """Actions float32 [P, frames, A] of videos of so many frames, context included; None without.

        Raises RequestError for a clip with fewer actions than that takes.
        """
        width = self._network.spec.actions
        if not width:
            return None
        actions = torch.zeros(len(prompts), frames, width)
        for row, prompt in zip(actions, prompts, strict=True):
            clip = self._checked(prompt)
            assert clip.actions is not None
            # No frame is decoded after the last action.
            if len(clip.actions) < frames - 1:
                raise RequestError(
                    f"{clip.name}: {len(clip.actions)} actions, {frames} frames take {frames - 1} at least",
                    hint="give more actions, or ask for fewer frames",
                )
            given = torch.from_numpy(np.asarray(clip.actions[:frames], dtype=np.float32))
            row[: len(given)] = given
        return actions
