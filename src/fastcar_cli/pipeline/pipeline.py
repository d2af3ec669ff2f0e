"""VideoPipeline: prompts in, frames out one by one. Connects all parts."""

from __future__ import annotations

import operator
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastcar_cli.checkpoints.memory_plan import Demand, choose_dtype, default_dtype, videos_that_fit
from fastcar_cli.checkpoints.names import BUNDLED
from fastcar_cli.checkpoints.open import open_model
from fastcar_cli.config.run_config import RunConfig, load_config, settings
from fastcar_cli.decoding.batch import DecodeSettings, Watch
from fastcar_cli.decoding.drafts.length import DraftWindow
from fastcar_cli.decoding.engine import Decode, begin
from fastcar_cli.decoding.executors.select import row_limit
from fastcar_cli.errors import Key, RequestError
from fastcar_cli.inputs.prompt import Prompt
from fastcar_cli.models.checkpoint import Checkpoint, LoadedModel
from fastcar_cli.models.decoder import Decoder
from fastcar_cli.pipeline import resolve
from fastcar_cli.pipeline.recipe import recipe_of
from fastcar_cli.pipeline.report import Run
from fastcar_cli.pipeline.saved_prefill import PrefillFile
from fastcar_cli.pipeline.videos import Frame, Video
from fastcar_cli.system.device import by_torch_defaults, one_thread_after_fork, torch_defaults
from fastcar_cli.system.limits import cores, open_files

if TYPE_CHECKING:
    from fastcar_cli.decoding.batch import MLPBackend
    from fastcar_cli.pipeline.play import World
    from fastcar_fpga import Comparison, Decisions, Preset

OnBegin = Callable[[str, int, int], None]
"""Receives progress before the first token: "input" (frames to tokens) or "prompt", the work done, and the total."""


class VideoPipeline:
    """A loaded model with the settings of a run; pipelines that are made from this one share `model`.

    `tokens_per_frame` is N, `grid` the rows and columns of a frame's codes. Calls from several threads run one after
    another; a thread that uses `stream` or `videos` needs its own pipeline.

    Example:
        >>> pipe = VideoPipeline.from_pretrained("table", tau=-2)
        >>> pipe("a red ball rolls to the right", seed=1).save("ball.mp4")

    """

    def __init__(
        self,
        model: LoadedModel,
        config: RunConfig,
        *,
        settings: DecodeSettings | None = None,
        load_seconds: float = 0.0,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        """Resolve what `config` leaves open. `settings` replace the decode settings from `config`, but not the recipe;
        `checkpoint`: the model's, if already open. Raises RequestError for settings that the model does not support.
        """
        self.model, self.config, self._load_seconds, self._checkpoint = model, config, load_seconds, checkpoint
        self.spec = spec = resolve.spec_in(model, config)
        self.name, self.layers = model.name, spec.decoder.layers
        self.tokens_per_frame, self.grid = spec.tokens_per_frame, spec.grid
        self.context = spec.frames_of(spec.layout.context)
        self.resolved = resolve.resolve(model, config)
        self.settings = settings or resolve.decode_settings(model, self.resolved)
        self.frames = spec.frames_of(spec.layout.context + self.settings.frames)
        self.fps = resolve.given(self.resolved.video.fps)
        self.height, self.width = spec.frame_spec.size
        self._preset: Preset | None = None
        if config.backend.name == "fpga-sim":
            from fastcar_fpga import INDEX_BITS, check_memory, check_weights, preset_for, workload_of

            self._preset = preset_for(self.resolved.backend.preset, spec)
            check_weights(model.network.weight_format, self._preset)
            check_memory(workload_of(spec, rows=1, frames=1, prompt=1), self._preset)
            if self.settings.draft.fixed > (most := INDEX_BITS // self._rows):
                said = f"an accelerator takes {INDEX_BITS} input tokens per pass, and a video has {self._rows} rows"
                window = self.settings.draft.window
                raise RequestError(said, key="draft.window", value=window, allowed=f"1 to {most}")
        self._lock, self._runs = threading.Lock(), list[Run]()
        # By the number of videos, which determines the time of a pass.
        self._windows: dict[int, DraftWindow] = {}

    @classmethod
    def from_pretrained(cls, model: str | Path, **options: Any) -> VideoPipeline:
        """Load a model by name or folder; `options` are those of `fastcar generate`, such as tau=-2, kv_dtype="int8".
        Raises RequestError for unknown options and unsupported settings.
        """
        keys = {s.flag.strip("-").replace("-", "_"): s.key for s in settings().values() if s.flag is not None}
        if unknown := sorted(options.keys() - keys.keys()):
            raise RequestError(f"{unknown[0]} is not an option", allowed=", ".join(keys))
        flags = {keys[name]: resolve.plain_option(value) for name, value in options.items()}
        return cls.from_config(load_config(flags=flags | {"model": resolve.plain_option(model)}))

    @classmethod
    def from_config(
        cls,
        config: RunConfig,
        *,
        videos: int = 1,
        on_load: Callable[[int, int], None] | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> VideoPipeline:
        """Load a configuration's model for `videos` videos at once; `checkpoint`: the model's, if already open.
        `on_load(bytes, total)` reports progress for a large model. Raises RequestError for unsupported settings.
        """
        began = time.perf_counter()
        device, bundled = resolve.resolve_device(config.runtime.device), config.model in BUNDLED
        dtype: str = config.runtime.dtype
        torch.set_num_threads(config.runtime.threads or min(torch.get_num_threads(), cores()))
        progress: Callable[[int], None] | None = None
        checkpoint = checkpoint or open_model(config.model, config.runtime.tokenizer)
        if bundled:
            dtype = default_dtype(device) if dtype == "auto" else dtype
        else:
            plans = resolve.memory_plans(config, videos=videos, device=device, checkpoint=checkpoint)
            dtype = choose_dtype(dtype, device, plans)
            total = plans[dtype].weights
            progress = None if on_load is None else lambda done: on_load(done, total)

        one_thread_after_fork()
        with torch_defaults():
            model = checkpoint.load(dtype, device, progress, config.size)
        model.network.decode_pixels_in(getattr(torch, config.runtime.pixel_dtype))
        return cls(model, config, load_seconds=time.perf_counter() - began, checkpoint=checkpoint)

    @property
    def checkpoint(self) -> Checkpoint:
        """The model's checkpoint, opened once."""
        self._checkpoint = self._checkpoint or open_model(self.config.model, self.config.runtime.tokenizer)
        return self._checkpoint

    def batch_size(self, videos: int) -> int:
        """How many of `videos` videos fit into one batch: memory, executor and accelerator limit them."""
        network, settings, rows = self.model.network, self.settings, self._rows
        if self._preset is not None:
            from fastcar_fpga import INDEX_BITS

            return max(1, min(videos, INDEX_BITS // (rows * settings.draft.fixed)))
        prompt = self.spec.layout.prompt or resolve.PROMPT_TOKENS
        most, replaying = min(videos, row_limit(network, settings) // rows, open_files()), int(not settings.rule.off)
        video = Demand(rows, settings.held, prompt, settings.window, settings.sinks, settings.kv_dtype, replaying)
        return videos_that_fit(network.spec, max(1, most), video, network.dtype.itemsize, str(network.device))

    @property
    def _rows(self) -> int:
        """Rows of the batch per video."""
        return 1 if self.settings.sampling.cfg == 1.0 else 2

    def notices(self, prompts: Sequence[Prompt]) -> list[str]:
        """Notes for the user before the run. Raises RequestError for an invalid prompt."""
        if not hasattr(self, "model"):
            raise RequestError("the pipeline is closed", hint="load the pipeline again")
        notices = []
        for prompt in prompts:
            if isinstance(prompt, str) and not prompt.strip() and not self.context:
                raise RequestError("the prompt is empty", hint="describe the video in a few words")
            notices += self.model.tokenizer.notices(prompt, self.name)
        return list(dict.fromkeys(notices))

    def stream(
        self,
        prompts: Sequence[Prompt],
        seeds: Sequence[int],
        on_step: Callable[[int, int], None] | None = None,
        watch: Watch | None = None,
        on_begin: OnBegin | None = None,
    ) -> Iterator[Frame]:
        """Decode a video per prompt, in batches that fit; yields frame t of a batch's videos as soon as it is decoded.

        A model that continues frames takes `Clip`s (see `clips_of`), and yields their first frames as its tokenizer
        reconstructs them. `on_step(done, total)` reports positions, `on_begin` the work before, `watch` every block.
        """
        if len(prompts) != len(seeds):
            raise ValueError(f"{len(prompts)} prompts, but {len(seeds)} seeds")
        self.notices(prompts)
        size = self.batch_size(len(prompts))
        batches = range(0, len(prompts), size)
        total = len(batches) * self.settings.frames * self.tokens_per_frame
        for run in self._runs:
            # A decode and its executor refer to each other, so its caches would wait for the garbage collector.
            if run.decode.done == run.decode.draws.tokens:
                run.decode.release()
        self._runs = []
        for done, first in enumerate(batches):
            if self._runs:
                self._runs[-1].decode.release()
            before = done * total // len(batches)

            def on_token(step: int, before: int = before) -> None:
                if on_step is not None:
                    on_step(before + step, total)

            batch = slice(first, first + size)
            for frame in by_torch_defaults(self._batch(prompts[batch], seeds[batch], on_token, watch, on_begin)):
                yield replace(frame, video=first + frame.video)

    def videos(
        self,
        prompts: Sequence[Prompt],
        seeds: Sequence[int],
        on_step: Callable[[int, int], None] | None = None,
        on_begin: OnBegin | None = None,
    ) -> Iterator[Video]:
        """Decode as `stream` does; yields each finished video."""
        images: list[list[NDArray[np.uint8]]] = [[] for _ in prompts]
        for frame in self.stream(prompts, seeds, on_step, on_begin=on_begin):
            i = frame.video
            images[i].append(frame.image)
            if len(images[i]) == self.frames:
                recipe = self.recipe(prompts[i], seeds[i], self.prompt_ids(i))
                yield Video(np.stack(images[i]), self.fps, self.report(i), recipe)
                images[i] = []

    @overload
    def __call__(self, prompt: str, seed: SupportsIndex | None = None) -> Video: ...
    @overload
    def __call__(self, prompt: list[Prompt], seed: SupportsIndex | None = None) -> list[Video]: ...
    def __call__(self, prompt: str | list[Prompt], seed: SupportsIndex | None = None) -> Video | list[Video]:
        """Decode a video per prompt (a `str` is one prompt) with the seeds `seed`, `seed` + 1, ...

        The default seed is the configuration's, or a random one that the report names. A model that continues frames
        takes `Clip`s. Raises RequestError for prompts that the model does not support and seeds that are not numbers.
        """
        prompts = [prompt] if isinstance(prompt, str) else prompt
        if not isinstance(prompts, (list, tuple)):
            raise RequestError(f"the prompt is of type {type(prompt).__name__}", allowed="a string or a list")
        seed = self.config.generation.seed if seed is None else seed
        drawn = secrets.randbelow(2**31) if seed is None else seed
        first = operator.index(drawn) if isinstance(drawn, SupportsIndex) else -1
        if not 0 <= first <= 2**63 - len(prompts):
            raise RequestError("not allowed", key="seed", value=repr(seed), allowed="whole numbers from 0 to 2**63 - 1")
        with self._lock:
            made = [*self.videos(prompts, range(first, first + len(prompts)))]
        return made[0] if isinstance(prompt, str) else made

    def play(self, frames: NDArray[np.uint8], seed: int = 0) -> World:
        """A session that decodes a frame per action, starting from frames uint8 [H, W, 3] or [n, H, W, 3].

        Example:
            >>> world = VideoPipeline.from_pretrained("table-actions").play(frame, seed=1)
            >>> frame, info = world.step([2.0, 0.0])

        """
        from fastcar_cli.pipeline.play import World

        return World(self.model, self.resolved, self.settings, frames, seed)

    def close(self) -> None:
        """Release the model and its caches; later calls raise RequestError."""
        with self._lock:
            self._runs.clear()
            del self.model

    def __getstate__(self) -> None:
        """Raise TypeError: other processes load the model themselves."""
        raise TypeError("a pipeline can't be pickled or copied: load the model in each process")

    def run(self, prompts: Sequence[Prompt], seeds: Sequence[int]) -> Decode:
        """Decode as `stream` does, and drop the frames; returns the engine's state of the last batch."""
        for _ in self.stream(prompts, seeds):
            pass
        return self._runs[-1].decode

    def _batch(
        self,
        prompts: Sequence[Prompt],
        seeds: Sequence[int],
        on_token: Callable[[int], None],
        watch: Watch | None,
        on_begin: OnBegin | None,
    ) -> Iterator[Frame]:
        """The frames of one batch. Raises RequestError for prompts with another number of frames than expected."""
        backend, preset, network = None, self._preset, self.model.network
        if preset is not None:
            from fastcar_fpga import FpgaBackend

            def backend(decoder: Decoder, rows: int) -> MLPBackend:
                return FpgaBackend(decoder, preset, rows)

        started = time.perf_counter()
        on_reading, on_prefill = (None if on_begin is None else partial(on_begin, part) for part in ("input", "prompt"))
        decode, readings = begin(self.model, prompts, seeds, self.settings, backend, on_reading)
        decode.observers.watch, decode.observers.on_prefill = watch, on_prefill
        decode.windows = self._windows.setdefault(len(prompts), DraftWindow(self.settings.draft.window))
        if self.spec.layout.prompt_frames and decode.prompts.aligned != self.spec.layout.prompt_tokens:
            frames = self.spec.frames_of(decode.prompts.aligned // decode.frame)
            said = f"the input has {frames} frames, but the run needs {self.context}"
            raise RequestError(said, hint=("use ", Key("context"), f" {frames}"))
        texts = [str(p) for p in prompts]
        run = Run(decode, self.name, self.fps, texts, list(seeds), readings, self._load_seconds, self._preset)
        self._runs.append(run)
        if (file := self.config.runtime.keep_prefill) is not None:
            decode.saved = PrefillFile(Path(file), decode, self.checkpoint.identity.weights).prefill

        def shown(pixels: Callable[[], Tensor | None], first: int) -> Iterator[Frame]:
            """Frames from index `first` on, of pixels [P, frames, H, W, 3] or of one frame [P, H, W, 3]."""
            began = time.perf_counter()
            if (decoded := pixels()) is None:
                return
            images = network.to_bytes(decoded).cpu().numpy()
            images = images if images.ndim == 5 else images[:, None]
            now = time.perf_counter()
            run.vision += now - began
            if run.first_frame is None:
                run.first_frame = now - started + self._load_seconds
            run.total = now - started + self._load_seconds
            for video, frames in enumerate(images):
                for index, image in enumerate(frames, first):
                    yield Frame(video, index, image)

        yield from shown(decode.context_frames, 0)
        shown_frames = 0
        for _ in decode.steps():
            on_token(decode.done)
            if decode.done // decode.frame > shown_frames:
                first = self.spec.frames_of(self.spec.layout.context + shown_frames)
                yield from shown(partial(decode.decode_frame, shown_frames), first)
                shown_frames += 1

    @property
    def decode(self) -> Decode | None:
        """The engine's state of the last batch."""
        return self._runs[-1].decode if self._runs else None

    def _run_of(self, video: int) -> tuple[Run, int]:
        """The batch of a video, and the video's index in it. Raises ValueError before it begins."""
        for run in self._runs:
            if video < len(run.prompts):
                return run, video
            video -= len(run.prompts)
        raise ValueError("the video was not decoded yet")

    @property
    def codes(self) -> NDArray[np.int64]:
        """Codes of the last call of `stream`, [videos, T*N, depth]."""
        return np.concatenate([run.decode.codes.cpu().numpy() for run in self._runs])

    def recipe(self, prompt: Prompt, seed: int, ids: Sequence[int] = ()) -> dict[str, Any]:
        """The recipe that reproduces a video; `ids`: token ids of a prompt of frames."""
        return recipe_of(self.resolved, self.model, self.checkpoint.identity, prompt, seed, ids)

    def prompt_ids(self, video: int) -> tuple[int, ...]:
        """Token ids of a video's prompt. Raises ValueError before its batch begins."""
        run, index = self._run_of(video)
        return run.readings[index].ids

    def decisions(self) -> Decisions:
        """Replay decisions of all rows of the last batch, for complete frames."""
        return self._runs[-1].decisions()

    def emulated(self) -> Comparison | None:
        """The last batch on the accelerator of fpga-sim; None with another backend or before the first frame."""
        return self._runs[-1].emulated() if self._runs else None

    def report(self, video: int) -> dict[str, Any]:
        """The JSON document of one video (docs/json.md), without `video.path`."""
        run, index = self._run_of(video)
        return run.document(index)

    def with_config(self, config: RunConfig) -> VideoPipeline:
        """The same loaded model in another run; ignores model, device and dtype of `config`."""
        return VideoPipeline(self.model, config, checkpoint=self._checkpoint)

    def with_settings(self, **changes: Any) -> VideoPipeline:
        """The same loaded model with other decode settings (fields of `DecodeSettings`)."""
        settings = replace(self.settings, **changes)
        return VideoPipeline(
            self.model, self.config, settings=settings, load_seconds=self._load_seconds, checkpoint=self._checkpoint
        )
