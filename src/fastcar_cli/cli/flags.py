"""Code for all commands: groups of options and examples in the help, refused options, flags in errors."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from fastcar_cli.errors import FastcarError, RequestError
from fastcar_cli.system.files import spooled

GROUPS = {
    "Inputs": "--prompts --input --actions --truth --start --step --key --goal --example "
    "--text-embedding --from --continue --keep-going",
    "Model and video": "--output --names --force --model --frames --context --size --seed --seeds --samples --rows "
    "--prompt-tokens --fps --scale",
    "Replay, drafts and attention": "--tau --replay-ratio --replay --score --tas --gate --max-replay-age --draft "
    "--draft-window --axis --window --sinks --kv-dtype --spread --pair-correlation --profile",
    "Sampling": "--cfg --temperature --top-k --top-p",
    "Measurements": "--seq --decode --repeats --metrics --lpips-weights --table --drafts --explain",
    "Weights and machine": "--dtype --depth-dtype --calibrate --pixel-dtype --device --executor --threads --backend "
    "--fpga --preset --keep-prefill --shard --engine --address --workers",
    "Settings and results": "--config --set --dry-run --terminal --port --no-browser --preview --report --trace --save "
    "--compare --json --format --verbose --quiet --debug --help",
}
"""Options by group, in the order of the help."""

GROUP_OF = {flag: group for group, flags in GROUPS.items() for flag in flags.split()}

FEW = 7  # commands with at most this many options have no groups

EXAMPLES = {
    "": """fastcar generate "a red ball rolling to the right on the grass" --tau -2 -o ball.mp4
fastcar models
fastcar help generate""",
    "generate": """fastcar generate "a red ball rolling to the right on the grass" --tau -2 -o ball.mp4
fastcar generate "a red metal ball hits a blue cube" --model table --samples 3 --seed 1 -o balls/
fastcar generate --from ball.mp4 --tau off -o dense.mp4""",
    "convert": """fastcar convert vila-u-7b -o vila-u-int4
fastcar convert table -o table-int8 --dtype int8
fastcar convert vila-u-7b -o vila-u-calibrated --calibrate prompts.txt --threads 8""",
    "play": """fastcar play
fastcar play --input ball.png --tau -2 -o session.mp4
fastcar play --actions keys.csv --json --frames png""",
    "demo": """fastcar demo
fastcar demo --port 8000
fastcar demo --no-browser""",
    "profile": """fastcar profile --seq 512,1k
fastcar profile --model vila-u-7b --seq 2k --backend fpga-sim
fastcar profile --decode "a red ball rolling to the right" --tau -2 --save run.json""",
    "sweep": """fastcar sweep "a red ball rolling to the right on the grass" --tau off,0,-2,-4 -o sweep
fastcar sweep --prompts prompts.txt --seeds 0-3 --replay-ratio 0.5,0.8 -o sweep
fastcar sweep "a green cube on the grass" --axis draft -o drafts""",
    "fpga": """fastcar fpga star.npz --preset edge-small
fastcar fpga --model vila-u-7b --replay 0,0.8 --window 256
fastcar fpga --preset paper-u280 --table""",
    "fpga rtl": """fastcar fpga rtl -o rtl
fastcar fpga rtl star.npz --preset edge-int8 --passes 4 -o rtl --check
fastcar fpga rtl --preset edge-small -o rtl --synth""",
    "models": """fastcar models
fastcar models --json
fastcar models --format md""",
    "models show": """fastcar models show mini
fastcar models show vila-u-7b
fastcar models show ./my-model --json""",
    "pull": """fastcar pull vila-u-7b
fastcar pull ivideogpt-oxe-64-act-free
fastcar pull cosmos-predict1-4b@main""",
    "presets": """fastcar presets
fastcar presets --json
fastcar presets --format csv""",
    "config": """fastcar config --config mini > fastcar.yaml
fastcar config --set replay.tau=-2 --where
FASTCAR_MODEL=table fastcar config --where""",
    "train": """fastcar train -o mini-model
fastcar train --world table --stage tokenizer -o table-model
fastcar train --minutes 60 --threads 2 -o mini-model""",
}
"""Examples by command, ready to copy."""


def arrange(params: list[Any]) -> None:
    """Group more than `FEW` options if each has a group; escape brackets in help texts, which rich reads as styles."""
    for param in params:
        if text := getattr(param, "help", None):
            param.help = text.replace(" [default: ", r" \[default: ")
    options = [p for p in params if p.param_type_name == "option" and not p.hidden]
    groups = {p.name: GROUP_OF.get(max(p.opts, key=len), "") for p in options}
    if len(options) > FEW and all(groups.values()):
        for param in options:
            param.rich_help_panel = groups[param.name]
        order = ["", *GROUPS]
        params.sort(key=lambda p: order.index(groups.get(p.name, "")))


def examples(name: str) -> str:
    """The examples at the end of a command's help."""
    return "\n   ".join((" Examples:\n", *EXAMPLES[name].split("\n"))) + "\n" if name in EXAMPLES else ""


READ = ("prompts_file", "inputs", "actions", "text_embedding", "from_", "continued", "config", "fpga", "preset",
        "trace", "compare", "calibrate", "lpips_weights", "folder")  # fmt: skip
WRITTEN = ("output", "report", "report_to", "trace_to", "save", "keep_prefill")
"""Parameters that name files to read and files to write; `~` in them is the user's home."""

OTHERS = {"overrides": "--set", "ratio": "--replay"}  # flags of parameters that are not configuration keys


def flag_of(parameter: str, flags: Collection[str]) -> str | None:
    """The flag of a command for a parameter of the library; `--set KEY` if it has none."""
    from fastcar_cli.config.run_config import settings

    named = [s for s in settings().values() if s.key == parameter or s.key.endswith(f".{parameter}")]
    last = parameter.rpartition(".")[2].replace("_", "-")
    for flag in (f"--{parameter}", *(s.flag for s in named), f"--{last}", f"-{last}", OTHERS.get(parameter)):
        if flag in flags:
            return flag
    return f"--set {named[0].key}" if len(named) == 1 and "--set" in flags else None


def one_of(option: str, value: str | None, allowed: Collection[str]) -> None:
    """Raise RequestError for a given value that is not allowed."""
    if value is not None and value not in allowed:
        raise RequestError(f"{option} {value}: unknown", hint=f"allowed: {', '.join(allowed)}")


def _check_length(path: Path) -> None:
    """Raise RequestError for a name that is too long for a file; pathlib's `exists` would raise OSError."""
    try:
        path.lstat()
    except OSError as e:
        if e.errno == errno.ENAMETOOLONG:
            raise RequestError(f"{str(path)[:80]}... can't be a file: {e.strerror}") from None


def check_file(option: str, file: Path | None) -> None:
    """Raise RequestError for a file name that can't be written."""
    if file is None:
        return
    _check_length(file)
    if not file.parent.is_dir():
        raise RequestError(f"{option} {file}: the folder {file.parent} does not exist")
    if file.exists() and not file.is_file():
        kind = "a folder" if file.is_dir() else "a pipe or a device"
        raise RequestError(f"{option} {file}: is {kind}, expected a file")


def check_made(option: str, folder: Path | None) -> None:
    """Raise RequestError for a folder name that is a file."""
    if folder is not None and folder.exists() and not folder.is_dir():
        raise RequestError(f"{option} {folder}: is a file, expected a folder")


_UNUSUAL = re.compile(r"(?=.*\d)(?=.*[_\u0080-\U0010ffff])[-+.,\d_eE]+")
"""Numbers that Python accepts but fastcar refuses: grouped digits, or digits of other scripts."""


class Command(TyperCommand):
    """A command that refuses empty values (typer reads `-o ""` as the current folder) and names flags in errors."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        # The terminal's width breaks lines, so lines of a paragraph are joined.
        self.help = re.sub(r"(?<!\n)\n(?!\n)", " ", self.help or "")
        arrange(self.params)

    def get_help_option(self, ctx: Any) -> Any:
        """The help option, in the group of the other options."""
        option: Any = super().get_help_option(ctx)
        option.rich_help_panel = getattr(self.params[-1], "rich_help_panel", None) if self.params else None
        return option

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help, then examples."""
        super().format_help(ctx, formatter)
        typer.echo(examples(ctx.info_name), nl=False)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse an empty value, which as a path would be the current folder."""
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        valued = {opt: p.name for p in self.params if not getattr(p, "is_flag", True) for opt in p.opts}
        for before, value in zip(["", *args], args, strict=False):
            name, equals, rest = value.partition("=")
            option, text = (name, rest) if name in valued and equals else (before, value)
            if option in valued and not text:
                raise RequestError(f"{option}: is empty", hint="give a value, or leave the option out")
            if valued.get(option, "model") not in (*READ, *WRITTEN, "model", "key") and _UNUSUAL.fullmatch(text):
                raise RequestError(f"{option} {text}: is not a number", hint="use the digits 0 to 9, without _")
        if "" in args:
            raise RequestError("an argument is empty", hint="give a value, or leave the argument out")
        for arg in args:
            if (readable := arg.encode("utf-8", "replace").decode()) != arg:
                raise RequestError(f"{readable} is not UTF-8", hint="rename the file, or write the text in UTF-8")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; errors of the library name its flags."""
        if "form" in ctx.params:
            from fastcar_cli.cli.options import FORMATS
            from fastcar_cli.cli.render import Results

            form = ctx.params["form"]
            one_of("--format", form, FORMATS)
            if ctx.params["as_json"] and "form" in given(ctx) and form != "json":
                raise RequestError(f"--json and --format {form} can't be used together", hint="leave one of them out")
            ctx.params["as_json"] |= form == "json"
            Results.form = form
            ctx.call_on_close(partial(setattr, Results, "form", "table"))
        for name, value in ctx.params.items():
            if name in READ or name in WRITTEN:
                each = [_file(v, name in READ) for v in (value if isinstance(value, list) else [value])]
                ctx.params[name] = each if isinstance(value, list) else each[0]
        try:
            return super().invoke(ctx)
        except FastcarError as e:
            flags = {opt for p in self.params for opt in p.opts}
            e.name_of = lambda parameter: flag_of(parameter, flags) or f"`{parameter}`"
            raise


def _file(given: Any, read: bool) -> Any:
    """The path of a file option: expands `~`, and copies a pipe to a file."""
    if not isinstance(given, (str, Path)):
        return given
    path = Path(os.path.expanduser(given))  # pathlib's raises for `~` of an unknown user
    _check_length(path)
    path = spooled(path) if read else path
    return path if isinstance(given, Path) else given if path == Path(given) else str(path)


def given(ctx: typer.Context) -> dict[str, str]:
    """Flags of the given options, by parameter name."""
    return {
        p.name: p.opts[-1]
        for p in ctx.command.params
        if p.name and (source := ctx.get_parameter_source(p.name)) is not None and source.name == "COMMANDLINE"
    }


def refuse(ctx: typer.Context, parameters: Collection[str], why: str, hint: str) -> None:
    """Raise RequestError if one of these options is given, because it has no effect; `why` ends the message."""
    for name, flag in given(ctx).items():
        if name in parameters:
            raise RequestError(f"{flag} has no effect {why}", hint=re.sub(r"\bit\b", flag, hint))


def refuse_all_but(ctx: typer.Context, parameters: Collection[str], why: str) -> None:
    """Raise RequestError, with the allowed options, if any except these, --format and --debug are given."""
    allowed = [p.opts[-1] for p in ctx.command.params if p.name in parameters and p.opts[-1].startswith("-")]
    others = {p.name for p in ctx.command.params if p.name} - {*parameters, "debug", "form"}
    refuse(ctx, others, why, f"allowed: {', '.join(allowed)}")
