"""The memory that a run needs, computed from shapes before loading."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from fastcar_cli.errors import Key, RequestError, RunError, Text
from fastcar_cli.models.checkpoint import no_such_dtype
from fastcar_cli.models.decoder import recent
from fastcar_cli.models.network import Network, Spec
from fastcar_cli.models.weight_format import WeightFormat
from fastcar_cli.system.device import out_of_memory
from fastcar_cli.system.limits import free_memory, require_proc

BASE = 400 * 2**20  # bytes of a process with torch before it loads weights (assumed; measured 250 to 400 MiB)

_SIZES = ("weights", "kv_cache", "replay_cache", "base")


def stored_bytes(network: Network, form: WeightFormat, part: str = "") -> int:
    """Bytes of the weights in a format, with scales, whose name contains `part`; a shared codebook counts once."""
    stored = form.on(network)
    return sum(stored.bytes_of(name, p.shape) for name, p in network.named_parameters() if part in name)


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes by purpose, and the maximum speedup by replay if memory bandwidth limits decoding."""

    dtype: str
    device: str
    weights: int
    kv_cache: int
    replay_cache: int
    base: int
    available: int
    mlp_share: float
    max_replay_ratio: float
    ceiling: float  # bytes read per dense step / per step with all eligible MLPs replayed (tau off: of all layers)

    @property
    def needed(self) -> int:
        """The total in bytes."""
        return sum(getattr(self, name) for name in _SIZES)

    @property
    def fits(self) -> bool:
        """Whether the total fits the available memory."""
        return self.needed <= self.available

    def arithmetic(self) -> str:
        """The sum as text."""
        said = (f"weights in {self.dtype}", "KV cache", "replay cache", "for all else")
        parts = zip(said, (getattr(self, name) for name in _SIZES), strict=True)
        return " + ".join(f"{gib(size)} {name}" for name, size in parts if size)

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON data."""
        return {
            "dtype": self.dtype,
            "device": self.device,
            **{f"{name}_bytes": getattr(self, name) for name in (*_SIZES, "needed", "available")},
            "fits": self.fits,
            "mlp_share_of_bytes": self.mlp_share,
            "max_replay_ratio": self.max_replay_ratio,
            "replay_ceiling": self.ceiling,
        }


def gib(size: int) -> str:
    """A number of bytes as text, in GiB or MiB."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**29 else f"{size / 2**20:.1f} MiB"


def available_bytes(device: str) -> int:
    """Free bytes of a device: of the GPU, or of the machine within the process's control groups."""
    if device.startswith(("cuda", "xpu")):
        return int(torch.get_device_module(device).mem_get_info(torch.device(device))[0])
    require_proc()
    return free_memory(int(psutil.virtual_memory().available))


def peak_bytes(device: torch.device) -> int:
    """Peak memory so far: of the process on a CPU, of torch's allocator on a GPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # On Linux getrusage includes the parent's memory when it started this process; Windows has no getrusage.
    with contextlib.suppress(OSError, ValueError):
        words = Path("/proc/self/status").read_text(encoding="utf-8").split()
        return int(words[words.index("VmHWM:") + 1]) * 1024
    with contextlib.suppress(ImportError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return 0


@dataclass(frozen=True)
class Demand:
    """What decides a batch's memory: `frames` decoded frames of `rows` rows. `replaying` layers may replay, with
    `delimiters` also at delimiters; `pixel_itemsize`: bytes per number of the pixel decoder's dtype.
    """

    rows: int
    frames: int
    prompt_tokens: int
    window: int | None = None
    sinks: int = 4
    kv_dtype: str = "auto"
    replaying: int = 0
    delimiters: bool = False
    pixel_itemsize: int = 4

    def first(self, spec: Spec) -> int:
        """Tokens of a row that stay floats in any `kv_dtype`: the prompt's text, or with a window the sinks."""
        return self.sinks if self.window else self.prompt_tokens - spec.layout.aligned(self.prompt_tokens)

    def bytes_of_kv(self, spec: Spec, itemsize: int, tokens: int) -> int:
        """Bytes of keys and values of one head for a row's first `tokens` tokens; in int8 some stay floats."""
        width, floats = spec.decoder.head_dim, tokens
        if self.kv_dtype == "int8":
            floats = min(tokens, self.first(spec) + recent(spec.tokens_per_frame) + 1)
        return 2 * (floats * width * itemsize + (tokens - floats) * (width + 4))


def cache_bytes(spec: Spec, itemsize: int, demand: Demand) -> tuple[int, int]:
    """Bytes of the KV cache and of the replay cache."""
    decoder, n, window = spec.decoder, spec.tokens_per_frame, demand.window
    heads = decoder.layers * demand.rows * decoder.kv_heads
    slots = demand.prompt_tokens + demand.frames * n - 1 if window is None else window + demand.sinks
    if demand.kv_dtype == "int8":
        # The ring is allocated even for a short video or window. The prompt's means are float32.
        slots, ring = max(slots, demand.first(spec) + recent(n) + 1), recent(n) < n
        head = demand.bytes_of_kv(spec, itemsize, slots) + 8 * decoder.head_dim
    else:
        head, ring = demand.bytes_of_kv(spec, itemsize, slots), bool(window)
    # If the cache does not hold all of the last frame, the keys that TAS reads have a ring of their own.
    head += (n + 1 if ring else 0) * decoder.head_dim * itemsize
    return heads * head, decoder.layers * demand.rows * n * decoder.width * itemsize if demand.replaying else 0


PIXEL_COPIES = 8
"""Activations of a frame's full size that the RQ-VAE's decoder holds at once (assumed, with a margin)."""


def videos_that_fit(spec: Spec, wanted: int, video: Demand, itemsize: int, device: str) -> int:
    """How many videos to decode at once, 1 to `wanted`: caches and pixels use at most half of the free memory."""
    height, width = spec.frame_spec.size
    pixels = PIXEL_COPIES * height * width * spec.frame_spec.channels * itemsize
    one = sum(cache_bytes(spec, itemsize, video)) + pixels
    return max(1, min(wanted, available_bytes(device) // 2 // one))


def make_plan(network: Network, form: WeightFormat, demand: Demand, device: str) -> MemoryPlan:
    """The plan of one batch with weights in a format, from an empty network."""
    spec, size = network.spec, form.floats.itemsize
    decoder, n = spec.decoder, spec.tokens_per_frame
    tokens, replaying = demand.frames * n, demand.replaying
    kv_cache, replay = cache_bytes(spec, size, demand)
    # The prefill holds a few vectors per prompt token at once.
    prefill = demand.rows * demand.prompt_tokens * (2 * decoder.width + decoder.heads * decoder.head_dim) * 2 * size
    mlp = stored_bytes(network, form, ".mlp.gate_proj") * 3
    blocks = stored_bytes(network, form, "llm.layers.")
    draws = stored_bytes(network, form, "depth.") * spec.frame_spec.depth + stored_bytes(network, form, "lm_head.")
    seen = min(demand.window or tokens, demand.prompt_tokens + tokens // 2)
    step = blocks + draws + decoder.layers * demand.rows * decoder.kv_heads * demand.bytes_of_kv(spec, size, seen)
    first = not spec.layout.prompt_frames
    dense = n * first + (0 if demand.delimiters else len(spec.layout.delimiters) * (demand.frames - first))
    ratio = max(0.0, 1 - dense / max(1, tokens - 1)) * (replaying or decoder.layers) / decoder.layers
    return MemoryPlan(
        dtype=form.name,
        device=device,
        weights=stored_bytes(network, form),
        kv_cache=kv_cache,
        replay_cache=replay,
        base=BASE + spec.pixel_bytes * demand.rows * demand.pixel_itemsize // 4 + prefill,
        available=available_bytes(device),
        mlp_share=mlp / step,
        max_replay_ratio=ratio,
        ceiling=step / (step - mlp * ratio),
    )


def default_dtype(device: str) -> str:
    """The default float dtype of a device; on a GPU the 16-bit one that its hardware supports."""
    if not device.startswith("cuda"):
        return "float32"
    with torch.cuda.device(torch.device(device)):
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"


def choose_dtype(dtype: str, device: str, plans: dict[str, MemoryPlan]) -> str:
    """The requested dtype, else the device's own, or bfloat16 if float32 does not fit. Raises RequestError."""
    own = default_dtype(device)
    if dtype not in ("auto", *plans):
        raise no_such_dtype(dtype, plans)
    if dtype == "auto" and len(plans) == 1:
        dtype = next(iter(plans))
    if dtype == "bfloat16" and own == "float16":
        raise RequestError(f"unsupported on {device}", key="dtype", value="bfloat16", allowed="float16, float32")
    chosen = own if dtype == "auto" else dtype
    if dtype == "auto" and device == "cpu" and not plans["float32"].fits:
        chosen = "bfloat16"
    plan = plans[chosen]
    if not plan.fits:
        hint: Text = ("use fewer ", Key("frames"), " or prompts, a ", Key("window"), ", or a machine with more memory")
        for name in ("int8", "bfloat16"):
            if name in plans and plans[name].fits:
                hint = ("use ", Key("dtype"), f" {name}, which needs {gib(plans[name].needed)}")
        said = f"the model does not fit into memory: {plan.arithmetic()} = {gib(plan.needed)}"
        raise RequestError(f"{said}, but {gib(plan.available)} are free on {device}", hint=hint)
    return chosen


@contextlib.contextmanager
def memory_errors(way_out: Text) -> Iterator[None]:
    """Convert out-of-memory errors to RunError with a hint."""
    try:
        yield
    except (MemoryError, RuntimeError) as e:
        if out_of_memory(e):
            raise RunError(f"out of memory: {e}", hint=way_out) from None
        raise
