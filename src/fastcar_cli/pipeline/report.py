"""Reports of one batch from the engine's counts: replay, decisions, emulated cycles, the JSON document."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fastcar_cli._version import __version__
from fastcar_cli.checkpoints.memory_plan import peak_bytes
from fastcar_cli.decoding.engine import Decode
from fastcar_cli.decoding.replay.replay import ReplayStats
from fastcar_cli.errors import RequestError
from fastcar_cli.inputs.prompt import Reading

if TYPE_CHECKING:
    from fastcar_fpga import Comparison, Decisions, Preset, Windows


@dataclass
class Run:
    """A decoded batch, with times in wall seconds: `vision` is that of codes to pixels, `first_frame` and `total`
    include loading. `preset`: the accelerator of fpga-sim.
    """

    decode: Decode
    model: str
    fps: int
    prompts: list[str]
    seeds: list[int]
    readings: list[Reading]
    load_seconds: float
    preset: Preset | None = None
    vision: float = 0.0
    first_frame: float | None = None
    total: float = 0.0
    _emulated: tuple[int, Comparison] | None = field(default=None, init=False)

    def decisions(self) -> Decisions:
        """Replay decisions of all rows, complete frames only. Raises ValueError without one, RequestError if rolled."""
        from fastcar_fpga import Decisions

        decode, settings = self.decode, self.decode.settings
        if decode.done < decode.frame:
            raise ValueError("no frame was decoded yet")
        if decode.rolls:
            raise RequestError("only videos within one context have replay decisions", hint="use fewer frames")
        frames = decode.done // decode.frame
        passes = frames * decode.frame - 1
        bits = np.zeros((decode.model.spec.decoder.layers, decode.rows, passes), dtype=bool)
        if decode.replay is not None:
            bits = decode.replay.replayed[:, :, :passes].cpu().numpy()
        return Decisions(
            replayed=bits,
            spec=decode.model.spec,
            prompt=decode.prompts.padded,
            frames=frames,
            window=settings.window,
            sinks=settings.sinks,
            note={
                "prompts": self.prompts,
                "seeds": self.seeds,
                "tau": settings.rule.tau.plain(),
                "target": None if settings.rule.target is None else settings.rule.target.ratio,
                "score": settings.rule.score,
                "tas": settings.rule.tas_definition,
            },
            windows=self._windows(passes),
        )

    def _windows(self, tokens: int) -> Windows | None:
        """The passes up to this many final tokens of every video; None if each pass took one token."""
        from fastcar_fpga import Windows

        decode, replay = self.decode, self.decode.replay
        log = [p for p in decode.drafter.passes if 0 <= min(p.first) < tokens]
        if all(p.taken == 1 for p in log):
            return None
        taken = np.array([p.taken for p in log])
        bits = np.zeros((decode.model.spec.decoder.layers, decode.rows, taken.sum()), dtype=bool)
        if replay is not None:
            several, rows = iter(replay.passes), np.arange(decode.rows)
            by_token, end = replay.by_token.cpu().numpy(), 0
            for p in log:
                first = np.tile(p.first, decode.rows // len(p.first))
                decided = next(several).cpu().numpy() if p.taken > 1 else by_token[first, :, rows].T[None]
                bits[:, :, end : end + p.taken] = decided.transpose(1, 2, 0)
                end += p.taken
        return Windows(taken, np.array([p.accepted for p in log]), bits)

    def emulated(self) -> Comparison | None:
        """The run on the accelerator of fpga-sim; None with another backend or before the first frame."""
        decode = self.decode
        if self.preset is None or decode.done < decode.frame:
            return None
        if self._emulated is None or self._emulated[0] != decode.passed:
            from fastcar_fpga import emulate

            self._emulated = decode.passed, emulate(self.preset, self.decisions())
        return self._emulated[1]

    def document(self, video: int) -> dict[str, Any]:
        """The JSON document of one video (docs/json.md), without `video.path`."""
        decode, settings = self.decode, self.decode.settings
        network = decode.model
        spec, clock, reading = network.spec, decode.clock, self.readings[video]
        (height, width), done, frames = spec.frame_spec.size, decode.done, spec.frames_of(decode.done // decode.frame)
        stats = ReplayStats(0.0, 0.0, [0.0] * spec.decoder.layers, [0.0] * -(-decode.passed // decode.frame))
        if decode.replay is not None:
            stats = decode.replay.stats(decode.passed, decode.prompts.rows_of(video))
        emulated = self.emulated()
        target, controller = settings.rule.target, decode.replay and decode.replay.controller
        encode = clock.reading if spec.layout.context else 0.0
        # On a GPU the host does not know when an MLP ends.
        timed = clock.decode and network.device.type == "cpu"
        return {
            "version": __version__,
            "prompt": self.prompts[video],
            "seed": self.seeds[video],
            "reading": {key: list(getattr(reading, key)) for key in ("tokens", "drawn", "unknown")},
            "model": {
                "name": self.model,
                "parameters": network.parameter_count(),
                "layers": spec.decoder.layers,
                "tokens_per_frame": spec.tokens_per_frame,
                "depth": spec.frame_spec.depth,
                "dtype": network.weight_format,
                "device": str(network.device),
            },
            "tau": settings.rule.tau.plain(),
            "window": settings.window,
            "video": {"frames": frames, "height": height, "width": width, "fps": self.fps},
            "rolls": decode.rolls,
            "tokens": {"text": decode.prompts.padded, "visual": done, "rows": decode.rows},
            "replay": {
                **asdict(stats),
                "score": settings.rule.score,
                "tas": settings.rule.tas_definition,
                "gate": "pair" if settings.rule.pairs else "row",
                "controller": target.scope if target and controller else None,
                "target": target.ratio if target and controller else None,
                "taus": controller.taus(video) if target and controller else None,
            },
            "draft": decode.drafter.report(video),
            "timing": {
                "load_s": self.load_seconds,
                "prefill_s": clock.prefill,
                "capture_s": clock.capture,
                "decode_s": clock.decode,
                "first_frame_s": self.first_frame,
                "vision_s": self.vision + encode,
                "encode_s": encode,
                "total_s": self.total,
                "tokens_per_s": done * decode.prompts.videos / clock.decode if clock.decode else 0.0,
                "mlp_share": clock.mlp / clock.decode if timed else None,
            },
            "kernels": {"name": decode.executor_name, "why": decode.why},
            "memory": {
                "weights_bytes": network.weights_bytes(),
                "kv_cache_bytes": decode.cache.nbytes,
                "replay_cache_bytes": decode.replay.nbytes if decode.replay else 0,
                "peak_bytes": peak_bytes(network.device),
            },
            "backend": {"name": decode.backend.name} if emulated is None else emulated.to_dict(),
        }
