"""What the benchmark times, and whether it can be timed here."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from fastcar_cli.checkpoints.architectures import published
from fastcar_cli.checkpoints.memory_plan import BASE, Demand, available_bytes, cache_bytes, gib, stored_bytes
from fastcar_cli.checkpoints.names import COSMOS, FROM_TEXT
from fastcar_cli.checkpoints.open import open_model
from fastcar_cli.errors import Key, RequestError
from fastcar_cli.models.checkpoint import empty_network, loading_format
from fastcar_cli.models.network import Spec
from fastcar_cli.models.weight_format import WeightFormat
from fastcar_cli.profile.machine import Stream
from fastcar_cli.weights.formats import PACKED
from fastcar_lab.bench.rival import Rival

SHAPES = ("vila-u-7b", *COSMOS)  # published models of which layers are timed, with random weights
RATIOS = (0.25, 0.5, 0.75, 1.0)
PROMPT_TOKENS = 12
_LONGEST = 2**20


@dataclass(frozen=True)
class Benchmark:
    """What to time: shape (one of `FROM_TEXT` or `SHAPES`), layers of the latter, context, rows, passes a turn, turns.
    `kv_dtype` is that of keys and values in passes of several tokens: auto (as the model) or int8.
    """

    shape: str
    layers: int
    context: int
    rows: int
    passes: int
    turns: int
    compiled: bool
    device: str = "cpu"
    rivals: tuple[Rival, ...] = ()
    kv_dtype: str = "auto"

    @property
    def whole(self) -> bool:
        """Whether a bundled model is timed, with all its layers."""
        return self.shape in FROM_TEXT

    @property
    def spec(self) -> Spec:
        """The model's specification, at its full depth."""
        return (published(self.shape) or open_model(self.shape)).spec


def memory_of(plan: Benchmark) -> tuple[int, int, int]:
    """Bytes of the weights in all formats, contestants with caches of their own, and bytes of these."""
    spec, on_cpu = plan.spec, plan.device == "cpu"
    if plan.whole:
        formats = [loading_format(name) for name in ("float32", "int8")]
    else:
        spec = replace(spec, decoder=replace(spec.decoder, layers=plan.layers))
        packed = [WeightFormat(name, torch.bfloat16, blocks=name, projector=name, depth=name) for name in PACKED]
        formats = [WeightFormat("bfloat16", torch.bfloat16), *packed]
    formats = formats if on_cpu else formats[:1]
    frames = -(-(plan.context - PROMPT_TOKENS + plan.passes + 1) // spec.tokens_per_frame)
    demand = Demand(plan.rows, frames, PROMPT_TOKENS, replaying=1)
    kv, outputs = cache_bytes(spec, formats[0].floats.itemsize, demand)
    # Native kernels run every format, torch the first. Rows replay together, and where there are several also alone.
    native, alone = len(formats) if on_cpu else 0, sum(0 < ratio < 1 for ratio in RATIOS) if plan.rows > 1 else 0
    replaying = (native + 1) * (len(RATIOS) + alone) + 1
    dense = 2 * native + 2 + plan.compiled
    network = empty_network(spec)
    weights = sum(stored_bytes(network, form) for form in formats)
    return weights, dense + replaying, (dense + replaying) * kv + replaying * outputs


def check(plan: Benchmark) -> None:
    """Raise RequestError for a context without a frame to replay or past the model's positions, or without room for
    the weights, keys and values of every contestant.
    """
    spec = plan.spec
    decoder = spec.decoder
    least = PROMPT_TOKENS + spec.tokens_per_frame + 1
    most = (decoder.max_positions if plan.whole else _LONGEST) - plan.passes
    if not least <= plan.context <= most:
        raise RequestError(
            f"the prompt takes {PROMPT_TOKENS} tokens, a frame {spec.tokens_per_frame}, and "
            f"{plan.passes} passes follow",
            key="context",
            value=plan.context,
            allowed=f"{least} to {most}",
        )
    (weights, contestants, caches), free = memory_of(plan), available_bytes(plan.device)
    if BASE + Stream.bytes_on(plan.device) + weights + caches > free:
        raise RequestError(
            f"{gib(weights)} of weights, and {contestants} contestants with {plan.rows} rows hold {gib(caches)} of "
            f"keys and values, {gib(free)} are free",
            key="context",
            value=plan.context,
            hint=("use a shorter ", Key("context"), ", or fewer ", Key("rows"), " or ", Key("layers")),
        )
