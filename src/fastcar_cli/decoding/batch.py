"""A batch of videos during decoding: the state shared by the engine and its executors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from fastcar_cli.decoding.drafts.drafts import DraftSettings
from fastcar_cli.decoding.draws import Draws
from fastcar_cli.decoding.inputs import Inputs
from fastcar_cli.decoding.kv_cache import Int8KVCache, KVCache
from fastcar_cli.decoding.prompt_rows import Places, PromptRows
from fastcar_cli.decoding.replay.controller import Size
from fastcar_cli.decoding.replay.replay import Replay, ReplayRule
from fastcar_cli.decoding.replay.scores import BlockState
from fastcar_cli.models.decoder import Decoder
from fastcar_cli.models.network import Network
from fastcar_cli.models.sampling import SamplingSettings

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class DecodeSettings:
    """How to decode. `frames` counts decoded frames, without context frames."""

    frames: int
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    rule: ReplayRule = field(default_factory=ReplayRule)
    draft: DraftSettings = field(default_factory=DraftSettings)
    window: int | None = None  # attend only to the last `window` tokens and each prompt's first `sinks`; None: to all
    sinks: int = 4
    kv_dtype: str = "auto"  # one of `choices.KVDtype`
    keep_tas: bool = False  # compute and store the scores of every layer
    executor: str = "auto"  # one of `choices.Executor`; see `select.choose`
    threads: int | None = None  # for the native kernels only; None: as many as torch has
    segment: int | None = None  # decoded frames after which the context rolls; None: never

    @property
    def held(self) -> int:
        """Maximum number of decoded frames in the caches."""
        return min(self.frames, self.segment or self.frames)


@dataclass(frozen=True)
class Step:
    """The result of one pass for the positions after its inputs (`inputs.first + 1` and on), valid until the next step.
    On a GPU it may not be computed yet.
    """

    inputs: Inputs
    draws: Draws
    hidden: Tensor  # [rows, count, width] after the final norm
    logits: Tensor | None  # [depth, P, count, codes], guided, before top-k; None without `keep_logits`

    @property
    def codes(self) -> Tensor:
        """The sampled codes, int64 [P, count, depth]."""
        return self.draws.drawn(self.inputs)

    @property
    def index(self) -> int:
        """The first position, if it is the same in all videos."""
        common = self.inputs.common
        assert common is not None
        return common + 1


class MLPBackend(Protocol):
    """Computes the MLPs of a decode step."""

    name: str

    def mlp(self, layer: int, x: Tensor, rows: Sequence[int] | None) -> Tensor:
        """Apply a layer's MLP to normalised inputs [n, width] of these batch rows; None: of all rows, in order."""


class TorchBackend:
    """Runs each MLP on the device of its weights."""

    name = "torch"

    def __init__(self, decoder: Decoder) -> None:
        self._mlps = [block.mlp for block in decoder.blocks]

    def mlp(self, layer: int, x: Tensor, rows: Sequence[int] | None) -> Tensor:
        """See `MLPBackend.mlp`."""
        return self._mlps[layer](x)


Watch = Callable[[int, int, Tensor, Tensor], None]
"""Called after each block of an input token t (-1: the prompt's last) with layer, t, what the MLP branch added, and the
residual stream after it, [rows, width] each. The tensors are valid only during the call.
"""


@dataclass
class Observers:
    """Callbacks of a decode; all but the last two require the plain executor."""

    watch: Watch | None = None
    on_block: Callable[[BlockState], None] | None = None  # gets every scored block, between attention and MLP
    mark: Callable[[str], None] | None = None  # gets the name of each part of a pass at its end
    on_prefill: Callable[[int, int], None] | None = None  # gets finished and total steps of the prefill
    on_prompt: Callable[[int, Tensor, Tensor, Tensor], None] | None = None  # gets the arguments of `Batch.fill`

    def prefilled(self, done: int, total: int) -> None:
        """Report the prefill's progress."""
        if self.on_prefill is not None:
            self.on_prefill(done, total)


@dataclass
class Clock:
    """Wall seconds of the phases of a decode; each ends when the device has finished it."""

    reading: float = 0.0  # prompts to tokens
    prefill: float = 0.0
    capture: float = 0.0  # building CUDA graphs during a decode; not part of `decode`
    decode: float = 0.0
    mlp: float = 0.0  # part of `decode`; 0 if the executor does not time it
    draw: float = 0.0  # sampling codes from hidden states; like `mlp`


@dataclass
class Batch:
    """Videos that are decoded together. `model` is in evaluation mode; `replay` is None if nothing replays and no
    scores are requested.
    """

    model: Network
    settings: DecodeSettings
    prompts: PromptRows
    places: Places
    cache: KVCache
    replay: Replay | None
    draws: Draws
    backend: MLPBackend
    observers: Observers = field(default_factory=Observers)
    clock: Clock = field(default_factory=Clock)

    @classmethod
    def of(
        cls,
        model: Network,
        prompts: Sequence[Sequence[int]] | PromptRows,
        settings: DecodeSettings,
        uniforms: Tensor,
        backend: MLPBackend | None = None,
        conditions: Tensor | None = None,
    ) -> Self:
        """A batch ready to be decoded, with its caches allocated.

        prompts: token ids, one list per row, conditional rows first; 2 P rows with guidance, P without. uniforms: [P,
        T*N, depth] random numbers in [0, 1) for sampling. conditions: see `PromptRows`.
        """
        spec, frame = model.spec, model.spec.tokens_per_frame
        if not isinstance(prompts, PromptRows):
            prompts = PromptRows.of(model, prompts, settings.sampling.guided, conditions)
        tokens, slack = settings.frames * frame, settings.draft.slack and settings.draft.slack + spec.layout.together
        kind, room = Int8KVCache if settings.kv_dtype == "int8" else KVCache, settings.held * frame + slack
        cache = kind(model, prompts, tokens + slack, room, settings.window, settings.sinks)
        replay = None
        if settings.keep_tas or not settings.rule.off:
            shape = spec.decoder.layers, prompts.rows, prompts.videos, frame, tokens, spec.decoder.width
            size = Size(
                *shape, slack, spec.layout.delimiters, prompts.aligned, model.dtype, model.device, spec.layout.opening
            )
            replay = Replay(settings.rule, size, keep_tas=settings.keep_tas)
        return cls(
            model,
            settings,
            prompts,
            Places(model, prompts, tokens, slack),
            cache,
            replay,
            Draws(model, settings.sampling, uniforms, slack, prompts.conditions),
            backend or TorchBackend(model.llm),
        )

    @cached_property
    def frame(self) -> int:
        """N, tokens per frame."""
        return self.model.spec.tokens_per_frame

    @property
    def most_inputs(self) -> int:
        """Maximum number of input tokens per video and pass: the draft length, plus given tokens before the drafts."""
        return self.settings.draft.window + self.model.spec.layout.together

    @property
    def rows(self) -> int:
        """See `PromptRows.rows`."""
        return self.prompts.rows

    def fill(self, layer: int, keys: Tensor, values: Tensor, outputs: Tensor) -> None:
        """Store a layer's results for the prompts: rotated keys, and values [rows, kv_heads, padded, head_dim]; MLP
        outputs [rows, tokens, width] of the last tokens, at least one frame.
        """
        self.cache.prefill(layer, keys, values)
        if self.replay is not None:
            self.replay.prefill(layer, outputs)
        if self.observers.on_prompt is not None:
            self.observers.on_prompt(layer, keys, values, outputs)

    def fast_forward(self, seed: int = 0) -> None:
        """Fill codes, keys, values and MLP outputs with random numbers, to time passes at a context length."""
        generator = torch.Generator(self.model.device).manual_seed(seed)
        self.draws.buffer.random_(self.model.spec.codes, generator=generator)
        self.draws.latent = None
        self.cache.fill(generator)
        if self.replay is not None:
            self.replay.outputs.normal_(0.0, 0.1, generator=generator)
