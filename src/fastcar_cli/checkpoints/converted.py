"""Folders that `fastcar convert` makes: weights as the kernels read them, mapped from the files and never copied.

config.json says everything that building the network takes; the tensors lie in shards of safetensors under the names
of `VideoModel`'s parameters; tokenizer.model and added_tokens.json are there where the tokenizer is LLaMA's. The folder
needs nothing of the model it was made from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fastcar_cli.checkpoints.specs import spec_class
from fastcar_cli.errors import RequestError
from fastcar_cli.inputs.prompt import PromptReader
from fastcar_cli.inputs.worlds.placement_text import phrase_tokenizer
from fastcar_cli.models.checkpoint import (
    DTYPES,
    GenerationDefaults,
    LoadedModel,
    empty_network,
    no_such_dtype,
    ready,
    with_shared,
)
from fastcar_cli.models.cosmos.latent_reader import LatentReader
from fastcar_cli.models.cosmos.network import Cosmos
from fastcar_cli.models.ivideogpt.frame_reader import FrameReader
from fastcar_cli.models.ivideogpt.network import IVideoGPT
from fastcar_cli.models.network import Network, Spec
from fastcar_cli.models.vila_u.text import LlamaTokenizer
from fastcar_cli.models.weight_format import WeightFormat
from fastcar_cli.system.files import file_text
from fastcar_cli.system.plain_data import checked, parse_json
from fastcar_cli.weights.formats import GROUP, PACKED

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


def _json(file: Path) -> Any:
    try:
        return parse_json(file_text(file))
    except (OSError, ValueError):
        return None


def is_converted(folder: Path) -> bool:
    """Whether a folder is a converted model, of whatever version. Raises RequestError for an unfinished one."""
    if (folder / UNFINISHED).is_file():
        raise RequestError(
            f"{folder} is a conversion that is not done", hint="the fastcar convert command that began it resumes it"
        )
    data = _json(folder / "config.json")
    return isinstance(data, dict) and data.get("format") == FORMAT


def describe(folder: Path) -> Converted:
    """What a converted folder holds. Raises RequestError naming file and key, or the version that is needed."""
    file = folder / "config.json"
    data = _json(file)
    if data.get("version") != VERSION:
        raise RequestError(
            f"{folder} was converted in version {data.get('version')!r} of the format, this fastcar reads {VERSION}",
            hint="convert it again: fastcar convert",
        )
    try:
        spec: Spec = checked(spec_class(data["spec"]), data["spec"], file, "spec")
        kept = data["weights"]
        form = WeightFormat(
            data["dtype"], DTYPES[kept["floats"]], *(_kind(kept[part]) for part in ("blocks", "projector", "depth"))
        )
        if data["group"] != GROUP:
            raise ValueError(f"group {data['group']}, needed {GROUP}")
        return Converted(
            form=form,
            spec=spec,
            defaults=checked(GenerationDefaults, data["generation"], file, "generation"),
            text=data["text"],
            source=data["source"],
            rounding=data["rounding"],
            shards=tuple(str(Path(name).name) for name in data["shards"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise RequestError(f"{file}: {type(e).__name__} at {e}") from None


def _kind(name: str | None) -> str | None:
    if name is not None and name not in PACKED:
        raise ValueError(f"weights {name!r}, allowed: {', '.join(PACKED)}")
    return name


def names_of(network: Network) -> list[str]:
    """Names of the tensors that a folder holds for a network; what is shared has its first name only."""
    shared = network.shared()
    return [name for name in network.state_dict() if name not in shared]


def tokenizer_of(folder: Path, converted: Converted) -> PromptReader:
    """The tokenizer of a converted model; LLaMA's is read from `folder`. Raises RequestError where it is damaged."""
    if converted.text is None:
        decoder = converted.spec.decoder
        return LlamaTokenizer(folder, decoder.vocab, decoder.max_positions - converted.spec.tokens_per_frame)
    try:
        return phrase_tokenizer(converted.text, folder / "config.json")
    except (KeyError, TypeError, ValueError) as e:
        raise RequestError(f"{folder / 'config.json'}: {type(e).__name__} at {e}") from None


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


def load(folder: Path, dtype: str, device: torch.device, size: tuple[int, int] | None = None) -> LoadedModel:
    """Load a converted folder; `dtype` is auto or its own, `size` as `Spec.sized` takes it.

    Raises RequestError for another dtype and damage, naming file and key.
    """
    converted = describe(folder)
    form = converted.form
    if dtype not in ("auto", form.name):
        raise no_such_dtype(dtype, [form.name])
    network = empty_network(converted.spec.sized(size))
    stored = form.on(network)
    wanted = stored.use().state_dict()
    weights: dict[str, Tensor] = {}
    for shard in converted.shards:
        weights |= _mapped(folder / shard, wanted, stored.float_of, device)
    for name in names_of(network):
        if name not in weights:
            raise RequestError(f"{folder} lacks key {name!r} in its weights files", hint="convert the model again")
    network.load_state_dict(with_shared(weights, network), assign=True)
    ready(network, device)
    return LoadedModel(converted.spec.name, network, _reader(folder, converted, network), converted.defaults)


def _reader(folder: Path, converted: Converted, network: Network) -> PromptReader:
    if isinstance(network, IVideoGPT):
        return FrameReader(network)
    return LatentReader(network) if isinstance(network, Cosmos) else tokenizer_of(folder, converted)
