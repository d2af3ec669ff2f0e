"""iVideoGPT checkpoints in the official format: config files to a specification, tensor names to parameters.

`tokenizer/` and `transformer/` are read unchanged, only from safetensors. With actions the LLaMA's names begin with
`llm.`, and there is an `action_linear` beside them.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field

from fastcar_cli.errors import FastcarError, RequestError
from fastcar_cli.models.checkpoint import GenerationDefaults, Released
from fastcar_cli.models.decoder import DecoderSpec
from fastcar_cli.models.ivideogpt.blocks import ConditionalSpec, TokenizerSpec
from fastcar_cli.models.ivideogpt.network import IVideoGPT, IVideoGPTSpec
from fastcar_cli.models.llama_config import read_decoder
from fastcar_cli.models.network import Network
from fastcar_cli.system.plain_data import Flag, Foreign, Layers, Size, read_checked, wrong
from fastcar_cli.weights.tensors import Component, StoredShapes, weight_files

ConditionalT = TypeVar("ConditionalT", bound=ConditionalSpec)

FPS, _FRAMES = 4, 16

_IVIDEOGPT = {
    # Pixels, context frames, frames, width of actions.
    "ivideogpt-oxe-64-act-free": (64, 2, 16, 0),
    "ivideogpt-oxe-64-act-free-medium": (64, 2, 16, 0),
    "ivideogpt-oxe-64-goal-cond": (64, 2, 16, 0),
    "ivideogpt-oxe-256-act-free": (256, 2, 16, 0),
    "ivideogpt-bair-64-act-free": (64, 1, 16, 0),
    "ivideogpt-bair-64-act-cond": (64, 1, 16, 4),
    "ivideogpt-robonet-64-act-cond": (64, 2, 12, 5),
    "ivideogpt-vp2-robosuite-64-act-cond": (64, 2, 12, 4),
    "ivideogpt-vp2-robodesk-64-act-cond": (64, 2, 12, 5),
}

WEIGHTS = {"tokenizer": "diffusion_pytorch_model", "transformer": "model"}
"""Folders of a checkpoint, and the names of their weight files without suffix."""

_OLD_NAMES = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}


class LlamaCheckpoint(Released):
    """A LLaMA and a tokenizer of diffusers, as thuml releases them; `parts` are the folders of both."""

    DEFAULTS = GenerationDefaults(cfg=1.0, temperature=1.0, top_k=100, top_p=1.0, tas="attention", gate="row")
    DEPTH = "int8"

    @property
    @abstractmethod
    def parts(self) -> Mapping[str, Path]:
        """The folder of each of `WEIGHTS`."""

    def _files(self, part: str) -> list[Path]:
        folder = self.parts[part]
        other = next((f", not {f.name}" for f in sorted(folder.glob("*")) if f.suffix in (".bin", ".pt", ".ckpt")), "")
        hint = f"give a .safetensors file{other}: files of other types can run code when fastcar opens them"
        return weight_files(folder, (WEIGHTS[part],), (".safetensors",), hint=hint)

    def weight_files(self) -> list[Path]:
        """See `Checkpoint`."""
        return [file for part in WEIGHTS for file in self._files(part)]

    def components(self, network: Network) -> list[Component]:
        """See `Checkpoint`."""
        names, files = names_of(network), {part: tuple(self._files(part)) for part in WEIGHTS}
        for file in files["tokenizer"]:
            if file.is_file():
                names["tokenizer"] = _with_old_names(names["tokenizer"], list(StoredShapes(file)))
        ignored = {"tokenizer": lambda key: False, "transformer": lambda key: key.endswith("rotary_emb.inv_freq")}
        return [Component(self.parts[part], names[part], ignored[part], files[part]) for part in WEIGHTS]


class IVideoGPTCheckpoint(LlamaCheckpoint):
    """A folder of this format."""

    SPEC = IVideoGPTSpec
    PATTERNS = ("tokenizer/*.json", "tokenizer/*.safetensors", "transformer/*.json", "transformer/*.safetensors")

    @property
    def parts(self) -> Mapping[str, Path]:
        """See `LlamaCheckpoint`."""
        return {part: self.folder / part for part in WEIGHTS}

    @classmethod
    def matches(cls, folder: Path, config: Any) -> bool:
        """See `Checkpoint`: one of the two folders is enough."""
        return any((folder / part / "config.json").is_file() for part in WEIGHTS)

    @staticmethod
    def published_spec(name: str) -> IVideoGPTSpec | None:
        """See `Released`."""
        if name not in _IVIDEOGPT:
            return None
        pixels, context, frames, actions = _IVIDEOGPT[name]
        width, layers, heads, mlp = (1024, 24, 16, 4096) if name.endswith("-medium") else (768, 12, 12, 3072)
        tokenizer = TokenizerSpec(
            channels=(128, 256, 512) if pixels == 64 else (128, 256, 256, 512, 768),
            blocks=2,
            latent=64,
            code_width=64,
            groups=32,
            context=context,
            codes=8192,
            dynamics=8192,
            attended=16 if pixels == 64 else 32,
            mid_attention=False,
        )
        decoder = DecoderSpec(
            width=width, layers=layers, heads=heads, kv_heads=heads, mlp_width=mlp, vocab=tokenizer.vocabulary,
            max_positions=1024,
        )  # fmt: skip
        return IVideoGPTSpec(name, frames, FPS, decoder, tokenizer, actions)

    def read_spec(self) -> IVideoGPTSpec:
        """See `Checkpoint`. The width of actions comes from a tensor; without weights it is 0.
        Only configs of our own models have `segment_length`, the number of frames of their training clips.
        """
        files = {part: self.folder / part / "config.json" for part in WEIGHTS}
        config = read_checked(_Tokenizer, files["tokenizer"], of="iVideoGPT")
        width, file = config.code_width or config.latent, files["tokenizer"]
        tokenizer = config.specified(
            TokenizerSpec, file, code_width=width, codes=config.codes, dynamics=config.dynamics
        )
        decoder = read_decoder(files["transformer"])
        if decoder.vocab != tokenizer.vocabulary:
            needed = f"{tokenizer.vocabulary} = num_vq_embeddings + num_dyn_embeddings + 2, with the keys of {file}"
            raise wrong(files["transformer"], "vocab_size", decoder.vocab, needed)
        return IVideoGPTSpec(
            name=self.folder.resolve().name or "ivideogpt",
            frames=config.segment_length or _published_frames(self.folder) or _FRAMES,
            fps=FPS,
            decoder=decoder,
            tokenizer=tokenizer,
            actions=self._actions(),
        )

    def _actions(self) -> int:
        """Width of the actions. Raises RequestError for a model with actions but without that tensor."""
        try:
            files = [file for file in self._files("transformer") if file.is_file()]
        except FastcarError:
            return 0
        key = "action_linear.weight"
        stored = [StoredShapes(file) for file in files]
        for shapes in stored:
            if key in shapes:
                return shapes.of(key, 2)[1]
        if any(name.startswith("llm.") for shapes in stored for name in shapes):
            raise RequestError(f"weights file {files[0]} lacks key {key!r}")
        return 0


def _published_frames(folder: Path) -> int | None:
    """Frames of a released model's training clips, by its folder's name in the hub's cache, since no file states them;
    else None.
    """
    for part in reversed(folder.resolve().parts):
        if (spec := IVideoGPTCheckpoint.published_spec(part.removeprefix("models--thuml--"))) is not None:
            return spec.frames
    return None


class ConvConfig(Foreign):
    """Arguments of `ConvSpec`, and keys with a single supported value."""

    channels: tuple[Size, ...] = Field(min_length=1, validation_alias="block_out_channels")
    blocks: Layers = Field(2, validation_alias="layers_per_block")
    latent: Size = Field(validation_alias="latent_channels")
    groups: Size = Field(32, validation_alias="norm_num_groups")
    in_channels: Literal[3] = 3
    out_channels: Literal[3] = 3
    norm_type: Literal["group"] = "group"
    act_fn: Literal["silu"] = "silu"
    down_block_types: tuple[Literal["DownEncoderBlock2D"], ...] | None = None
    up_block_types: tuple[Literal["UpDecoderBlock2D"], ...] | None = None

    def fitting(self, file: Path) -> dict[str, Any]:
        """Arguments of a specification. Raises RequestError for sizes that don't fit."""
        channels = list(self.channels)
        for key in ("down_block_types", "up_block_types"):
            kinds = getattr(self, key)
            if kinds is not None and len(kinds) != len(channels):
                raise wrong(file, key, list(kinds), f"{len(channels)} entries, as many as in block_out_channels")
        if any(width % self.groups for width in channels):
            raise wrong(file, "norm_num_groups", self.groups, f"a divisor of each of block_out_channels {channels}")
        return {name: getattr(self, name) for name in ("channels", "blocks", "latent", "groups")}


class ConditionalConfig(ConvConfig):
    """Arguments of `ConditionalSpec`."""

    context: Size = Field(1, validation_alias="context_length")
    patch: Size = Field(4, validation_alias="patch_size")
    attended: Size = Field(32, validation_alias="max_att_resolution")
    mid_attention: Flag = Field(True, validation_alias="mid_block_add_attention")
    resolution: Size = 256

    def specified(self, kind: type[ConditionalT], file: Path, **others: Any) -> ConditionalT:
        """A specification with `others` as further arguments. Raises RequestError for sizes that don't fit."""
        sizes = {name: getattr(self, name) for name in ("context", "patch", "attended", "mid_attention")}
        spec = kind(**self.fitting(file), **sizes, **others)
        if self.resolution != spec.size[0]:
            needed = f"{spec.size[0]}, because block_out_channels has {len(self.channels)} entries"
            raise wrong(file, "resolution", self.resolution, needed)
        if (sides := math.gcd(*spec.latents)) % self.patch:
            raise wrong(file, "patch_size", self.patch, f"a divisor of {sides}")
        if any(width % 32 for width in spec.attended_widths):
            needed = f"multiples of 32 in the levels with cross-attention, which have {spec.attended_widths}"
            raise wrong(file, "block_out_channels", list(self.channels), needed)
        return spec


class _Tokenizer(ConditionalConfig):
    """Arguments of `TokenizerSpec`, and frames of our own models."""

    code_width: Size | None = Field(None, validation_alias="vq_embed_dim")
    codes: Size = Field(256, validation_alias="num_vq_embeddings")
    dynamics: Size = Field(256, validation_alias="num_dyn_embeddings")
    segment_length: Size | None = None


def names_of(network: Network) -> dict[str, dict[str, str]]:
    """For each part of a checkpoint, the network's parameters by their names there."""
    prefix = "llm." if isinstance(network, IVideoGPT) and network.spec.actions else ""
    by_folder: dict[str, dict[str, str]] = {part: {} for part in WEIGHTS}
    for name in network.state_dict():
        part, _, rest = name.partition(".")
        if part == "tokenizer":
            by_folder["tokenizer"][rest] = name
        elif part == "llm":
            by_folder["transformer"][f"{prefix}model.{rest}"] = name
        else:
            by_folder["transformer"][name if part == "action_linear" else prefix + name] = name
    return by_folder


def _with_old_names(names: dict[str, str], keys: Sequence[str]) -> dict[str, str]:
    """The names, replaced by those of an older version of diffusers if the file has these."""
    renamed = dict(names)
    for key in keys:
        path, _, last = key.rpartition(".")
        path, _, part = path.rpartition(".")
        now = f"{path}.{_OLD_NAMES.get(part)}.{last}"
        if now in renamed and now not in keys:
            renamed[key] = renamed.pop(now)
    return renamed
