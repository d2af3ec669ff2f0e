"""`fastcar models`, `fastcar models show` and `fastcar pull`."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from fastcar_cli.cli.options import Json, a_model, options
from fastcar_cli.cli.render import Results, columns, facts

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name or folder of a model.", show_default=False, autocompletion=a_model),
]


@options()
def models(as_json: Json = False) -> None:
    """List the models that fastcar knows by name, with input, output, size and source."""
    from fastcar_cli.checkpoints.names import BUNDLED, REPOSITORIES

    rows = [_line(name) for name in (*BUNDLED, *REPOSITORIES)]
    if as_json:
        typer.echo(json.dumps({"models": rows}))
        return
    shown = columns("", "model", "size", "takes", "makes", "from", left=5)
    shown.columns[0].no_wrap = True  # so that names can be copied
    for row in rows:
        n = row["parameters"]
        size = f"{n / 1e9:.1f} B" if n >= 1e9 else f"{n / 1e6:.{n < 1e7:d}f} M"
        source = row["from"].partition("/")[0] + ("" if row["here"] else ", not downloaded")
        shown.add_row(row["name"], size, row["takes"], row["makes"], source)
    Results().print(shown)


@options()
def show(name: Name, as_json: Json = False) -> None:
    """Show a model's size, decoder, tokens per frame and licence; download no weights."""
    from fastcar_cli.checkpoints.hub import licence, repository_of
    from fastcar_cli.checkpoints.names import BUNDLED
    from fastcar_cli.checkpoints.open import spec_of

    spec, repository = spec_of(name), repository_of(name)
    decoder, parts = spec.decoder, spec.steering.parts
    about: dict[str, Any] = _line(name) | {
        "decoder": f"{decoder.layers} layers, width {decoder.width} (MLP {decoder.mlp_width}), {decoder.heads} heads",
        "tokens_per_frame": spec.tokens_per_frame,
        "codes_per_token": spec.frame_spec.depth,
        "terms": ("Apache-2.0" if name in BUNDLED else "unknown") if repository is None else licence(name, repository),
    }
    if as_json:
        actions = [part._asdict() for part in parts]
        typer.echo(json.dumps(about | ({"actions": actions} if actions else {})))
        return
    about |= {"actions": "\n".join(map(str, parts))} if parts else {}
    shown = facts(name)
    for key, value in about.items():
        if key != "name":
            text = ("yes" if value else "no") if isinstance(value, bool) else value
            shown.add_row(key.replace("_", " "), f"{text:,}" if type(text) is int else str(text))
    Results().print(shown)


@options()
def pull(name: Name) -> None:
    """Download a model from the hub, so that later runs need no network."""
    from fastcar_cli.checkpoints.open import folder_of

    typer.echo(str(folder_of(name)))


def _line(name: str) -> dict[str, Any]:
    from fastcar_cli.checkpoints.hub import here, repository_of, revision_of
    from fastcar_cli.checkpoints.names import BUNDLED
    from fastcar_cli.checkpoints.open import spec_of
    from fastcar_cli.models.checkpoint import empty_network

    spec, repository = spec_of(name), repository_of(name)
    height, width = spec.frame_spec.size
    counts, takes = sorted(spec.contexts or ((spec.layout.context,) if spec.layout.context else ())), "a sentence"
    if counts:
        takes = f"{' or '.join(map(str, counts))} frame{'s' if counts[-1] > 1 else ''}"
        takes += ", text vectors" if spec.decoder.source else ""
        takes += f", {spec.conditions} numbers per frame" if spec.conditions else ""
    return {
        "name": name,
        "takes": takes,
        "makes": f"{spec.frames} frames of {width} x {height}, {spec.fps} per second",
        "from": repository or ("the package" if name in BUNDLED else "a folder"),
        "here": repository is None or here(repository, revision_of(name)),
        "parameters": empty_network(spec).parameter_count(),
    }
