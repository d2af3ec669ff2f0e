"""The table of architectures. A new architecture is a folder in `models` and a row here."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from fastcar_cli.models.bundled.steered_checkpoint import SteeredCheckpoint
from fastcar_cli.models.checkpoint import Released
from fastcar_cli.models.cosmos.checkpoint import CosmosCheckpoint
from fastcar_cli.models.ivideogpt.checkpoint import IVideoGPTCheckpoint
from fastcar_cli.models.network import Spec
from fastcar_cli.models.rlvr.checkpoint import RLVRCheckpoint
from fastcar_cli.models.vila_u.checkpoint import VilaUCheckpoint

ARCHITECTURES: list[type[Released]] = [
    VilaUCheckpoint, IVideoGPTCheckpoint, RLVRCheckpoint, CosmosCheckpoint, SteeredCheckpoint,
]  # fmt: skip


def released(folder: Path) -> Released | None:
    """The checkpoint of a folder in its authors' format; None for any other folder."""
    return next((kind(folder) for kind in ARCHITECTURES if kind.matches(folder, None)), None)


def published(name: str) -> Released | None:
    """The checkpoint of a published model's short name, with its published shapes; None for any other name."""
    specs = ((kind, kind.published_spec(name)) for kind in ARCHITECTURES)
    return next((kind(Path(name), name, spec=spec) for kind, spec in specs if spec is not None), None)


def architecture_of(spec: Spec) -> type[Released]:
    """The architecture of a specification."""
    return next(kind for kind in ARCHITECTURES if isinstance(spec, kind.SPEC))


def spec_class(data: Any) -> type[Spec]:
    """The specification class with the most keys of `data`; the first one if several have as many."""
    keys = set(data) if isinstance(data, dict) else set()
    return max((kind.SPEC for kind in ARCHITECTURES), key=lambda spec: len(keys & {f.name for f in fields(spec)}))


def spec_from_dict(data: dict[str, Any]) -> Spec:
    """The inverse of `Spec.to_dict`, also after a round trip through JSON. Raises TypeError or ValueError."""
    return spec_class(data)(**data)
