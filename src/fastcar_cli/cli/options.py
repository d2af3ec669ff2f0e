"""Options: made from the keys of the configuration, or shared by several commands, and what a shell completes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from fastcar_cli.checkpoints.names import BUNDLED, REPOSITORIES
from fastcar_cli.config.presets import fpga_presets, presets
from fastcar_cli.config.run_config import Setting, settings

Complete = Callable[[str], list[str]]
"""Values that begin with what is typed."""


def words(allowed: Callable[[], Collection[str]] | Collection[str]) -> Complete:
    """Complete one of these, also as the last of several with commas between them."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        known = allowed() if callable(allowed) else allowed
        return [f"{before}{comma}{word}" for word in known if word.startswith(last)]

    return complete


a_model = words([*BUNDLED, *REPOSITORIES])
FORMATS = ("table", "json", "csv", "md")
"""How results may be printed; JSON is up to each command."""

ConfigFile = Annotated[
    str | None, typer.Option("--config", help="Preset name or YAML file.", autocompletion=words(presets))
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override one key: section.key=value.",
        autocompletion=words(lambda: [f"{key}=" for key in settings()]),
    ),
]
Accelerator = Annotated[
    str | None,
    typer.Option(
        help="Accelerator: a preset or a YAML file. [default: edge-small, or paper-u280 for larger weights]",
        autocompletion=words(fpga_presets),
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
Format = Annotated[
    str,
    typer.Option("--format", help="How results are printed: table, json, csv or md.", autocompletion=words(FORMATS)),
]
"""Of a parameter `form`; `Command` sees to it."""
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing but errors.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
_File = Path | None


@dataclass(frozen=True, kw_only=True)
class VideoOptions:
    """Options of `generate` and `sweep`: inputs of videos, and how their work is divided."""

    prompts: Annotated[list[str] | None, typer.Argument(metavar="PROMPT", help="What the video shows.")] = None
    prompts_file: Annotated[
        _File, typer.Option("--prompts", help="File with one prompt a line, or JSON: VBench's lists, or .jsonl.")
    ] = None
    inputs: Annotated[
        list[Path] | None,
        typer.Option(
            "--input",
            metavar="FILE",
            help="Frames to continue: a video, GIF, picture, folder of pictures, or .npz; repeat it for more videos.",
        ),
    ] = None
    actions: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Actions of the input, a row a frame: .npz, .npy, .csv, .tsv or .json. An .npz may bring its own.",
        ),
    ] = None
    names: Annotated[
        str | None,
        typer.Option(help="vbench: link videos {prompt}-{index}.mp4, in the folder vbench.", hidden=True),
    ] = None
    shard: Annotated[str | None, typer.Option(help="Do part k/n of the work only, such as 3/8.")] = None
    engine: Annotated[
        str,
        typer.Option(help="local, or ray: the same work on a Ray cluster.", autocompletion=words(("local", "ray"))),
    ] = "local"
    address: Annotated[
        str | None,
        typer.Option(help="Address of a running Ray cluster. [default: Ray starts here]", hidden=True),
    ] = None
    workers: Annotated[
        int | None, typer.Option(help="Workers on Ray at once. [default: as many as fit]", min=1, hidden=True)
    ] = None
    config: ConfigFile = None
    set_: Overrides = None
    dry: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be made and the time it takes; write nothing.")
    ] = False
    as_json: Json = False
    quiet: Quiet = False


@dataclass(frozen=True, kw_only=True)
class GenerateOptions(VideoOptions):
    """Options of `generate`."""

    truth: Annotated[
        bool, typer.Option("--truth", help="Show the input's frames beside the prediction, and its error.")
    ] = False
    example: Annotated[
        bool, typer.Option("--example", help="Begin with the bundled model's own example: a prompt, or a clip.")
    ] = False
    seeds: Annotated[
        str | None, typer.Option(help="Seeds of every prompt: 0-3, 0,5,7 or both. [default: one seed]")
    ] = None
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Skip prompts that are refused; status 1 at the end.")
    ] = False
    text_embedding: Annotated[
        _File, typer.Option(metavar="FILE", help="Vectors of a text encoder, up to 512 rows, as .npy, .pt, ...")
    ] = None
    from_: Annotated[
        _File, typer.Option("--from", help="Make the video of an earlier file again, from its recipe.")
    ] = None
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            help="File (.mp4, .gif), a name without suffix for a folder of PNGs, or NAME/ for a folder of videos. An "
            "existing folder, several videos and files of prompts make folders of videos too. "
            "[default: named after the prompt]",
        ),
    ] = None
    force: Annotated[
        bool, typer.Option("--force", help="Write over an existing file, or another video of that name.")
    ] = False
    preview: Annotated[bool, typer.Option("--preview", help="Show frames in the terminal as they are decoded.")] = False
    report_to: Annotated[
        _File, typer.Option("--report", help="Folder for CSVs of the emulated accelerator.", hidden=True)
    ] = None
    trace_to: Annotated[
        _File, typer.Option("--trace", help="File (.npz) of the replay decisions, for `fastcar fpga`.")
    ] = None
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Print replay by layer and frame.", hidden=True)] = (
        False
    )


Flags = dict[str, Any]
"""Values of the options that were given, by the key of the configuration that each sets."""


def _option_of(setting: Setting, hidden: bool) -> Any:
    """The annotation of a parameter."""
    kind: Any = setting.kind | None
    text = f"{setting.help[0].upper()}{setting.help[1:]}. [default: {setting.default}]"
    allowed = {"model": a_model, "backend.preset": words(fpga_presets)}.get(setting.key)
    completed = allowed or (words(setting.values) if setting.values else None)
    return Annotated[kind, typer.Option(setting.flag, help=text, autocompletion=completed, hidden=hidden)]


def options(*keys: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command --debug, with --json also --format, and the options that its parameters stand for.

    A dataclass stands for its fields, `flags` for an option for each of these keys and gets the values given. Without
    keys it is all that have a flag, of which help shows the common ones.
    """
    chosen = [settings()[key] for key in keys] or [s for s in settings().values() if s.flag is not None]
    named = {str(s.flag).strip("-").replace("-", "_"): s for s in chosen}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own: dict[str, tuple[Any, Any]] = {}
        kinds: dict[str, Any] = {}
        hints = get_type_hints(command, include_extras=True)
        for name, parameter in inspect.signature(command).parameters.items():
            if name == "flags":
                own |= {n: (_option_of(s, hidden=not (keys or s.common)), None) for n, s in named.items()}
            elif is_dataclass(hints[name]):
                kinds[name] = hints[name]
                of = get_type_hints(hints[name], include_extras=True)
                own |= {f.name: (of[f.name], f.default) for f in fields(hints[name])}
            else:
                own[name] = hints[name], parameter.default
        added: dict[str, tuple[Any, Any]] = {"form": (Format, "table")} if "as_json" in own else {}
        added["debug"] = (Debug, False)

        @wraps(command)
        def call(**given: Any) -> None:
            given = {name: value for name, value in given.items() if name not in added}
            if "flags" in hints:
                values = {s.key: given.pop(name) for name, s in named.items()}
                given["flags"] = {key: value for key, value in values.items() if value is not None}
            for name, kind in kinds.items():
                given[name] = kind(**{f.name: given.pop(f.name) for f in fields(kind)})
            command(**given)

        call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
                for name, (annotation, default) in (own | added).items()
            ]
        )
        call.__annotations__ = {name: annotation for name, (annotation, _) in (own | added).items()}
        return call

    return decorate
