"""Options: made from the keys of the configuration, or shared by several commands, and what a shell completes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
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


class Options:
    """Options of a command, as typer's functions take parameters."""

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)


class VideoOptions(Options):
    """Options of `generate` and `sweep`: inputs of videos, and how their work is divided."""

    prompts: list[str] | None = typer.Argument(None, metavar="PROMPT", help="What the video shows.")
    prompts_file: Path | None = typer.Option(
        None, "--prompts", help="File with one prompt a line, or JSON: VBench's lists, or .jsonl."
    )
    inputs: list[Path] | None = typer.Option(
        None,
        "--input",
        metavar="FILE",
        help="Frames to continue: a video, GIF, picture, folder of pictures, or .npz; repeat it for more videos.",
    )
    actions: list[Path] | None = typer.Option(
        None, metavar="FILE", help="Actions, a row a frame: .npz, .npy, .csv, .tsv or .json. An .npz may bring its own."
    )
    names: str | None = typer.Option(None, hidden=True, help="vbench: link videos vbench/{prompt}-{index}.mp4.")
    shard: str | None = typer.Option(None, help="Do part k/n of the work only, such as 3/8.")
    engine: str = typer.Option(
        "local", help="local, or ray: the same work on a Ray cluster.", autocompletion=words(("local", "ray"))
    )
    address: str | None = typer.Option(None, hidden=True, help="Of a running Ray cluster. [default: Ray starts here]")
    workers: int | None = typer.Option(None, min=1, hidden=True, help="Workers on Ray. [default: as many as fit]")
    config: ConfigFile = None
    set_: Overrides = None
    dry: bool = typer.Option(False, "--dry-run", help="Print what would be made and the time it takes; write nothing.")
    as_json: Json = False
    quiet: Quiet = False


class GenerateOptions(VideoOptions):
    """Options of `generate`."""

    truth: bool = typer.Option(False, "--truth", help="Show the input's frames beside the prediction, and its error.")
    example: bool = typer.Option(False, "--example", help="Begin with the bundled model's own prompt, or clip.")
    seeds: str | None = typer.Option(None, help="Seeds of every prompt: 0-3, 0,5,7 or both. [default: one seed]")
    keep_going: bool = typer.Option(False, "--keep-going", help="Skip prompts that are refused; status 1 at the end.")
    text_embedding: Path | None = typer.Option(
        None, metavar="FILE", help="Vectors of a text encoder, up to 512 rows, as .npy, .pt, ..."
    )
    from_: Path | None = typer.Option(None, "--from", help="Make the video of a file again, from its recipe.")
    output: str | None = typer.Option(
        None,
        "-o",
        "--output",
        help="File (.mp4, .gif), a name without suffix for a folder of PNGs, or NAME/ for a folder of videos. An "
        "existing folder, several videos and files of prompts make folders of videos too. "
        "[default: named after the prompt]",
    )
    force: bool = typer.Option(False, "--force", help="Write over an existing file, or another video of that name.")
    preview: bool = typer.Option(False, "--preview", help="Show frames in the terminal as they are decoded.")
    report_to: Path | None = typer.Option(
        None, "--report", hidden=True, help="Folder for CSVs of the emulated accelerator."
    )
    trace_to: Path | None = typer.Option(
        None, "--trace", help="File (.npz) of the replay decisions, for `fastcar fpga`."
    )
    verbose: bool = typer.Option(False, "-v", "--verbose", hidden=True, help="Print replay by layer and frame.")


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

    A class of `Options` stands for its attributes. `flags` gets the values given of an option for each of these keys;
    without keys, of all that have a flag (help shows the common ones).
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
            elif isinstance(kind := hints[name], type) and issubclass(kind, Options):
                kinds[name] = get_type_hints(kind, include_extras=True)
                own |= {n: (annotation, getattr(kind, n)) for n, annotation in kinds[name].items()}
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
            for name, own_hints in kinds.items():
                given[name] = hints[name](**{n: given.pop(n) for n in own_hints})
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
