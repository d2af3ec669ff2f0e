"""VILA-U checkpoints in the official format: `llm/`, `vision_tower/`, `mm_projector/` and a root config.json."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from fastcar_cli.errors import RequestError
from fastcar_cli.models.checkpoint import GenerationDefaults, Released
from fastcar_cli.models.network import Network
from fastcar_cli.models.vila_u.network import ModelSpec, VideoModel
from fastcar_cli.models.vila_u.shapes import PARTS, full_spec, spec_of
from fastcar_cli.models.vila_u.text import LlamaTokenizer
from fastcar_cli.system.plain_data import Foreign, read_checked
from fastcar_cli.weights.tensors import Component, weight_files

_FILES = ("config.json", *(f"{part}/*" for part in PARTS))

_KEYS = {
    "llm": ("llm", "model."),
    "depth": ("vision_tower", "rqtransformer."),
    "rqvae": ("vision_tower", "rqvaesiglip."),
    "projector": ("mm_projector", ""),
}
"""Parts of the network: their folders, and the prefixes of their keys there."""

_UNUSED_VISION = re.compile(
    r"rqvaesiglip\.(siglip_model\.|encoder\.|quant_conv\.|logit_scale$|logit_bias$"
    r"|quantizer\.codebooks\.\d+\.(cluster_size_ema|embed_ema)$)"
)


class _Top(Foreign):
    model_type: Literal["vila_u_llama"]


class VilaUCheckpoint(Released):
    """A folder of this format: it or its subfolder `model` contains the parts."""

    SPEC = ModelSpec
    DEFAULTS = GenerationDefaults(cfg=3.0, temperature=1.0, top_k=900, top_p=0.96, tas="released", gate="row")
    PATTERNS = (*_FILES, *(f"model/{pattern}" for pattern in _FILES))
    OFFLINE = False
    FLOATS = torch.bfloat16

    @classmethod
    def matches(cls, folder: Path, config: Any) -> bool:
        """See `Checkpoint`: it or its `model` folder has the `llm` part."""
        return (_root(folder) / "llm").is_dir()

    @staticmethod
    def published_spec(name: str) -> ModelSpec | None:
        """See `Released`."""
        return full_spec() if name == "vila-u-7b" else None

    @staticmethod
    def reader_of(network: Network, folder: Path) -> LlamaTokenizer:
        """See `Released`."""
        decoder = network.spec.decoder
        return LlamaTokenizer(folder, decoder.vocab, decoder.max_positions - network.spec.tokens_per_frame)

    def reader(self, network: Network) -> LlamaTokenizer:
        """See `Checkpoint`."""
        return self.reader_of(network, _root(self.folder) / "llm")

    def read_spec(self) -> ModelSpec:
        """See `Checkpoint`."""
        root = _root(self.folder)
        read_checked(_Top, root / "config.json", self.config if root == self.folder else None, of="VILA-U")
        for part in PARTS:
            if not (root / part).is_dir():
                raise RequestError(f"{root} is not a VILA-U checkpoint: it has no folder {part!r}")
        return spec_of(self.folder.resolve().name or "vila-u", root)

    def weight_files(self) -> list[Path]:
        """See `Checkpoint`; a projector that is the identity has none."""
        return [file for part in self._parts() for file in weight_files(_root(self.folder) / part)]

    def _parts(self) -> Sequence[str]:
        assert isinstance(self.spec, ModelSpec)
        return PARTS if self.spec.projector_layers else PARTS[:2]

    def text_files(self) -> tuple[Path, ...]:
        """See `Checkpoint`."""
        names = ("tokenizer.model", "added_tokens.json")
        return tuple(_root(self.folder) / "llm" / name for name in names)

    def components(self, network: Network) -> list[Component]:
        """See `Checkpoint`."""
        assert isinstance(network, VideoModel)
        root = _root(self.folder)
        names: dict[str, dict[str, str]] = {part: {} for part in PARTS}
        # A table that all depths share has the first one's name; some savers repeat it for the others.
        shared, repeated = network.shared(), set()
        for name in network.state_dict():
            part, _, rest = name.partition(".")
            folder_of, prefix = _KEYS[part]
            if name in shared:
                repeated.add(prefix + rest)
            else:
                names[folder_of][prefix + rest] = name

        ignored: dict[str, Callable[[str], bool]] = {
            "llm": lambda key: key == "lm_head.weight" or key.endswith("rotary_emb.inv_freq"),
            "vision_tower": lambda key: key in repeated or bool(_UNUSED_VISION.match(key)),
            "mm_projector": lambda key: False,
        }
        return [Component(root / part, names[part], ignored[part]) for part in self._parts()]


def _root(folder: Path) -> Path:
    """The folder with the parts: its subfolder `model` if there is one."""
    return folder / "model" if (folder / "model").is_dir() else folder
