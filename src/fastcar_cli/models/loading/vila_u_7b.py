"""The shapes of the released VILA-U model, and the config files of a checkpoint in its format."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from fastcar_cli.models.llama_text import ADDED
from fastcar_cli.models.loading.vila_u import MODEL_TYPE, read_spec
from fastcar_cli.models.video_model import ModelSpec

FULL: dict[str, Any] = yaml.safe_load((resources.files(__package__) / "vila_u_7b.yaml").read_text(encoding="utf-8"))
"""Config files of the 7B model by part: llm, tower, projector."""


@lru_cache(maxsize=1)
def full_spec() -> ModelSpec:
    """The specification of the 7B model in these widths."""
    with tempfile.TemporaryDirectory() as folder:
        write_configs(Path(folder), **FULL)
        return replace(read_spec(Path(folder)), name="vila-u-7b")


def write_configs(folder: Path, llm: dict[str, Any], tower: dict[str, Any], projector: dict[str, Any]) -> None:
    """The config files of a checkpoint."""
    documents = {
        "config.json": {"model_type": MODEL_TYPE, "hidden_size": llm["hidden_size"]},
        "llm/config.json": llm,
        "vision_tower/config.json": tower,
        "mm_projector/config.json": projector,
        "llm/added_tokens.json": {t: llm["vocab_size"] - len(ADDED) + i for i, t in enumerate(ADDED)},
    }
    for name, document in documents.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
