"""Clips as prompts: what all networks that continue frames have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from fastcar_cli.errors import RequestError
from fastcar_cli.inputs.prompt import Clip, OnProgress, Prompt, Reading, TokenisedClip
from fastcar_cli.models.network import Network


class ClipReader(ABC):
    """Reads clips for a network, as a text tokenizer reads texts."""

    _network: Network

    @abstractmethod
    def _checked(self, prompt: Prompt) -> Clip | TokenisedClip:
        """The prompt. Raises RequestError for one that the model can't take."""

    @abstractmethod
    def ids(self, clip: Clip, on_progress: OnProgress | None) -> tuple[int, ...]:
        """Ids of the frames of a clip that the model continues from."""

    @torch.inference_mode()
    def read(self, prompt: Prompt, on_progress: OnProgress | None = None) -> Reading:
        """The prompt's ids. Raises RequestError for one that the model can't take."""
        clip = self._checked(prompt)
        return Reading(clip.ids if isinstance(clip, TokenisedClip) else self.ids(clip, on_progress), (), ())

    def complete(self, reading: Reading, seed: int) -> Reading:
        """The reading as it is: frames leave nothing to a draw."""
        return reading

    def blank(self) -> tuple[int, ...]:
        """Refused: without guidance there is no empty prompt."""
        raise RequestError(f"the model {self._network.spec.name!r} has no guidance", key="cfg", allowed="1")

    def notices(self, prompt: Prompt, model: str) -> list[str]:
        """None; raises RequestError for a prompt that the model can't take."""
        self._checked(prompt)
        return []
