"""Folders written by `fastcar convert`: weights as the kernels read them, memory-mapped and never copied.

config.json describes the network; safetensors shards hold its parameters; LLaMA's tokenizer is copied if it is used.
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
VERSION = 1  # version of the folder format and of the packing of weights; fastcar refuses any other
UNFINISHED = "conversion.json"  # file in the folder of an unfinished conversion


_WEIGHTS = ("blocks", "projector", "depth")


@dataclass(frozen=True)
class Converted:
    """The content of a converted folder's config.json; `text`: a `PhraseTokenizer`'s, None for LLaMA's tokenizer."""

    form: WeightFormat
    spec: Spec
    defaults: GenerationDefaults
    text: Mapping[str, Any] | None
    source: Mapping[str, Any]
    rounding: str
    shards: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The content of config.json."""
        form = self.form
        return {
            "format": FORMAT,
            "version": VERSION,
            "dtype": form.name,
            "group": GROUP,
            "weights": {**{p: getattr(form, p) for p in _WEIGHTS}, "floats": str(form.floats).removeprefix("torch.")},
            "rounding": self.rounding,
            "source": dict(self.source),
            "spec": self.spec.to_dict(),
            "generation": asdict(self.defaults),
            "text": None if self.text is None else dict(self.text),
            "shards": list(self.shards),
        }


def working_folder(folder: Path) -> Path:
    """The working folder of a conversion to `folder`."""
    return folder.with_name(f"{folder.name}.partial")


def names_of(network: Network) -> list[str]:
    """Names of a network's tensors in its folder; a shared tensor has only its first name."""
    shared = network.shared()
    return [name for name in network.state_dict() if name not in shared]


class ConvertedCheckpoint(Checkpoint):
    """A converted folder, of any version of the format."""

    @classmethod
    def matches(cls, folder: Path, config: Any) -> bool:
        """See `Checkpoint`. Raises RequestError for an unfinished conversion."""
        if (folder / UNFINISHED).is_file():
            raise RequestError(f"{folder} is an unfinished conversion", hint="rerun the command that began it")
        return isinstance(config, dict) and config.get("format") == FORMAT

    @cached_property
    def description(self) -> Converted:
        """The content of config.json. Raises RequestError with file and key, or with the required version."""
        file, data = self.folder / "config.json", self.config
        if data.get("version") != VERSION:
            said = f"{file}: key 'version' is {data.get('version')!r}, but this fastcar reads version {VERSION}"
            raise RequestError(said, hint="convert the model again: fastcar convert MODEL -o FOLDER")
        try:
            weights = data["weights"]
            for part in _WEIGHTS:
                if weights[part] not in (None, *PACKED):
                    raise ValueError(f"key 'weights.{part}' is {weights[part]!r}, allowed: {', '.join(PACKED)}")
            if data["group"] != GROUP:
                raise ValueError(f"key 'group' is {data['group']}, expected {GROUP}")
            return Converted(
                form=WeightFormat(data["dtype"], DTYPES[weights["floats"]], *(weights[p] for p in _WEIGHTS)),
                spec=checked(spec_class(data["spec"]), data["spec"], file, "spec"),
                defaults=checked(GenerationDefaults, data["generation"], file, "generation"),
                text=data["text"],
                source=data["source"],
                rounding=data["rounding"],
                shards=tuple(str(Path(name).name) for name in data["shards"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise RequestError(f"{file} is invalid: {type(e).__name__}: {e}") from None

    def read_spec(self) -> Spec:
        """See `Checkpoint`."""
        return self.description.spec

    @property
    def defaults(self) -> GenerationDefaults:
        """See `Checkpoint`."""
        return self.description.defaults

    @property
    def formats(self) -> dict[str, WeightFormat]:
        """See `Checkpoint`; there is one."""
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
            raise RequestError(f"{file} is invalid: {type(e).__name__}: {e}") from None

    def _weights(
        self, network: Network, form: NetworkFormat, device: torch.device, progress: Progress | None
    ) -> dict[str, Tensor]:
        wanted = form.use().state_dict()
        weights: dict[str, Tensor] = {}
        for file in self.weight_files():
            weights |= _mapped(file, wanted, form.float_of, device)
        for name in names_of(network):
            if name not in weights:
                said = f"the weights files in {self.folder} lack key {name!r}"
                raise RequestError(said, hint="convert the model again: fastcar convert MODEL -o FOLDER")
        return weights


def _mapped(
    file: Path, wanted: Mapping[str, Tensor], floats: Callable[[str], torch.dtype], device: torch.device
) -> dict[str, Tensor]:
    """The tensors of one shard, on the CPU as views of the mapped file, which is not read yet."""
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
                    found, needed = f"{tensor.dtype} {list(tensor.shape)}", f"{dtype} {list(like.shape)}"
                    raise RequestError(f"weights file {file}, key {name!r}: {found}, expected {needed}")
                tensors[name] = tensor
    except (SafetensorError, OSError, ValueError) as e:
        raise RequestError(f"weights file {file} is damaged: {e}", hint="convert the model again") from None
    return tensors
