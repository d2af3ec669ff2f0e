"""Cycles of a whole run: kernels by event simulation, rounds by scheduler, summed over steps and layers.

Rows of a layer run the same stream, so cores that start a round together end it together; a layer
takes the sum of its rounds, and a round of k cores is simulated once. tests/test_fpga.py compares
this with the simulation of all cores and rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.backends.fpga.isa import Program, compile_linear, compile_mlp
from fastcar_cli.backends.fpga.machine import Rates, simulate
from fastcar_cli.backends.fpga.preset import Preset
from fastcar_cli.backends.fpga.workload import Workload, check_memory
from fastcar_cli.errors import RequestError

SCHEDULERS = ("drs", "static", "ideal")
COMPONENTS = ("projections", "attention", "mlp", "drs", "rest")

Bits = NDArray[np.bool_]


@dataclass(frozen=True)
class Totals:
    """What one component did in a run."""

    cycles: float = 0.0
    macs: float = 0.0
    weight_bytes: float = 0.0
    kv_bytes: float = 0.0
    vector_elements: float = 0.0
    buffer_bytes: float = 0.0


@dataclass(frozen=True)
class Result:
    """A run on an accelerator under one scheduler.

    by_core: cycles each core's MAC array multiplied; layer_cycles, layer_bytes [layers]; step_cycles [steps].
    """

    scheduler: str
    components: dict[str, Totals]
    by_core: NDArray[np.float64]
    layer_cycles: NDArray[np.float64]
    layer_bytes: NDArray[np.float64]
    step_cycles: NDArray[np.float64]
    replay_ratio: float

    @property
    def cycles(self) -> int:
        """All of it, in whole cycles."""
        return math.ceil(sum(c.cycles for c in self.components.values()) - 1e-6)


@lru_cache(maxsize=4096)
def round_cycles(program: Program, rates: Rates, cores: int) -> float:
    """Cycles of one round in which this many cores run the stream side by side."""
    if rates.broadcast or cores == 1:
        return simulate([[(0, program)]], rates).cycles
    alone = Rates(rates.macs, rates.lanes, rates.bytes / cores, True)
    return simulate([[(0, program)]], alone).cycles


class Emulator:
    """An accelerator with a model's streams compiled for it.

    Raises RequestError where the weights do not fit the card.
    """

    def __init__(self, preset: Preset, work: Workload) -> None:
        check_memory(work, preset)
        self.preset, self.work = preset, work
        self.rates = Rates.of(preset)
        bits, tile = preset.format.stored_bits, preset.tile_bytes
        self.mlp = compile_mlp(work.width, work.mlp_width, bits, tile)
        self.projections = compile_linear("projections", work.projection_weights, work.width, bits, tile)
        self.depth = compile_linear("depth", work.depth_weights, work.depth_outputs, bits, tile)
        c = preset.cores
        self._rounds = np.array([0.0] + [round_cycles(self.mlp, self.rates, k) for k in range(1, c + 1)])

    def all_rows(self, program: Program) -> float:
        """Cycles of a kernel that every row runs, dealt to the cores."""
        rows, c = self.work.rows, self.preset.cores
        full, left = divmod(rows, c)
        cycles = full * round_cycles(program, self.rates, c) if full else 0.0
        return cycles + (round_cycles(program, self.rates, left) if left else 0.0)

    def attention_cycles(self, context: NDArray[np.int64]) -> NDArray[np.float64]:
        """Cycles of the attention core of one layer, all rows, for each context length.

        Keys and values are each row's own, so the cores of a round share the bandwidth. m equal tiles in
        a double buffer take load + (m - 1) max(load, work) + work.
        """
        work, c = self.work, self.preset.cores
        full, left = divmod(work.rows, c)
        total = np.zeros(len(context))
        for cores, times in ((c, full), (left, 1)):
            if cores and times:
                total += times * self._attention_round(context, cores)
        return total

    def _attention_round(self, context: NDArray[np.int64], cores: int) -> NDArray[np.float64]:
        work, rates = self.work, self.rates
        size = context * 2 * work.kv_width * self.preset.format.kv_bits / 8
        tiles = np.ceil(size / self.preset.tile_bytes).clip(min=1)
        load = size / (rates.bytes / cores) / tiles
        multiply = context * 2 * work.width / rates.macs / tiles
        soft = context * work.heads / rates.lanes / tiles
        busy = np.maximum(multiply, soft)
        return load + (tiles - 1) * np.maximum(load, busy) + busy

    def drs_cycles(self, computing: NDArray[np.int64]) -> NDArray[np.float64]:
        """Cost of DRS in a layer with these many computing rows."""
        d = self.preset.drs
        return d.remap.value + computing * d.dispatch.value + (self.work.rows - computing) * d.drop.value

    def mlp_rounds(self, counts: Sequence[int]) -> float:
        """Cycles of a layer's MLP when the cores have these many rows."""
        return sum(self._rounds[sum(n > r for n in counts)] for r in range(max(counts, default=0)))

    def ideal_row(self) -> float:
        """Cycles of one row's MLP with its work spread evenly over all cores: the bound of any schedule."""
        compute = self.mlp.macs / (self.preset.cores * self.rates.macs)
        return compute if self.rates.broadcast else max(compute, self.mlp.weight_bytes / self.rates.bytes)

    def run(self, replayed: Bits, scheduler: str = "drs", *, dense: bool = False) -> Result:
        """Emulate the decisions `replayed` [layers, rows, steps]; `dense` computes every row instead.

        Raises RequestError for an unknown scheduler or a pattern of another shape.
        """
        work, c = self.work, self.preset.cores
        if scheduler not in SCHEDULERS:
            raise RequestError(f"scheduler {scheduler!r} is unknown", hint=f"allowed: {', '.join(SCHEDULERS)}")
        if replayed.shape != (work.layers, work.rows, work.steps):
            raise RequestError(
                f"the replay pattern has shape {list(replayed.shape)}, the model needs "
                f"[{work.layers}, {work.rows}, {work.steps}] (layers, rows, passes)"
            )
        computing = np.ones_like(replayed) if dense else ~replayed
        counts = computing.sum(1)
        drs = np.zeros_like(counts, dtype=np.float64)
        streams = np.zeros_like(drs)
        core_rows = np.zeros(c)
        if scheduler == "ideal":
            broadcast = self.mlp.weight_bytes / self.rates.bytes if self.rates.broadcast else 0.0
            mlp = np.where(counts > 0, np.maximum(counts * self.ideal_row(), broadcast), 0.0)
            streams = (counts > 0).astype(np.float64) if self.rates.broadcast else counts.astype(np.float64)
            core_rows += counts.sum() / c
        else:
            if scheduler == "drs":
                per_core = (counts[..., None] - np.arange(c) + c - 1) // c
                drs = self.drs_cycles(counts)
            else:
                per_core = np.stack([computing[:, i::c].sum(1) for i in range(c)], -1)
            mlp = np.zeros_like(drs)
            for r in range(-(-work.rows // c)):
                active = (per_core > r).sum(-1)
                mlp += self._rounds[active]
                streams += (active > 0) if self.rates.broadcast else active
            core_rows += per_core.sum((0, 1))
        return self._result(scheduler, replayed & ~computing, counts, mlp, drs, streams, core_rows)

    def _result(
        self,
        scheduler: str,
        replayed: Bits,
        counts: NDArray[np.int64],
        mlp: NDArray[np.float64],
        drs: NDArray[np.float64],
        streams: NDArray[np.float64],
        core_rows: NDArray[np.float64],
    ) -> Result:
        work, preset, c = self.work, self.preset, self.preset.cores
        context = np.array([work.context(s) for s in range(work.steps)])
        attention = self.attention_cycles(context)
        projections = self.all_rows(self.projections)
        all_streams = -(-work.rows // c) if self.rates.broadcast else work.rows
        if preset.rest.seconds_per_step is not None:
            rest = preset.rest.seconds_per_step.value / preset.seconds_per_cycle
            rest_totals = Totals(cycles=rest * work.steps)
        else:
            rest = self.all_rows(self.depth)
            rest_totals = _linear(self.depth, rest, work.steps * work.rows, work.steps * all_streams, work.steps)
        passes = work.layers * work.steps
        kv = context.sum() * work.layers * work.rows * 2 * work.kv_width * preset.format.kv_bits / 8
        row_bytes = self.mlp.weight_bytes
        components = {
            "projections": _linear(self.projections, projections, passes * work.rows, passes * all_streams, passes),
            "attention": Totals(
                cycles=float(attention.sum() * work.layers),
                macs=float(context.sum()) * work.layers * work.rows * 2 * work.width,
                kv_bytes=float(kv),
                vector_elements=float(context.sum()) * work.layers * work.rows * work.heads,
                buffer_bytes=2 * float(kv),
            ),
            "mlp": Totals(
                cycles=float(mlp.sum()),
                macs=float(counts.sum()) * self.mlp.macs,
                weight_bytes=float(streams.sum()) * row_bytes,
                vector_elements=float(counts.sum()) * self.mlp.vector_elements,
                buffer_bytes=2.0 * float(counts.sum()) * row_bytes,
            ),
            "drs": Totals(cycles=float(drs.sum())),
            "rest": rest_totals,
        }
        share = np.array([-(-(work.rows - i) // c) if i < work.rows else 0 for i in range(c)]) / work.rows
        others = sum(components[k].macs for k in ("projections", "attention", "rest")) * share / self.rates.macs
        layer = mlp.sum(1) + drs.sum(1) + attention.sum() + projections * work.steps
        layer_bytes = (
            streams.sum(1) * row_bytes + kv / work.layers + work.steps * all_streams * self.projections.weight_bytes
        )
        step = (mlp + drs).sum(0) + work.layers * (attention + projections) + rest
        return Result(
            scheduler,
            components,
            core_rows * self.mlp.macs / self.rates.macs + others,
            layer,
            layer_bytes,
            step,
            float(replayed.mean()),
        )


def _linear(program: Program, cycles: float, rows: float, streams: float, times: float) -> Totals:
    """Totals of a kernel that takes `cycles` each of `times`, run by `rows` rows with `streams` weight streams."""
    return Totals(
        cycles=cycles * times,
        macs=float(rows) * program.macs,
        weight_bytes=float(streams) * program.weight_bytes,
        vector_elements=float(rows) * program.vector_elements,
        buffer_bytes=2.0 * float(rows) * program.weight_bytes,
    )
