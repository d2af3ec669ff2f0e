"""The loop of every training stage: steps, counted and kept in a checkpoint from which a stopped run resumes exactly.

What a step does (its batch, its noise, its learning rate) follows from its number and the seed alone, never from a
clock, so a run is the same on every machine, however often it was stopped.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fastcar_cli.errors import RequestError

CHECKPOINT_EVERY = 100


class OutOfTime(Exception):
    """The time that a call was given is over; what was done is in the checkpoint."""


class Watch(NamedTuple):
    """Who hears of a run, and the time of `time.monotonic()` at which it stops."""

    log: Callable[[str], None] = print
    deadline: float | None = None


def rng_of(seed: int, step: int) -> random.Random:
    """The random numbers of one step; torch's default generator is seeded along with them."""
    torch.manual_seed(seed * 1_000_003 + step)
    return random.Random(seed * 1_000_003 + step)


def remaining_steps(
    checkpoint: Path,
    total: int,
    model: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    *,
    settings: dict[str, Any],
    state: dict[str, Any],
    watch: Watch,
) -> Iterator[int]:
    """Numbers of the steps still to do, from 0 to total - 1; the caller does each before it takes the next. A
    checkpoint that is there is read into `model`, `optimizers` and `state` first, and a finished one gives no step.
    Raises OutOfTime at the deadline, and RequestError where the checkpoint was made with other settings.
    """
    first = 0
    if checkpoint.exists():
        device = next(model.parameters()).device
        saved = torch.load(checkpoint, map_location=device, weights_only=True)
        then = saved.get("settings", {})
        changed = [f"{k} was {then.get(k)}, is {v}" for k, v in settings.items() if then.get(k) != v]
        if changed:
            raise RequestError(
                f"{checkpoint} belongs to another run: {'; '.join(changed)}",
                hint="use the settings that the run began with, or another folder",
            )
        model.load_state_dict(saved["model"])
        for optimizer, kept in zip(optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(kept)
        state.update(saved["state"])
        first = saved["step"]
        watch.log(f"resumed at step {first} of {total}")

    def save(step: int) -> None:
        temporary = checkpoint.with_suffix(".tmp")
        document = {"settings": settings, "step": step, "state": state, "model": model.state_dict()}
        torch.save({**document, "optimizers": [o.state_dict() for o in optimizers]}, temporary)
        temporary.replace(checkpoint)

    for step in range(first, total):
        if watch.deadline is not None and time.monotonic() >= watch.deadline:
            save(step)
            raise OutOfTime(f"stopped at step {step} of {total} of {checkpoint.parent.name}")
        yield step
        if (step + 1) % CHECKPOINT_EVERY == 0 or step + 1 == total:
            save(step + 1)


def descend(
    checkpoint: Path,
    steps: int,
    model: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    loss_at: Callable[[int], Tensor],
    *,
    rate: Callable[[float, int], float],
    settings: dict[str, Any],
    state: dict[str, Any],
    watch: Watch,
    parameters: Sequence[nn.Parameter] | None = None,
    largest: float = 1.0,
    updated: bool = False,
    after: Callable[[int, Tensor], None] = lambda step, loss: None,
) -> None:
    """Train a model on `loss_at(step)`, with gradients of `parameters` (all that learn) clipped to `largest`.

    `rate(full, step)` is the learning rate of a step, given that of a group: its `full`, or the rate it was made with.
    `updated` says that `loss_at` updates the weights as well, as a captured step does. `after(step, loss)` looks at a
    step that is done. For the rest see `remaining_steps`.
    """
    full = [[group.get("full", group["lr"]) for group in optimizer.param_groups] for optimizer in optimizers]
    learn = [p for p in model.parameters() if p.requires_grad] if parameters is None else parameters
    for step in remaining_steps(checkpoint, steps, model, optimizers, settings=settings, state=state, watch=watch):
        for optimizer, rates in zip(optimizers, full, strict=True):
            for group, highest in zip(optimizer.param_groups, rates, strict=True):
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(rate(highest, step))
                else:
                    group["lr"] = rate(highest, step)
        loss = loss_at(step)
        if not updated:
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(learn, largest)
            for optimizer in optimizers:
                optimizer.step()
        after(step, loss)
