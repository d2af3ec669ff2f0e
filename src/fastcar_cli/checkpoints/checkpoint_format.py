"""Formats of released checkpoints, each a module of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from fastcar_cli.inputs.prompt import PromptReader
from fastcar_cli.models.checkpoint import GenerationDefaults
from fastcar_cli.models.cosmos import checkpoint as cosmos
from fastcar_cli.models.ivideogpt import checkpoint as ivideogpt
from fastcar_cli.models.network import Network, Spec
from fastcar_cli.models.vila_u import checkpoint as vila_u
from fastcar_cli.models.weight_format import WeightFormat
from fastcar_cli.weights.tensors import Component


class CheckpointFormat(Protocol):
    """What such a module offers."""

    @property
    def DEFAULTS(self) -> GenerationDefaults:
        """How the released code generates."""

    @property
    def PATTERNS(self) -> tuple[str, ...]:
        """Files of a repository on the hub that a model needs."""

    def is_checkpoint(self, folder: Path) -> bool:
        """Whether a folder looks like one."""

    def read_spec(self, folder: Path) -> Spec:
        """The specification of a folder. Raises RequestError naming file and key."""

    def loading_format(self, name: str) -> WeightFormat:
        """What a model is held as when it is loaded in one of `checkpoint.FORMATS`."""

    def weights_of(self, folder: Path) -> list[Path]:
        """The files of weights of a folder; they need not exist. Raises RequestError where there are none."""

    def tokenizer_files(self, folder: Path) -> tuple[Path, ...]:
        """Files of the text tokenizer, which a converted folder gets a copy of."""

    def components(self, folder: Path, network: Network) -> list[Component]:
        """Which keys of which folder are which parameters of a network."""

    def reader(self, folder: Path, network: Network) -> PromptReader:
        """What reads the prompts of a model with this network. Raises RequestError naming a file that is damaged."""


CHECKPOINT_FORMATS: tuple[CheckpointFormat, ...] = (vila_u, ivideogpt, cosmos)


def format_of(folder: Path) -> CheckpointFormat | None:
    """The format of a folder that holds a released checkpoint."""
    return next((released for released in CHECKPOINT_FORMATS if released.is_checkpoint(folder)), None)
