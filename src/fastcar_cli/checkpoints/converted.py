"""Folders that `fastcar convert` makes: weights as the kernels read them, mapped from the files and never copied.

config.json says everything that building the network takes; the tensors lie in shards of safetensors under the names
of `VideoModel`'s parameters; tokenizer.model and added_tokens.json are there where the tokenizer is LLaMA's. The folder
needs nothing of the model it was made from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fastcar_cli.checkpoints.architectures import architecture_of, spec_class
from fastcar_cli.errors import RequestError
from fastcar_cli.inputs.prompt import PromptReader
from fastcar_cli.inputs.worlds.placement_text import phrase_tokenizer
from fastcar_cli.models.checkpoint import DTYPES, Checkpoint, GenerationDefaults
from fastcar_cli.models.network import Network, Spec
from fastcar_cli.models.weight_format import NetworkFormat, WeightFormat
from fastcar_cli.system.plain_data import checked
from fastcar_cli.weights.formats import GROUP, PACKED
from fastcar_cli.weights.tensors import Component, Progress

FORMAT = "fastcar-converted"
VERSION = 1
"""Version of the folder format and of the packing of weights; a folder of another one is refused."""

UNFINISHED = "conversion.json"
"""File that only a folder has in which a conversion is not done."""


@dataclass(frozen=True)
class Converted:
    """What config.json of a converted folder says.

    `text` is the vocabulary of a `PhraseTokenizer`, None for LLaMA's tokenizer; `source` names the model it was made
    from (name, digest of its weights, commit), `rounding` how the weights were rounded; `shards` are its files.
    """

    form: WeightFormat
    spec: Spec
    defaults: GenerationDefaults
    text: Mapping[str, Any] | None
    source: Mapping[str, Any]
    rounding: str
    shards: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """For config.json."""
        form = self.form
        return {
            "format": FORMAT,
            "version": VERSION,
            "dtype": form.name,
            "group": GROUP,
            "weights": {
                "blocks": form.blocks,
                "projector": form.projector,
                "depth": form.depth,
                "floats": str(form.floats).removeprefix("torch."),
            },
            "rounding": self.rounding,
            "source": dict(self.source),
            "spec": self.spec.to_dict(),
            "generation": asdict(self.defaults),
            "text": None if self.text is None else dict(self.text),
            "shards": list(self.shards),
        }


def working_folder(folder: Path) -> Path:
    """Where a conversion works that will become `folder`."""
    return folder.with_name(f"{folder.name}.partial")


def _kind(name: str | None) -> str | None:
    if name is not None and name not in PACKED:
        raise ValueError(f"weights {name!r}, allowed: {', '.join(PACKED)}")
    return name


def names_of(network: Network) -> list[str]:
    """Names of the tensors that a folder holds for a network; what is shared has its first name only."""
    shared = network.shared()
    return [name for name in network.state_dict() if name not in shared]


class ConvertedCheckpoint(Checkpoint):
    """A converted folder, of any version of the format."""

    @classmethod
    def matches(cls, folder: Path, config: Any) -> bool:
        """See `Checkpoint`. Raises RequestError for an unfinished one."""
        if (folder / UNFINISHED).is_file():
            raise RequestError(
                f"{folder} is a conversion that is not done",
                hint="the fastcar convert command that began it resumes it",
            )
        return isinstance(config, dict) and config.get("format") == FORMAT

    @cached_property
    def description(self) -> Converted:
        """What config.json says. Raises RequestError naming file and key, or the version that is needed."""
        file, data = self.folder / "config.json", self.config
        if data.get("version") != VERSION:
            raise RequestError(
                f"{self.folder} was converted in version {data.get('version')!r} of the format, "
                f"this fastcar reads {VERSION}",
                hint="convert it again: fastcar convert",
            )
        try:
            weights = data["weights"]
            parts = (_kind(weights[part]) for part in ("blocks", "projector", "depth"))
            if data["group"] != GROUP:
                raise ValueError(f"group {data['group']}, needed {GROUP}")
            return Converted(
                form=WeightFormat(data["dtype"], DTYPES[weights["floats"]], *parts),
                spec=checked(spec_class(data["spec"]), data["spec"], file, "spec"),
                defaults=checked(GenerationDefaults, data["generation"], file, "generation"),
                text=data["text"],
                source=data["source"],
                rounding=data["rounding"],
                shards=tuple(str(Path(name).name) for name in data["shards"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise RequestError(f"{file}: {type(e).__name__} at {e}") from None

    def read_spec(self) -> Spec:
        """See `Checkpoint`."""
        return self.description.spec

    @property
    def defaults(self) -> GenerationDefaults:
        """See `Checkpoint`."""
        return self.description.defaults

    @property
    def formats(self) -> dict[str, WeightFormat]:
        """See `Checkpoint`: one."""
        form = self.description.form
        return {form.name: form}

    def weight_files(self) -> list[Path]:
        """See `Checkpoint`."""
        return [self.folder / shard for shard in self.description.shards]

    def components(self, network: Network) -> list[Component]:
        """See `Checkpoint`: keys are the names of the parameters."""
        names = {name: name for name in names_of(network)}
        return [Component(self.folder, names, lambda key: False, tuple(self.weight_files()))]

    def reader(self, network: Network) -> PromptReader:
        """See `Checkpoint`."""
        text, file = self.description.text, self.folder / "config.json"
        if text is None:
            return architecture_of(network.spec).reader_of(network, self.folder)
        try:
            return phrase_tokenizer(text, file)
        except (KeyError, TypeError, ValueError) as e:
            raise RequestError(f"{file}: {type(e).__name__} at {e}") from None

    def _weights(
        self, network: Network, form: NetworkFormat, device: torch.device, progress: Progress | None
    ) -> dict[str, Tensor]:
        wanted = form.use().state_dict()
        weights: dict[str, Tensor] = {}
        for file in self.weight_files():
            weights |= _mapped(file, wanted, form.float_of, device)
        for name in names_of(network):
            if name not in weights:
                raise RequestError(
                    f"{self.folder} lacks key {name!r} in its weights files", hint="convert the model again"
                )
        return weights


def _mapped(
    file: Path, wanted: Mapping[str, Tensor], floats: Callable[[str], torch.dtype], device: torch.device
) -> dict[str, Tensor]:
    """The tensors of one shard, on the CPU as views of the mapped file: no byte of theirs is read here."""
    if not file.is_file():
        raise RequestError(f"weights file {file} is missing", hint="convert the model again")
    tensors: dict[str, Tensor] = {}
    try:
        with safe_open(str(file), framework="pt", device=str(device)) as f:
            for name in f.keys():  # noqa: SIM118
                like = wanted.get(name)
                if like is None:
                    raise RequestError(f"weights file {file} has unexpected key {name!r}")
                tensor = f.get_tensor(name)
                dtype = floats(name) if like.dtype is torch.float32 and not name.endswith(".scale") else like.dtype
                if tensor.shape != like.shape or tensor.dtype != dtype:
                    raise RequestError(
                        f"weights file {file}, key {name!r}: {tensor.dtype} {list(tensor.shape)}, "
                        f"needed {dtype} {list(like.shape)}"
                    )
                tensors[name] = tensor
    except (SafetensorError, OSError, ValueError) as e:
        raise RequestError(f"weights file {file} is damaged: {e}", hint="convert the model again") from None
    return tensors
