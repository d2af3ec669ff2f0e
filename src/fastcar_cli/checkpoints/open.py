"""Opens every model as a `Checkpoint`: by a bundled name, a hub name, or a folder of any format."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable
from importlib import resources
from pathlib import Path

from fastcar_cli.checkpoints.architectures import ARCHITECTURES, published
from fastcar_cli.checkpoints.converted import ConvertedCheckpoint, working_folder
from fastcar_cli.checkpoints.hub import fetch, repository_of, revision_of
from fastcar_cli.checkpoints.names import BUNDLED, FORMER, REPOSITORIES
from fastcar_cli.errors import Key, RequestError
from fastcar_cli.models.bundled.checkpoint import BundledCheckpoint
from fastcar_cli.models.checkpoint import Checkpoint, LoadedModel
from fastcar_cli.models.network import Spec
from fastcar_cli.system.files import file_text
from fastcar_cli.system.plain_data import parse_json


def folder_of(model: str) -> Path:
    """The folder of a bundled name, a hub name (downloaded if missing) or a path. Raises RequestError or RunError."""
    if model in BUNDLED:
        return Path(str(resources.files("fastcar_cli"))) / "assets" / model
    repository = repository_of(model)
    if repository is not None:
        return fetch(repository, revision_of(model))
    # A string that can't be a file name is not a folder.
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        if (path := Path(model).expanduser()).is_dir():
            _check_files(path)
            return path
        if (begun := working_folder(path)).is_dir():
            raise RequestError(f"the conversion in {begun} is unfinished", hint="rerun the command that began it")
    if model in FORMER:
        raise RequestError(f"the model {FORMER[model]!r} has replaced {model!r}", hint=f"use --model {FORMER[model]}")
    near = difflib.get_close_matches(model, [*BUNDLED, *REPOSITORIES], n=1)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    hint = f"use {', '.join(BUNDLED)}, a model on Hugging Face ({', '.join(REPOSITORIES)}), or a model folder"
    raise RequestError(f"unknown model {model[:80]!r}: neither a known name nor a folder{meant}", hint=hint)


def _check_files(folder: Path) -> None:
    """Refuse a folder with pipes or devices, whose reading may never end. Raises RequestError."""
    for file in (*folder.glob("*"), *folder.glob("*/*")):
        if file.exists() and not (file.is_file() or file.is_dir()):
            said = f"the model folder {folder} holds {file.relative_to(folder)}"
            raise RequestError(f"{said}, which is not a regular file")


def public_name(model: str) -> bool:
    """Whether a name means the same model on every machine: a bundled or hub name, not a path."""
    return model in BUNDLED or repository_of(model) is not None


def open_folder(folder: Path, name: str | None = None, tokenizer: str | None = None) -> Checkpoint:
    """The checkpoint in a folder; `name` is its public name, `tokenizer` a folder given by the user. Raises
    RequestError for an unfinished conversion, and for a tokenizer folder if the model has its own tokenizer.
    """
    try:
        config = parse_json(file_text(folder / "config.json"))
    except (OSError, ValueError):
        config = None
    kinds: list[type[Checkpoint]] = [ConvertedCheckpoint, *ARCHITECTURES, BundledCheckpoint]
    checkpoint = next(kind(folder, name, config) for kind in kinds if kind.matches(folder, config))
    if tokenizer is not None:
        if not checkpoint.APART:
            said, hint = f"the model in {folder} has its own tokenizer", ("leave ", Key("tokenizer"), " out")
            raise RequestError(said, key="tokenizer", value=tokenizer, hint=hint)
        checkpoint.tokenizer = Path(tokenizer).expanduser()
    return checkpoint


def open_model(model: str, tokenizer: str | None = None) -> Checkpoint:
    """The checkpoint of a bundled name, a hub name or a path. Raises like `folder_of` and `open_folder`."""
    return open_folder(folder_of(model), model if public_name(model) else None, tokenizer)


def checkpoint_of(model: str, tokenizer: str | None = None) -> Checkpoint:
    """The checkpoint of a model without downloading it: for a hub name, one with its published shapes."""
    repository = repository_of(model)
    name = next((name for name, known in REPOSITORIES.items() if known == repository), "")
    return published(name) or open_model(model, tokenizer)


def spec_of(model: str) -> Spec:
    """The specification of a model, see `checkpoint_of`."""
    return checkpoint_of(model).spec


def load(
    model: str,
    dtype: str = "auto",
    device: str = "cpu",
    progress: Callable[[int], None] | None = None,
    size: tuple[int, int] | None = None,
) -> LoadedModel:
    """Load a model by name or path; see `open_model` and `Checkpoint.load`."""
    return open_model(model).load(dtype, device, progress, size)
