"""What a world is to the laboratory: scenes, captions that say them, a renderer, a judge, and how its model is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.inputs.prompt import Prompt, PromptReader
from fastcar_cli.models.network import Spec
from fastcar_cli.system import plugins
from fastcar_lab.training.stages import Training

Video = NDArray[np.uint8]  # frames [T, H, W, 3]


class World(Protocol):
    """A folder of this package, whose `world.py` has one as `WORLD`; the folder is called like `name`, - as _. A scene
    is whatever the other methods of the same world take as one.
    """

    @property
    def name(self) -> str:
        """Name of its model."""

    @property
    def spec(self) -> Spec:
        """Specification of its model."""

    @property
    def training(self) -> Training:
        """How its model is trained."""

    def held_out(self, count: int, seed: int) -> list[tuple[Any, Prompt]]:
        """Scenes that training left out, each with a prompt that says all of it."""

    def render(self, scene: Any) -> Video:
        """The video of a scene."""

    def score(self, scenes: Sequence[Any], videos: Sequence[Video]) -> dict[str, Any]:
        """How right videos are that should show these scenes: shares of what is right, `all` last or first."""

    def tokenizer_quality(self, tokenizer: str, count: int, seed: int) -> dict[str, Any]:
        """What of held-out scenes the tokenizer alone keeps: that of a model, or a file that training saved."""


@runtime_checkable
class CaptionedWorld(World, plugins.JudgedWorld, Protocol):
    """A world whose prompts are texts, so that a sweep can judge its videos."""

    def recognises(self, reader: PromptReader, height: int, width: int) -> bool:
        """Whether a model speaks of this world that reads prompts so, in frames that the judge can read."""

    def unseen_captions(self, count: int, seed: int) -> list[str]:
        """Captions that training left out."""
        return [str(text) for _, text in self.held_out(count, seed)]

    def kind(self, tokens: Sequence[str]) -> str:
        """What kind of scene a caption's tokens describe: still, moving, meeting or panning."""
