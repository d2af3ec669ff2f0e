"""`fastcar lab`: how the bundled models and the published figures were made."""

from __future__ import annotations

from collections.abc import Callable

import typer

from fastcar_cli.cli.flags import Command
from fastcar_lab.commands import accelerator, bench, checkpoints, claims, drafts, figures, gpu, speed, worlds

app = typer.Typer(
    help="How the bundled models and the published figures were made.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

_COMMANDS: dict[str, Callable[..., None]] = {
    "bench": bench.bench,
    "speed": speed.speed,
    "claims": claims.claims,
    "drafts": drafts.drafts,
    "draft-cost": drafts.draft_cost,
    "curves": figures.curves,
    "evaluate": worlds.evaluate,
    "contact-sheet": worlds.contact_sheet,
    "showcase": worlds.showcase,
    "replay-plot": figures.replay_plot,
    "clips": worlds.clips,
    "placements": worlds.placements,
    "dummy": checkpoints.dummy,
    "store": checkpoints.store,
    "text-embedding": checkpoints.text_embedding,
    "conversion-error": checkpoints.conversion_error,
    "accelerators": accelerator.accelerators,
    "broadcast": accelerator.broadcast,
    "fit-table": accelerator.fit_table,
    "readings": accelerator.readings,
    "rtl-decoded": accelerator.rtl_decoded,
    "gpu-check": gpu.gpu_check,
}
for name, command in _COMMANDS.items():
    app.command(name, cls=Command)(command)
