"""Commands about worlds and their models, and those that draw figures of the docs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fastcar_cli.cli.flags import one_of
from fastcar_cli.cli.options import Debug, Overrides
from fastcar_cli.errors import RequestError
from fastcar_lab import worlds
from fastcar_lab.commands.options import Plot, Seed


def evaluate(
    world: Annotated[str, typer.Option(help="World: mini, table or table-actions.")] = "mini",
    model: Annotated[
        str | None, typer.Option(help="Model. [default: the world's own; none with --truth or --tokenizer FILE]")
    ] = None,
    captions: Annotated[int, typer.Option("--captions", "--clips", help="Number of held-out prompts.", min=1)] = 100,
    seed: Seed = 1,
    batch: Annotated[int, typer.Option(help="Number of videos decoded together.", min=1)] = 25,
    tau: Annotated[str, typer.Option(help="Replay thresholds, such as off;-2; off is the reference.")] = "off",
    ratio: Annotated[str, typer.Option(help="Target replay ratios, such as 0.5;0.8.")] = "",
    truth: Annotated[bool, typer.Option("--truth", help="Judge the renderer's own videos.")] = False,
    tokenizer: Annotated[
        str | None, typer.Option(help="Measure a tokenizer: a model's (name or folder), or a FILE from training.")
    ] = None,
    set_: Overrides = None,
    debug: Debug = False,
) -> None:
    """Judge videos of held-out prompts with an analyser program, and print the share of correct videos as JSON."""
    from fastcar_lab import evaluation

    one_of("--world", world, worlds.names())
    if model is None and not truth and (tokenizer is None or not Path(tokenizer).is_file()):
        model = world
    settings: list[tuple[str, Any]] = [("tau", value.strip()) for value in tau.split(";")]
    settings += [("ratio", float(value)) for value in ratio.split(";") if value]
    document = evaluation.evaluate(
        worlds.world(world),
        model,
        captions,
        seed,
        batch=batch,
        settings=settings,
        overrides=set_ or (),
        tokenizer=tokenizer,
        truth=truth,
    )
    typer.echo(json.dumps(document, indent=1))


def contact_sheet(
    output: Plot,
    model: Annotated[str, typer.Option(help="Name or folder of the model.")] = "mini",
    tau: Annotated[str, typer.Option(help="Replay threshold.")] = "off",
    count: Annotated[int, typer.Option(help="Number of videos.", min=1)] = 48,
    seed: Seed = 77,
    debug: Debug = False,
) -> None:
    """Draw videos of held-out captions on one sheet, and mark those that an analyser program judges wrong."""
    from fastcar_lab.figures.showcase import contact_sheet as draw

    wrong = draw(output, model, tau, count, seed)
    typer.echo(f"{output}: {count} videos, {wrong} of them wrong")


def showcase(
    output: Plot,
    prompts: Annotated[list[str], typer.Argument(metavar="PROMPT", help="What the videos show.")],
    model: Annotated[str, typer.Option(help="Name or folder of the model.")] = "mini",
    seeds: Annotated[
        list[int] | None, typer.Option("--seed", help="Seed; repeat it for one seed per video. [default: 0]")
    ] = None,
    tau: Annotated[str, typer.Option(help="Replay threshold.")] = "off",
    columns: Annotated[int, typer.Option(help="Videos in a row.", min=1)] = 4,
    scale: Annotated[int, typer.Option(help="Factor by which frames are enlarged.", min=1)] = 2,
    replayed: Annotated[bool, typer.Option("--replayed", help="Show a replay map beside each video.")] = False,
    debug: Debug = False,
) -> None:
    """Write several videos side by side into one file, each under its prompt."""
    from fastcar_lab.figures.showcase import showcase as draw

    given = seeds or [0]
    numbers = given * len(prompts) if len(given) == 1 else given
    if len(numbers) != len(prompts):
        raise RequestError(f"{len(numbers)} --seed for {len(prompts)} prompts", hint="give one seed, or one per prompt")
    ratios = draw(output, model, prompts, numbers, tau=tau, columns=columns, scale=scale, replayed=replayed)
    for prompt, seed, ratio in zip(prompts, numbers, ratios, strict=True):
        typer.echo(f"seed {seed}, replayed {ratio:.1%}: {prompt}")


def longer(
    output: Plot,
    frames: Annotated[int, typer.Option(help="Number of frames per video.", min=9)] = 200,
    videos: Annotated[int, typer.Option(help="Number of videos per model and method.", min=1)] = 4,
    seed: Seed = 1,
    debug: Debug = False,
) -> None:
    """Generate videos longer than those in training; plot and print their quality by frame."""
    from fastcar_lab.figures.longer import lines_of, mini, plot, table, table_actions

    found = [way for model in (mini, table, table_actions) for way in model(frames, videos, seed)]
    output.write_bytes(plot(found)["png"])
    typer.echo(lines_of(found, frames))


def clips(
    folder: Annotated[Path, typer.Argument(help="Folder to write.")],
    count: Annotated[int, typer.Option(help="Number of clips.", min=1)] = 3,
    seed: Seed = 1,
    debug: Debug = False,
) -> None:
    """Write held-out clips for table-actions: .npz files of frames and actions."""
    from fastcar_lab.worlds.table_actions.world import write

    for line in write(folder, count, seed):
        typer.echo(line)


def sessions(
    model: Annotated[str, typer.Option(help="Name or folder of the model.")] = "table-actions",
    count: Annotated[int, typer.Option(help="Number of sessions.", min=1)] = 20,
    frames: Annotated[int, typer.Option(help="Number of frames per session.", min=20)] = 600,
    seed: Seed = 2,
    unsettled: Annotated[bool, typer.Option("--unsettled", help="Do not repair objects at a new context.")] = False,
    set_: Overrides = None,
    debug: Debug = False,
) -> None:
    """Play table-actions with random keys, and print how often objects survive and move correctly, as JSON."""
    from fastcar_lab.common import commit, pipeline_of
    from fastcar_lab.worlds.table_actions.sessions import measure

    pipe = pipeline_of(model, set_ or ())
    if unsettled:
        pipe.model.network.tokenizer.settled = lambda frames: frames  # type: ignore[union-attr]
    found = measure(pipe, count, frames, seed)
    about = {"model": model, "count": count, "frames": frames, "seed": seed, "settled": not unsettled}
    typer.echo(json.dumps({**about, **found, "commit": commit() or "unknown"}, indent=1))


def placements(file: Annotated[Path, typer.Argument(help="File to write.")], debug: Debug = False) -> None:
    """Write the placements of objects in table's scenes as JSON; a video's seed selects one of them."""
    from fastcar_lab.worlds.table.placements import write

    write(file)


def curves(
    sweeps: Annotated[list[Path], typer.Argument(help="Folders of finished sweeps.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of tables and plot.")],
    debug: Debug = False,
) -> None:
    """Plot the video quality of several sweeps over the replay ratio, with 95 % intervals, and print a table."""
    from fastcar_lab.figures.curves import compare

    table, plot = compare(sweeps, output)
    typer.echo(table)
    typer.echo(f"{plot}", err=True)


def replay_plot(
    before: Annotated[Path, typer.Argument(help="JSON from `evaluate` for a model before stage replay.")],
    after: Annotated[Path, typer.Argument(help="JSON from `evaluate` for the model after stage replay.")],
    output: Plot,
    debug: Debug = False,
) -> None:
    """Plot the share of correct videos and PSNR over the replay ratio, before and after `train --stage replay`."""
    from fastcar_cli.system.plain_data import parse_json
    from fastcar_lab.figures.curves import draw_plot

    documents = []
    for file in (before, after):
        try:
            documents.append(parse_json(file.read_text(encoding="utf-8")))
        except (OSError, ValueError) as e:
            raise RequestError(f"{file}: {e}", hint="fastcar lab evaluate prints such a file") from None
    draw_plot(output, *documents)
