"""`fastcar generate`: prompts, or frames, to videos."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fastcar_cli.cli.flags import check_file, check_made, given, one_of, refuse
from fastcar_cli.cli.inputs import ONE_RUN, Given, folder_for, is_list
from fastcar_cli.cli.options import Flags, GenerateOptions, options
from fastcar_cli.config.lists import MOST, parse_seeds, shard_of
from fastcar_cli.config.run_config import RunConfig, load_config, load_sources, notices, surroundings
from fastcar_cli.errors import RequestError
from fastcar_cli.pipeline.engines import check_engine

if TYPE_CHECKING:
    from fastcar_cli.pipeline.pipeline import VideoPipeline


@options()
def generate(ctx: typer.Context, asked: GenerateOptions, flags: Flags) -> None:
    """Make videos from prompts, or from frames that they continue.

    Rarer settings are keys: `fastcar config --keys` lists them, --set KEY=VALUE sets one.
    """
    from fastcar_cli.checkpoints.open import known
    from fastcar_cli.cli import writing
    from fastcar_cli.cli.preview import lacking
    from fastcar_cli.cli.render import console, note

    if asked.quiet or (asked.verbose and asked.as_json):
        refuse(ctx, ("verbose", "preview"), f"with {'--quiet' if asked.quiet else '--json'}", "leave one of them out")
    listed = is_list(ctx, asked)
    check_engine(asked.engine, asked.address, asked.workers)
    one_of("--names", asked.names, ("vbench",))
    shard_of((), asked.shard)
    run, recipe, notes = _settings(asked, flags)
    notes += _without_effect(ctx, run)
    _check_files(ctx, run, asked)
    what = Given.of(asked, run, recipe)
    several = len(what.texts) > 1 and asked.prompts_file is not None and run.generation.seed is not None
    listed |= several and not given(ctx).keys() & ONE_RUN
    seeds = _seeds_of(run, listed) if asked.seeds is None else parse_seeds(asked.seeds)
    checkpoint = known(run.model)
    what.check(ctx, run, checkpoint.spec, needed=not asked.dry)
    run = what.context(run, checkpoint.spec)
    if (count := max(what.count, 1) * len(seeds)) > MOST:
        raise RequestError(f"a list of {count:,} videos", allowed=f"{MOST:,}")
    at_once = min(count, writing.BATCH) if listed else count
    if asked.dry:
        from fastcar_cli.cli.dry_run import dry_run

        dry_run(run, len(shard_of(range(count), asked.shard)), at_once, asked.as_json, asked.quiet)
        return
    folder = folder_for(asked, count)
    terminal = console(asked.quiet)
    if asked.preview and (why := lacking(terminal)) is not None:
        notes.append(f"no preview: {why}")
    pipe = writing.load(run, at_once, terminal, checkpoint if checkpoint.folder.is_dir() else None)
    jobs = what.jobs(pipe, seeds, truth=asked.truth)
    if (asked.trace_to or asked.report_to) is not None and (size := pipe.batch_size(count)) < count:
        raise RequestError(
            f"{'--report' if asked.trace_to is None else '--trace'}: {count} videos are decoded in batches of {size}, "
            "one file holds one",
            hint="fewer prompts or --samples at once",
        )
    for text in [*notes, *_notes_on(pipe, recipe, asked.from_)]:
        note(terminal, text)
    if listed and (asked.output is None or folder is not None):
        writing.make_list(pipe, jobs, folder or Path("."), asked, terminal)
    else:
        writing.make(pipe, jobs, folder, asked, terminal)


def _settings(asked: GenerateOptions, flags: Flags) -> tuple[RunConfig, dict[str, Any] | None, list[str]]:
    """The run, the recipe of the earlier video that it makes again, and what to say of both. Raises RequestError."""
    from fastcar_cli.media import read_recipe
    from fastcar_cli.pipeline.recipe import settings_of

    if "replay.tau" in flags and "replay.ratio" in flags:
        raise RequestError(
            f"--tau {flags['replay.tau']} and --replay-ratio {flags['replay.ratio']:g} exclude each other",
            hint="a controller holds a ratio by moving tau",
        )
    overrides = asked.set_ or []
    if asked.from_ is None:
        run, sources = load_sources(asked.config, overrides, flags, surroundings())
        return run, None, notices(sources)
    if asked.config is not None:
        raise RequestError("--from and --config exclude each other", hint="change single keys with flags or --set")
    # A recipe decides alone, wherever the video is made again.
    recipe = read_recipe(asked.from_)
    named = [*flags, *(o.partition("=")[0].strip() for o in overrides)]
    taken, left = settings_of(recipe, str(asked.from_), named)
    return load_config(None, overrides, {**taken, **flags}), recipe, left


def _check_files(ctx: typer.Context, run: RunConfig, asked: GenerateOptions) -> None:
    """Refuse, before anything is loaded, what can't be written beside the videos. Raises RequestError."""
    if run.backend.name != "fpga-sim":
        refuse(ctx, ("fpga", "report_to"), f"with the backend {run.backend.name}", "it needs --backend fpga-sim")
    check_made("--report", asked.report_to)
    trace = asked.trace_to
    if trace is not None and (trace.suffix != ".npz" or not trace.parent.is_dir() or trace.is_dir()):
        raise RequestError(f"--trace {trace}: needs a file name that ends in .npz, in a folder that exists")
    if run.runtime.keep_prefill is not None:
        check_file("--keep-prefill", Path(run.runtime.keep_prefill))


def _seeds_of(run: RunConfig, listed: bool) -> Sequence[int]:
    """The seeds of a prompt's videos. Raises RequestError for ones that no seed can be."""
    first, samples = run.generation.seed, run.generation.samples
    if first is not None and first + samples > 2**63:
        raise RequestError(f"--seed {first} with {samples} samples", hint="a smaller seed")
    if first is None:
        # Machines that share a list have the same seeds, and so has the command that is repeated.
        first = 0 if listed else secrets.randbelow(2**31)
    return range(first, first + samples)


def _notes_on(pipe: VideoPipeline, recipe: dict[str, Any] | None, earlier: Path | None) -> list[str]:
    """What to say of a loaded model: options that it has no use for, kernels that are missing, its terms, and other
    weights than a recipe's.
    """
    from fastcar_cli.checkpoints.hub import licence, repository_of
    from fastcar_cli.kernels import native
    from fastcar_cli.pipeline.recipe import same_weights

    model, rule, notes = pipe.config.model, pipe.settings.rule, []
    if pipe.config.replay.gate == "pair" and not rule.pairs and (rule.target is not None or not rule.tau.off):
        notes.append("--gate pair has no effect, because guidance 1 makes no pairs")
    wanted = pipe.settings.executor == "auto" and pipe.model.network.device.type == "cpu"
    if wanted and pipe.config.backend.name == "torch" and (why := native.unavailable()) is not None:
        notes.append(f"plain torch decodes, many times slower: {why}")
    if (repository := repository_of(model)) is not None:
        notes.append(licence(model, repository))
    return notes if recipe is None else [*notes, *same_weights(recipe, str(earlier), model, pipe.checkpoint.identity)]


def _without_effect(ctx: typer.Context, run: RunConfig) -> list[str]:
    """What to say of options that this run has no use for: a loop over thresholds may well hold a dense run."""
    dense = run.replay.tau.off and run.replay.ratio is None
    idle = {
        "nothing replays: it takes --tau or --replay-ratio": (dense, ("score", "tas", "gate", "max_replay_age")),
        f"the score is {run.replay.score}": (not dense and run.replay.score != "tas", ("tas",)),
        "everything is attended to: it takes --window": (run.attention.window is None, ("sinks",)),
        "temperature 0 takes the likeliest code": (run.sampling.temperature == 0, ("top_k", "top_p")),
    }
    flags = given(ctx)
    return [
        f"{flags[name]} has no effect, because {why}"
        for why, (holds, names) in idle.items()
        for name in names
        if holds and name in flags
    ]
