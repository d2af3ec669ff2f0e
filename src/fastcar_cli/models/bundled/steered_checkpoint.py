"""Folders of models that continue frames by actions: config.json and model.safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastcar_cli.models.bundled.steered import SteeredSpec
from fastcar_cli.models.checkpoint import GenerationDefaults, Released
from fastcar_cli.models.clip_reader import ClipReader
from fastcar_cli.models.network import FramesNetwork, Network
from fastcar_cli.system.plain_data import checked
from fastcar_cli.weights.tensors import Component

FORMAT = "fastcar-steered-1"
FAMILIAR = 25.0  # see `ClipReader`; frames of this world are reconstructed at 35 dB or more


class SteeredCheckpoint(Released):
    """A folder of this format. Decoding is greedy by default, because these worlds are deterministic."""

    SPEC = SteeredSpec
    DEFAULTS = GenerationDefaults(cfg=1.0, temperature=0.0, top_k=0, top_p=1.0, tas="attention", gate="row")
    PATTERNS = ("config.json", "model.safetensors")
    DEPTH = "int8"
    FINITE = True

    @classmethod
    def matches(cls, folder: Path, config: Any) -> bool:
        """See `Checkpoint`."""
        return isinstance(config, dict) and config.get("format") == FORMAT

    @staticmethod
    def published_spec(name: str) -> None:
        """See `Released`."""

    @staticmethod
    def reader_of(network: Network, folder: Path) -> ClipReader:
        """See `Released`."""
        assert isinstance(network, FramesNetwork)
        reader = ClipReader(network)
        reader.familiar = FAMILIAR
        return reader

    def read_spec(self) -> SteeredSpec:
        """See `Checkpoint`."""
        return checked(SteeredSpec, self.config.get("spec"), self.folder / "config.json", "spec")

    def weight_files(self) -> list[Path]:
        """See `Checkpoint`."""
        return [self.folder / "model.safetensors"]

    def components(self, network: Network) -> list[Component]:
        """See `Checkpoint`: keys are the names of the parameters."""
        names = {name: name for name in network.state_dict()}
        return [Component(self.folder, names, lambda key: False, tuple(self.weight_files()))]
