"""A model on disk: the interface of a folder of any format, and of a loaded model."""

from __future__ import annotations

import contextlib
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from pydantic.dataclasses import dataclass as checked_dataclass
from torch import Tensor

from fastcar_cli.errors import FastcarError, Key, RequestError, Text
from fastcar_cli.inputs.prompt import PromptReader
from fastcar_cli.models.clip_reader import ClipReader
from fastcar_cli.models.network import FramesNetwork, Network, Spec
from fastcar_cli.models.sampling import SamplingSettings
from fastcar_cli.models.weight_format import NetworkFormat, WeightFormat
from fastcar_cli.system.device import out_of_memory
from fastcar_cli.system.files import require_regular
from fastcar_cli.system.limits import require_proc
from fastcar_cli.system.plain_data import WHOLE
from fastcar_cli.weights.tensors import Component, Progress, Weights

NetworkT = TypeVar("NetworkT", bound=Network)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LOADABLE = (*DTYPES, "int8")  # weight formats for loading a model in floats

_IDENTIFYING = (".safetensors", ".bin", ".json", ".model")


def loading_format(name: str, floats: torch.dtype = torch.float32, depth: str | None = None) -> WeightFormat:
    """The format of a model loaded from floats, one of `LOADABLE`. With int8, `floats` is the dtype of all other parts,
    and `depth` the format of the layers that sample codes.
    """
    if name == "int8":
        return WeightFormat(name, floats, blocks="int8", depth=depth)
    return WeightFormat(name, DTYPES[name])


def no_such_dtype(dtype: str, allowed: Collection[str]) -> RequestError:
    """The error for an unsupported weight format."""
    if len(allowed) == 1:
        said = f"the model was converted and has only {', '.join(allowed)} weights"
        hint: Text = "leave out ", Key("dtype"), ", or use the original model or a conversion to another format"
        return RequestError(said, key="dtype", value=dtype, hint=hint)
    if dtype == "int4":
        hint = "convert it: fastcar convert MODEL -o FOLDER --dtype int4"
        return RequestError("the model has no weights in int4", key="dtype", value="int4", hint=hint)
    return RequestError("unknown", key="dtype", value=dtype, allowed=", ".join(allowed))


@checked_dataclass(frozen=True, config=WHOLE)
class GenerationDefaults(SamplingSettings):
    """Defaults of `generate`: sampling, and the variants of the replay rule."""

    tas: str = "attention"
    gate: str = "row"

    @property
    def sampling(self) -> SamplingSettings:
        """Sampling of codes."""
        return SamplingSettings(**{field.name: getattr(self, field.name) for field in fields(SamplingSettings)})


@dataclass(frozen=True)
class LoadedModel:
    """A network ready to run, its tokenizer and its defaults."""

    name: str
    network: Network
    tokenizer: PromptReader
    defaults: GenerationDefaults


@dataclass(frozen=True)
class Identity:
    """Identity of the weights: a digest of the files, and their commit on the hub."""

    weights: str
    commit: str | None


def empty_network(spec: Spec) -> Network:
    """The network of a specification on the meta device, without memory for weights."""
    with torch.device("meta"):
        return spec.network()


def ready(network: NetworkT, device: torch.device) -> NetworkT:
    """The network with its weights on a device, in evaluation mode."""
    network.llm.rotary.to(device)
    return network.eval().requires_grad_(False)


@contextlib.contextmanager
def _foreign(folder: Path) -> Iterator[None]:
    """Turn what foreign files make Python or torch raise (impossible sizes, parts that don't fit) into RequestError."""
    require_proc()
    try:
        yield
    except (FastcarError, MemoryError):
        raise
    except Exception as e:
        if out_of_memory(e):
            raise
        what = (str(e).strip() or type(e).__name__).splitlines()[0]
        raise RequestError(f"{folder} does not describe a valid model: {what}") from e


class Checkpoint(ABC):
    """A folder that holds a model, of one format. Its files are read on first use, each config once.

    `folder` is its path, or the name of a published checkpoint without files here. `name` is the bundled or hub name
    that it was opened by, None for a path. `config` is the content of config.json, None if it can't be read.
    `tokenizer` is a tokenizer folder given by the user, for formats whose tokenizer is `APART`.
    """

    SPEC: ClassVar[type[Spec]]
    FLOATS: ClassVar[torch.dtype] = torch.float32
    DEPTH: ClassVar[str | None] = None
    FINITE: ClassVar[bool] = False
    APART: ClassVar[bool] = False
    tokenizer: Path | None = None

    def __init__(self, folder: Path, name: str | None = None, config: Any = None, spec: Spec | None = None) -> None:
        self.folder, self.name, self.config, self._published = folder, name, config, spec

    @classmethod
    @abstractmethod
    def matches(cls, folder: Path, config: Any) -> bool:
        """Whether a folder with this content of config.json has this format."""

    @abstractmethod
    def read_spec(self) -> Spec:
        """The specification in the files. Raises RequestError with file and key."""

    @property
    @abstractmethod
    def defaults(self) -> GenerationDefaults:
        """The model's defaults. Raises RequestError with file and key."""

    @abstractmethod
    def weight_files(self) -> list[Path]:
        """The weight files, which need not exist. Raises RequestError if their names are unknown."""

    @abstractmethod
    def components(self, network: Network) -> list[Component]:
        """The mapping from keys of files to parameters of a network."""

    @abstractmethod
    def reader(self, network: Network) -> PromptReader:
        """The tokenizer of its network. Raises RequestError with the name of a damaged file."""

    @cached_property
    def spec(self) -> Spec:
        """The specification. Raises RequestError with file and key."""
        with _foreign(self.folder):
            return self._published or self.read_spec()

    @property
    def formats(self) -> dict[str, WeightFormat]:
        """Formats for loading, by name."""
        return {name: loading_format(name, self.FLOATS, self.DEPTH) for name in LOADABLE}

    @property
    def text(self) -> Mapping[str, Any] | None:
        """The vocabulary of a phrase tokenizer; None for other models."""
        return None

    def text_files(self) -> tuple[Path, ...]:
        """Files of a text tokenizer, which `fastcar convert` copies."""
        return ()

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders with the model's files."""
        return (self.folder,)

    @cached_property
    def identity(self) -> Identity:
        """The identity of the weights. Raises RequestError if a file can't be read.

        The digest is over the configurations and, of each weights file, its size and up to 256 evenly spread blocks of
        4 KiB: it distinguishes trainings, formats and conversions, and does not protect against forgery.
        """
        digest = hashlib.sha256()
        files = {
            (f.relative_to(at).as_posix(), f) for at in self.folders for f in at.rglob("*") if f.suffix in _IDENTIFYING
        }
        files |= {(f.name, f) for f in self.weight_files() if f.suffix not in _IDENTIFYING}
        for name, file in sorted(files):
            if name.startswith(".") or file.name == "encoder.safetensors":
                continue
            try:
                require_regular(file)
                size = file.stat().st_size
                digest.update(f"{name} {size}\n".encode())
                with file.open("rb") as f:
                    for i in range(min(256, -(-size // 4096))):
                        f.seek(i * max(4096, size // 256))
                        digest.update(f.read(4096))
            except OSError as e:
                raise RequestError(f"{file} can't be read: {e.strerror}") from None
        # In the hub's cache a snapshot's folder is named after its commit.
        return Identity(digest.hexdigest(), self.folder.name if self.folder.parent.name == "snapshots" else None)

    def load(
        self,
        dtype: str = "auto",
        device: str = "cpu",
        progress: Progress | None = None,
        size: tuple[int, int] | None = None,
    ) -> LoadedModel:
        """Load the model in one of its formats; auto is float32, or the only format there is.

        `progress` gets the bytes read so far of a large checkpoint; `size`: see `Spec.sized`. Raises
        RequestError for another dtype or size, and for missing or damaged files.
        """
        where = torch.device(device)
        with _foreign(self.folder):
            form = self._format(dtype, where)
            network = empty_network(self.spec.sized(size))
            reader = self.reader(network)
            weights = self._weights(network, form.on(network), where, progress)
            weights |= {name: weights[first] for name, first in network.shared().items()}
            network.load_state_dict(weights, assign=True)
            return LoadedModel(self.name or self.spec.name, ready(network, where), reader, self.defaults)

    def _format(self, dtype: str, device: torch.device) -> WeightFormat:
        formats = self.formats
        if dtype == "auto":
            return next(iter(formats.values()))
        if dtype not in formats:
            raise no_such_dtype(dtype, formats)
        return formats[dtype]

    def _weights(
        self, network: Network, form: NetworkFormat, device: torch.device, progress: Progress | None
    ) -> dict[str, Tensor]:
        """The tensors of an empty network, with linear layers of the format."""
        stored = Weights(self.components(network), network.state_dict(), progress, finite=self.FINITE)
        weights = stored.read_all(form.float_of, device, form.stored)
        form.use()
        return weights


class Released(Checkpoint):
    """A checkpoint in the format of the model's authors."""

    DEFAULTS: ClassVar[GenerationDefaults]  # of the released inference code
    PATTERNS: ClassVar[Sequence[str]]  # files of a repository on the hub that a model needs
    OFFLINE: ClassVar[bool] = True  # whether published models' shapes replace configs that can't be fetched

    @staticmethod
    def companions(name: str) -> Mapping[str, tuple[str, ...]]:
        """Other repositories that a published model needs, by its short name, and their files."""
        return {}

    @staticmethod
    @abstractmethod
    def published_spec(name: str) -> Spec | None:
        """The shapes of a published model by its short name; None for any other name."""

    @staticmethod
    def reader_of(network: Network, folder: Path) -> PromptReader:
        """The tokenizer of such a network; by default it reads clips. A text tokenizer's files are in `folder`."""
        assert isinstance(network, FramesNetwork)
        return ClipReader(network)

    @property
    def defaults(self) -> GenerationDefaults:
        """See `Checkpoint`."""
        return self.DEFAULTS

    def reader(self, network: Network) -> PromptReader:
        """See `Checkpoint`."""
        return self.reader_of(network, self.folder)

    def _format(self, dtype: str, device: torch.device) -> WeightFormat:
        if dtype == "float16" and device.type == "cpu":
            said = "this model runs in float16 only on a GPU"
            raise RequestError(said, key="dtype", value="float16", allowed="float32, bfloat16")
        return super()._format(dtype, device)
