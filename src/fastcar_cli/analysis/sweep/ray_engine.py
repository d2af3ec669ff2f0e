"""The tasks of a sweep on a Ray cluster: one worker a device, the same code as here in each.

A task is one group, so a dense cell and what is compared with it are timed on one machine. Only this process writes
to the folder, so workers need no shared disk. Ray does a lost worker's task again elsewhere.
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fastcar_cli.analysis.sweep.metrics import Scorer
from fastcar_cli.analysis.sweep.worker import Finding, Task, Worker
from fastcar_cli.config import RunConfig
from fastcar_cli.errors import FastcarError, Key, RequestError, RunError, Text
from fastcar_cli.extras import need
from fastcar_cli.prompt import Clip

RETRIES = 10
"""How often a task is done again after its worker or node was lost."""

_workers: dict[str, Worker] = {}


def work(
    config: dict[str, Any],
    names: tuple[str, ...],
    lpips: str | None,
    fidelity: bool,
    clips: dict[str, Clip],
    tokens: str | None,
    task: Task,
) -> list[Finding]:
    """Do a task in this process, which keeps its loaded model for the next one."""
    # The names of clips hold a hash of their contents.
    key = repr((config, names, lpips, fidelity, sorted(clips), tokens))
    if key not in _workers:
        _workers.clear()
        scorer = Scorer(names, None if lpips is None else Path(lpips))
        _workers[key] = Worker(RunConfig.from_dict(config), scorer, fidelity, tokens=tokens, clips=clips)
    return list(_workers[key].work(task))


def _knock(address: str) -> None:
    """Refuse an address where nothing listens; Ray itself would try for minutes and then end the process."""
    match = re.fullmatch(r"(?:ray://)?(.+):(\d+)", address)
    if match is None:
        # "auto" and the like, which Ray looks up by itself.
        return
    try:
        socket.create_connection((match[1], int(match[2])), timeout=10).close()
    except (OSError, OverflowError) as e:
        raise RequestError(
            f"no cluster answers there: {e}", key="address", value=address, hint="ray start --head prints its address"
        ) from None


class RayEngine:
    """Tasks in flight on a cluster: a running one at `address`, else one of this machine's cores.

    `workers` bounds how many run at once; without it, as many as the cluster has room for.
    """

    def __init__(self, worker: Worker, *, address: str | None = None, workers: int | None = None) -> None:
        """Connect. Raises RequestError where Ray is not installed or no cluster answers."""
        ray = need("ray", (Key("engine"), " ray"))
        self._ray: Any = ray
        self._mine = not ray.is_initialized()
        threads = worker.config.runtime.threads or 1
        on_gpu = worker.base.model.network.device.type == "cuda"
        if self._mine:
            options: dict[str, Any] = {"log_to_driver": False, "include_dashboard": False, "logging_level": "ERROR"}
            if address is not None:
                _knock(address)
                options = {"log_to_driver": False, "logging_level": "ERROR", "address": address}
            elif workers is not None and not on_gpu:
                options["num_cpus"] = workers * threads
            try:
                ray.init(**options)
            except (ConnectionError, ValueError, RuntimeError, OSError) as e:
                reason = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
                where: Text = "starting Ray here" if address is None else (Key("address"), f" {address}")
                raise RequestError(f"no cluster: {reason}", where=where) from None
        scorer = worker.scorer
        self._setting = (
            worker.config.to_dict(),
            scorer.names,
            None if scorer.lpips is None else str(scorer.lpips.resolve()),
            worker.judge is not None,
            worker.clips,
            worker.tokens,
        )
        resources = {"num_cpus": threads, "num_gpus": 1} if on_gpu else {"num_cpus": threads}
        self._work = ray.remote(work).options(max_retries=RETRIES, **resources)
        has = ray.cluster_resources()
        room = int(min(has.get(k.removeprefix("num_").upper()[:3], 0) // n for k, n in resources.items()))
        if room < 1:
            needed = ", ".join(f"{n} {k.removeprefix('num_')}" for k, n in resources.items())
            self.close()
            raise RequestError(f"no node of the cluster has what a worker needs ({needed})", key="engine", value="ray")
        self.workers = min(room, workers or room)
        # More than fit are submitted when nothing bounds them, so that nodes that join later have work as well.
        self._in_flight = workers or 2 * room

    def run(self, tasks: Iterable[Task]) -> Iterator[Finding]:
        """Findings of every task as tasks end."""
        ray, queue = self._ray, iter(tasks)
        flying: list[Any] = []
        try:
            while True:
                while len(flying) < self._in_flight and (task := next(queue, None)) is not None:
                    flying.append(self._work.remote(*self._setting, task))
                if not flying:
                    return
                done, flying = ray.wait(flying, num_returns=1)
                yield from self._get(done[0])
        finally:
            for reference in flying:
                with contextlib.suppress(Exception):
                    ray.cancel(reference, force=True)

    def _get(self, reference: Any) -> list[Finding]:
        from ray.exceptions import RayError, RayTaskError

        try:
            findings: list[Finding] = self._ray.get(reference)
            return findings
        except RayTaskError as e:
            if isinstance(e.cause, FastcarError):
                raise e.cause from None
            raise RunError(f"a worker of Ray failed: {type(e.cause).__name__}: {e.cause}") from None
        except RayError as e:
            raise RunError(f"Ray lost a task {RETRIES} times over: {str(e).strip().splitlines()[0]}") from None

    def close(self) -> None:
        """Leave the cluster, or end the one that was started here."""
        if self._mine:
            self._ray.shutdown()
