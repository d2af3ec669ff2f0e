"""A whole video of a model on the clock: every token decoded, dense and with a forced replay ratio."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastcar_cli.checkpoints.memory_plan import Demand, peak_bytes
from fastcar_cli.checkpoints.open import open_model
from fastcar_cli.config.tau import OFF, Tau
from fastcar_cli.decoding.batch import DecodeSettings
from fastcar_cli.decoding.drafts.drafts import DraftSettings, Pass
from fastcar_cli.decoding.engine import Decode, begin
from fastcar_cli.decoding.replay.replay import ReplayRule
from fastcar_cli.errors import RequestError, RunError
from fastcar_cli.inputs.prompt import Prompt, TokenisedClip
from fastcar_cli.kernels import native
from fastcar_cli.models.checkpoint import LoadedModel
from fastcar_cli.models.network import Spec
from fastcar_cli.models.vila_u.checkpoint import full_spec
from fastcar_cli.profile.machine import Stream, processor
from fastcar_cli.system.files import write_whole
from fastcar_cli.system.plain_data import parse_json
from fastcar_lab.bench.contestants import pattern
from fastcar_lab.bench.peak import multiply_adds_per_s
from fastcar_lab.bench.window import least_seconds

PROMPT = "a red ball rolling to the right on the grass"
PUBLISHED = {"dense": 689.7, "replay": 354.5}
"""Seconds of VILA-U 7B on the paper's U280: dense, and with 87 % replay and a window of 256 (FastCar, table 2)."""

_PARTS = ("decode_s", "mlp_s", "draw_s", "vision_s", "bytes")


@dataclass(frozen=True)
class WholeVideo:
    """What to decode: one video of so many frames; `ratio` of all MLPs are replayed, jointly, in the second variant."""

    model: str
    frames: int
    ratio: float
    tokens: int | None = None  # decode only so many, from the middle, and extrapolate
    kv_dtype: str = "auto"  # auto (as the model) or int8
    drafts: tuple[tuple[int, float], ...] = ()  # windows and acceptances: a variant each, and one that replays too

    @property
    def variants(self) -> dict[str, tuple[bool, DraftSettings]]:
        """What is decoded, in order: whether it replays, and its drafts."""
        modes = {"dense": (False, DraftSettings()), "replay": (True, DraftSettings())}
        same = len({accept for _, accept in self.drafts}) < len(self.drafts)
        for window, accept in self.drafts:
            draft, which = DraftSettings("frame", window, accept), f" {accept:g}" if len(self.drafts) > 1 else ""
            which += f", W = {window}" if same else ""
            modes |= {f"drafts{which}": (False, draft), f"both{which}": (True, draft)}
        return modes

    def decoded(self, spec: Spec) -> int:
        """Frames of codes behind those that a prompt holds. Raises RequestError for pictures that they can't make."""
        step, context = spec.frame_spec.per_latent, spec.layout.context
        codes, left = divmod(self.frames - 1, step)
        if left or codes + 1 <= context:
            least = spec.frames_of(context + 1)
            raise RequestError("not made", key="frames", value=self.frames, allowed=f"{least}, {least + step}, ...")
        return codes + 1 - context


def _read_by(decode: Decode, passes: Sequence[Pass]) -> int:
    """Bytes that passes must read: weights once a pass, keys and values of every row up to the last input."""
    network, spec = decode.model, decode.model.spec
    mlp = network.weights_bytes("llm.layers.", ".mlp.") // spec.decoder.layers
    fixed = network.weights_bytes("llm.layers.") - mlp * spec.decoder.layers
    fixed += network.weights_bytes("projector.") + spec.frame_spec.depth * network.weights_bytes("depth.")
    fixed += network.weights_bytes("lm_head.")
    prompt, settings, total = decode.cache.padded, decode.settings, 0
    demand = Demand(decode.rows, settings.frames, prompt, settings.window, settings.sinks, settings.kv_dtype)
    heads = spec.decoder.layers * decode.rows * spec.decoder.kv_heads
    for first, taken, _ in passes:
        # Position 0 is drawn from what the prompt left.
        if (t := first[0]) < 0:
            continue
        computed = spec.decoder.layers
        if decode.replay is not None:
            computed = int((~decode.replay.replayed[:, :, t : t + taken]).flatten(1).any(1).sum())
        total += fixed + mlp * computed + heads * demand.bytes_of_kv(spec, network.dtype.itemsize, prompt + t + taken)
    return total


def _decode(model: LoadedModel, plan: WholeVideo, variant: str) -> Decode:
    """A video ready to be decoded, guided as its model wants it; with replay its decisions are forced."""
    spec, (replays, draft) = model.network.spec, plan.variants[variant]
    frames = plan.decoded(spec)
    settings = DecodeSettings(
        frames=frames,
        sampling=model.defaults.sampling,
        rule=ReplayRule(Tau((float("-inf"),)) if replays else OFF),
        draft=draft,
        kv_dtype=plan.kv_dtype,
    )
    decode, _ = begin(model, [_prompt(spec)], [0], settings)
    if decode.replay is not None:
        passes = frames * decode.frame - 1
        free = decode.replay.gateable(passes)
        # Where the first frame is computed, the others replay more; a stretch of the middle replays the ratio itself.
        ratio = plan.ratio * passes / int(free.sum()) if plan.tokens is None else plan.ratio
        if ratio > 1:
            raise RequestError(
                f"the first of {plan.frames} frames is always computed",
                key="replay_ratio",
                value=f"{plan.ratio:g}",
                allowed=f"at most {int(free.sum()) / passes:.3f}",
            )
        forced = torch.zeros_like(decode.replay.replayed)
        forced[:, :, free] = pattern(ratio, spec.decoder.layers, decode.rows, int(free.sum()), joint=True)
        decode.replay.force(forced)
    return decode


def _prompt(spec: Spec) -> Prompt:
    """What a video begins with: a text, or tokens and vectors of a text that mean nothing."""
    layout, source = spec.layout, spec.decoder.source
    if not layout.context:
        return PROMPT
    prefix = [min(spec.codes, spec.decoder.vocab - 1)] * (layout.prefix or 0)
    ids = torch.randint(spec.codes, (layout.prompt_tokens,), generator=torch.Generator().manual_seed(0))
    text = np.zeros((512, source), np.float32) if source else None
    actions = np.zeros((spec.longest, spec.conditions), np.float32) if spec.conditions else None
    return TokenisedClip((*prefix, *ids.tolist()), actions, text=text)


def _pieces(plan: WholeVideo, total: int, spec: Spec) -> list[tuple[int, int]]:
    """First and last position of each piece that is timed: frames, or one stretch around the middle."""
    n = spec.tokens_per_frame
    if plan.tokens is None:
        return [(first, first + n) for first in range(0, total, n)]
    # Where no frame lies behind the prompt, the first decoded one can't replay.
    first = max(1 if spec.layout.prompt_frames else n + 1, (total - plan.tokens) // 2)
    return [(first, min(total, first + plan.tokens))]


def _timed(decode: Decode, pieces: list[tuple[int, int]], *, shown: bool, warm_up: bool) -> Iterator[dict[str, float]]:
    """Decode the pieces in turn, and where `shown` a frame's pixels behind each; seconds and bytes of each. With
    `warm_up` a pass before the first piece is not counted: it maps weights and touches memory for the first time, which
    a whole video does once.
    """
    clock, n, left = decode.clock, decode.frame, list(pieces)
    before, begin, seen = (0.0, 0.0, 0.0), pieces[0][0], 0
    for _ in decode.steps(first=begin):
        if warm_up and (total := decode.draws.tokens) > decode.done:
            before, seen, warm_up = (clock.decode, clock.mlp, clock.draw), len(decode.drafter.passes), False
            left[0], begin = (decode.done, min(total, left[0][1] + decode.done - begin)), decode.done
            continue
        # With drafts a pass may end behind the piece.
        if (done := decode.done) < left[0][1]:
            continue
        now = (clock.decode, clock.mlp, clock.draw)
        if shown:
            decode.context_frames()
        began = time.perf_counter()
        if shown:
            decode.decode_frame((done - 1) // n)
        vision = time.perf_counter() - began
        seconds = [b - a for a, b in zip(before, now, strict=True)]
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
    unlike = {"model"} if plan.drafts else {"model", "drafts"}
    return {
        "plan": json.loads(json.dumps({key: value for key, value in asdict(plan).items() if key not in unlike})),
        "weights": open_model(plan.model).identity.weights,
        "threads": torch.get_num_threads(),
        "variants": {},
    }


def _kept(file: Path, plan: WholeVideo) -> dict[str, Any]:
    """What an earlier run of the same plan has left."""
    record = _empty(plan)
    if not file.exists():
        return record
    try:
        kept: dict[str, Any] = parse_json(file.read_text(encoding="utf-8"))
        same = all(kept[key] == record[key] for key in ("plan", "weights", "threads"))
        for line in kept["variants"].values():
            for piece in line["pieces"]:
                float(piece["memory_gb_s"])
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise RequestError(f"not a record of a whole video ({type(e).__name__})", key="save", value=file) from None
    if not same:
        raise RequestError(
            "holds the record of another model, plan or number of threads",
            key="save",
            value=file,
            hint="give another file name",
        )
    return kept


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
    n, total = spec.tokens_per_frame, plan.decoded(spec) * spec.tokens_per_frame
    for window, _ in plan.drafts:
        if window > n:
            raise RequestError(f"a frame has {n} tokens", key="draft", value=window, allowed=f"1 to {n}")
    pieces = _pieces(plan, total, spec)
    record = _empty(plan) if save is None else _kept(save, plan)
    each = sum(last - first for first, last in pieces)
    for number, variant in enumerate(plan.variants):
        line = record["variants"].setdefault(variant, {"pieces": [], "prefill_s": 0.0, "peak_bytes": 0})
        left = pieces[len(line["pieces"]) :]
        if not left:
            continue
        decode = _decode(model, plan, variant)
        dense = record["variants"]["dense"]
        if not line["prefill_s"] and left[0][0] and variant == "dense":
            decode.prefill()
        # What is the same in all variants is timed in the first, where a stretch is decoded.
        shown = plan.tokens is None or variant == "dense"
        before = _bandwidth()
        for piece in _timed(decode, left, shown=shown, warm_up=plan.tokens is not None):
            # Memory that is shared with other machines gives twice as much in one minute as in the next.
            after = _bandwidth()
            piece["memory_gb_s"], before = (before + after) / 2, after
            line["pieces"].append(piece if shown else piece | {"vision_s": dense["pieces"][0]["vision_s"]})
            line["prefill_s"] = decode.clock.prefill or line["prefill_s"] or dense["prefill_s"]
            line["kernels"] = decode.why
            line["peak_bytes"] = max(line["peak_bytes"], peak_bytes(model.network.device))
            if save is not None:
                write_whole(save, json.dumps(record, indent=1) + "\n")
            if on_progress is not None:
                on_progress(number * each + int(sum(p["tokens"] for p in line["pieces"])), len(plan.variants) * each)
        decode.release()
    return _summary(record, plan, model) | {"prompt_of_arithmetic": _prompt_share(model, record)}


def _bandwidth() -> float:
    """GB/s that memory gives now; it takes 128 MB for a moment where the largest cache has up to 32."""
    return Stream(torch.device("cpu"), 2**26).rate() / 1e9


def _prompt_share(model: LoadedModel, record: dict[str, Any]) -> float | None:
    """Seconds that the prompt takes at the multiply-adds that the cores make, over those that it took. None where it
    was not timed, and without the kernels or a C compiler.
    """
    network, seconds = model.network, record["variants"]["dense"]["prefill_s"]
    tokens = network.spec.layout.prompt
    if tokens is None or not seconds or native.unavailable() is not None:
        return None
    try:
        rates = multiply_adds_per_s(native.instruction_set())
    except RunError:
        return None
    return least_seconds(network, network.weight_format, rates, tokens, tokens // 2) / record["threads"] / seconds


def _summary(record: dict[str, Any], plan: WholeVideo, model: LoadedModel) -> dict[str, Any]:
    """Totals by variant, extrapolated to the whole video where a stretch was decoded."""
    spec, full = model.network.spec, full_spec()
    frames = plan.decoded(spec)
    total, lines = frames * spec.tokens_per_frame, dict[str, Any]()
    published = PUBLISHED if replace(spec.decoder, max_positions=1) == replace(full.decoder, max_positions=1) else {}
    for variant, line in record["variants"].items():
        pieces = line["pieces"]
        scale = total / sum(p["tokens"] for p in pieces)
        sums = {part: scale * sum(p[part] for p in pieces) for part in _PARTS}
        # A frame is drawn with every piece.
        sums["vision_s"] = frames * sum(p["vision_s"] for p in pieces) / len(pieces)
        seconds = line["prefill_s"] + sums["decode_s"] + sums["vision_s"]
        bandwidth = sum(p["memory_gb_s"] * p["decode_s"] for p in pieces) / sum(p["decode_s"] for p in pieces)
        lines[variant] = {
            "seconds": seconds,
            "prefill_s": line["prefill_s"],
            **sums,
            "gb_s": sums["bytes"] / sums["decode_s"] / 1e9,
            "bandwidth_gb_s": bandwidth,
            "of_bandwidth": sums["bytes"] / sums["decode_s"] / 1e9 / bandwidth,
            "peak_bytes": line["peak_bytes"],
            "kernels": line["kernels"],
            "published_s": published.get(variant),
            "tokens_per_pass": sum(p["tokens"] for p in pieces) / sum(p.get("passes", p["tokens"]) for p in pieces),
            "speedup": lines["dense"]["seconds"] / seconds if lines else 1.0,
            "ms_a_pass": 1e3 * sum(p["decode_s"] for p in pieces) / sum(p.get("passes", p["tokens"]) for p in pieces),
        }
    dense, replay = lines["dense"], lines["replay"]
    amdahl = dense["decode_s"] / (dense["decode_s"] - plan.ratio * dense["mlp_s"])
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
        "drafts": plan.drafts,
        "variants": lines,
        "speedup": dense["seconds"] / replay["seconds"],
        "ceiling": amdahl,
        "of_ceiling": dense["decode_s"] / replay["decode_s"] / amdahl,
    }
