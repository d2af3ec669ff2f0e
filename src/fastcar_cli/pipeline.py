"""TextToVideo: prompts in, frames out one by one. The only place that knows all the parts."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastcar_cli.config import DEVICES, RunConfig
from fastcar_cli.decoding.compiled import prepare
from fastcar_cli.decoding.controller import Target, max_ratio
from fastcar_cli.decoding.engine import Decode, DecodeSettings, Watcher
from fastcar_cli.decoding.replay import ReplayStats
from fastcar_cli.decoding.sampling import SamplingSettings, uniforms
from fastcar_cli.errors import RequestError
from fastcar_cli.models import vila_u
from fastcar_cli.models.checkpoint import FORMATS, LoadedModel
from fastcar_cli.models.plan import Plan, choose_dtype, make_plan
from fastcar_cli.models.registry import BUNDLED, default_guidance, folder_of, load, read_spec
from fastcar_cli.run_report import Run

if TYPE_CHECKING:
    from fastcar_cli.backends.fpga.decisions import Decisions
    from fastcar_cli.backends.fpga.preset import Preset
    from fastcar_cli.backends.fpga.summary import Comparison

PROMPT_TOKENS = 64
"""Tokens of a prompt with its template that a plan reckons with."""


@dataclass(frozen=True)
class Frame:
    """One finished frame: index of its video, index in it, pixels uint8 [H, W, 3]."""

    video: int
    index: int
    image: NDArray[np.uint8]


class TextToVideo:
    """A loaded model with the settings of a run.

    Example:
        >>> pipe = TextToVideo.from_config(RunConfig())
        >>> for frame in pipe.stream(["a red ball rolling to the right"], [0]):
        ...     print(frame.index, frame.image.shape)

    """

    def __init__(self, model: LoadedModel, config: RunConfig, *, load_seconds: float = 0.0) -> None:
        """Resolve what `config` leaves open. Raises RequestError for what this model can't do."""
        self._model, self._load_seconds = model, load_seconds
        self._began = time.perf_counter() - load_seconds
        spec, own = model.network.spec, model.defaults

        def choose(value: Any, default: Any) -> Any:
            return default if value is None else value

        self.name, self.layers = model.name, spec.decoder.layers
        self.frames = choose(config.generation.frames, spec.frames)
        if spec.place_tables and self.frames > spec.frames:
            raise RequestError(
                f"`frames` {self.frames}: the model {model.name!r} was trained on {spec.frames} frames and has no "
                "position for more",
                hint=f"allowed: 1 to {spec.frames}",
            )
        longest = (spec.decoder.max_positions - 1) // spec.tokens_per_frame
        if self.frames > longest:
            raise RequestError(
                f"`frames` {self.frames}: {self.frames * spec.tokens_per_frame} tokens, the model {model.name!r} has "
                f"{spec.decoder.max_positions} positions",
                hint=f"allowed: 1 to {longest}",
            )
        self.fps = choose(config.video.fps, spec.fps)
        self.height, self.width = spec.rqvae.frame_size
        tau = config.replay.tau
        taus: tuple[float | None, ...] | None
        if tau == "off":
            taus = None
        elif isinstance(tau, (list, tuple)):
            if len(tau) != self.layers:
                raise RequestError(
                    f"`tau` has {len(tau)} values, the model {model.name!r} has {self.layers} layers",
                    hint=f"give one value for all layers or {self.layers}",
                )
            taus = tuple(None if v in (None, "off") else float(v) for v in tau)
        else:
            taus = (float(tau),) * self.layers
        s = config.sampling
        sampling = SamplingSettings(
            cfg=choose(s.cfg, own.cfg),
            temperature=choose(s.temperature, own.temperature),
            top_k=choose(s.top_k, own.top_k),
            top_p=choose(s.top_p, own.top_p),
            first_frame_top_p=choose(s.first_frame_top_p, own.first_frame_top_p),
        )
        self.settings = DecodeSettings(
            frames=self.frames,
            sampling=sampling,
            taus=taus,
            tas=choose(config.replay.tas, own.tas),
            pairs=choose(config.replay.gate, own.gate) == "pair" and sampling.cfg != 1.0,
            max_age=config.replay.max_age,
            target=self._target(config, spec.tokens_per_frame),
            window=config.attention.window,
            sinks=config.attention.sinks,
            kernels=self._kernels(config),
        )
        self._graph = config.runtime.graph
        self._preset: Preset | None = None
        if config.backend.name == "fpga-sim":
            from fastcar_cli.backends.fpga.preset import load_preset
            from fastcar_cli.backends.fpga.workload import check_memory, workload_of

            self._preset = load_preset(config.backend.preset)
            check_memory(workload_of(spec, rows=1, frames=1, prompt=1), self._preset)
        self.effective = self._effective(config)
        self._run: Run | None = None

    def _target(self, config: RunConfig, tokens_per_frame: int) -> Target | None:
        """The replay ratio to keep. Raises RequestError for one that this many frames can't reach."""
        asked = config.replay
        if asked.ratio is None:
            return None
        most = max_ratio(self.frames, tokens_per_frame, asked.max_age)
        if asked.ratio > most:
            age = "" if asked.max_age is None else f" and `max_age` {asked.max_age}"
            raise RequestError(
                f"`replay.ratio` {asked.ratio:g}: {self.frames} frames{age} allow at most {most:.4f}, because the "
                "first frame is always computed",
                hint=f"allowed: above 0, at most {int(most * 1e4) / 1e4:g}; more frames allow more",
            )
        return Target(asked.ratio, asked.controller)

    @classmethod
    def from_config(
        cls, config: RunConfig, *, videos: int = 1, on_load: Callable[[int, int], None] | None = None
    ) -> TextToVideo:
        """Load the model that the configuration names, where and in the dtype it says.

        `videos` are decoded at once; `on_load(bytes, total)` is told of the loading of a large model.
        Raises RequestError for what can't be done here, memory included.
        """
        began = time.perf_counter()
        device, bundled = resolve_device(config.runtime.device), config.model in BUNDLED
        dtype: str = config.runtime.dtype
        use_threads(config.runtime.threads, small=bundled)
        progress = None
        if bundled:
            dtype = ("float32" if device == "cpu" else "bfloat16") if dtype == "auto" else dtype
        else:
            plans = cls.plans(config, videos=videos, device=device)
            dtype = choose_dtype(dtype, device, plans)
            total = plans[dtype].weights
            if on_load is not None:
                told = on_load

                def progress(done: int) -> None:
                    told(done, total)

        model = load(config.model, dtype, device, progress)
        return cls(model, config, load_seconds=time.perf_counter() - began)

    @staticmethod
    def plans(
        config: RunConfig, *, videos: int = 1, device: str | None = None, folder: Path | None = None
    ) -> dict[str, Plan]:
        """What a run would need by dtype, from the model's configuration alone; nothing is loaded."""
        device = device or resolve_device(config.runtime.device)
        folder = folder or folder_of(config.model)
        spec = read_spec(folder)
        frames = config.generation.frames or spec.frames
        guided = default_guidance(folder) if config.sampling.cfg is None else config.sampling.cfg
        dense = config.replay.tau == "off" and config.replay.ratio is None
        taus: list[float | None] | None = None if dense else [0.0] * spec.decoder.layers
        if isinstance(config.replay.tau, list):
            taus = [None if t in (None, "off") else 0.0 for t in config.replay.tau]
        return {
            name: make_plan(
                spec,
                dtype=name,
                device=device,
                rows=videos * (1 if guided == 1.0 else 2),
                frames=frames,
                prompt_tokens=PROMPT_TOKENS,
                taus=taus,
                window=config.attention.window,
                sinks=config.attention.sinks,
                bundled=not vila_u.is_checkpoint(folder),
            )
            for name in FORMATS
        }

    def _effective(self, config: RunConfig) -> dict[str, Any]:
        """The configuration with every default of the model filled in."""
        data = config.to_dict()
        s = self.settings
        data["generation"]["frames"] = s.frames
        data["sampling"] = {
            "cfg": s.sampling.cfg,
            "temperature": s.sampling.temperature,
            "top_k": s.sampling.top_k,
            "top_p": s.sampling.top_p,
            "first_frame_top_p": s.sampling.first_frame_top_p,
        }
        data["replay"]["tas"] = s.tas
        data["replay"]["gate"] = "pair" if s.pairs else "row"
        data["runtime"]["kernels"] = s.kernels
        data["video"]["fps"] = self.fps
        return data

    def _kernels(self, config: RunConfig) -> str:
        """Which kernels decode. Raises RequestError where the ones asked for can't."""
        network, asked = self._model.network, config.runtime.kernels
        if network.weight_format == "int8" and config.backend.name != "torch":
            raise RequestError(
                f"`dtype` int8 does not go with `backend.name` {config.backend.name}, with formats of its own",
                hint="allowed: `dtype` float32, or `backend.preset` u280-int8",
            )
        chosen = ("numba" if network.weight_format == "int8" else "torch") if asked == "auto" else asked
        if chosen == "numba":
            if config.backend.name != "torch":
                raise RequestError(
                    f"`kernels` numba does not go with `backend.name` {config.backend.name}",
                    hint="allowed: `kernels` torch",
                )
            prepare(network)
        return chosen

    def notices(self, prompts: Sequence[str]) -> list[str]:
        """What a user should know before the run, such as words that the model does not know.

        Raises RequestError for a prompt that is empty, too long, or without a single known word.
        """
        found = []
        for prompt in prompts:
            if not prompt.strip():
                raise RequestError("the prompt is empty", hint="describe the video in a few words")
            found += self._model.tokenizer.notices(prompt, self.name)
        return list(dict.fromkeys(found))

    def stream(
        self,
        prompts: Sequence[str],
        seeds: Sequence[int],
        on_step: Callable[[int, int], None] | None = None,
        watch: Watcher | None = None,
    ) -> Iterator[Frame]:
        """Decode one video a prompt; frame t of every video comes as soon as it is decoded.

        `on_step(done, total)` is told of every position, `watch` of every block. All videos share the
        batch; each draws from its own seed.
        """
        if len(prompts) != len(seeds):
            raise ValueError(f"{len(prompts)} prompts, {len(seeds)} seeds")
        self.notices(prompts)
        tokenizer, network = self._model.tokenizer, self._model.network
        readings = [tokenizer.complete(tokenizer.read(p), s) for p, s in zip(prompts, seeds, strict=True)]
        rows = [list(r.ids) for r in readings]
        if self.settings.sampling.cfg != 1.0:
            rows += [list(tokenizer.blank()) for _ in prompts]
        n = network.spec.tokens_per_frame
        tokens = self.frames * n
        noise = torch.stack([uniforms(s, tokens, network.spec.depth.depth) for s in seeds])
        backend = None
        if self._preset is not None:
            from fastcar_cli.backends.fpga.executor import FpgaBackend

            backend = FpgaBackend(network.llm, self._preset, len(rows))
        decode = Decode(network, rows, self.settings, noise, backend, self._graph)
        decode.watch = watch
        run = self._run = Run(
            decode, self.name, self.fps, list(prompts), list(seeds), readings, self._load_seconds, self._preset
        )
        started = time.perf_counter()
        for step in decode.steps():
            if on_step is not None:
                on_step(step.index + 1, tokens)
            if (step.index + 1) % n:
                continue
            frame = step.index // n
            began = time.perf_counter()
            images = decode.decode_frame(frame).round().to(torch.uint8).cpu().numpy()
            now = time.perf_counter()
            run.vision += now - began
            if run.first_frame is None:
                run.first_frame = now - self._began
            run.total = now - started + self._load_seconds
            for video, image in enumerate(images):
                yield Frame(video, frame, image)

    @property
    def model(self) -> LoadedModel:
        """The loaded model, shared by every pipeline made from this one."""
        return self._model

    @property
    def decode(self) -> Decode | None:
        """The engine's state of the last run."""
        return None if self._run is None else self._run.decode

    @property
    def run(self) -> Run:
        """The last run. Raises ValueError before the first one."""
        if self._run is None:
            raise ValueError("nothing was decoded yet")
        return self._run

    @property
    def tokens_per_frame(self) -> int:
        """N, positions a frame."""
        return self._model.network.spec.tokens_per_frame

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of positions a frame."""
        return self._model.network.spec.rqvae.grid

    @property
    def codes(self) -> NDArray[np.int64]:
        """Codes of the last run, [videos, T*N, depth]."""
        return self.run.decode.codes.cpu().numpy()

    def replay_stats(self, video: int) -> ReplayStats:
        """What was replayed in one video of the last run."""
        return self.run.replay_stats(video)

    def decisions(self) -> Decisions:
        """Replay decisions of the last run, all rows of the batch, whole frames only."""
        return self.run.decisions()

    def emulated(self) -> Comparison | None:
        """The last run on the accelerator of fpga-sim; None with another backend or before the first frame."""
        return None if self._run is None else self._run.emulated()

    def report(self, video: int) -> dict[str, Any]:
        """The JSON document of one video (design: `generate --json`), without `video.path`."""
        return self.run.document(video)

    def with_config(self, config: RunConfig) -> TextToVideo:
        """The same loaded model in another run; model, device and dtype of `config` are not looked at."""
        return TextToVideo(self._model, config)

    def with_settings(self, **changes: Any) -> TextToVideo:
        """The same loaded model with other decode settings (fields of `DecodeSettings`).

        `taus` replace a target ratio, and a `target` replaces thresholds.
        """
        if "taus" in changes:
            changes.setdefault("target", None)
        elif changes.get("target") is not None:
            changes["taus"] = None
        other = object.__new__(TextToVideo)
        other.__dict__.update(self.__dict__)
        other.settings = replace(self.settings, **changes)
        other.frames = other.settings.frames
        other._run = None
        return other


def use_threads(asked: int | None, *, small: bool) -> None:
    """Set torch's threads, and with them those of compiled kernels: as asked for, else all; for a small model one.

    Two would gain a tenth of a command's time on a quiet machine, and take it three to six times as long on a busy one,
    where each waits for the other between short products (docs/speed.md).
    """
    if asked is not None:
        torch.set_num_threads(asked)
    elif small:
        torch.set_num_threads(1)


def resolve_device(asked: str) -> str:
    """The torch device of a request; `auto` takes a GPU where there is one. Raises RequestError for others."""
    if not re.fullmatch(DEVICES, asked):
        raise RequestError(f"`device` {asked}: unknown", hint="allowed: auto, cpu, cuda or cuda:N")
    if asked == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if asked.startswith("cuda"):
        if not torch.cuda.is_available():
            raise RequestError(f"`device` {asked}: no CUDA device here", hint="allowed: cpu, auto")
        index = int(asked.partition(":")[2] or 0)
        if index >= torch.cuda.device_count():
            raise RequestError(f"`device` {asked}: there are {torch.cuda.device_count()} CUDA devices, counted from 0")
    return asked
