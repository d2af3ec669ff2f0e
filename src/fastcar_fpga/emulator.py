"""Cycles of a whole run: every layer of every pass on the accelerator of layer.py, summed.

A layer's time depends only on which rows compute, so each Index Register word of a run is emulated once. In a pass with
drafts, each input token of each row of the batch has a bit of the register: a slot.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.errors import RequestError
from fastcar_fpga.decisions import Bits
from fastcar_fpga.isa import Program, Rates, compile_linear, cycles, mlp_program
from fastcar_fpga.layer import INDEX_BITS, START, Accelerator, check_rows
from fastcar_fpga.preset import Preset
from fastcar_fpga.workload import Workload, check_memory

SCHEDULERS = ("drs", "static", "ideal")


@dataclass(frozen=True)
class Totals:
    """The activity of one component in a run."""

    cycles: float = 0.0
    macs: float = 0.0
    weight_bytes: float = 0.0
    kv_bytes: float = 0.0
    vector_elements: float = 0.0
    buffer_bytes: float = 0.0


@dataclass(frozen=True)
class RunResult:
    """A run under one scheduler. by_core: busy cycles of each MAC array; layer_cycles, layer_bytes: [layers]."""

    scheduler: str
    components: dict[str, Totals]
    by_core: NDArray[np.float64]
    layer_cycles: NDArray[np.float64]
    layer_bytes: NDArray[np.float64]
    replay_ratio: float

    @property
    def cycles(self) -> int:
        """The total, in whole cycles."""
        return math.ceil(sum(c.cycles for c in self.components.values()) - 1e-6)


class Emulator:
    """An accelerator with a model's streams; raises RequestError if weights and keys do not fit the card."""

    def __init__(self, preset: Preset, work: Workload) -> None:
        check_memory(work, preset)
        self.preset, self.work = preset, work
        self.rates = Rates.of(preset)
        self.keys_rate = preset.keys_per_cycle(work.layers, work.kv_width)
        self.shared = preset.hbm.weights != "private"
        how = (preset.format.stored_bits, preset.tile_bytes, preset.window)
        self.mlp = mlp_program(preset, work.width, work.mlp_width)
        columns = work.projection_weights // work.width
        self.projections = compile_linear("projections", work.projection_weights, work.width, *how, columns)
        self.depth = compile_linear("depth", work.depth_weights, work.depth_outputs, *how, work.depth_outputs)
        self.accelerator = Accelerator.of(preset, self.mlp)

    @property
    def chain(self) -> int:
        """Cycles of a layer in which nothing is streamed."""
        chain, rates = self.preset.chain, self.rates
        if chain is None:
            return 0
        fill = rates.latency + rates.length(self.projections.instructions[0])
        each = {"waits": fill, "passes": self.work.width / rates.lanes}
        each |= {"trips": rates.latency, "heads": self.work.heads}
        counts = {name: getattr(chain, name) for name in each}
        return math.ceil(sum(count.value * each[name] for name, count in counts.items() if count is not None))

    def all_rows(self, program: Program, rows: int | None = None) -> int:
        """Cycles of a kernel that every row runs, dealt to the cores; rows: instead of the batch's."""
        return -(-(rows or self.work.rows) // self.preset.cores) * (START + cycles(program, self.rates))

    def weight_bytes(self, program: Program) -> float:
        """Bytes of weights that cross the memory port for one stream: whole bursts."""
        return sum(self.rates.moved(i.amount) for i in program.instructions if i.op == "load")

    def attention(self, context: NDArray[np.int64]) -> NDArray[np.float64]:
        """Cycles of the attention core of one layer per pass, from context lengths [slots, passes], 0 in an empty slot.

        Each slot has its own keys and values, so the cores of a round share the bandwidth, unless weights are private,
        and the longest context of a round counts. m equal tiles in a double buffer take latency + load + (m - 1)
        max(load, work) + work, load in whole bursts.
        """
        work, rates, core, count = self.work, self.rates, self.preset.core, self.preset.cores
        macs = (core.attention_array or core.mac_array).value * core.utilisation.value
        rounds = np.pad(context, ((0, -len(context) % count), (0, 0))).reshape(-1, count, context.shape[1])
        cores, longest = (rounds > 0).sum(1), rounds.max(1)
        size = longest * 2 * work.kv_width * self.preset.format.kv_bits / 8
        tiles = np.ceil(size / self.preset.tile_bytes).clip(min=1)
        streams = cores if self.shared else 1 / self.preset.dealt
        load = np.ceil(np.ceil(size / tiles / rates.burst) * rates.burst * streams / self.keys_rate)
        busy = np.ceil(np.maximum(longest * 2 * work.width / macs, longest * work.heads / rates.lanes) / tiles)
        cycles = START + rates.latency + load + (tiles - 1) * np.maximum(load, busy) + busy
        return np.where(cores > 0, cycles, 0.0).sum(0)

    def prefill(self) -> float:
        """Cycles until every row has its first token: all tokens of the prompts at once, dealt to the cores. A tile of
        weights stays while the tokens of a core are multiplied by it; heads run for the last token.
        """
        work, c = self.work, self.preset.cores
        dealt = -(-work.rows * work.prompt // c)
        rates = replace(self.rates, macs=self.rates.macs / dealt, lanes=self.rates.lanes / dealt)
        maps = sum(START + cycles(program, rates) for program in (self.projections, self.mlp))
        seen = np.repeat(np.arange(work.prompt) + 1, work.rows)
        context = np.pad(seen, (0, dealt * c - len(seen))).reshape(dealt, c).T
        rest = self.preset.rest.seconds_per_step
        heads = self.all_rows(self.depth) if rest is None else rest.value / self.preset.seconds_per_cycle
        return work.layers * (maps + self.chain + float(self.attention(context).sum())) + heads

    def layer_cycles(self, computing: Bits, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Cycles of one layer's MLPs and of DRS, from the slots that compute [..., slots] and their number [...]."""
        words = (computing * (1 << np.arange(computing.shape[-1], dtype=np.uint64))).sum(-1)
        keys = words | (slots.astype(np.uint64) << np.uint64(INDEX_BITS))
        unique, where = np.unique(keys, return_inverse=True)
        mask = (1 << INDEX_BITS) - 1
        lengths = [self.accelerator.layer(int(key) & mask, int(key) >> INDEX_BITS)[1] for key in unique]
        return np.array(lengths, dtype=np.int64)[where].reshape(words.shape)

    def run(
        self, replayed: Bits, scheduler: str = "drs", *, dense: bool = False, tokens: NDArray[np.int64] | None = None
    ) -> RunResult:
        """Emulate the decisions `replayed` [layers, slots, passes]; `dense`: every row computes instead.

        tokens [slots, passes]: see `Windows`; None: a pass takes one token of each row. Raises RequestError for an
        unknown scheduler, a pattern of another shape, or more slots than the Index Register has bits.
        """
        work, c = self.work, self.preset.cores
        if scheduler not in SCHEDULERS:
            raise RequestError(f"scheduler {scheduler!r} is unknown", allowed=", ".join(SCHEDULERS))
        if tokens is None:
            tokens = np.broadcast_to(np.arange(work.steps), (work.rows, work.steps))
        check_rows(len(tokens))
        if replayed.shape != (work.layers, *tokens.shape):
            raise RequestError(
                f"the replay decisions have shape {list(replayed.shape)}, expected "
                f"{[work.layers, *tokens.shape]} (layers, rows, passes)"
            )
        there = tokens >= 0
        computing = np.broadcast_to(there, replayed.shape) if dense else there & ~replayed
        counts, slots = computing.sum(1), there.sum(0)
        mlp, drs, streams, core_rows = self._mlps(scheduler, computing, slots)
        context = np.where(there, work.contexts(tokens), 0)
        attention, seen = self.attention(context), float(context.sum()) * work.layers
        rounds = -(-slots // c)
        rest = self._linear(self.depth, 1, slots)
        if (constant := self.preset.rest.seconds_per_step) is not None:
            # The constant is for one token per row; more tokens take longer in proportion to their rounds.
            steps = rounds.sum() / -(-work.rows // c)
            rest = Totals(cycles=float(constant.value / self.preset.seconds_per_cycle * steps))
        projections = self._linear(self.projections, work.layers, slots)
        kv = float(context.sum() * work.layers * 2 * work.kv_width * self.preset.format.kv_bits / 8)
        row_bytes, chain = self.weight_bytes(self.mlp), float(rounds.sum() * self.chain)
        components = {
            "projections": projections,
            "attention": Totals(
                cycles=float(attention.sum() * work.layers),
                macs=seen * 2 * work.width,
                kv_bytes=kv,
                vector_elements=seen * work.heads,
                buffer_bytes=2 * kv,
            ),
            "mlp": Totals(
                cycles=float(mlp.sum()),
                macs=float(counts.sum()) * self.mlp.macs,
                weight_bytes=float(streams.sum()) * row_bytes,
                vector_elements=float(counts.sum()) * self.mlp.vector_elements,
                buffer_bytes=2.0 * float(counts.sum()) * row_bytes,
            ),
            "drs": Totals(cycles=float(drs.sum())),
            "rest": rest,
        }
        if chain:
            components["chain"] = Totals(cycles=chain * work.layers)
        share = np.array([((slots - i + c - 1) // c).sum() for i in range(c)]) / slots.sum()
        others = sum(components[k].macs for k in ("projections", "attention", "rest")) * share / self.rates.macs
        return RunResult(
            scheduler,
            components,
            core_rows * self.mlp.macs / self.rates.macs + others,
            mlp.sum(1) + drs.sum(1) + attention.sum() + chain + projections.cycles / work.layers,
            streams.sum(1) * row_bytes + (kv + projections.weight_bytes) / work.layers,
            float((there & ~computing).sum() / (work.layers * there.sum())),
        )

    def _mlps(
        self, scheduler: str, computing: Bits, slots: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Cycles of the MLPs and of DRS, and streams of weights, [layers, passes] each; rows per core."""
        c, counts = self.preset.cores, computing.sum(1)
        drs = np.zeros(counts.shape)
        if scheduler == "ideal":
            # The bound of any schedule: work spread evenly over all cores, weights streamed once if they are shared.
            compute, size = counts * (self.mlp.macs / (c * self.rates.macs)), self.mlp.weight_bytes
            load = (counts > 0) * size / self.rates.bytes if self.shared else counts * (size / self.preset.rate())
            streams = (counts > 0 if self.shared else counts).astype(float)
            return np.maximum(compute, load), drs, streams, np.full(c, counts.sum() / c)
        if scheduler == "drs":
            per_core = (counts[..., None] - np.arange(c) + c - 1) // c
        else:
            per_core = np.stack([computing[:, i::c].sum(1) for i in range(c)], -1)
        rounds = per_core.max(-1)
        mlp = rounds * float(self.accelerator.rounds(1))
        if scheduler == "drs":
            drs = self.layer_cycles(computing.transpose(0, 2, 1), np.broadcast_to(slots, counts.shape)) - mlp
        streams = (rounds if self.shared else counts).astype(float)
        return mlp, drs, streams, per_core.sum((0, 1)).astype(float)

    def _linear(self, program: Program, times: int, slots: NDArray[np.int64]) -> Totals:
        """Totals of a kernel that every slot runs, `times` per pass; slots [passes]: their number."""
        rounds, rows = -(-slots // self.preset.cores).sum(), float(times * slots.sum())
        return Totals(
            cycles=float(times * rounds) * (START + cycles(program, self.rates)),
            macs=rows * program.macs,
            weight_bytes=float(times * (rounds if self.shared else slots.sum())) * self.weight_bytes(program),
            vector_elements=rows * program.vector_elements,
            buffer_bytes=2.0 * rows * program.weight_bytes,
        )
