"""Folders in fastcar's own format (config.json, model.safetensors): bundled models, and results of training."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from fastcar_cli.errors import RequestError
from fastcar_cli.inputs.worlds.phrases import PhraseTokenizer
from fastcar_cli.inputs.worlds.placement_text import phrase_tokenizer
from fastcar_cli.models.checkpoint import Checkpoint, GenerationDefaults
from fastcar_cli.models.network import Network
from fastcar_cli.models.vila_u.network import ModelSpec
from fastcar_cli.system.plain_data import checked, read_json, wrong
from fastcar_cli.weights.tensors import Component

FORMAT = "fastcar-1"


class BundledCheckpoint(Checkpoint):
    """A folder of this format; a second folder, its base, may hold shared files and keys."""

    SPEC = ModelSpec
    FINITE = True

    @classmethod
    def matches(cls, folder: Path, config: Any) -> bool:
        """See `Checkpoint`; an unknown folder counts as a damaged one of this format."""
        return True

    @property
    def _file(self) -> Path:
        return self.folder / "config.json"

    @cached_property
    def _own(self) -> Any:
        """The content of config.json; None without it. Raises RequestError if it can't be read."""
        return read_json(self._file) if self.config is None and self._file.is_file() else self.config

    @cached_property
    def base(self) -> Path | None:
        """The base folder, if any. Raises RequestError if the config does not name a folder."""
        base = self._own.get("base") if isinstance(self._own, dict) and self._own.get("format") == FORMAT else None
        if base is None:
            return None
        if not isinstance(base, str) or Path(base).name != base:
            raise wrong(self._file, "base", base, "the name of a folder beside the model folder")
        return self.folder / ".." / base

    @cached_property
    def document(self) -> dict[str, Any]:
        """The config.json merged over its base's. Raises RequestError for another format."""
        file, data = self._file, self._own
        if not file.is_file():
            raise RequestError(f"{self.folder} is not a model folder: it has no config.json")
        if not isinstance(data, dict):
            raise RequestError(f"{file}: the top level is a {type(data).__name__}, expected a JSON object")
        if data.get("format") == FORMAT:
            if self.base is None:
                return data
            needs = f"this model also needs the folder {self.base.name!r}: copy it to {self.folder.absolute().parent}"
            shared = read_json(self.base / "config.json", hint=needs)
            if not isinstance(shared, dict) or "base" in shared:
                raise wrong(file, "base", self.base.name, "a model folder whose config.json has no key 'base'")
            return shared | data
        if (kind := data.get("model_type")) is not None:
            allowed = "'vila_u_llama' in a folder that also holds llm, vision_tower and mm_projector"
            raise RequestError(f"{file}: key 'model_type' is {kind!r}, allowed: {allowed}")
        given = repr(data["format"]) if "format" in data else "missing"
        raise RequestError(f"{file}: key 'format' is {given}, allowed: {FORMAT!r}")

    def files(self, name: str = "model.safetensors") -> tuple[Path, ...]:
        """A file of this folder, then the base's. Raises RequestError like `base`."""
        return tuple(folder / name for folder in self.folders)

    @property
    def folders(self) -> tuple[Path, ...]:
        """See `Checkpoint`."""
        return (self.folder,) if self.base is None else (self.folder, self.base)

    def read_spec(self) -> ModelSpec:
        """See `Checkpoint`."""
        return checked(ModelSpec, self.document.get("spec"), self._file, "spec")

    @cached_property
    def defaults(self) -> GenerationDefaults:
        """See `Checkpoint`."""
        return checked(GenerationDefaults, self.document.get("generation"), self._file, "generation")

    @property
    def text(self) -> dict[str, Any]:
        """See `Checkpoint`."""
        return self.document["text"]

    def weight_files(self) -> list[Path]:
        """See `Checkpoint`."""
        return list(self.files())

    def components(self, network: Network) -> list[Component]:
        """See `Checkpoint`: keys are the names of the parameters."""
        names = {name: name for name in network.state_dict()}
        return [Component(self.folder, names, lambda key: False, self.files())]

    def reader(self, network: Network) -> PhraseTokenizer:
        """See `Checkpoint`."""
        try:
            return phrase_tokenizer(self.text, self._file)
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise RequestError(f"{self._file} is invalid: {type(e).__name__}: {e}") from None
