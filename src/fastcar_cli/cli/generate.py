"""`fastcar generate`: prompts, or frames, to videos."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastcar_cli.cli.flags import check_file, check_made, given, one_of, refuse
from fastcar_cli.cli.options import (
    ConfigFile,
    Debug,
    EngineName,
    Flags,
    Format,
    Json,
    Overrides,
    Quiet,
    Shard,
    options,
)
from fastcar_cli.config.lists import MOST, parse_seeds, shard_of
from fastcar_cli.config.run_config import RunConfig, load_config, load_sources, notices, surroundings
from fastcar_cli.errors import RequestError
from fastcar_cli.pipeline.engines import check_engine

if TYPE_CHECKING:
    from fastcar_cli.cli.inputs import Given
    from fastcar_cli.models.checkpoint import Checkpoint
    from fastcar_cli.pipeline.pipeline import VideoPipeline

Prompts = Annotated[list[str] | None, typer.Argument(metavar="PROMPT", help="What the video shows.")]
PromptsFile = Annotated[
    Path | None, typer.Option("--prompts", help="File with one prompt a line, or JSON: VBench's lists, or .jsonl.")
]
InputFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--input",
        metavar="FILE",
        help="Frames to continue: a video, GIF, picture, folder of pictures, or .npz; repeat it for more videos.",
    ),
]
Actions = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        help="Actions of the input, a row a frame: .npz, .npy, .csv, .tsv or .json. An .npz may bring its own.",
    ),
]
Address = Annotated[str | None, typer.Option(help="Address of a running Ray cluster.", hidden=True)]
Workers = Annotated[int | None, typer.Option(help="Workers on Ray at once.", min=1, hidden=True)]
Truth = Annotated[bool, typer.Option("--truth", help="Show the input's frames beside the prediction, and its error.")]
Example = Annotated[
    bool, typer.Option("--example", help="Begin with the bundled model's own example: a prompt, or a clip.")
]
Seeds = Annotated[str | None, typer.Option(help="Seeds of every prompt: 0-3, 0,5,7 or both. [default: one seed]")]
Names = Annotated[
    str | None,
    typer.Option(help="vbench: also name videos {prompt}-{index}.mp4, in the folder vbench.", hidden=True),
]
KeepGoing = Annotated[bool, typer.Option("--keep-going", help="Skip prompts that are refused; status 1 at the end.")]
TextEmbedding = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Vectors of a text encoder, up to 512 rows, as .npy, .pt, ...")
]
From = Annotated[Path | None, typer.Option("--from", help="Make the video of an earlier file again, from its recipe.")]
Output = Annotated[
    str | None,
    typer.Option(
        "-o",
        "--output",
        help="File (.mp4, .gif), a name without suffix for a folder of PNGs, or NAME/ for a folder of videos. An "
        "existing folder, several videos and files of prompts make folders of videos too. "
        "[default: named after the prompt]",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Write over an existing file, or another video of that name.")]
Preview = Annotated[bool, typer.Option("--preview", help="Show frames in the terminal as they are decoded.")]
Report = Annotated[
    Path | None, typer.Option("--report", help="Folder for CSVs of the emulated accelerator.", hidden=True)
]
Trace = Annotated[Path | None, typer.Option("--trace", help="File (.npz) of the replay decisions, for `fastcar fpga`.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print files, memory, time and replay ceiling; write nothing.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Print replay by layer and frame.", hidden=True)]


@dataclass(frozen=True)
class Plan:
    """A request of `generate`, checked: the run, its inputs and seeds, whether it is a list that a later run resumes.

    `checkpoint` is the model's, published shapes where there are no files yet; `recipe` is that of the earlier video
    `source`; `notes` are for the user.
    """

    run: RunConfig
    checkpoint: Checkpoint
    begin: Given
    seeds: range | tuple[int, ...]
    listed: bool
    recipe: dict[str, Any] | None
    source: Path | None
    notes: list[str]

    @property
    def count(self) -> int:
        """Number of videos."""
        return max(self.begin.count, 1) * len(self.seeds)


@options()
def generate(
    ctx: typer.Context,
    prompts: Prompts = None,
    prompts_file: PromptsFile = None,
    inputs: InputFiles = None,
    actions: Actions = None,
    truth: Truth = False,
    example: Example = False,
    seeds: Seeds = None,
    names: Names = None,
    shard: Shard = None,
    engine: EngineName = "local",
    address: Address = None,
    workers: Workers = None,
    keep_going: KeepGoing = False,
    text_embedding: TextEmbedding = None,
    from_: From = None,
    output: Output = None,
    force: Force = False,
    preview: Preview = False,
    *,
    flags: Flags,
    report_to: Report = None,
    trace_to: Trace = None,
    config: ConfigFile = None,
    set_: Overrides = None,
    dry: DryRun = False,
    as_json: Json = False,
    form: Format = "table",
    verbose: Verbose = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Make videos from prompts, or from frames that they continue.

    Rarer settings are keys: `fastcar config --keys` lists them, --set KEY=VALUE sets one.
    """
    from fastcar_cli.cli import many, writing
    from fastcar_cli.cli.inputs import is_list
    from fastcar_cli.cli.output import folder_for
    from fastcar_cli.cli.render import Results, console, note

    if quiet or (verbose and as_json):
        refuse(ctx, ("verbose", "preview"), f"with {'--quiet' if quiet else '--json'}", "leave one of them out")
    listed = is_list(ctx, seeds, output)
    check_engine(engine, address, workers)
    one_of("--names", names, ("vbench",))
    shard_of((), shard)
    run, recipe, notes = _settings(config, set_ or [], flags, from_)
    notes += _without_effect(ctx, run)
    _check_files(ctx, run, report_to, trace_to)
    begin = _Begin(prompts or [], prompts_file, inputs or [], actions or [], example, text_embedding, from_)
    plan = _plan(ctx, run, begin, recipe, notes, seeds=seeds, listed=listed, needed=not dry)
    folder = None if dry else folder_for(output, plan.count, listed=prompts_file is not None, force=force)
    at_once = min(plan.count, many.BATCH) if plan.listed else plan.count
    if dry:
        from fastcar_cli.cli.dry_run import dry_run

        dry_run(plan.run, len(shard_of(range(plan.count), shard)), at_once, as_json, quiet)
        return
    terminal, results = console(quiet), Results(quiet)
    shown, lacking = _preview(preview, terminal)
    opened = plan.checkpoint if plan.checkpoint.folder.is_dir() else None
    pipe = writing.load(plan.run, at_once, terminal, opened)
    jobs = plan.begin.jobs(pipe, plan.seeds, truth=truth)
    if trace_to is not None or report_to is not None:
        _check_one_batch("--report" if trace_to is None else "--trace", pipe, plan.count)
    for text in [*plan.notes, *lacking, *_notes_on(pipe, plan.recipe, plan.source)]:
        note(terminal, text)
    if plan.listed and (output is None or folder is not None):
        many.make(
            pipe, jobs, folder or Path("."), vbench=names is not None, shard=shard, engine=engine, address=address,
            workers=workers, keep_going=keep_going, force=force, as_json=as_json, terminal=terminal, results=results,
        )  # fmt: skip
        return
    writing.make(
        pipe, jobs, output if folder is None else None, folder, keep_going=keep_going, force=force, truth=truth,
        preview=shown, trace_to=trace_to, report_to=report_to, as_json=as_json,
        verbose=verbose, terminal=terminal, results=results,
    )  # fmt: skip


@dataclass(frozen=True)
class _Begin:
    """Prompts, inputs and an earlier video, as the options name them."""

    prompts: list[str]
    file: Path | None
    inputs: list[Path]
    actions: list[Path]
    example: bool
    embedding: Path | None
    earlier: Path | None

    def texts(self, model: str) -> tuple[list[str], list[str | None], list[Path]]:
        """Prompts, where each is from, and input files; the model's example where it is wanted. Raises RequestError."""
        from fastcar_cli.cli.inputs import example_of, texts_of

        texts, sources = texts_of(self.prompts, self.file)
        if not self.example:
            return texts, sources, self.inputs
        if texts or self.inputs or self.earlier is not None:
            raise RequestError("--example is an input of its own", hint="leave the prompt, --input or --from out")
        texts, inputs = example_of(model)
        return texts, [], inputs


def _plan(
    ctx: typer.Context,
    run: RunConfig,
    begin: _Begin,
    recipe: dict[str, Any] | None,
    notes: list[str],
    *,
    seeds: str | None,
    listed: bool,
    needed: bool,
) -> Plan:
    """Check a request before a model is loaded; with `needed` an input has to be given. Raises RequestError."""
    from fastcar_cli.checkpoints.open import known
    from fastcar_cli.cli.inputs import ONE_RUN, Given
    from fastcar_cli.inputs.embedding import read_embedding
    from fastcar_cli.pipeline.clips import ClipFiles
    from fastcar_cli.pipeline.recipe import prompt_of

    texts, sources, files = begin.texts(run.model)
    begun = None if recipe is None or texts or files else prompt_of(recipe, str(begin.earlier))
    several = len(texts) > 1 and begin.file is not None and run.generation.seed is not None
    listed |= several and not given(ctx).keys() & ONE_RUN
    each = parse_seeds(seeds) if seeds is not None else _seeds_of(run, listed)
    clips = ClipFiles(tuple(files), tuple(begin.actions), run.input)
    vectors = None if begin.embedding is None else read_embedding(begin.embedding)
    what = Given(texts, sources, clips, begun, vectors)
    checkpoint = known(run.model)
    what.check(ctx, run, checkpoint.spec, needed=needed)
    plan = Plan(what.context(run, checkpoint.spec), checkpoint, what, each, listed, recipe, begin.earlier, notes)
    if plan.count > MOST:
        raise RequestError(f"a list of {plan.count:,} videos", allowed=f"{MOST:,}")
    return plan


def _preview(wanted: bool, terminal: Any) -> tuple[Any, list[str]]:
    """The preview, and a note where this terminal can show none."""
    from fastcar_cli.cli.preview import Preview, lacking

    if not wanted:
        return None, []
    why = lacking(terminal)
    return (Preview(), []) if why is None else (None, [f"no preview: {why}"])


def _settings(
    config: str | None, overrides: list[str], flags: Flags, earlier: Path | None
) -> tuple[RunConfig, dict[str, Any] | None, list[str]]:
    """The run, the recipe of the earlier video that it makes again, and what to say of both. Raises RequestError."""
    from fastcar_cli.media import read_recipe
    from fastcar_cli.pipeline.recipe import settings_of

    if "replay.tau" in flags and "replay.ratio" in flags:
        raise RequestError(
            f"--tau {flags['replay.tau']} and --replay-ratio {flags['replay.ratio']:g} exclude each other",
            hint="a controller holds a ratio by moving tau",
        )
    named = [*flags, *(o.partition("=")[0].strip() for o in overrides)]
    if earlier is None:
        run, sources = load_sources(config, overrides, flags, surroundings())
        return run, None, notices(sources)
    if config is not None:
        raise RequestError("--from and --config exclude each other", hint="change single keys with flags or --set")
    # A recipe decides alone, wherever the video is made again.
    recipe = read_recipe(earlier)
    taken, left = settings_of(recipe, str(earlier), named)
    return load_config(None, overrides, {**taken, **flags}), recipe, left


def _check_files(ctx: typer.Context, run: RunConfig, report_to: Path | None, trace_to: Path | None) -> None:
    """Refuse, before anything is loaded, what can't be written beside the videos. Raises RequestError."""
    if run.backend.name != "fpga-sim":
        refuse(ctx, ("fpga", "report_to"), f"with the backend {run.backend.name}", "it needs --backend fpga-sim")
    if report_to is not None:
        check_made("--report", report_to)
    if trace_to is not None and (trace_to.suffix != ".npz" or not trace_to.parent.is_dir() or trace_to.is_dir()):
        raise RequestError(f"--trace {trace_to}: needs a file name that ends in .npz, in a folder that exists")
    if run.runtime.keep_prefill is not None:
        check_file("--keep-prefill", Path(run.runtime.keep_prefill))


def _seeds_of(run: RunConfig, listed: bool) -> range:
    """The seeds of a prompt's videos. Raises RequestError for ones that no seed can be."""
    first, samples = run.generation.seed, run.generation.samples
    if first is not None and first + samples > 2**63:
        raise RequestError(f"--seed {first} with {samples} samples", hint="a smaller seed")
    if first is None:
        # Machines that share a list have the same seeds, and so has the command that is repeated.
        first = 0 if listed else secrets.randbelow(2**31)
    return range(first, first + samples)


def _check_one_batch(option: str, pipe: VideoPipeline, count: int) -> None:
    """Refuse an option whose file holds one batch for more. Raises RequestError."""
    if pipe.batch_size(count) < count:
        raise RequestError(
            f"{option}: {count} videos are decoded in batches of {pipe.batch_size(count)}, one file holds one",
            hint="fewer prompts or --samples at once",
        )


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
