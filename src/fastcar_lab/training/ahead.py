"""Batches that worker processes draw ahead of the steps that learn from them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from fastcar_lab.training.loop import rng_of

T = TypeVar("T")


class _Drawn(Dataset[Any], Generic[T]):
    """What steps learn from, and the random numbers that are left after each was drawn."""

    def __init__(self, draw: Callable[[int, random.Random], T], seed: int) -> None:
        self.draw, self.seed = draw, seed

    def __getitem__(self, step: int) -> tuple[T, Any, torch.Tensor]:
        rng = rng_of(self.seed, step)
        return self.draw(step, rng), rng.getstate(), torch.get_rng_state()


def _as_drawn(item: T) -> T:
    return item


class Ahead(Generic[T]):
    """Calls `draw(step, rng)` for steps in order, in `workers` processes ahead of time where there are any. Batches,
    and the random numbers after them, are those of the process itself: a run is the same with any `workers`.
    """

    def __init__(self, draw: Callable[[int, random.Random], T], *, seed: int, steps: int, workers: int) -> None:
        self.draw, self.seed, self.steps, self.workers = draw, seed, steps, workers
        self._next: int | None = None
        self._items: Iterator[tuple[T, Any, torch.Tensor]] = iter(())

    def __call__(self, step: int, rng: random.Random) -> T:
        """What a step learns from; `rng` is left as after drawing it."""
        if not self.workers:
            return self.draw(step, rng)
        if step != self._next:
            # Workers inherit what `draw` holds; they touch no device.
            loader = DataLoader(
                _Drawn(self.draw, self.seed),
                batch_size=None,
                sampler=range(step, self.steps),
                num_workers=self.workers,
                prefetch_factor=4,
                collate_fn=_as_drawn,
                multiprocessing_context="fork",
            )
            self._items = iter(loader)
        batch, state, torch_state = next(self._items)
        rng.setstate(state)
        torch.set_rng_state(torch_state)
        self._next = step + 1
        return batch
