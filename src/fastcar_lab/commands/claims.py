"""`fastcar lab claims --model M [--model N] [--prompts N --seeds K] -o DIR`.

Started again with the same folder it resumes; with more prompts or seeds it does what is missing.
"""

from __future__ import annotations

import datetime
import importlib
import pkgutil
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from fastcar_cli.cli.options import Debug, Overrides, Quiet
from fastcar_cli.errors import RequestError

WANTED = "table-dense"


def all_claims() -> dict[int, ModuleType]:
    """The module of each claim by its number."""
    from fastcar_lab import claims

    names = [module.name for module in pkgutil.iter_modules(claims.__path__) if re.match(r"c\d", module.name)]
    modules = [importlib.import_module(f"{claims.__name__}.{name}") for name in names]
    return {module.NUMBER: module for module in sorted(modules, key=lambda module: module.NUMBER)}


def default_model() -> str:
    """The model that never saw replay, where it is bundled, else the first that is."""
    from fastcar_cli.checkpoints.names import BUNDLED

    return WANTED if WANTED in BUNDLED else BUNDLED[0]


def claims(
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the videos, data, plots and page.")],
    model: Annotated[
        list[str] | None, typer.Option(help="Name or folder of a model; repeat it for more. [default: table-dense]")
    ] = None,
    prompts: Annotated[int, typer.Option(help="Number of held-out prompts.", min=1)] = 32,
    prompts_file: Annotated[Path | None, typer.Option(help="Use the prompts of this file, one per line.")] = None,
    seeds: Annotated[int, typer.Option(help="Videos per prompt; their seeds are 0, 1, ...", min=1)] = 2,
    claim: Annotated[str | None, typer.Option(help="Claims to measure, by number, such as 5,6. [default: all]")] = None,
    set_: Overrides = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Test the FastCar paper's claims on other models; write data, plots and a page. Rerun to resume."""
    from rich.text import Text

    from fastcar_cli.cli.render import Results, console, note, progress
    from fastcar_cli.config.run_config import load_config
    from fastcar_cli.inputs.prompt import prompts_in
    from fastcar_cli.pipeline.pipeline import VideoPipeline
    from fastcar_cli.system.signals import status
    from fastcar_lab.claims import c9_ours, page
    from fastcar_lab.claims.prompts import prompts_for
    from fastcar_lab.claims.study import Study
    from fastcar_lab.common import pyplot

    modules = _chosen(claim)
    # Its plots come last: what they need is checked before hours of decodes.
    pyplot("the page of the claims")
    terminal = console(quiet)
    given = None
    if prompts_file is not None:
        given = tuple(prompts_in(prompts_file, f"--prompts-file {prompts_file}").prompts.values())
    studies = []
    for name in model or [default_model()]:
        config = load_config(None, set_ or [], {"model": name})
        pipe = VideoPipeline.from_config(config)
        texts = given or prompts_for(pipe, prompts, balanced=True)
        studies.append(Study.open(pipe, config, output, texts, range(seeds)))
    if len({s.model for s in studies}) < len(studies):
        raise RequestError("two have the same name", key="model", hint="rename one folder")
    findings = []
    try:
        with progress(terminal, "decodes") as bar:
            for study in studies:
                task = bar.add_task(study.model, total=0)

                def on_done(folder: str, decodes: int, task: Any = task, name: str = study.model) -> None:
                    if decodes < 0:
                        bar.advance(task)
                    else:
                        total = bar.tasks[bar.task_ids.index(task)].total or 0
                        bar.update(task, description=f"{name} {folder}", total=total + decodes)

                for module in modules.values():
                    study.run(module.needs(study), on_done)
        with progress(terminal, "judgements") as bar:
            task = bar.add_task("judging", total=len(modules) * len(studies))
            for number in modules:
                for study in studies:
                    bar.update(task, description=f"judging claim {number}, {study.model}")
                    findings.append(modules[number].judge(study))
                    bar.advance(task)
            if c9_ours.NUMBER in modules:
                c9_ours.beside(studies, [f for f in findings if f.number == c9_ours.NUMBER])
            others = {n: m.TITLE for n, m in all_claims().items() if n not in modules}
            path = page.write(output, findings, _made(studies[0].pipe.model.network.device), others)
    except KeyboardInterrupt as e:
        note(terminal, "what is finished is kept; the same command resumes", "stopped")
        raise typer.Exit(status(e)) from None
    out = Results(quiet)
    for finding in findings:
        head = f"{finding.number}. {finding.title}, {finding.model}: "
        out.print(Text.assemble(head, (finding.verdict, "bold"), f"\n   {finding.summary}"), soft_wrap=True)
    out.print(f"{path}", soft_wrap=True)


def _chosen(text: str | None) -> dict[int, ModuleType]:
    """The claims of these numbers. Raises RequestError."""
    modules = all_claims()
    if text is None:
        return modules
    from fastcar_cli.sweep.grid import parse_names

    wanted = parse_names("claim", text, [str(n) for n in modules])
    return {n: m for n, m in modules.items() if str(n) in wanted}


def _made(device: Any) -> dict[str, Any]:
    """How: command, machine, versions, and the commit where the package lies in a checkout."""
    from fastcar_cli._version import __version__
    from fastcar_cli.profile.machine import names_of
    from fastcar_lab.common import commit

    names = names_of(device)
    return {
        "command": shlex.join(["fastcar", *sys.argv[1:]]),
        "machine": f"{names['device']}, {names['cpus']} processors",
        "versions": f"fastcar {__version__}, torch {names['torch']}",
        "commit": f"commit {revision}" if (revision := commit()) else "",
        "date": datetime.date.today().isoformat(),
    }
