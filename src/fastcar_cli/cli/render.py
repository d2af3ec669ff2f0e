"""Output for people: results on standard output, progress and notes on standard error."""

from __future__ import annotations

import csv
import io
import os
import shutil
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from rich import progress as bars
from rich.box import SIMPLE_HEAD
from rich.color import Color
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from fastcar_cli.system.files import COPIES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fastcar_cli.checkpoints.memory_plan import MemoryPlan

PLAIN_SECONDS = 60.0
"""Seconds between progress lines if standard error is not a terminal."""


def console(quiet: bool = False) -> Console:
    """The console for progress, notes and errors. It interprets no markup: styles are `Text`."""
    return Console(stderr=True, quiet=quiet, markup=False, emoji=False)


class Results(Console):
    """Standard output. Tables may be printed as CSV or Markdown; in a pipe their width is unlimited."""

    form = "table"
    """Format of tables in this run of the program: table, csv or md."""

    def __init__(self, quiet: bool = False) -> None:
        super().__init__(quiet=quiet, markup=False, emoji=False)
        if "COLUMNS" not in os.environ:
            self.width = shutil.get_terminal_size().columns if self.is_terminal else 10_000

    def print(self, *objects: Any, **options: Any) -> None:
        """Like `Console.print`, but in CSV everything except tables becomes a comment."""
        if self.form == "table":
            super().print(*objects, **options)
            return
        for thing in objects if not self.quiet else ():
            self.file.write(_written(thing, self.form))

    def fact(self, name: str, value: str) -> None:
        """Print a value on a line of its own, uncut, so that it can be copied."""
        if self.form == "table":
            self.print(Text(f"{name}: {value}"), soft_wrap=True)
            return
        table = facts("")
        table.add_row(name, value)
        self.print(table)


def _written(thing: Any, form: str) -> str:
    """A table, or a line of text, as CSV or Markdown."""
    title = str(thing.title or "") if isinstance(thing, Table) else str(thing)
    out = io.StringIO()
    if title:
        out.write(f"# {title}\n" if form == "csv" else f"{title}\n\n")
    if isinstance(thing, Table):
        names = [str(column.header) for column in thing.columns]
        rows = [[str(cell) for cell in row] for row in zip(*(column.cells for column in thing.columns), strict=True)]
        if form == "csv":
            csv.writer(out, lineterminator="\n").writerows([names, *rows] if thing.show_header else rows)
        else:
            rows = [names, ["---"] * len(names), *([c.replace("|", r"\|") for c in row] for row in rows)]
            out.writelines(f"| {' | '.join(row)} |\n" for row in rows)
            out.write("\n")
    return out.getvalue()


def plain(text: str) -> str:
    """A user's text with control characters replaced, and paths of copied pipes as the user wrote them."""
    for copy, given in COPIES.items():
        text = text.replace(copy, given)
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) == "Cc" and c not in "\n\t" else c for c in text
    )


def note(target: Console, text: str, label: str = "note") -> None:
    """Print a note for the user, after a yellow label."""
    target.print(Text.assemble((f"{label}:", "yellow"), f" {plain(text)}"), soft_wrap=True)


class _Bar(bars.Progress):
    """A progress bar in a terminal; elsewhere one plain line per minute."""

    def __init__(self, target: Console, unit: str, above: RenderableType | None, *columns: bars.ProgressColumn) -> None:
        self._unit, self._above = unit, above
        super().__init__(*columns, console=target, transient=True, disable=not target.is_terminal)
        self._last = self.get_time()

    def get_renderables(self) -> Iterable[RenderableType]:
        return [*([] if self._above is None else [self._above]), *super().get_renderables()]

    def add_task(self, description: str, *args: Any, **options: Any) -> bars.TaskID:
        return super().add_task(description, *args, **{"unit": self._unit, **options})

    def update(self, task_id: bars.TaskID, **changes: Any) -> None:
        super().update(task_id, **changes)
        self._line(task_id)

    def advance(self, task_id: bars.TaskID, advance: float = 1) -> None:
        self.update(task_id, advance=advance)

    def _line(self, task_id: bars.TaskID) -> None:
        if not self.disable or self.get_time() - self._last < PLAIN_SECONDS:
            return
        self._last = self.get_time()
        task = self._tasks[task_id]
        line = f"{task.description}: {task.percentage:.0f} %"
        if task.fields["unit"] == "%":
            line += f", {(task.elapsed or 0) / 60:.0f} min"
        elif task.total:
            line += f" of {task.total:,.0f} {task.fields['unit']}, {(task.elapsed or 0) / 60:.0f} min"
        if task.total and 0 < task.completed < task.total:
            left = (task.elapsed or 0) * (task.total / task.completed - 1)
            line += f", about {left / 60:.0f} min left"
        self.console.print(line, soft_wrap=True, highlight=False)


def progress(target: Console, unit: str = "frames", above: RenderableType | None = None) -> bars.Progress:
    """A progress bar in frames, bytes or other units, with the remaining time and a renderable above it."""
    words = partial(bars.TextColumn, markup=False)
    done = (bars.MofNCompleteColumn(), words("{task.fields[unit]}"), bars.TimeElapsedColumn())
    by_byte = (bars.DownloadColumn(binary_units=True), bars.TransferSpeedColumn())
    left = (*(by_byte if unit == "bytes" else done), words("left"), bars.TimeRemainingColumn())
    return _Bar(target, unit, above, words("{task.description}"), bars.BarColumn(), *left)


def reported(bar: bars.Progress, *, in_percent: bool = False) -> Callable[[str, int, int], None]:
    """A progress callback (part, done, total) that shows a task on the bar for each part of the work."""
    tasks: dict[str, bars.TaskID] = {}

    def on_progress(part: str, done: int, total: int) -> None:
        if part not in tasks:
            tasks[part] = bar.add_task(part, total=100, unit="%") if in_percent else bar.add_task(part, total=total)
        bar.update(tasks[part], completed=100 * done // total if in_percent else min(done, total))
        if in_percent and done >= total:
            bar.remove_task(tasks.pop(part))

    return on_progress


def columns(title: str, *names: str, left: int = 1, caption: str | None = None) -> Table:
    """A table with these columns: the first `left` contain text, which may wrap, the others numbers."""
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left", box=SIMPLE_HEAD)
    table.padding = (0, 1, 0, 0)
    for i, name in enumerate(names):
        table.add_column(name, justify="left" if i < left else "right", no_wrap=i >= left)
    return table


def facts(title: str) -> Table:
    """A table of names and values."""
    table = Table(title=plain(title), title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column()
    return table


def add_memory(table: Table, plan: MemoryPlan) -> None:
    """Add a memory plan to a table of facts."""
    from fastcar_cli.checkpoints.memory_plan import gib

    table.add_row("weights", f"{gib(plan.weights)} in {plan.dtype}")
    table.add_row("KV cache", gib(plan.kv_cache))
    table.add_row("replay cache", gib(plan.replay_cache) if plan.replay_cache else "none (tau off)")
    table.add_row("memory", f"{gib(plan.needed)} ({gib(plan.base)} for torch and pixels), {gib(plan.available)} free")
    table.add_row("fits", ("yes" if plan.fits else "no") + f", on {plan.device}")


def summary(report: dict[str, Any], verbose: bool = False) -> Table:
    """A summary of a run: replay, speed, time by phase, file, seed."""
    replay, timing = report["replay"], report["timing"]
    table = facts(report["prompt"])
    video = report["video"]
    table.add_row("video", f"{video['frames']} frames, {video['width']} x {video['height']}, {video['fps']} fps")
    if "input" in report:
        table.add_row("input", plain(_input(report["input"])))
    if "truth" in report:
        # Errors of predicted frames against the input's, in total and by frame.
        truth = report["truth"]
        for key, (name, form) in _ERRORS.items() if truth["by_frame"]["ssim"] else ():
            total, *each = ("equal" if x is None else form.format(x) for x in (truth[key], *truth["by_frame"][key]))
            table.add_row(name, f"{total}; each frame from frame {truth['first_frame']} on: {' '.join(each)}")
    if report["rolls"]:
        table.add_row("context", f"rolled {report['rolls']} time{'s' * (report['rolls'] > 1)}")
    table.add_row("seed", str(report["seed"]))
    if report["reading"]["drawn"]:
        table.add_row("left open", f"{', '.join(report['reading']['drawn'])} (not in the prompt, so the seed chooses)")
    tau = "off" if report["tau"] is None else report["tau"]
    if replay["target"] is not None:
        last = sorted({f"{t:.3g}" for t in replay["taus"] if t is not None}, key=float) or ["none yet"]
        tau = f"{last[0]} to {last[-1]}" if len(last) > 1 else last[0]
        tau = f"{tau} at the end; target: {replay['target']:.1%} of MLPs replay (tau: {replay['controller']})"
    score = f"TAS: {replay['tas']}" if replay["score"] == "tas" else f"score: {replay['score']}"
    table.add_row("tau", f"{tau} ({score}, gate: {replay['gate']})")
    table.add_row("replayed", f"{replay['ratio']:.1%} of all MLPs, {replay['eligible_ratio']:.1%} of eligible ones")
    if verbose:
        table.add_row("  by layer", "  ".join(f"{i}: {r:.1%}" for i, r in enumerate(replay["by_layer"])))
        table.add_row("  by frame", "  ".join(f"{i}: {r:.1%}" for i, r in enumerate(replay["by_frame"])))
    draft = report["draft"]
    if draft["window"] > 1:
        # A CUDA graph's order of additions depends on the number of rows, so a sample close to a boundary may differ.
        exact = "same video as without drafts" + ", up to rounding" * (report["kernels"]["name"] == "graph")
        said = f"{draft['tokens_per_pass']:.1f} tokens per pass, draft length {draft['window']}, {exact}"
        table.add_row("drafts", said)
    if report["kernels"]["name"] == "torch":
        table.add_row("executor", f"plain torch: {report['kernels']['why']}")
    table.add_row("speed", f"{timing['tokens_per_s']:.0f} tokens/s")
    share = "" if timing["mlp_share"] is None else f" ({timing['mlp_share']:.0%} in MLPs)"
    table.add_row(
        "time",
        f"load {timing['load_s']:.2f} s, prefill {timing['prefill_s']:.2f} s, "
        f"decode {timing['decode_s']:.2f} s{share}, pixels {timing['vision_s']:.2f} s",
    )
    backend = report["backend"]
    if backend["name"] == "fpga-sim":
        accelerator(table, backend)
    return table


def _input(clip: dict[str, Any]) -> str:
    """The input file, and which of its frames the video continues."""
    used = f"continues from {clip['context']} of its frames"
    if clip["frames"] is None:
        return f"{clip['name']}, {used}, which the recipe contains"
    frames = ", ".join(map(str, clip["frames"][: clip["context"]]))
    return f"{clip['name']} ({clip['width']} x {clip['height']}), {used} (index {frames})"


_ERRORS = {"psnr_db": ("PSNR (dB)", "{:.1f}"), "ssim": ("SSIM", "{:.3f}"), "temporal": ("temporal error", "{:.1f}")}


def accelerator(table: Table, backend: dict[str, Any]) -> None:
    """Rows about a run on the emulated accelerator."""
    cores = "  ".join(f"{u:.0%}" for u in backend["utilisation_by_core"])
    energy = backend["energy"]
    table.add_row("accelerator", f"{backend['preset']} (emulated), {backend['rows']} rows on {backend['cores']} cores")
    table.add_row("  cycles", f"{backend['cycles']:,} = {backend['latency_s']:.3f} s")
    table.add_row(
        "  energy",
        f"{backend['energy_j']:.3g} J at constant {backend['power_w']:.3g} W "
        f"({backend['energy_per_token_j'] * 1e3:.3g} mJ per token), or {energy['activity_j']:.3g} J by operation",
    )
    if backend["window"] > 1:
        costs = backend["per_token"].items()
        shown = (f"{kind} {cost['cycles']:,.0f} cycles, {cost['energy_j'] * 1e3:.3g} mJ" for kind, cost in costs)
        table.add_row("  per final token", "; ".join(shown))
    table.add_row("  busy, by core", cores)
    table.add_row("  DRS", f"{backend['drs_cycles']:,} cycles, {backend['drs_share']:.2%} of all")
    table.add_row(
        "  speedup",
        f"{backend['speedup_vs_dense']:.2f} over dense, {backend['speedup_vs_static']:.2f} over a static schedule "
        f"(ideal: {backend['ideal_speedup_vs_dense']:.2f} over dense)",
    )


MOST_FRAMES, MOST_ROWS = 16, 24
LINES_BELOW = 5
"""Lines of the terminal for progress bars and the cursor."""


def lacking(console: Console) -> str | None:
    """The reason why the terminal can't show frames, or None."""
    if not console.is_terminal:
        return "standard error is not a terminal"
    return "the terminal has no colours" if console.color_system is None or console.no_color else None


class Preview:
    """A rich renderable: the newest frames side by side, at most `most` and as many as fit in the terminal."""

    def __init__(self, most: int = MOST_FRAMES) -> None:
        self._most = most
        self._frames: tuple[NDArray[np.uint8], ...] = ()

    def add(self, image: NDArray[np.uint8]) -> None:
        """Append a frame, uint8 [H, W, 3]; another thread may render at the same time."""
        self._frames = (*self._frames, image)[-self._most :]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        import numpy as np
        from PIL import Image

        if not (frames := self._frames):
            return
        high, wide = frames[-1].shape[:2]
        # A character shows two pixels.
        rows = max(1, min(MOST_ROWS, console.height - LINES_BELOW, high // 2, console.width * high // (2 * wide)))
        columns = max(1, 2 * rows * wide // high)
        fit = max(1, (console.width + 1) // (columns + 1))
        small = (Image.fromarray(f).resize((columns, 2 * rows), Image.Resampling.BOX) for f in frames[-fit:])
        pixels = [np.asarray(image).tolist() for image in small]
        for row in range(rows):
            for place, image in enumerate(pixels):
                yield from [Segment(" ")] * (place > 0)
                for upper, lower in zip(image[2 * row], image[2 * row + 1], strict=True):
                    yield Segment("▀", Style(color=Color.from_rgb(*upper), bgcolor=Color.from_rgb(*lower)))
            yield Segment.line()
