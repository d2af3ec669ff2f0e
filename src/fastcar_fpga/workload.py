"""A model's work on the accelerator per decode step, from its shapes alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.errors import RequestError
from fastcar_cli.models.network import Spec
from fastcar_fpga.layer import check_rows
from fastcar_fpga.preset import Preset, load_preset


@dataclass(frozen=True)
class Workload:
    """Shapes and lengths of a run."""

    name: str
    layers: int
    rows: int
    width: int
    mlp_width: int
    kv_width: int
    heads: int
    projection_weights: int  # of a layer
    depth_weights: int  # all that are read to sample the codes of a position
    depth_outputs: int
    resident_weights: int
    tokens_per_frame: int
    frames: int
    prompt: int  # tokens before the first visual one
    window: int | None = None  # last tokens attended to (None: all) besides `sinks`
    sinks: int = 4

    @property
    def steps(self) -> int:
        """Decode passes."""
        return self.frames * self.tokens_per_frame - 1

    def context(self, step: int) -> int:
        """Keys that input token `step` attends to, itself included."""
        return int(self.contexts(np.array(step)))

    def contexts(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """`context` of input tokens of any shape."""
        seen = self.prompt + tokens + 1
        return seen if self.window is None else np.minimum(seen, self.window + min(self.sinks, self.prompt))


def workload_of(
    spec: Spec, *, rows: int, frames: int, prompt: int, window: int | None = None, sinks: int = 4
) -> Workload:
    """The workload of a model. Raises RequestError for more rows than DRS can index."""
    check_rows(rows)
    d, sampling = spec.decoder, spec.sampling_weights
    shared = ("layers", "width", "mlp_width", "kv_width", "heads", "projection_weights")
    return Workload(
        name=spec.name,
        **{name: getattr(d, name) for name in shared},
        rows=rows,
        depth_weights=sampling.transformer + sampling.heads + sampling.projector,
        depth_outputs=spec.frame_spec.depth * spec.codes,
        resident_weights=d.layers * (d.projection_weights + d.mlp_weights) + sampling.stored + sampling.projector,
        tokens_per_frame=spec.tokens_per_frame,
        frames=frames,
        prompt=prompt,
        window=window,
        sinks=sinks,
    )


def preset_for(name: str | None, spec: Spec) -> Preset:
    """An accelerator by name or file (see `load_preset`); None: the smaller of two whose memory holds the weights."""
    if name is not None:
        return load_preset(name)
    small = load_preset("edge-small")
    fits = held_bytes(workload_of(spec, rows=1, frames=1, prompt=1), small) <= small.capacity
    return small if fits else load_preset("paper-u280")


def _token_bytes(work: Workload, preset: Preset) -> int:
    return work.layers * 2 * work.kv_width * preset.format.kv_bits // 8


def held_bytes(work: Workload, preset: Preset) -> float:
    """Bytes of the weights, and of keys and values of every row at the longest context."""
    keys = work.rows * work.context(work.steps - 1) * _token_bytes(work, preset)
    return work.resident_weights * preset.format.stored_bits / 8 + keys


def check_memory(work: Workload, preset: Preset) -> None:
    """Refuse weights and keys that do not fit the channels of a preset's layout. Raises RequestError with the sum."""
    bits, held = preset.format.stored_bits, held_bytes(work, preset)
    if held > preset.capacity:
        weights = work.resident_weights * bits / 8
        raise RequestError(
            f"weights and keys of {work.name} do not fit the memory of {preset.name}: {work.resident_weights:,} "
            f"weights x {bits:g} bits / 8 = {weights / 2**30:.2f} GiB, and {work.rows} rows x "
            f"{work.context(work.steps - 1):,} tokens x {_token_bytes(work, preset):,} bytes of keys and values = "
            f"{(held - weights) / 2**30:.2f} GiB, but the memory ({preset.hbm.channels.value:g} x {preset.hbm.part}) "
            f"has {preset.capacity / 2**30:g} GiB",
            hint="use fewer rows or frames, an attention window, or an accelerator with fewer bits or more memory",
        )
