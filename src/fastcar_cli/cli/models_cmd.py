"""`fastcar models`, `fastcar models show` and `fastcar pull`: what can be generated with, and where it comes from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastcar_cli.cli.complete import models as named
from fastcar_cli.cli.complete import words
from fastcar_cli.cli.options import Debug, Format, Json

if TYPE_CHECKING:
    from fastcar_cli.models.network import Spec

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="A name of the list, or a folder.", show_default=False, autocompletion=words(named)
    ),
]


def models(as_json: Json = False, form: Format = "table", debug: Debug = False) -> None:
    """List the models that have names: what they take and make, and where they are."""
    from fastcar_cli.models.loading.names import BUNDLED, REPOSITORIES

    rows = [_line(name) for name in (*BUNDLED, *REPOSITORIES)]
    if as_json:
        typer.echo(json.dumps({"models": rows}))
        return
    from fastcar_cli.cli.render import Results, columns

    shown = columns("", "model", "takes", "makes", "from", "here", left=4)
    for row in rows:
        shown.add_row(
            *(row[key] for key in ("name", "takes", "makes", "from")), "yes" if row["here"] else "to be pulled"
        )
    Results().print(shown)


def show(name: Name, as_json: Json = False, form: Format = "table", debug: Debug = False) -> None:
    """What a model is made of, from its shapes alone."""
    from fastcar_cli.models.loading.checkpoint import empty_network
    from fastcar_cli.models.loading.hub import licence, repository_of
    from fastcar_cli.models.loading.memory_plan import parameter_bytes
    from fastcar_cli.models.loading.names import BUNDLED
    from fastcar_cli.models.loading.registry import spec_of

    spec, line = spec_of(name), _line(name)
    repository = repository_of(name)
    decoder, sizes = spec.decoder, empty_network(spec)
    facts: dict[str, Any] = line | {
        "parameters": parameter_bytes(sizes, 1),
        "decoder": f"{decoder.layers} layers, width {decoder.width}, MLPs {decoder.mlp_width}, {decoder.heads} heads",
        "tokens_per_frame": spec.tokens_per_frame,
        "codes_per_token": spec.code_depth,
        "terms": ("Apache-2.0" if name in BUNDLED else "unknown") if repository is None else licence(name, repository),
    }
    if as_json:
        typer.echo(json.dumps(facts))
        return
    from fastcar_cli.cli.render import Results
    from fastcar_cli.cli.render import facts as table_of

    shown = table_of(name)
    for key, value in facts.items():
        if key != "name":
            shown.add_row(key.replace("_", " "), f"{value:,}" if type(value) is int else _word(value))
    Results().print(shown)


def pull(name: Name, debug: Debug = False) -> None:
    """Fetch a model of the hub into the cache, so that later runs need no network; started again, it resumes."""
    from fastcar_cli.models.loading.registry import folder_of

    typer.echo(str(folder_of(name)))


def _word(value: object) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _line(name: str) -> dict[str, Any]:
    """A model's row."""
    from fastcar_cli.models.loading.hub import here, repository_of, revision_of
    from fastcar_cli.models.loading.names import BUNDLED
    from fastcar_cli.models.loading.registry import spec_of

    spec, repository = spec_of(name), repository_of(name)
    height, width = spec.frame_spec.size
    return {
        "name": name,
        "takes": _takes(spec),
        "makes": f"{spec.frames} frames of {width} x {height}, {spec.fps} a second",
        "from": repository or ("the package" if name in BUNDLED else "a folder"),
        "here": repository is None or here(repository, revision_of(name)),
    }


def _takes(spec: Spec) -> str:
    """What a video of a model begins with."""
    frames = spec.contexts or ((spec.layout.context,) if spec.layout.context else ())
    if not frames:
        return "a sentence"
    text = f"{' or '.join(map(str, sorted(frames)))} frame{'s' if max(frames) > 1 else ''}"
    if spec.decoder.source:
        text += ", text vectors"
    return text + (f", {spec.conditions} numbers a frame" if spec.conditions else "")
