"""Models by name: bundled, on the hub, or a folder; the only module that knows every checkpoint format."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from fastcar_cli.checkpoints import converted
from fastcar_cli.checkpoints.checkpoint_format import format_of
from fastcar_cli.checkpoints.hub import commit_of, fetch, repository_of, revision_of
from fastcar_cli.checkpoints.names import BUNDLED, REPOSITORIES
from fastcar_cli.checkpoints.published import published_spec
from fastcar_cli.errors import FastcarError, RequestError
from fastcar_cli.models.checkpoint import (
    FORMATS,
    GenerationDefaults,
    LoadedModel,
    base_of,
    empty_network,
    filled,
    load_folder,
    loading_format,
    no_such_dtype,
    read_folder,
)
from fastcar_cli.models.cosmos import checkpoint as cosmos
from fastcar_cli.models.cosmos.network import CosmosSpec
from fastcar_cli.models.ivideogpt import checkpoint as ivideogpt
from fastcar_cli.models.ivideogpt.network import IVideoGPTSpec
from fastcar_cli.models.network import Spec
from fastcar_cli.models.weight_format import WeightFormat
from fastcar_cli.system.device import out_of_memory
from fastcar_cli.system.files import require_regular

FAMILIAR = {"mini-actions": 25.0}
"""See `FrameReader`; of the first frames of 40 MP4 files by `fastcar lab clips` the worst has 26.0 dB."""

_IDENTIFYING = (".safetensors", ".bin", ".json", ".model")


def folder_of(model: str) -> Path:
    """The folder of a bundled name, a hub name (fetched where it is not in the cache) or a path.

    Raises RequestError where there is none, RunError where it can't be fetched.
    """
    if model in BUNDLED:
        return Path(str(resources.files("fastcar_cli"))) / "assets" / model
    repository = repository_of(model)
    if repository is not None:
        return fetch(repository, revision_of(model))
    # A text that no file can be called is no folder either.
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        if (path := Path(model).expanduser()).is_dir():
            _check_files(path)
            return path
        if (begun := converted.working_folder(path)).is_dir():
            raise RequestError(
                f"{path} is not there yet: its conversion in {begun} is not done",
                hint="the fastcar convert command that began it resumes it",
            )
    near = difflib.get_close_matches(model, [*BUNDLED, *REPOSITORIES], n=1)
    raise RequestError(
        f"unknown model {model[:80]!r}: neither a known name nor a folder"
        + (f"; did you mean {near[0]!r}?" if near else ""),
        hint=f"bundled: {', '.join(BUNDLED)}; from the hub: {', '.join(REPOSITORIES)}; or the path of a model folder",
    )


def _check_files(folder: Path) -> None:
    """Refuse a folder with pipes or devices, which may never end. Raises RequestError."""
    for file in (*folder.glob("*"), *folder.glob("*/*")):
        if file.exists() and not (file.is_file() or file.is_dir()):
            raise RequestError(f"the model folder {folder} holds {file.relative_to(folder)}, which is no regular file")


@contextlib.contextmanager
def _foreign(folder: Path) -> Iterator[None]:
    """Refuse what a stranger's files make Python and torch raise: sizes that no network has, parts that don't fit."""
    try:
        yield
    except (FastcarError, MemoryError):
        raise
    except Exception as e:
        if out_of_memory(e):
            raise
        what = (str(e).strip() or type(e).__name__).splitlines()[0]
        raise RequestError(f"{folder} describes no model that can be built: {what}") from e


def public_name(model: str) -> bool:
    """Whether a name means the same model on every machine: a bundled one or one of the hub, not a path."""
    return model in BUNDLED or repository_of(model) is not None


@dataclass(frozen=True)
class Identity:
    """Which weights a name stood for: a digest of the files, and the commit where they come from the hub."""

    weights: str
    commit: str | None


def identity(model: str) -> Identity:
    """The identity of a model that is on this machine. Raises RequestError where a file can't be read.

    The digest is over the configurations and, of each file of weights, its size and up to 256 evenly spread blocks
    of 4 KiB: it distinguishes trainings, formats and conversions without reading gigabytes, and is no proof against
    somebody who forges it.
    """
    folder = folder_of(model)
    digest = hashlib.sha256()
    folders = (folder, base_of(folder) or folder)
    files = {(f.relative_to(at).as_posix(), f) for at in folders for f in at.rglob("*") if f.suffix in _IDENTIFYING}
    if (released := format_of(folder)) is not None:
        files |= {(f.name, f) for f in released.weights_of(folder) if f.suffix not in _IDENTIFYING}
    for name, file in sorted(files):
        if name.startswith(".") or file.name == "encoder.safetensors":
            continue
        try:
            require_regular(file)
            size = file.stat().st_size
            digest.update(f"{name} {size}\n".encode())
            with file.open("rb") as f:
                for i in range(min(256, -(-size // 4096))):
                    f.seek(i * max(4096, size // 256))
                    digest.update(f.read(4096))
        except OSError as e:
            raise RequestError(f"{file} can't be read: {e.strerror}") from None
    return Identity(digest.hexdigest(), commit_of(folder))


def spec_of(model: str) -> Spec:
    """The specification of a model as far as it is known before anything is fetched: of a hub name as published.

    Raises as `folder_of` and `shapes_of` do.
    """
    return published_spec(_short_name(model)) or shapes_of(folder_of(model)).spec


def _short_name(model: str) -> str:
    """The short name of a model of the hub; empty for any other."""
    repository = repository_of(model)
    return next((name for name, known in REPOSITORIES.items() if known == repository), "")


@dataclass(frozen=True)
class Shapes:
    """What is known of a model before it is loaded: its shapes, how it wants to be used, its formats by name."""

    spec: Spec
    defaults: GenerationDefaults
    formats: dict[str, WeightFormat]


def shapes_of(folder: Path, size: tuple[int, int] | None = None) -> Shapes:
    """Of a model folder of any format, making pictures of (height, width) pixels (None: of its own size).

    A converted one has one format. Raises RequestError naming file and key, and for a size that it doesn't make.
    """
    with _foreign(folder):
        shapes = _shapes_of(folder)
        return replace(shapes, spec=shapes.spec.sized(size))


def _shapes_of(folder: Path) -> Shapes:
    if converted.is_converted(folder):
        description = converted.describe(folder)
        return Shapes(description.spec, description.defaults, {description.form.name: description.form})
    released = format_of(folder)
    if released is None:
        spec, defaults, _ = read_folder(folder)
        return Shapes(spec, defaults, {name: loading_format(name) for name in FORMATS})
    formats = {name: released.loading_format(name) for name in FORMATS}
    return Shapes(released.read_spec(folder), released.DEFAULTS, formats)


def published_shapes(model: str) -> Shapes | None:
    """Of a model of the hub whose configuration is known without its files; None for any other."""
    spec = published_spec(_short_name(model))
    released = ivideogpt if isinstance(spec, IVideoGPTSpec) else cosmos
    if spec is None or not isinstance(spec, (IVideoGPTSpec, CosmosSpec)):
        return None
    formats = {name: released.loading_format(name) for name in FORMATS}
    return Shapes(spec, released.DEFAULTS, formats)


def load(
    model: str,
    dtype: str = "auto",
    device: str = "cpu",
    progress: Callable[[int], None] | None = None,
    size: tuple[int, int] | None = None,
) -> LoadedModel:
    """Load a bundled model or a checkpoint of the hub by name, or a model folder by path.

    `dtype` auto is float32, and of a converted folder its own. `progress` gets the bytes read so far of a large
    checkpoint. `size` is (height, width) in pixels, of a model that makes several. Raises RequestError for an unknown
    model or damaged files, RunError for a checkpoint that can't be fetched.
    """
    folder = folder_of(model)
    with _foreign(folder):
        return _load(model, folder, dtype, torch.device(device), progress, size)


def _load(
    model: str,
    folder: Path,
    dtype: str,
    where: torch.device,
    progress: Callable[[int], None] | None,
    size: tuple[int, int] | None,
) -> LoadedModel:
    if converted.is_converted(folder):
        return converted.load(folder, dtype, where, size)
    dtype = "float32" if dtype == "auto" else dtype
    if dtype not in FORMATS:
        raise no_such_dtype(dtype, FORMATS)
    released = format_of(folder)
    if released is not None:
        if dtype == "float16" and where.type == "cpu":
            raise RequestError(
                "runs on a GPU only with this model", key="dtype", value="float16", allowed="float32, bfloat16"
            )
        spec = released.read_spec(folder).sized(size)
        network = empty_network(spec)
        reader: Any = released.reader(folder, network)
        if model in FAMILIAR:
            reader.familiar = FAMILIAR[model]
        filled(
            network, released.components(folder, network), released.loading_format(dtype).on(network), where, progress
        )
        return LoadedModel(model if repository_of(model) else spec.name, network, reader, released.DEFAULTS)
    loaded = load_folder(folder, dtype, where)
    loaded.network.spec.sized(size)
    return loaded
