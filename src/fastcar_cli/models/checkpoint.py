"""Reading model folders in the format of fastcar: config.json and model.safetensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic.dataclasses import dataclass as checked_dataclass
from torch import Tensor

from fastcar_cli.errors import RequestError
from fastcar_cli.inputs.prompt import PromptReader
from fastcar_cli.inputs.worlds.phrases import PhraseTokenizer
from fastcar_cli.inputs.worlds.placement_text import phrase_tokenizer
from fastcar_cli.models.network import Network, Spec
from fastcar_cli.models.sampling import SamplingSettings
from fastcar_cli.models.vila_u.network import ModelSpec
from fastcar_cli.models.weight_format import NetworkFormat, WeightFormat
from fastcar_cli.system.plain_data import WHOLE, checked, read_json, wrong
from fastcar_cli.weights.tensors import Component, Progress, Store, fill

NetworkT = TypeVar("NetworkT", bound=Network)

FORMAT = "fastcar-1"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
FORMATS = (*DTYPES, "int8")
"""Weight formats a model can be loaded in; int8 keeps the decoder blocks in int8 and the rest in a float dtype."""


def loading_format(name: str, floats: torch.dtype = torch.float32, depth: str | None = None) -> WeightFormat:
    """What a model that stores floats is held as when it is loaded in one of FORMATS.

    `floats` is what int8 leaves as floats, `depth` what becomes of the maps that draw codes beside it.
    """
    if name == "int8":
        return WeightFormat(name, floats, blocks="int8", depth=depth)
    return WeightFormat(name, DTYPES[name])


def no_such_dtype(dtype: str, allowed: Collection[str]) -> RequestError:
    """The error of a weight format that a model can't be run in."""
    if len(allowed) == 1:
        return RequestError(
            f"the model is converted, its weights are {', '.join(allowed)}",
            key="dtype",
            value=dtype,
            hint="leave it out; fastcar convert makes other formats from the model it was converted from",
        )
    if dtype == "int4":
        return RequestError(
            "the model has no weights in int4",
            key="dtype",
            value="int4",
            hint="fastcar convert MODEL -o FOLDER --dtype int4",
        )
    return RequestError("unknown", key="dtype", value=dtype, allowed=", ".join(allowed))


@checked_dataclass(frozen=True, config=WHOLE)
class GenerationDefaults(SamplingSettings):
    """What `generate` uses where the user says nothing: how codes are drawn, and the forms of the replay rule."""

    tas: str = "attention"
    gate: str = "row"

    @property
    def sampling(self) -> SamplingSettings:
        """How codes are drawn."""
        return SamplingSettings(**{field.name: getattr(self, field.name) for field in fields(SamplingSettings)})


@dataclass(frozen=True)
class LoadedModel:
    """A network ready to run, its text tokenizer, and how it wants to be used."""

    name: str
    network: Network
    tokenizer: PromptReader
    defaults: GenerationDefaults


def base_of(folder: Path) -> Path | None:
    """The folder beside one of this format that holds what it lacks. Raises RequestError for no name of a folder."""
    file = folder / "config.json"
    data = read_json(file) if file.is_file() else None
    base = data.get("base") if isinstance(data, dict) and data.get("format") == FORMAT else None
    if base is None:
        return None
    if not isinstance(base, str) or Path(base).name != base:
        raise wrong(file, "base", base, "the name of a folder beside this one")
    return folder / ".." / base


def files_of(folder: Path, name: str = "model.safetensors") -> tuple[Path, ...]:
    """A file of a folder of this format, and behind it that of its base. Raises RequestError as `base_of` does."""
    base = base_of(folder)
    return (folder / name,) if base is None else (folder / name, base / name)


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a folder of this format, with what its base's adds. Raises RequestError for any other."""
    file = folder / "config.json"
    if not file.is_file():
        raise RequestError(f"{folder} is no model folder: it has no config.json")
    data = read_json(file)
    if not isinstance(data, dict):
        raise RequestError(f"{file}: the top level is a {type(data).__name__}, needed: a mapping of keys")
    if data.get("format") == FORMAT:
        if (base := base_of(folder)) is None:
            return data
        shared = read_json(base / "config.json", hint=f"{folder} shares what is in that folder")
        if not isinstance(shared, dict) or "base" in shared:
            raise wrong(file, "base", base.name, "a model folder that has no base itself")
        return shared | data
    if (kind := data.get("model_type")) is not None:
        raise RequestError(
            f"{file}: key 'model_type' is {kind!r}, allowed: 'vila_u_llama' with the folders llm, vision_tower, "
            "mm_projector beside it"
        )
    raise RequestError(f"{file}: key 'format' is {data.get('format')!r}, allowed: {FORMAT!r}")


def empty_network(spec: Spec) -> Network:
    """The modules of a specification without memory for their weights (on the meta device)."""
    with torch.device("meta"):
        return spec.network()


def ready(network: NetworkT, device: torch.device) -> NetworkT:
    """The network, filled with weights on a device, as generation uses it."""
    network.llm.rotary.to(device)
    return network.eval().requires_grad_(False)


def with_shared(weights: dict[str, Tensor], network: Network) -> dict[str, Tensor]:
    """The weights, those that a network shares under each of their names."""
    return weights | {name: weights[first] for name, first in network.shared().items()}


def filled(
    network: NetworkT,
    components: Sequence[Component],
    form: NetworkFormat,
    device: torch.device,
    progress: Progress | None = None,
    store: Store | None = None,
) -> NetworkT:
    """An empty network with the weights of these components, kept as `store` says (by default in the format).

    Raises RequestError that names file and key for a missing, damaged or unexpected one.
    """
    weights = fill(components, network.state_dict(), form.float_of, device, progress, store or form.stored)
    form.use()
    network.load_state_dict(with_shared(weights, network), assign=True)
    return ready(network, device)


def read_folder(folder: Path) -> tuple[ModelSpec, GenerationDefaults, PhraseTokenizer]:
    """What config.json says. Raises RequestError naming file and key."""
    config, file = read_config(folder), folder / "config.json"
    spec = checked(ModelSpec, config.get("spec"), file, "spec")
    defaults = checked(GenerationDefaults, config.get("generation"), file, "generation")
    try:
        return spec, defaults, phrase_tokenizer(config["text"], file)
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise RequestError(f"{file}: {type(e).__name__} at {e}") from None


def load_folder(folder: Path, dtype: str, device: torch.device) -> LoadedModel:
    """Load a folder of this format in a weight format. Raises RequestError naming file and key."""
    spec, defaults, tokenizer = read_folder(folder)
    try:
        network = empty_network(spec)
    except (ValueError, TypeError, IndexError, ArithmeticError, RuntimeError) as e:
        raise RequestError(f"{folder / 'config.json'}: no network has these sizes: {e}") from None

    form = loading_format(dtype).on(network)

    def finite(name: str, tensor: Tensor) -> Mapping[str, Tensor]:
        if not bool(torch.isfinite(tensor).all()):
            raise RequestError(f"weights of {folder}, key {name!r}: holds NaN or infinite values")
        return form.stored(name, tensor)

    names = {name: name for name in network.state_dict()}
    part = Component(folder, names, lambda key: False, files_of(folder))
    return LoadedModel(spec.name, filled(network, [part], form, device, store=finite), tokenizer, defaults)
