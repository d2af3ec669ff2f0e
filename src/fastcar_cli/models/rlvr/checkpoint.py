"""RLVR-World checkpoints in the official format: a transformer's folder, and a tokenizer's in another repository.

No file says which tokenizer belongs to a model; the sizes of their vocabularies show it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fastcar_cli.errors import Key, RequestError
from fastcar_cli.models.decoder import DecoderSpec
from fastcar_cli.models.ivideogpt.checkpoint import WEIGHTS, LlamaCheckpoint
from fastcar_cli.models.llama_config import read_decoder
from fastcar_cli.models.rlvr.network import RLVRSpec
from fastcar_cli.models.rlvr.tokenizer import CompressiveSpec, FrameTokenizerSpec
from fastcar_cli.models.rlvr.tokenizer_files import read_tokenizer
from fastcar_cli.system.files import file_text
from fastcar_cli.system.plain_data import parse_json, wrong

FPS, _SINGLE, _MULTI = 3, 5, 9

TOKENIZERS = {"single": "rt1-frame-tokenizer", "multi": "rt1-compressive-tokenizer"}
"""Names of the released tokenizers by kind of model."""

_RLVR = {f"rt1-world-model-{kind}-step-{way}": kind for kind in TOKENIZERS for way in ("base", "rlvr")}
_LEVELS = (7, 5, 5, 5, 5)
_SHAPE: dict[str, Any] = {"blocks": 2, "latent": 64, "groups": 32, "levels": _LEVELS}
_TOKENIZERS: dict[str, FrameTokenizerSpec | CompressiveSpec] = {
    "single": FrameTokenizerSpec(channels=(128, 256, 256, 512, 768), **_SHAPE),
    "multi": CompressiveSpec(channels=(128, 256, 256, 512), mid_attention=False, dynamics_levels=_LEVELS, **_SHAPE),
}


class RLVRCheckpoint(LlamaCheckpoint):
    """A model's folder of this format, or the folder of a tokenizer."""

    SPEC = RLVRSpec
    PATTERNS = ("config.json", "model*.safetensors", "model.safetensors.index.json")
    APART = True

    @classmethod
    def matches(cls, folder: Path, config: Any) -> bool:
        """See `Checkpoint`."""
        if config is None:
            try:
                config = parse_json(file_text(folder / "config.json"))
            except (OSError, ValueError):
                return False
        return isinstance(config, dict) and ("_class_name" in config or config.get("model_type") == "llama")

    @staticmethod
    def companions(name: str) -> Mapping[str, tuple[str, ...]]:
        """See `Released`."""
        files = "config.json", f"{WEIGHTS['tokenizer']}.safetensors"
        return {f"thuml/{TOKENIZERS[_RLVR[name]]}": files} if name in _RLVR else {}

    @staticmethod
    def published_spec(name: str) -> RLVRSpec | None:
        """See `Released`."""
        if name not in _RLVR:
            return None
        tokenizer = _TOKENIZERS[_RLVR[name]]
        decoder = DecoderSpec(width=768, layers=12, heads=12, kv_heads=12, mlp_width=3072, vocab=1, max_positions=8192)
        return _spec(name, replace(decoder, vocab=_spec("", decoder, tokenizer).vocabulary), tokenizer)

    @cached_property
    def parts(self) -> Mapping[str, Path]:
        """See `LlamaCheckpoint`. Raises RequestError for a tokenizer's folder, and for a tokenizer that doesn't fit."""
        file = self.folder / "config.json"
        if isinstance(self.config, dict) and "_class_name" in self.config:
            read_tokenizer(file)
            raise RequestError(
                f"{self.folder} is the folder of a tokenizer, not of a model",
                hint=("give the folder of a model: ", Key("model"), " FOLDER"),
            )
        decoder, misfit = read_decoder(file), None
        for folder in self._candidates():
            if not (folder / "config.json").is_file():
                continue
            spec = _spec("", decoder, read_tokenizer(folder / "config.json"))
            if spec.vocabulary == decoder.vocab:
                return {"tokenizer": folder, "transformer": self.folder}
            ids = f"{spec.tokenizer.codes} codes" + f" of context + {spec.drawn_codes} of other frames" * spec.multi
            needed = f"{spec.vocabulary} = {ids} + {spec.bins} action bins + bos and eos (tokenizer: {folder})"
            misfit = wrong(file, "vocab_size", decoder.vocab, needed)
        if misfit is not None:
            raise misfit
        names = " or ".join(f"thuml/{name} ({kind}-step)" for kind, name in TOKENIZERS.items())
        raise RequestError(
            f"{self.folder} has no tokenizer beside it",
            hint=(f"copy {names} beside this folder, or name the tokenizer's folder: ", Key("tokenizer"), " FOLDER"),
        )

    @property
    def folders(self) -> tuple[Path, ...]:
        """See `Checkpoint`."""
        return tuple(self.parts.values())

    def _candidates(self) -> list[Path]:
        from huggingface_hub import try_to_load_from_cache

        if self.tokenizer is not None:
            if not (self.tokenizer / "config.json").is_file():
                raise RequestError("the tokenizer's folder has no config.json", key="tokenizer", value=self.tokenizer)
            return [self.tokenizer]
        beside = [self.folder.absolute().parent / name for name in TOKENIZERS.values()]
        cached = [try_to_load_from_cache(f"thuml/{name}", "config.json") for name in TOKENIZERS.values()]
        return beside + [Path(file).parent for file in cached if isinstance(file, str)]

    def read_spec(self) -> RLVRSpec:
        """See `Checkpoint`."""
        tokenizer = read_tokenizer(self.parts["tokenizer"] / "config.json")
        name = self.name or self.folder.resolve().name or "rlvr"
        return _spec(name, read_decoder(self.folder / "config.json"), tokenizer)


def _spec(name: str, decoder: DecoderSpec, tokenizer: FrameTokenizerSpec | CompressiveSpec) -> RLVRSpec:
    frames = _MULTI if isinstance(tokenizer, CompressiveSpec) else _SINGLE
    return RLVRSpec(name, frames, FPS, decoder, tokenizer)
