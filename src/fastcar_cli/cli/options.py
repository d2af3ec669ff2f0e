"""Options made from configuration keys, options shared by several commands, and shell completion."""

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

Complete = Callable[[str], list[str]]  # returns the values that begin with the typed text


def words(allowed: Callable[[], Collection[str]] | Collection[str]) -> Complete:
    """Shell completion of one of the allowed words, or of the last one in a comma-separated list."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        known = allowed() if callable(allowed) else allowed
        return [f"{before}{comma}{word}" for word in known if word.startswith(last)]

    return complete


a_model = words([*BUNDLED, *REPOSITORIES])
FORMATS = ("table", "json", "csv", "md")

ConfigFile = Annotated[
    str | None, typer.Option("--config", help="Configuration: a preset or a YAML file.", autocompletion=words(presets))
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set one configuration key, such as replay.tau=-2; repeat the option for more keys.",
        autocompletion=words(lambda: [f"{key}=" for key in settings()]),
    ),
]
Accelerator = Annotated[
    str | None,
    typer.Option(
        help="Accelerator: a preset or a YAML file. [default: edge-small, or paper-u280 for a model too large for it]",
        autocompletion=words(fpga_presets),
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
Format = Annotated[
    str, typer.Option("--format", help="Output format: table, json, csv or md.", autocompletion=words(FORMATS))
]
"""`--format`; the parameter is called `form` because `format` is a builtin."""
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print errors only.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


class Options:
    """Options of a command; an attribute corresponds to a parameter of a typer function."""

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)


class VideoOptions(Options):
    """Options of `generate` and `sweep`: inputs, and the division of the work."""

    prompts: list[str] | None = typer.Argument(None, metavar="PROMPT", help="What the video shows.")
    prompts_file: Path | None = typer.Option(
        None, "--prompts", help="File of prompts: text with one prompt per line, a JSON list as in VBench, or .jsonl."
    )
    inputs: list[Path] | None = typer.Option(
        None,
        "--input",
        metavar="FILE",
        help="Frames to continue: a video, GIF, image, folder of images, or .npz; repeat the option for more videos.",
    )
    actions: list[Path] | None = typer.Option(
        None,
        metavar="FILE",
        help="File of actions, one row per frame: .npz, .npy, .csv, .tsv or .json. [default: those in an .npz input]",
    )
    names: str | None = typer.Option(None, hidden=True, help="vbench: link vbench/{prompt}-{index}.mp4 to each video.")
    shard: str | None = typer.Option(None, help="Do one part of the work: k/n, such as 3/8 for part 3 of 8.")
    engine: str = typer.Option(
        "local", help="Where to run: local, or ray for a Ray cluster.", autocompletion=words(("local", "ray"))
    )
    address: str | None = typer.Option(None, hidden=True, help="Address of a Ray cluster. [default: start Ray here]")
    workers: int | None = typer.Option(None, min=1, hidden=True, help="Maximum Ray workers. [default: as many as fit]")
    config: ConfigFile = None
    set_: Overrides = None
    dry: bool = typer.Option(False, "--dry-run", help="Print the planned videos and the estimated time; write nothing.")
    as_json: Json = False
    quiet: Quiet = False


class GenerateOptions(VideoOptions):
    """Options of `generate`."""

    truth: bool = typer.Option(
        False, "--truth", help="Put the clip's frames beside the predicted ones; report PSNR, SSIM and temporal error."
    )
    example: bool = typer.Option(False, "--example", help="Use the bundled model's example prompt or clip.")
    seeds: str | None = typer.Option(None, help="Seeds for every prompt, such as 0-3 or 0,5,7. [default: one seed]")
    keep_going: bool = typer.Option(
        False, "--keep-going", help="Skip invalid prompts; the exit status is 1 if fastcar skipped any."
    )
    text_embedding: Path | None = typer.Option(
        None, metavar="FILE", help="Text prompt: file (.npy, .pt, ...) with at most 512 vectors from a text encoder."
    )
    from_: Path | None = typer.Option(None, "--from", help="Reproduce a video from the recipe (settings) in its file.")
    continued: Path | None = typer.Option(
        None, "--continue", metavar="FILE", help="Extend this video by `--frames` frames. [default: as many as it has]"
    )
    output: str | None = typer.Option(
        None,
        "-o",
        "--output",
        help="File (.mp4, .gif), a name without suffix for a folder of PNGs, or NAME/ for a folder of videos. "
        "Several videos, a prompt file or an existing folder always give a folder of videos. "
        "[default: named after the prompt]",
    )
    force: bool = typer.Option(False, "--force", help="Overwrite existing files at -o instead of renaming them.")
    preview: bool = typer.Option(False, "--preview", help="Show decoded frames in the terminal.")
    report_to: Path | None = typer.Option(None, "--report", hidden=True, help="Folder for the accelerator's CSV files.")
    trace_to: Path | None = typer.Option(None, "--trace", help="Save the replay decisions (.npz) for `fastcar fpga`.")
    verbose: bool = typer.Option(False, "-v", "--verbose", hidden=True, help="Print replay ratios by layer and frame.")

    @property
    def earlier(self) -> Path | None:
        """The file with the recipe of an earlier video."""
        return self.from_ or self.continued


Flags = dict[str, Any]  # values of the given options, by configuration key


def _option_of(setting: Setting, hidden: bool) -> Any:
    kind: Any = setting.kind | None
    text = f"{setting.help[0].upper()}{setting.help[1:]}. [default: {setting.default}]"
    allowed = {"model": a_model, "backend.preset": words(fpga_presets)}.get(setting.key)
    completed = allowed or (words(setting.values) if setting.values else None)
    return Annotated[kind, typer.Option(setting.flag, help=text, autocompletion=completed, hidden=hidden)]


def options(*keys: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add --debug to a command, --format if it has --json, and the options of its `Options` and `flags` parameters.

    A subclass of `Options` adds an option per attribute. `flags` adds an option per key and receives the given values;
    without keys it adds all keys with a flag, and the help shows the common ones.
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
