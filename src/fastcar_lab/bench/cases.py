"""What the benchmark times, and whether it can be timed here."""

from __future__ import annotations

from dataclasses import dataclass

from fastcar_cli.checkpoints.architectures import published
from fastcar_cli.checkpoints.memory_plan import available_bytes, gib
from fastcar_cli.checkpoints.names import COSMOS, FROM_TEXT
from fastcar_cli.checkpoints.open import open_model
from fastcar_cli.errors import Key, RequestError
from fastcar_cli.models.network import Spec
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


def check(plan: Benchmark) -> None:
    """Raise RequestError for a context without a frame to replay or past the model's positions, or without room for
    the keys and values of every contestant.
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
    layers, number = (decoder.layers, 4) if plan.whole else (plan.layers, 2)
    slot = 2 * layers * decoder.kv_heads * decoder.head_dim * number
    # With keys and values of their own, at most: dense and forced in four formats, and six others.
    contestants = 4 * 2 * len(RATIOS) + 6
    caches = contestants * plan.rows * (plan.context + plan.passes + spec.tokens_per_frame) * slot
    free = available_bytes(plan.device)
    if caches > free:
        raise RequestError(
            f"{contestants} contestants with {plan.rows} rows hold {gib(caches)} of "
            f"keys and values, {gib(free)} are free",
            key="context",
            value=plan.context,
            hint=("a shorter ", Key("context"), ", or fewer ", Key("rows"), " or ", Key("layers")),
        )
