"""Checkpoints in the official VILA-U form with random weights, for tests and for measuring.

`fastcar lab dummy FOLDER --layers 2` writes one of the true width; it draws noise, but it loads, runs and costs what
the real one does, layer by layer.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from fastcar_cli.models.checkpoint import empty_network
from fastcar_cli.models.vila_u.checkpoint import VilaUCheckpoint, full_configs
from fastcar_cli.models.vila_u.text import ADDED, SYSTEM
from fastcar_cli.profile.profiler import random_tensor

FULL = full_configs()  # config files of the 7B model by part: llm, tower, projector


def write_configs(folder: Path, llm: dict[str, Any], tower: dict[str, Any], projector: dict[str, Any]) -> None:
    """The config files of a checkpoint."""
    documents = {
        "config.json": {"model_type": "vila_u_llama", "hidden_size": llm["hidden_size"]},
        "llm/config.json": llm,
        "vision_tower/config.json": tower,
        "mm_projector/config.json": projector,
        "llm/added_tokens.json": {t: llm["vocab_size"] - len(ADDED) + i for i, t in enumerate(ADDED)},
    }
    for name, document in documents.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def write_tokenizer(folder: Path, pieces: int = 320) -> None:
    """A small sentencepiece model in LLaMA's manner (byte fallback, dummy prefix), trained on the template's text."""
    from sentencepiece import SentencePieceTrainer

    out = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter([SYSTEM, "USER: a red ball rolls to the right ASSISTANT: "] * 20),
        model_writer=out,
        model_type="bpe",
        vocab_size=pieces,
        byte_fallback=True,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        hard_vocab_limit=False,
        minloglevel=2,
    )
    (folder / "llm").mkdir(parents=True, exist_ok=True)
    (folder / "llm" / "tokenizer.model").write_bytes(out.getvalue())


def write_weights(
    folder: Path, dtype: torch.dtype, seed: int = 0, suffix: str = ".safetensors", shards: int = 1
) -> None:
    """Random weights for the configs in the folder, scaled so that scores and logits are of order one."""
    checkpoint = VilaUCheckpoint(folder)
    network = empty_network(checkpoint.spec)
    shapes = network.state_dict()
    for component in checkpoint.components(network):
        keys = list(component.names)
        parts = [keys[i::shards] for i in range(shards)] if component.folder.name == "llm" else [keys]
        index: dict[str, str] = {}
        stem = "model" if suffix == ".safetensors" else "pytorch_model"
        for i, part in enumerate(parts):
            name = f"{stem}{suffix}" if len(parts) == 1 else f"{stem}-{i + 1:05d}-of-{len(parts):05d}{suffix}"
            tensors = {k: random_tensor(k, shapes[component.names[k]].shape, dtype, seed) for k in part}
            index |= dict.fromkeys(part, name)
            if suffix == ".bin":
                torch.save(tensors, component.folder / name)
            else:
                save_file(tensors, str(component.folder / name), metadata={"format": "pt"})
        if len(parts) > 1:
            document = json.dumps({"metadata": {}, "weight_map": index})
            (component.folder / f"{stem}{suffix}.index.json").write_text(document, encoding="utf-8")


def write(folder: Path, *, layers: int, dtype: torch.dtype, shards: int = 1) -> None:
    """Write a checkpoint of full width with so many layers."""
    write_configs(folder, **{**FULL, "llm": {**FULL["llm"], "num_hidden_layers": layers}})
    write_tokenizer(folder)
    write_weights(folder, dtype, shards=shards)
