"""`fastcar generate`: prompts, or frames, to videos."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fastcar_cli.cli.flags import check_file, check_made, given, one_of, refuse
from fastcar_cli.cli.inputs import ONE_RUN, Given, folder_for, is_list
from fastcar_cli.cli.options import Flags, GenerateOptions, options
from fastcar_cli.cli.render import Results, add_memory, console, facts, lacking, note
from fastcar_cli.config.lists import MOST, parse_seeds, shard_of
from fastcar_cli.config.run_config import RunConfig, load_config, load_sources, notices, surroundings
from fastcar_cli.errors import Key, RequestError, RunError
from fastcar_cli.pipeline.engines import check_engine

if TYPE_CHECKING:
    from fastcar_cli.checkpoints.memory_plan import MemoryPlan
    from fastcar_cli.models.network import Spec
    from fastcar_cli.pipeline.pipeline import VideoPipeline


@options()
def generate(ctx: typer.Context, asked: GenerateOptions, flags: Flags) -> None:
    """Generate videos from prompts, or continue input frames.

    `fastcar config --keys` lists further settings, and --set KEY=VALUE sets one.
    """
    from fastcar_cli.checkpoints.open import checkpoint_of
    from fastcar_cli.cli import writing
    from fastcar_cli.pipeline.recipe import same_weights

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
    checkpoint = checkpoint_of(run.model, run.runtime.tokenizer)
    what.check(ctx, run, checkpoint.spec, needed=not asked.dry)
    run = what.context(run, checkpoint.spec)
    if (count := max(what.count, 1) * len(seeds)) > MOST:
        raise RequestError(f"the list has {count:,} videos", allowed=f"at most {MOST:,}")
    at_once = min(count, writing.BATCH) if listed else count
    if asked.dry:
        _dry_run(run, len(shard_of(range(count), asked.shard)), at_once, asked.as_json, asked.quiet)
        return
    folder = folder_for(asked, count)
    terminal = console(asked.quiet)
    if asked.preview and (why := lacking(terminal)) is not None:
        notes.append(f"no preview: {why}")
    pipe = writing.load(run, at_once, terminal, checkpoint if checkpoint.folder.is_dir() else None)
    jobs = what.jobs(pipe, seeds, truth=asked.truth)
    if (asked.trace_to or asked.report_to) is not None and (size := pipe.batch_size(count)) < count:
        raise RequestError(
            f"{'--report' if asked.trace_to is None else '--trace'} supports only one batch, but {count} videos need "
            f"batches of {size}",
            hint=f"use fewer prompts or a lower --samples, for at most {size} videos",
        )
    if asked.trace_to is not None and pipe.settings.frames > pipe.settings.held:
        said, most = "--trace can't record this video, which needs more than one context", pipe.spec.frames
        raise RequestError(said, allowed=f"--frames {most} or fewer")
    other = [] if recipe is None else same_weights(recipe, str(asked.earlier), run.model, pipe.checkpoint.identity)
    if other and asked.continued is not None:
        raise RequestError(other[0], hint="--continue needs the weights that made the video")
    for text in [*notes, *_notes_on(pipe), *other]:
        note(terminal, text)
    if listed and (asked.output is None or folder is not None):
        writing.make_list(pipe, jobs, folder or Path("."), asked, terminal)
    else:
        writing.make(pipe, jobs, folder, asked, terminal)


def _settings(asked: GenerateOptions, flags: Flags) -> tuple[RunConfig, dict[str, Any] | None, list[str]]:
    """The run, the recipe of `--from`, and notes on both. Raises RequestError."""
    from fastcar_cli.media import read_recipe
    from fastcar_cli.pipeline.recipe import settings_of

    if "replay.tau" in flags and "replay.ratio" in flags:
        raise RequestError(
            f"--tau {flags['replay.tau']} and --replay-ratio {flags['replay.ratio']:g} can't be used together",
            hint="leave one of them out; --replay-ratio adjusts tau by itself",
        )
    overrides = asked.set_ or []
    if asked.earlier is None:
        run, sources = load_sources(asked.config, overrides, flags, surroundings())
        return run, None, notices(sources)
    if asked.config is not None:
        raise RequestError("--from and --config can't be used together", hint="use options or --set, not --config")
    # A recipe overrides environment and fastcar.yaml, so that a video is the same in every folder.
    recipe = read_recipe(asked.earlier)
    named = [*flags, *(o.partition("=")[0].strip() for o in overrides)]
    taken, left = settings_of(recipe, str(asked.earlier), named)
    if asked.continued is not None:
        recipe, flags = _longer(asked, recipe, named, taken, flags)
    return load_config(None, overrides, {**taken, **flags}), recipe, left


def _longer(
    asked: GenerateOptions, recipe: dict[str, Any], named: list[str], taken: Flags, flags: Flags
) -> tuple[dict[str, Any], Flags]:
    """The recipe and the options of an extended video. Raises RequestError for options that would change its start."""
    from fastcar_cli.checkpoints.open import checkpoint_of
    from fastcar_cli.inputs.actions import read_actions
    from fastcar_cli.media import read_frames
    from fastcar_cli.pipeline.recipe import decides

    if asked.from_ is not None:
        raise RequestError("--from and --continue can't be used together", hint="leave one of them out")
    if asked.prompts or asked.prompts_file or asked.inputs:
        raise RequestError("--continue: the video has its own prompt or input", hint="leave out any other input")
    free = ("generation.frames", "generation.context_policy", "model")
    if changed := [key for key in named if decides(key) and key not in free]:
        said = Key(changed[0]), f" can't be used with --continue: {asked.continued} fixes its value"
        raise RequestError(said, hint=("leave ", Key(changed[0]), " out"))
    begun = len(read_frames(Path(str(asked.continued))))
    more = flags.get("generation.frames") or begun
    # If the video is longer than clips in training and did not roll, rolling would change its frames.
    name = flags.get("model") or taken.get("model")
    spec = None if name is None else checkpoint_of(name, flags.get("runtime.tokenizer")).spec
    rolls = spec is None or begun <= spec.frames
    policy = "roll" if rolls else taken["generation.context_policy"]
    flags = {"generation.context_policy": policy, **flags, "generation.frames": begun + more}
    rows = recipe.get("input", {}).get("actions")
    if rows is not None:
        if asked.actions is None or len(asked.actions) != 1:
            raise RequestError("--continue: new frames need actions", hint=f"give --actions FILE with {more} rows")
        parts = () if spec is None else spec.steering.parts
        own = read_actions(asked.actions[0], len(rows[0]), range(more + 1), parts).tolist()
        recipe = {**recipe, "input": {**recipe["input"], "actions": [*rows[: begun - 1], *own]}}
    return recipe, flags


def _check_files(ctx: typer.Context, run: RunConfig, asked: GenerateOptions) -> None:
    """Check `--trace` and `--report` before the model is loaded. Raises RequestError."""
    if run.backend.name != "fpga-sim":
        refuse(ctx, ("fpga", "report_to"), f"with the backend {run.backend.name}", "add --backend fpga-sim")
    check_made("--report", asked.report_to)
    trace = asked.trace_to
    if trace is not None and (trace.suffix != ".npz" or not trace.parent.is_dir() or trace.is_dir()):
        raise RequestError(f"--trace {trace}: expected a .npz file in an existing folder")
    if run.runtime.keep_prefill is not None:
        check_file("--keep-prefill", Path(run.runtime.keep_prefill))


def _seeds_of(run: RunConfig, listed: bool) -> Sequence[int]:
    """The seeds of a prompt's videos. Raises RequestError for seeds out of range."""
    first, samples = run.generation.seed, run.generation.samples
    if first is not None and first + samples > 2**63:
        raise RequestError(f"--seed {first} with {samples} samples needs seeds over 2^63 - 1", hint="use a lower seed")
    if first is None:
        # Every shard and every repetition of a list needs the same seeds.
        first = 0 if listed else secrets.randbelow(2**31)
    return range(first, first + samples)


def _notes_on(pipe: VideoPipeline) -> list[str]:
    """Notes on a loaded model: options without effect, missing kernels, licence terms."""
    from fastcar_cli.checkpoints.hub import licence, repository_of
    from fastcar_cli.kernels import native

    model, rule, notes = pipe.config.model, pipe.settings.rule, []
    if pipe.config.replay.gate == "pair" and not rule.pairs and (rule.target is not None or not rule.tau.off):
        notes.append("--gate pair has no effect, because a video without guidance (--cfg 1) has only one row")
    wanted = pipe.settings.executor == "auto" and pipe.model.network.device.type == "cpu"
    if wanted and pipe.config.backend.name == "torch" and (why := native.unavailable()) is not None:
        notes.append(f"decoding in plain torch, which is many times slower than native kernels: {why}")
    if (repository := repository_of(model)) is not None:
        notes.append(licence(model, repository))
    return notes


def _without_effect(ctx: typer.Context, run: RunConfig) -> list[str]:
    """Notes on options without effect; not an error, since a script's loop over thresholds may include a dense run."""
    dense = run.replay.tau.off and run.replay.ratio is None
    idle = {
        "nothing replays without --tau or --replay-ratio": (dense, ("score", "tas", "gate", "max_replay_age")),
        f"the score is {run.replay.score}, not tas": (not dense and run.replay.score != "tas", ("tas",)),
        "attention is full without --window": (run.attention.window is None, ("sinks",)),
        "temperature 0 selects the most likely code": (run.sampling.temperature == 0, ("top_k", "top_p")),
    }
    flags = given(ctx)
    return [
        f"{flags[name]} has no effect, because {why}"
        for why, (holds, names) in idle.items()
        for name in names
        if holds and name in flags
    ]


def _dry_run(run: RunConfig, videos: int, at_once: int, as_json: bool, quiet: bool) -> None:
    """Print files, memory for `at_once` videos, time for all, and replay's maximum speedup; raises as the run would."""
    from fastcar_cli.checkpoints import hub
    from fastcar_cli.checkpoints.memory_plan import choose_dtype, default_dtype
    from fastcar_cli.checkpoints.names import BUNDLED
    from fastcar_cli.checkpoints.open import checkpoint_of, open_folder, open_model
    from fastcar_cli.pipeline.resolve import memory_plans

    repository = hub.repository_of(run.model)
    if repository is not None:
        folder, sizes = _on_the_hub(run.model, repository)
        tokenizer = run.runtime.tokenizer
        checkpoint = checkpoint_of(run.model) if folder is None else open_folder(folder, tokenizer=tokenizer)
        missing = {name: size for name, size in sizes.items() if folder is None or not (folder / name).exists()}
    else:
        checkpoint = open_model(run.model, run.runtime.tokenizer)
        folder = checkpoint.folder
        try:
            files = checkpoint.weight_files()
        except RequestError:
            files = [folder / "model.safetensors"]
        sizes = {os.path.relpath(f, folder): f.stat().st_size if f.is_file() else 0 for f in files}
        missing = {name: 0 for name in sizes if not (folder / name).is_file()}
    plans = memory_plans(run, videos=at_once, checkpoint=checkpoint)
    dtype: str = run.runtime.dtype
    any_plan = next(iter(plans.values()))
    if run.model in BUNDLED and dtype == "auto":
        dtype = default_dtype(any_plan.device)
    try:
        plan, refusal = plans[choose_dtype(dtype, any_plan.device, plans)], None
    except RequestError as e:
        plan, refusal = plans.get(dtype) or plans.get("bfloat16") or any_plan, e
    document: dict[str, Any] = {
        "model": run.model,
        "folder": None if folder is None else str(folder),
        "files": sizes,
        "to_download": missing if repository else {},
        "missing": [] if repository else sorted(missing),
        **plan.to_dict(),
        "expected_s": None,
        "expected_from": None,
    }
    if refusal is None and not missing and folder is not None:
        seconds, how = _time(run, plan, checkpoint.spec.sized(run.size), videos, at_once)
        document |= {"expected_s": seconds, "expected_from": how}
    if as_json:
        typer.echo(json.dumps(document))
    elif not quiet:
        _table(document, plan)
    if repository is not None and not quiet:
        note(console(), hub.licence(run.model, repository))
    if refusal is not None:
        raise refusal
    if document["missing"]:
        raise RequestError(f"weights file {folder / document['missing'][0]} is missing", hint="download the file")


def _time(run: RunConfig, plan: MemoryPlan, spec: Spec, videos: int, at_once: int) -> tuple[float, str]:
    from fastcar_cli.profile.profiler import SMALL, expected_by_bandwidth, expected_by_steps

    if plan.weights <= SMALL:
        return expected_by_steps(run, videos, at_once)
    spec = spec.continuing(run.generation.context)
    pictures = (run.generation.frames or spec.frames) - spec.frames_of(spec.layout.context)
    frames = max(1, pictures // spec.frame_spec.per_latent) * -(-videos // at_once)
    return expected_by_bandwidth(plan, frames * spec.tokens_per_frame)


def _on_the_hub(model: str, repository: str) -> tuple[Path | None, dict[str, int]]:
    """The model's folder (None without network and cache) and file sizes. Raises RunError for unknown shapes."""
    from fastcar_cli.checkpoints import hub
    from fastcar_cli.checkpoints.open import checkpoint_of
    from fastcar_cli.models.checkpoint import Released

    revision = hub.revision_of(model)
    try:
        folder = hub.fetch(repository, revision, configs_only=True)
    except RunError:
        shapes = checkpoint_of(model)
        if not isinstance(shapes, Released) or not shapes.OFFLINE:
            raise
        return None, {}
    try:
        return folder, hub.remote_sizes(repository, revision)
    except RunError:
        return folder, {str(p.relative_to(folder)): p.stat().st_size for p in folder.rglob("*") if p.is_file()}


def _table(document: dict[str, Any], plan: Any) -> None:
    from fastcar_cli.checkpoints.memory_plan import gib

    table = facts(f"plan for {document['model']} (nothing was written)")
    table.add_row("folder", document["folder"] or "none (the hub can't be reached, so fastcar uses published sizes)")
    for name, size in document["files"].items():
        state = "missing" if name in document["missing"] else gib(size)
        table.add_row("file", f"{name}  {state}" + ("  (to download)" if name in document["to_download"] else ""))
    add_memory(table, plan)
    table.add_row(
        "replay ceiling",
        f"at most {plan.ceiling:.2f}x speedup if memory bandwidth limits decoding (MLPs are {plan.mlp_share:.0%} of "
        f"the bytes that a step reads, and at most {plan.max_replay_ratio:.1%} of MLPs can replay)",
    )
    if document["expected_s"] is not None:
        bound = "at least" if "GB/s" in document["expected_from"] else "at most"
        more = "less with replay or drafts" if bound == "at most" else "prompt and pixels take extra time"
        table.add_row("time", f"{bound} {document['expected_s']:.1f} s ({document['expected_from']}; {more})")
    Results().print(table)
