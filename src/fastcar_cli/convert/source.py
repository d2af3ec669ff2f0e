"""The source model of a conversion, and the target format of its parts."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fastcar_cli.checkpoints.converted import ConvertedCheckpoint
from fastcar_cli.checkpoints.open import open_model
from fastcar_cli.errors import Key, RequestError
from fastcar_cli.models.checkpoint import empty_network
from fastcar_cli.models.network import Spec
from fastcar_cli.models.vila_u.network import ModelSpec
from fastcar_cli.models.weight_format import WeightFormat
from fastcar_cli.weights.formats import GROUP
from fastcar_cli.weights.tensors import Weights

_NARROW = 1024
"""Narrower depth transformers of int4 models stay in int8: they are small and lose most (VILA-U's width is 2560)."""


class Source:
    """A model by name or folder, read parameter by parameter. Raises RequestError for a converted one.

    `spec` is its own, with the public name that it was opened by; `stored` is the dtype of its weights, `floats` that
    of what stays in floats; `identity` says which model it is: name, digest of the weights, commit.
    """

    def __init__(self, model: str) -> None:
        checkpoint = open_model(model)
        if isinstance(checkpoint, ConvertedCheckpoint):
            done = checkpoint.description
            hint = f"convert the model that it was made from, {done.source.get('name')}"
            raise RequestError(f"{model} is converted already, to {done.form.name}", hint=hint)
        spec, name = checkpoint.spec, checkpoint.name
        self.checkpoint = checkpoint
        self.spec = spec if name is None else replace(spec, name=name.partition("@")[0])
        self.network = empty_network(spec)
        shapes = {name: tensor.shape for name, tensor in self.network.state_dict().items()}
        self._weights = Weights(checkpoint.components(self.network), shapes, finite=True)
        self.stored = self._weights.read("llm.norm.weight").dtype
        # Bundled models run in float32 on a CPU, others in their published dtype; no CPU runs float16.
        self.floats = torch.float32 if self.stored == torch.float32 else checkpoint.FLOATS
        weights = checkpoint.identity
        self.identity = {"name": name or spec.name, "weights": weights.weights, "commit": weights.commit}

    def read(self, name: str, like: Tensor) -> Tensor:
        """A parameter padded with zeros to the shape of `like`. Raises RequestError for NaN or infinite values."""
        tensor = self._weights.read(name)
        if tensor.shape == like.shape:
            return tensor
        more = [n for have, want in zip(tensor.shape, like.shape, strict=True) for n in (want - have, 0)]
        return F.pad(tensor, more[::-1])


def padded(spec: Spec, dtype: str) -> Spec:
    """The specification with an MLP width that int4 can divide into groups; its zeros add silu(0) * 0 = 0."""
    if dtype != "int4":
        return spec
    width = -(-spec.decoder.mlp_width // GROUP) * GROUP
    return replace(spec, decoder=replace(spec.decoder, mlp_width=width))


def target_format(source: Source, spec: Spec, dtype: str, depth: str | None = None) -> WeightFormat:
    """What the weights of a source become; `depth` is the format of the depth transformer beside int4.

    A projector of a width that int4 can't divide into groups stays in floats; for others it raises RequestError.
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
        said = f"needs input widths divisible by {GROUP}, the model {spec.name!r} has {width} ({name})"
        other = () if name.startswith("llm.") else (", or ", Key("depth_dtype"), " int8")
        raise RequestError(said, key="dtype", value="int4", allowed=("int8, bfloat16", *other))
    return form
