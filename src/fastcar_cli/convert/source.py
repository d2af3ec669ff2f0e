"""The model that is converted, and what its parts become."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fastcar_cli.checkpoints import converted
from fastcar_cli.checkpoints.checkpoint_format import format_of
from fastcar_cli.checkpoints.registry import folder_of, identity, public_name, shapes_of
from fastcar_cli.errors import Key, RequestError
from fastcar_cli.models.checkpoint import GenerationDefaults, empty_network, files_of, read_config
from fastcar_cli.models.network import Spec
from fastcar_cli.models.vila_u.network import ModelSpec
from fastcar_cli.models.weight_format import WeightFormat
from fastcar_cli.weights.formats import GROUP, PACKED
from fastcar_cli.weights.tensors import Component, Weights

DTYPES = (*reversed(PACKED), "bfloat16")
"""What a model can be converted to."""

DEPTH_DTYPES = tuple(PACKED)

_NARROW = 1024
"""A narrower depth transformer stays int8 beside int4: it is small, and in int4 that of `table` costs more than all its
blocks. VILA-U's, 2560 wide, is two fifths of what a step reads.
"""


@dataclass(frozen=True)
class Source:
    """A model on this machine.

    `spec` is its own; `text` the vocabulary of a `PhraseTokenizer`, else None and the `tokenizer` files stand for it;
    `stored` is the dtype of its weights, `floats` what stays floats is kept in; `identity` says which model it is:
    name, digest of the weights, commit.
    """

    spec: Spec
    defaults: GenerationDefaults
    text: Mapping[str, Any] | None
    tokenizer: tuple[Path, ...]
    weights: Weights
    stored: torch.dtype
    floats: torch.dtype
    identity: Mapping[str, Any]

    def read(self, name: str, like: Tensor) -> Tensor:
        """A parameter as it is stored, with zeros behind it up to the shape of `like` (see `padded`).

        Raises RequestError for one that holds NaN or infinite values.
        """
        tensor = self.weights.read(name)
        if not bool(torch.isfinite(tensor).all()):
            raise RequestError(f"{self.weights.place(name)}: holds NaN or infinite values")
        if tensor.shape == like.shape:
            return tensor
        more = [n for have, want in zip(tensor.shape, like.shape, strict=True) for n in (want - have, 0)]
        return F.pad(tensor, more[::-1])


def open_source(model: str) -> Source:
    """A bundled model, a checkpoint of the hub, or a model folder. Raises RequestError for a converted one."""
    folder = folder_of(model)
    if converted.is_converted(folder):
        conversion = converted.describe(folder)
        raise RequestError(
            f"{model} is converted already, to {conversion.form.name}",
            hint=f"convert the model that it was made from, {conversion.source.get('name')}",
        )
    described = shapes_of(folder)
    spec = described.spec
    network = empty_network(spec)
    shapes = {name: tensor.shape for name, tensor in network.state_dict().items()}
    released = format_of(folder)
    if released is not None:
        components, text = released.components(folder, network), None
        files = released.tokenizer_files(folder)
    else:
        components = [Component(folder, {name: name for name in shapes}, lambda key: False, files_of(folder))]
        text, files = read_config(folder)["text"], ()
    weights = Weights(components, shapes)
    stored = weights.read("llm.norm.weight").dtype
    # Our own models run in float32 on a CPU, others in what they are published in, and no CPU runs float16.
    kept = torch.float32 if released is None else released.loading_format("int8").floats
    floats = torch.float32 if stored == torch.float32 else kept
    source = identity(model)
    name = model if public_name(model) else spec.name
    return Source(
        spec=spec if not public_name(model) else replace(spec, name=model.partition("@")[0]),
        defaults=described.defaults,
        text=text,
        tokenizer=files,
        weights=weights,
        stored=stored,
        floats=floats,
        identity={"name": name, "weights": source.weights, "commit": source.commit},
    )


def padded(spec: Spec, dtype: str) -> Spec:
    """The specification with an MLP width that int4 can divide into groups.

    Zeros instead of weights make no difference: what they add to gate and up is silu(0) * 0 = 0.
    """
    if dtype != "int4":
        return spec
    width = -(-spec.decoder.mlp_width // GROUP) * GROUP
    return replace(spec, decoder=replace(spec.decoder, mlp_width=width))


def target_format(source: Source, spec: Spec, dtype: str, depth: str | None = None) -> WeightFormat:
    """What the weights of a source become; `depth` is that of the depth transformer beside int4.

    Raises RequestError for widths that int4 can't divide into groups. A projector whose input is such a width stays in
    floats.
    """
    if dtype == "bfloat16":
        return WeightFormat(dtype, torch.bfloat16)
    if depth is None:
        depth = "int8" if isinstance(spec, ModelSpec) and spec.depth.width < _NARROW else dtype
    form = WeightFormat(dtype, source.floats, blocks=dtype, projector=dtype, depth=depth)
    network = empty_network(spec)
    stored = form.on(network)
    uneven = {
        name: parameter.shape[1]
        for name, parameter in network.named_parameters()
        if (row := stored.of(name)) is not None and parameter.shape[1] % (row.group or 1)
    }
    if any(name.startswith("projector.") for name in uneven):
        form = replace(form, projector=None)
    uneven = {name: width for name, width in uneven.items() if not name.startswith("projector.")}
    if uneven:
        name, width = next(iter(uneven.items()))
        raise RequestError(
            f"needs inputs of a multiple of {GROUP}, the model {spec.name!r} has {width} ({name})",
            key="dtype",
            value="int4",
            allowed="int8, bfloat16"
            if name.startswith("llm.")
            else ("int8, bfloat16, or ", Key("depth_dtype"), " int8"),
        )
    return form
