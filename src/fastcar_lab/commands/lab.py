"""`fastcar lab`: reproduce the bundled models and the published figures."""

from __future__ import annotations

from collections.abc import Callable

import typer

from fastcar_cli.cli.flags import Command
from fastcar_lab.commands import accelerator, bench, checkpoints, claims, drafts, gpu, speed, worlds

app = typer.Typer(
    help="Reproduce the bundled models and the published measurements.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

_COMMANDS: tuple[Callable[..., None], ...] = (
    bench.bench, speed.speed, claims.claims, drafts.drafts, drafts.draft_cost, worlds.curves, worlds.evaluate,
    worlds.contact_sheet, worlds.showcase, worlds.replay_plot, worlds.clips, worlds.placements, worlds.longer,
    worlds.sessions, checkpoints.dummy, checkpoints.store, checkpoints.text_embedding, checkpoints.conversion_error,
    accelerator.accelerators, accelerator.broadcast, accelerator.fit_table, accelerator.readings,
    accelerator.rtl_decoded, gpu.gpu_check,
)  # fmt: skip
for command in _COMMANDS:
    name = "continue" if command is worlds.longer else command.__name__.replace("_", "-")
    app.command(name, cls=Command)(command)
