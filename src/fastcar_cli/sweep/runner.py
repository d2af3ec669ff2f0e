"""Goes through a grid: what is missing is decoded, every cell is on disk before the next one.

Timings repeat in rounds over the whole grid: in a round each group decodes its dense cell and then its others, so
dense and replayed runs interleave and a slow minute of the machine meets all of them. After the first round every
cell is finished; later ones only add timings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastcar_cli.pipeline.engines import Engine
from fastcar_cli.sweep.grid import Cell, Group
from fastcar_cli.sweep.store import CellRecord, Store
from fastcar_cli.sweep.worker import Task


def task_of(group: Group, repeats: int, store: Store) -> Task | None:
    """What a group still needs to have every cell timed `repeats` times, one run a cell; None where nothing."""
    cells = tuple(c for c in group.all if store.runs(c) < repeats)
    if not cells:
        return None
    known = frozenset(c for c in cells if store.runs(c))
    alone = group.reference not in cells and len(known) < len(cells)
    return Task(cells, known, store.frames(group.reference) if alone else None)


def outstanding(groups: Sequence[Group], repeats: int, store: Store | None) -> int:
    """Decodes that are left; without a store all of them."""
    return sum(max(0, repeats - (store.runs(c) if store else 0)) for g in groups for c in g.all)


def run_groups(
    groups: Sequence[Group], repeats: int, store: Store, engine: Engine, on_done: Callable[[Cell], None] | None = None
) -> None:
    """Decode what is missing. `on_done` is called with each decode that is on disk.

    Raises what a decode or the disk raises; everything decoded before stays.
    """
    for done in range(1, repeats + 1):
        tasks = (t for g in groups if (t := task_of(g, done, store)) is not None)
        for finding in engine(tasks):
            if isinstance(finding, CellRecord):
                store.put(finding)
            else:
                store.add_run(finding.cell, finding.run)
            if on_done is not None:
                on_done(finding.cell)
