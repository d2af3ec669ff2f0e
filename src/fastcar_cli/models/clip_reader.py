"""Clips as prompts: what all networks that continue frames have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod

from fastcar_cli.errors import RequestError
from fastcar_cli.inputs.prompt import Clip, Prompt, Reading, TokenisedClip
from fastcar_cli.models.network import Network


class ClipReader(ABC):
    """Reads clips for a network, as a text tokenizer reads texts."""

    _network: Network

    @abstractmethod
    def _checked(self, prompt: Prompt) -> Clip | TokenisedClip:
        """The prompt. Raises RequestError for one that the model can't take."""

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
