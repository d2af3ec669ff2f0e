"""The step loop: prefill, then pass after pass until every position of every video is final."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fastcar_cli.decoding.batch import Batch, DecodeSettings, MLPBackend, Step
from fastcar_cli.decoding.drafts.drafts import Drafter, DraftSettings
from fastcar_cli.decoding.drafts.length import DraftWindow
from fastcar_cli.decoding.executors.executor import Executor
from fastcar_cli.decoding.executors.select import choose
from fastcar_cli.decoding.prompt_rows import PromptRows
from fastcar_cli.decoding.sampling import uniforms
from fastcar_cli.errors import RequestError
from fastcar_cli.system.device import synchronise

if TYPE_CHECKING:
    from typing_extensions import Self

    from fastcar_cli.inputs.prompt import OnProgress, Prompt, Reading
    from fastcar_cli.models.checkpoint import LoadedModel
    from fastcar_cli.models.decoder import Decoder


@dataclass
class Decode(Batch):
    """A `Batch` and the loop that decodes it; `Batch.of`, inherited, makes one."""

    executor: Executor | None = None  # runs the passes; chosen, with the reason `why`, when decoding begins
    saved: Callable[[Callable[[], Tensor]], Tensor] | None = None  # loads the prefill from a file, or runs and saves it
    windows: DraftWindow | None = None  # what `--draft auto` has measured in earlier videos like these
    until: int | None = None  # position at which decoding stops until the caller raises it; None: the end
    executor_name: str | None = None  # also set after `release`
    why: str = ""
    rolls: int = 0  # how often the context has rolled
    _segment: tuple[int, int] = (0, 0)  # positions at which the context begins and ends
    _again: int = 0
    _began: float | None = None
    _prefilled: Tensor | None = None

    @property
    def codes(self) -> Tensor:
        """Codes of all videos, int64 [P, T*N, depth], filled as positions are decoded."""
        return self.draws.codes

    def __post_init__(self) -> None:
        """Make frame decoders from the first prompts, before a roll replaces these."""
        # One for all videos; on the CPU one per video, as rounding depends on how many are decoded together.
        parts = self.prompts.videos if self.model.device.type == "cpu" else 1
        self._frame_decoders = [
            self.model.frame_decoder(part) for part in self.prompts.ids[: self.prompts.videos].chunk(parts)
        ]
        self._segment = 0, self._segment_end(0)

    @property
    def done(self) -> int:
        """Positions that are final in every video; does not fall while a rolled context is filled again."""
        return max(self._again, self.at)

    @property
    def at(self) -> int:
        """Positions that the context holds, and those before it; falls if a roll decodes frames again."""
        return min(self.draws.done)

    @property
    def passed(self) -> int:
        """Input tokens of every video that the decoder has run; the last position is never an input."""
        return max(0, self.done - 1)

    @torch.inference_mode()
    def start(self) -> Executor:
        """Choose the executor if none is set."""
        if self.executor is None:
            self.executor, self.why = choose(self)
        kind = self.settings.draft.kind
        if kind in ("frame", "jacobi") and self.executor.most_inputs == 1 < self.settings.draft.window:
            raise RequestError(
                f"the executor {self.executor.name} decodes only one token per pass ({self.why})",
                key="draft.kind",
                value=kind,
                allowed="off, auto",
            )
        self.executor_name = self.executor.name
        return self.executor

    def release(self) -> None:
        """Free the caches; codes, decisions and counts stay."""
        self.executor = None
        self.cache.release()
        if self.replay is not None:
            self.replay.release()

    # Torch leaves inference mode at each yield, so the caller may train between two steps.
    @torch.inference_mode()
    def steps(self, forced: Tensor | None = None, keep_logits: bool = False, first: int = 0) -> Iterator[Step]:
        """Decode every position, pass after pass.

        `forced` codes [P, T*N, depth] replace sampled ones. With `first` > 0 the prompts and the positions before it
        are random, see `fast_forward`. Passes that fill a rolled context again are not yielded.
        """
        if forced is not None:
            self.draws.give(forced)
        self.draws.keep_logits = keep_logits
        self.start()
        if first:
            self.fast_forward()
            self.draws.done = [first] * self.prompts.videos
        while (before := self.done) < self.draws.tokens:
            step = self.step()
            if self.done > before:
                yield step

    @torch.inference_mode()
    def step(self) -> Step:
        """Decode at least one position of every video that has not reached `until` or its end."""
        draws, drafter, device, captured = self.draws, self.drafter, self.model.device, self.clock.capture
        if self.full:
            self.roll()
        executor, done = self.start(), self.at
        (begin, end), hidden = self._segment, None
        if done == begin:
            self._prefilled = hidden = self.prefill() if self._prefilled is None else self._prefilled
        if self._began is None:
            self._began = time.perf_counter()
        draws.limit = end if self.until is None else min(end, self.until)
        record, most = done >= self._again, executor.most_inputs
        if hidden is not None:
            inputs = drafter.inputs(1)
            step = executor.draw(hidden[:, None], inputs)
        else:
            inputs = drafter.inputs(most if self.replay is None else min(most, self.replay.horizon(done - 1)))
            step = executor.step(inputs)
        executor.advance(inputs, drafter.accepted(inputs, record), record)
        self._began += self.clock.capture - captured
        # The host waits for a GPU only once per frame, when the pixels are wanted.
        if device.type != "cuda" or self.at % self.frame == 0:
            synchronise(device)
            seconds, self._began = time.perf_counter() - self._began, None
            self.clock.decode += seconds
            if record and executor.seconds is None:
                drafter.learn(seconds)
        if record and hidden is None and executor.seconds and inputs.count in executor.seconds:
            drafter.learn(executor.seconds[inputs.count])
        return step

    @torch.inference_mode()
    def prefill(self) -> Tensor:
        """Fill the caches by running the prompts or from a file; returns the last hidden states [rows, width]."""
        executor, began = self.start(), time.perf_counter()
        # Dropping the reference closes a file that was read.
        saved, self.saved = self.saved, None
        hidden = executor.prefill() if saved is None else saved(executor.prefill)
        synchronise(self.model.device)
        self.clock.prefill += time.perf_counter() - began
        return hidden

    def _segment_end(self, begin: int) -> int:
        """The position at which a context that begins at `begin` rolls, or the video ends."""
        segment = self.settings.segment
        return min(self.draws.tokens, begin + segment * self.frame if segment else self.draws.tokens)

    @property
    def full(self) -> bool:
        """Whether the context is full, so that it rolls before the next position."""
        return self.at == self._segment[1] < self.draws.tokens

    def next_prompts(self) -> PromptRows:
        """The prompts of the next context, for a model whose prompts hold frames."""
        ids = self.model.rolled(torch.cat([self.prompts.ids, self.codes[:, slice(*self._segment), 0]], 1))
        # Keys of the prefix do not change: it has the same positions and attends to nothing else.
        prefix = self.model.spec.layout.prefix or 0
        reused = prefix if self.settings.window is None and prefix >= self.frame else 0
        return replace(self.prompts, ids=ids, reused=reused)

    @torch.inference_mode()
    def roll(self) -> None:
        """Start a new context with the last frames.

        If the prompts hold frames, the last frames replace them. Otherwise the prompts stay, and the last half segment
        is decoded again with its own codes. Rotary positions restart at 0; replay cache and drafter measurements stay.
        """
        layout, size, (_, end) = self.model.spec.layout, self.frame, self._segment
        begin = end
        if layout.prompt_frames:
            self.prompts = self.next_prompts()
        else:
            begin -= overlap(self.settings) * size
            self.draws.rewind(begin)
        if self.replay is not None:
            self.replay.move(begin, decoded=not layout.prompt_frames)
        # Only the first prefill is reported and saved.
        self.observers.on_prefill = self.observers.on_prompt = None
        self.draws.latent, self.executor, self._prefilled = None, None, None
        self.rolls, self._again, self._segment = self.rolls + 1, end, (begin, self._segment_end(begin))
        self.cache.move(begin)
        self.places.move(self.prompts, begin, self._segment[1] - begin)

    def take_back(self, frame: int) -> None:
        """Discard the last decoded frame, so that it is decoded again."""
        self.draws.done, self.draws.latent = [frame * self.frame] * self.prompts.videos, None

    @cached_property
    def drafter(self) -> Drafter:
        """The drafter of this batch, as its executor allows."""
        executor, draft, replay = self.start(), self.settings.draft, self.replay
        if draft.kind == "auto" and (executor.sequential or executor.most_inputs == 1):
            draft = DraftSettings()
        lockstep = executor.sequential or (replay is not None and replay.controller is not None)
        # Ids of a prompt that holds frames are codes of depth 1.
        opening = self.model.spec.layout.opening
        whole = self.prompts.aligned + opening >= self.frame and self.model.spec.frame_spec.depth == 1
        before = self.prompts.ids[: self.prompts.videos, -self.frame :, None] if whole else None
        return Drafter(
            *(self.draws, draft, self.frame, self.model.spec.grid[1], lockstep, before, self.windows),
            together=not executor.sequential,
            most=executor.most_inputs,
        )

    def run(self) -> Self:
        """Decode every position; returns itself."""
        for _ in self.steps():
            pass
        return self

    def replay_shares(self) -> Tensor:
        """Share of layers and rows that replayed, for each code of each frame, [T, codes]. Delimiters are left out; the
        last token, which is never an input, has 0.
        """
        shares = torch.zeros(self.draws.tokens)
        if self.replay is not None:
            shares[:-1] = self.replay.replayed.float().mean((0, 1)).cpu()
        codes = [place for place in range(self.frame) if place not in self.model.spec.layout.delimiters]
        by_frame = shares.view(-1, self.frame)[:, codes]
        return by_frame.repeat_interleave(self.model.spec.frame_spec.per_latent, 0)

    @torch.inference_mode()
    def context_frames(self) -> Tensor | None:
        """Pixels of the frames that the prompts hold, float32 [P, C, H, W, 3] in 0..255; None if they hold none."""
        pixels = [part for decoder in self._frame_decoders if (part := decoder.context()) is not None]
        return torch.cat(pixels) if pixels else None

    @torch.inference_mode()
    def decode_frame(self, frame: int) -> Tensor:
        """Pixels of a finished frame of every video, float32 [P, H, W, 3] in 0..255; decoded frames count from 0."""
        codes = self.codes[:, frame * self.frame : (frame + 1) * self.frame].chunk(len(self._frame_decoders))
        return torch.cat([decoder.frame(part) for decoder, part in zip(self._frame_decoders, codes, strict=True)])


def overlap(settings: DecodeSettings) -> int:
    """Number of frames that are decoded again after a roll, for a model whose prompts hold no frames."""
    return max(1, settings.held // 2)


def begin(
    model: LoadedModel,
    prompts: Sequence[Prompt],
    seeds: Sequence[int] | None,
    settings: DecodeSettings,
    backend: Callable[[Decoder, int], MLPBackend] | None = None,
    on_reading: OnProgress | None = None,
) -> tuple[Decode, list[Reading]]:
    """Set up a decode of these prompts; also returns what the tokenizer read in each.

    Each video has its own seed, for sampling and for what its prompt leaves open; None: that stays open, and all random
    numbers are 0. `backend` makes the MLP backend from the decoder and the number of rows. Raises RequestError for a
    prompt that the model can't take.
    """
    tokenizer, network = model.tokenizer, model.network
    spec, began = network.spec, time.perf_counter()
    readings = [tokenizer.read(prompt, on_reading) for prompt in prompts]
    reading = time.perf_counter() - began
    shape = settings.frames * spec.tokens_per_frame, spec.frame_spec.depth
    numbers = torch.zeros(len(readings), *shape)
    if seeds is not None:
        readings = [tokenizer.complete(reading, seed) for reading, seed in zip(readings, seeds, strict=True)]
        numbers = torch.stack([uniforms(seed, *shape) for seed in seeds])
    rows = [list(reading.ids) for reading in readings]
    if settings.sampling.guided:
        rows += [list(tokenizer.blank()) for _ in readings]
    conditions = tokenizer.conditions(list(prompts), spec.layout.context + settings.frames)
    mlps = None if backend is None else backend(network.llm, len(rows))
    decode = Decode.of(network, rows, settings, numbers, mlps, conditions)
    decode.clock.reading = reading
    return decode, readings
