"""`fastcar generate --dry-run`: files, memory and time of a run, without running it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fastcar_cli.errors import RequestError, RunError

if TYPE_CHECKING:
    from fastcar_cli.checkpoints.memory_plan import MemoryPlan
    from fastcar_cli.config.run_config import RunConfig
    from fastcar_cli.models.network import Spec


def dry_run(run: RunConfig, videos: int, at_once: int, as_json: bool, quiet: bool) -> None:
    """Print files, sizes, memory, time and the replay ceiling; raises RequestError as the run would.

    The time is that of all videos, the memory that of those decoded at once.
    """
    from fastcar_cli.checkpoints import hub
    from fastcar_cli.checkpoints.memory_plan import choose_dtype, default_dtype
    from fastcar_cli.checkpoints.names import BUNDLED
    from fastcar_cli.checkpoints.open import known, open_folder, open_model
    from fastcar_cli.pipeline.resolve import memory_plans

    repository = hub.repository_of(run.model)
    if repository is not None:
        folder, sizes = _on_the_hub(run.model, repository)
        checkpoint = known(run.model) if folder is None else open_folder(folder)
        missing = {name: size for name, size in sizes.items() if folder is None or not (folder / name).exists()}
    else:
        checkpoint = open_model(run.model)
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
        from fastcar_cli.cli.render import console, note

        note(console(), hub.licence(run.model, repository))
    if refusal is not None:
        raise refusal
    if document["missing"]:
        raise RequestError(f"weights file {folder / document['missing'][0]} is missing", hint="fetch it again")


def _time(run: RunConfig, plan: MemoryPlan, spec: Spec, videos: int, at_once: int) -> tuple[float, str]:
    """Seconds of the run, and how they come about."""
    from fastcar_cli.profile.profiler import SMALL, expected_by_bandwidth, expected_by_steps

    if plan.weights <= SMALL:
        return expected_by_steps(run, videos, at_once)
    spec = spec.continuing(run.generation.context)
    pictures = (run.generation.frames or spec.frames) - spec.frames_of(spec.layout.context)
    frames = max(1, pictures // spec.frame_spec.per_latent) * -(-videos // at_once)
    return expected_by_bandwidth(plan, frames * spec.tokens_per_frame)


def _on_the_hub(model: str, repository: str) -> tuple[Path | None, dict[str, int]]:
    """The folder of a model's configuration, and the sizes of its files by name; None without network and cache.

    Raises RunError where the shapes of such a model are not known either.
    """
    from fastcar_cli.checkpoints import hub
    from fastcar_cli.checkpoints.open import known
    from fastcar_cli.models.checkpoint import Released

    revision = hub.revision_of(model)
    try:
        folder = hub.fetch(repository, revision, configs_only=True)
    except RunError:
        shapes = known(model)
        if not isinstance(shapes, Released) or not shapes.OFFLINE:
            raise
        return None, {}
    try:
        return folder, hub.remote_sizes(repository, revision)
    except RunError:
        return folder, {str(p.relative_to(folder)): p.stat().st_size for p in folder.rglob("*") if p.is_file()}


def _table(document: dict[str, Any], plan: Any) -> None:
    from fastcar_cli.checkpoints.memory_plan import gib
    from fastcar_cli.cli.render import Results, facts

    table = facts(f"{document['model']}: nothing was written")
    table.add_row("folder", document["folder"] or "none: the hub can't be reached, the shapes are as published")
    for name, size in document["files"].items():
        state = "missing" if name in document["missing"] else gib(size)
        table.add_row("file", f"{name}  {state}" + ("  (to download)" if name in document["to_download"] else ""))
    table.add_row("weights", f"{gib(plan.weights)} in {plan.dtype}")
    table.add_row("KV cache", gib(plan.kv_cache))
    table.add_row("replay cache", gib(plan.replay_cache) if plan.replay_cache else "none (tau off)")
    table.add_row("memory", f"{gib(plan.needed)} with {gib(plan.base)} for the process; {gib(plan.available)} free")
    table.add_row("fits", ("yes" if plan.fits else "no") + f", on {plan.device}")
    table.add_row(
        "replay ceiling",
        f"{plan.ceiling:.2f}x where memory is the limit (computed: MLPs are {plan.mlp_share:.0%} of the bytes a step "
        f"reads, at most {plan.max_replay_ratio:.1%} of them can replay)",
    )
    if document["expected_s"] is not None:
        bound = "at least" if "GB/s" in document["expected_from"] else "at most"
        more = "replay and drafts need less" if bound == "at most" else "prompt and pixels come on top"
        table.add_row("time", f"{bound} {document['expected_s']:.1f} s ({document['expected_from']}; {more})")
    Results().print(table)
