"""Checkpoints on the Hugging Face hub: names, download, cached files; cache and token are huggingface_hub's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from fastcar_cli.checkpoints.architectures import ARCHITECTURES, released
from fastcar_cli.checkpoints.names import REPOSITORIES
from fastcar_cli.errors import FastcarError, Key, RunError, Text

REVISION = "main"  # branch, tag or commit if `NAME@REVISION` does not name one

_LLAMA_2 = (
    "the weights of {name} derive from LLaMA 2, so LLaMA 2's community licence and acceptable use policy apply "
    "(https://ai.meta.com/llama/license), and also the terms on https://huggingface.co/{repository}"
)

_NVIDIA = (
    "the NVIDIA Open Model License applies to the weights of {name} (https://huggingface.co/{repository}); "
    "fastcar runs the model without NVIDIA's guardrail (a filter for unsafe content)"
)

_TERMS = "the terms of the weights of {name} are on https://huggingface.co/{repository}"

_WANTED = [pattern for kind in ARCHITECTURES for pattern in kind.PATTERNS]
_CONFIGS = [
    *(p if p.endswith(".json") else p.replace("*", "*.json") for p in _WANTED if not p.endswith(".safetensors")),
    *("llm/tokenizer.model", "model/llm/tokenizer.model"),
]


def licence(name: str, repository: str) -> str:
    """A note on the terms of a model on the hub."""
    terms = _LLAMA_2 if name.startswith("vila-u") else _NVIDIA if repository.startswith("nvidia/") else _TERMS
    return terms.format(name=name, repository=repository)


def repository_of(name: str) -> str | None:
    """The repository of a known short or full name, with or without @REVISION; None for any other."""
    name = name.partition("@")[0]
    return REPOSITORIES.get(name, name if name in REPOSITORIES.values() else None)


def revision_of(name: str) -> str:
    """The revision of `NAME@REVISION`."""
    return name.partition("@")[2] or REVISION


@contextlib.contextmanager
def _reaching(repository: str) -> Iterator[None]:
    """Convert the hub library's errors to RunError with a hint."""
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        yield
    except Exception as e:
        hint: Text = ("connect to the network, or copy the model's files to a folder and add ", Key("model"), " FOLDER")
        if isinstance(e, GatedRepoError):
            reason = "you must accept its terms first"
            hint = f"accept the terms on https://huggingface.co/{repository}, then run: hf auth login"
        elif isinstance(e, RepositoryNotFoundError):
            reason, hint = "it does not exist, or your token has no access to it", "run: hf auth login, or set HF_TOKEN"
        elif isinstance(e, (LocalEntryNotFoundError, ConnectionError)) or "Connect" in type(e).__name__:
            reason = "it is not in the cache and the hub can't be reached"
        elif isinstance(e, RuntimeError) and "home directory" in str(e):
            reason, hint = "this user has no home folder for the hub's cache", "set HF_HOME to a folder"
        else:
            reason = (str(e).strip() or type(e).__name__).splitlines()[0]
        raise RunError(f"the model {repository} could not be fetched: {reason}", hint=hint) from None


def _complete(folder: Path) -> bool:
    """Whether the folder has every file that loading needs."""
    try:
        checkpoint = released(folder)
        return checkpoint is not None and bool(checkpoint.spec) and all(f.is_file() for f in checkpoint.weight_files())
    except FastcarError:
        return False


def _cached(repository: str, revision: str) -> Path | None:
    """The folder of a revision in the user's cache, complete or not; None if there is none."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, revision=revision, local_files_only=True))
    except (OSError, ValueError, RuntimeError):  # RuntimeError: the user has no home folder
        return None


def here(repository: str, revision: str = REVISION) -> bool:
    """Whether the user's cache has every file that loading needs."""
    return (cached := _cached(repository, revision)) is not None and _complete(cached)


def fetch(repository: str, revision: str = REVISION, *, configs_only: bool = False) -> Path:
    """Folder of a repository's revision in the user's cache, downloaded if missing. Raises RunError."""
    from huggingface_hub import hf_hub_download, snapshot_download, try_to_load_from_cache

    name = next((name for name, known in REPOSITORIES.items() if known == repository), "")
    for kind in ARCHITECTURES:
        for other, files in kind.companions(name).items():
            with _reaching(other):
                for file in files:
                    wanted = file.endswith(".json") or not configs_only
                    if wanted and not isinstance(try_to_load_from_cache(other, file), str):
                        hf_hub_download(other, file)
    cached = _cached(repository, revision)
    if cached is not None and (configs_only or _complete(cached)):
        return cached
    with _reaching(repository):
        patterns = _CONFIGS if configs_only else _WANTED
        return Path(snapshot_download(repository, revision=revision, allow_patterns=patterns))


def remote_sizes(repository: str, revision: str = REVISION) -> dict[str, int]:
    """Sizes in bytes of the files to download, by name. Raises RunError without a network."""
    from huggingface_hub import HfApi

    with _reaching(repository):
        files = HfApi().model_info(repository, revision=revision, files_metadata=True).siblings or []
    return {f.rfilename: int(f.size or 0) for f in files if any(fnmatch(f.rfilename, p) for p in _WANTED)}
