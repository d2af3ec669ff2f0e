"""Runs tasks in this process or on a Ray cluster, which needs no shared disk and repeats tasks of lost workers."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from fastcar_cli.errors import FastcarError, Key, RequestError, RunError, Text
from fastcar_cli.system.plugins import need
from fastcar_cli.system.signals import restored_sigterm

if TYPE_CHECKING:
    from fastcar_cli.pipeline.pipeline import VideoPipeline

RETRIES = 10
"""Maximum repetitions of a task after the loss of its worker or node."""


class TaskWorker(Protocol):
    """A loaded model that runs tasks."""

    base: VideoPipeline

    def work(self, task: Any) -> Iterator[Any]:
        """Yield the results of a task."""

    def again(self) -> Callable[[], TaskWorker]:
        """A function that makes the same worker in another process; it can be pickled."""


Run = Callable[[Iterable[Any]], Iterator[Any]]
"""Yields the results of tasks when they are ready, in any order. Raises what a task raises."""


def check_engine(engine: str, address: str | None, workers: int | None) -> None:
    """Raise RequestError for an unknown engine, for a missing Ray, and for Ray's options without Ray."""
    if engine not in ("local", "ray"):
        raise RequestError("unknown", key="engine", value=engine, allowed="local, ray")
    if engine == "ray":
        need("ray", (Key("engine"), " ray"))
    elif address is not None or workers is not None:
        raise RequestError((Key("workers" if address is None else "address"), " needs ", Key("engine"), " ray"))


_workers: dict[str, TaskWorker] = {}


def _work(key: str, make: Callable[[], TaskWorker], task: Any) -> list[Any]:
    """Run a task in this process; the next task of the same run uses the same worker."""
    if key not in _workers:
        _workers.clear()
        _workers[key] = make()
    return list(_workers[key].work(task))


def _knock(address: str, where: Text) -> None:
    """Raise RequestError for an address without a listener; Ray would try for minutes, then end the process."""
    match = re.fullmatch(r"(?:ray://)?(.+):(\d+)", address)
    if match is None:  # such as "auto", which Ray resolves itself
        return
    try:
        socket.create_connection((match[1], int(match[2])), timeout=10).close()
    except (OSError, OverflowError) as e:
        hint = "run ray start --head, which prints the address of its cluster"
        raise RequestError(f"no cluster answers at this address: {e}", where=where, hint=hint) from None


def _start(ray: Any, address: str | None, cores: int | None) -> None:
    """Connect to the cluster at `address` or RAY_ADDRESS, or start one with this many cores. Raises RequestError."""
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    where: Text = (Key("address"), f" {address}")
    if address is None and (address := os.environ.get("RAY_ADDRESS")) is not None:
        where = f"RAY_ADDRESS={address}"
    if address is not None:
        _knock(address, where)
        options["address"] = address
    else:
        where = "starting Ray here"
        options |= {"include_dashboard": False, "num_cpus": cores}
    try:
        with restored_sigterm():
            ray.init(**options)
    except (ConnectionError, ValueError, RuntimeError, OSError) as e:
        reason = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
        raise RequestError(f"no cluster: {reason}", where=where) from None


def _run(ray: Any, submit: Callable[[Any], Any], most: int, tasks: Iterable[Any]) -> Iterator[Any]:
    """A `Run` that submits at most `most` tasks at a time."""
    queue, flying = iter(tasks), list[Any]()
    try:
        while True:
            while len(flying) < most and (task := next(queue, None)) is not None:
                flying.append(submit(task))
            if not flying:
                return
            done, flying = ray.wait(flying, num_returns=1)
            yield from _get(ray, done[0])
    finally:
        for reference in flying:
            with contextlib.suppress(Exception):
                ray.cancel(reference, force=True)


def _get(ray: Any, reference: Any) -> list[Any]:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as e:
        if isinstance(e.cause, FastcarError):
            raise e.cause from None
        raise RunError(f"a worker of Ray failed: {type(e.cause).__name__}: {e.cause}") from None
    except ray.exceptions.RayError as e:
        raise RunError(f"Ray lost a task {RETRIES} times: {str(e).strip().splitlines()[0]}") from None


@contextlib.contextmanager
def open_engine(
    worker: TaskWorker, engine: str, address: str | None = None, workers: int | None = None
) -> Iterator[tuple[Run, int]]:
    """Open the named engine; yields a `Run` and how many tasks it runs at a time. Raises RequestError if Ray is
    missing, unreachable, or has too few resources for a worker.
    """
    if engine == "local":
        yield lambda tasks: (result for task in tasks for result in worker.work(task)), 1
        return
    ray = need("ray", (Key("engine"), " ray"))
    threads = worker.base.config.runtime.threads or 1
    on_gpu = worker.base.model.network.device.type == "cuda"
    if mine := not ray.is_initialized():
        _start(ray, address, None if workers is None or on_gpu else workers * threads)
    try:
        resources = {"num_cpus": threads, "num_gpus": 1} if on_gpu else {"num_cpus": threads}
        has = ray.cluster_resources()
        room = int(min(has.get(k.removeprefix("num_").upper()[:3], 0) // n for k, n in resources.items()))
        if room < 1:
            needed = ", ".join(f"{n} {k.removeprefix('num_')}" for k, n in resources.items())
            raise RequestError(f"no node of the cluster has a worker's resources ({needed})", key="engine", value="ray")
        work = ray.remote(_work).options(max_retries=RETRIES, **resources)
        submit = partial(work.remote, secrets.token_hex(8), worker.again())
        # Submits more tasks than fit, so that nodes that join later have work.
        yield partial(_run, ray, submit, workers or 2 * room), min(room, workers or room)
    finally:
        if mine:
            ray.shutdown()
