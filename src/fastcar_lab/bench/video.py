"""A whole video of a model on the clock: every token decoded, dense and with a forced replay ratio."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fastcar_cli.analysis.machine import Stream, processor
from fastcar_cli.decoding.drafts import DraftSettings, Pass
from fastcar_cli.decoding.engine import Decode, begin
from fastcar_cli.decoding.replay import ReplayRule
from fastcar_cli.decoding.settings import DecodeSettings
from fastcar_cli.decoding.tau import OFF, Tau
from fastcar_cli.errors import RequestError
from fastcar_cli.files import write_whole
from fastcar_cli.models.loading.checkpoint import LoadedModel
from fastcar_cli.models.loading.memory_plan import peak_bytes
from fastcar_cli.models.loading.published import full_spec
from fastcar_cli.models.loading.registry import identity
from fastcar_cli.plain_data import parse_json
from fastcar_lab.bench.contestants import pattern

PROMPT = "a red ball rolling to the right on the grass"
PUBLISHED = {"dense": 689.7, "replay": 354.5}
"""Seconds of VILA-U 7B on the paper's U280: dense, and with 87 % replay and a window of 256 (FastCar, table 2)."""

_PARTS = ("decode_s", "mlp_s", "draw_s", "vision_s", "bytes")


@dataclass(frozen=True)
class WholeVideo:
    """What to decode: frames of one video; `ratio` of all MLPs are replayed, jointly, in the second variant.

    With `tokens` only so many are decoded, from the middle of the video, and the rest is extrapolated from them.
    `kv_dtype` is that of keys and values: auto (as the model) or int8. With a window `draft` above 1 a third variant
    takes so many tokens a pass, a fourth replays too; a draft counts as right with probability `accept`.
    """

    model: str
    frames: int
    ratio: float
    tokens: int | None = None
    kv_dtype: str = "auto"
    draft: int = 1
    accept: float = 0.0

    @property
    def variants(self) -> tuple[str, ...]:
        """What is decoded, in order."""
        return ("dense", "replay") if self.draft == 1 else ("dense", "replay", "drafts", "both")


def _read_by(decode: Decode, passes: Sequence[Pass]) -> int:
    """Bytes that passes must read: weights once a pass, keys and values of every row up to the last input."""
    network, spec = decode.model, decode.model.spec
    mlp = network.weights_bytes("llm.layers.", ".mlp.") // spec.decoder.layers
    fixed = network.weights_bytes("llm.layers.") - mlp * spec.decoder.layers
    fixed += network.weights_bytes("projector.") + spec.code_depth * network.weights_bytes("depth.")
    total = 0
    for first, taken, _ in passes:
        # Position 0 is drawn from what the prompt left.
        if (t := first[0]) < 0:
            continue
        computed = spec.decoder.layers
        if decode.replay is not None:
            computed = int((~decode.replay.replayed[:, :, t : t + taken]).flatten(1).any(1).sum())
        total += fixed + mlp * computed + decode.cache.bytes_read(t + taken - 1)
    return total


def _decode(model: LoadedModel, plan: WholeVideo, variant: str) -> Decode:
    """A video ready to be decoded, guided as its model wants it; with replay its decisions are forced."""
    spec, n = model.network.spec, model.network.spec.tokens_per_frame
    settings = DecodeSettings(
        frames=plan.frames,
        sampling=model.defaults.sampling,
        rule=ReplayRule(Tau((float("-inf"),)) if variant in ("replay", "both") else OFF),
        draft=DraftSettings("frame", plan.draft, plan.accept) if variant in ("drafts", "both") else DraftSettings(),
        kv_dtype=plan.kv_dtype,
    )
    decode, _ = begin(model, [PROMPT], [0], settings)
    if decode.replay is not None:
        passes = plan.frames * n - 1
        # The first frame is computed, so the others replay more; a stretch of the middle replays the ratio itself.
        ratio = plan.ratio * passes / (passes - n) if plan.tokens is None else plan.ratio
        if ratio > 1:
            raise RequestError(
                f"the first of {plan.frames} frames is always computed",
                key="replay_ratio",
                value=f"{plan.ratio:g}",
                allowed=f"at most {(passes - n) / passes:.3f}",
            )
        forced = torch.zeros_like(decode.replay.replayed)
        forced[:, :, n:] = pattern(ratio, spec.decoder.layers, decode.rows, passes - n, joint=True)
        decode.replay.force(forced)
    return decode


def _pieces(plan: WholeVideo, total: int, n: int) -> list[tuple[int, int]]:
    """First and last position of each piece that is timed: frames, or one stretch around the middle."""
    if plan.tokens is None:
        return [(first, first + n) for first in range(0, total, n)]
    first = max(n + 1, (total - plan.tokens) // 2)
    return [(first, min(total, first + plan.tokens))]


def _timed(decode: Decode, pieces: list[tuple[int, int]]) -> Iterator[dict[str, float]]:
    """Decode the pieces in turn, and a frame's pixels behind each; seconds and bytes of each."""
    clock, n, left = decode.clock, decode.frame, list(pieces)
    before, begin, seen = (0.0, 0.0, 0.0), pieces[0][0], 0
    for _ in decode.steps(first=begin):
        # With drafts a pass may end behind the piece.
        if (done := decode.done) < left[0][1]:
            continue
        now = (clock.decode, clock.mlp, clock.draw)
        began = time.perf_counter()
        decode.decode_frame((done - 1) // n)
        vision = time.perf_counter() - began
        seconds = [b - a for a, b in zip(before, now, strict=True)]
        assert decode.drafter is not None
        measured = [*seconds, vision, _read_by(decode, decode.drafter.passes[seen:])]
        yield {
            "first": begin,
            "tokens": done - begin,
            "passes": len(decode.drafter.passes) - seen,
            **dict(zip(_PARTS, measured, strict=True)),
        }
        before, begin, seen = now, done, len(decode.drafter.passes)
        left.pop(0)
        if not left:
            return


def _empty(plan: WholeVideo) -> dict[str, Any]:
    # Records of runs without drafts do not have their keys.
    unlike = {"model"} if plan.draft > 1 else {"model", "draft", "accept"}
    return {
        "plan": {key: value for key, value in asdict(plan).items() if key not in unlike},
        "weights": identity(plan.model).weights,
        "threads": torch.get_num_threads(),
        "variants": {},
    }


def _kept(file: Path, plan: WholeVideo) -> dict[str, Any]:
    """What an earlier run of the same plan has left."""
    record = _empty(plan)
    if not file.exists():
        return record
    try:
        found: dict[str, Any] = parse_json(file.read_text(encoding="utf-8"))
        same = all(found[key] == record[key] for key in ("plan", "weights", "threads"))
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise RequestError(f"not a record of a whole video ({type(e).__name__})", key="save", value=file) from None
    if not same:
        raise RequestError(
            "holds the record of another model, plan or number of threads",
            key="save",
            value=file,
            hint="another file name",
        )
    return found


def whole_video(
    model: LoadedModel,
    plan: WholeVideo,
    save: Path | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Decode one video dense and one with forced replay; what it took, by variant and frame.

    With `save` every finished frame is written there, and the same call resumes behind the last one: keys, values and
    MLP outputs before it are then random numbers, which cost the same. `on_progress(done, total)` counts tokens. Raises
    RequestError for a record of something else and a ratio that can't be reached.
    """
    spec = model.network.spec
    n, total = spec.tokens_per_frame, plan.frames * spec.tokens_per_frame
    if plan.draft > n:
        raise RequestError(f"a frame has {n} tokens", key="draft", value=plan.draft, allowed=f"1 to {n}")
    pieces = _pieces(plan, total, n)
    record = _empty(plan) if save is None else _kept(save, plan)
    each = sum(last - first for first, last in pieces)
    for number, variant in enumerate(plan.variants):
        line = record["variants"].setdefault(variant, {"pieces": [], "prefill_s": 0.0, "peak_bytes": 0})
        left = pieces[len(line["pieces"]) :]
        if not left:
            continue
        decode = _decode(model, plan, variant)
        for piece in _timed(decode, left):
            line["pieces"].append(piece)
            line["prefill_s"], line["kernels"] = decode.clock.prefill, decode.why
            line["peak_bytes"] = max(line["peak_bytes"], peak_bytes(model.network.device))
            if save is not None:
                write_whole(save, json.dumps(record, indent=1) + "\n")
            if on_progress is not None:
                on_progress(number * each + int(sum(p["tokens"] for p in line["pieces"])), len(plan.variants) * each)
        decode.release()
    # Not before, as it takes memory of its own.
    bandwidth = Stream(torch.device("cpu")).rate() / 1e9
    return _summary(record, plan, bandwidth, model)


def _summary(record: dict[str, Any], plan: WholeVideo, bandwidth: float, model: LoadedModel) -> dict[str, Any]:
    """Totals by variant, extrapolated to the whole video where a stretch was decoded; bandwidth in GB/s."""
    spec, full = model.network.spec, full_spec()
    total, lines = plan.frames * spec.tokens_per_frame, dict[str, Any]()
    published = PUBLISHED if replace(spec.decoder, max_positions=1) == replace(full.decoder, max_positions=1) else {}
    for variant, line in record["variants"].items():
        pieces = line["pieces"]
        scale = total / sum(p["tokens"] for p in pieces)
        sums = {part: scale * sum(p[part] for p in pieces) for part in _PARTS}
        # A frame is drawn with every piece.
        sums["vision_s"] = plan.frames * sum(p["vision_s"] for p in pieces) / len(pieces)
        seconds = line["prefill_s"] + sums["decode_s"] + sums["vision_s"]
        lines[variant] = {
            "seconds": seconds,
            "prefill_s": line["prefill_s"],
            **sums,
            "gb_s": sums["bytes"] / sums["decode_s"] / 1e9,
            "of_bandwidth": sums["bytes"] / sums["decode_s"] / 1e9 / bandwidth,
            "peak_bytes": line["peak_bytes"],
            "kernels": line["kernels"],
            "published_s": published.get(variant),
            "tokens_per_pass": sum(p["tokens"] for p in pieces) / sum(p.get("passes", p["tokens"]) for p in pieces),
            "speedup": lines["dense"]["seconds"] / seconds if lines else 1.0,
        }
    return {
        "model": model.name,
        "weights": model.network.weight_format,
        "kv_dtype": plan.kv_dtype,
        "cpu": processor(),
        "threads": record["threads"],
        "frames": plan.frames,
        "tokens": total,
        "decoded": plan.tokens or total,
        "ratio": plan.ratio,
        "draft": plan.draft,
        "accept": plan.accept,
        "bandwidth_gb_s": bandwidth,
        "variants": lines,
        "speedup": lines["dense"]["seconds"] / lines["replay"]["seconds"],
    }
