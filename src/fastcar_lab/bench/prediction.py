"""A clip predicted by a model of iVideoGPT's or RLVR-World's shape, against transformers' generate.

It is timed from the prompt to the last token. The weights are random, so what is drawn means nothing; it costs what the
real one costs. Everybody draws as many tokens from the same prompt: ours in every format, dense and with a forced
replay ratio, theirs in float32.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fastcar_cli._version import __version__
from fastcar_cli.config.tau import OFF, Tau
from fastcar_cli.decoding.batch import DecodeSettings
from fastcar_cli.decoding.engine import Decode
from fastcar_cli.decoding.replay.replay import ReplayRule
from fastcar_cli.decoding.sampling import uniforms
from fastcar_cli.errors import RequestError
from fastcar_cli.models.checkpoint import empty_network
from fastcar_cli.models.ivideogpt.checkpoint import IVideoGPTCheckpoint
from fastcar_cli.models.network import Network, Spec
from fastcar_cli.models.weight_format import WeightFormat
from fastcar_cli.profile.machine import processor
from fastcar_cli.profile.profiler import random_tensor
from fastcar_lab.bench.contestants import pattern, twin_of
from fastcar_lab.bench.few_bits import stored_in
from fastcar_lab.dummy import rlvr
from fastcar_lab.dummy.ivideogpt import shape_of

SHAPES: dict[str, Spec] = {"small": shape_of(), "medium": shape_of(medium=True)}
SHAPES |= {f"rt1-{kind}": rlvr.shape_of(kind) for kind in rlvr.KINDS}
"""Models by name: transformers of 138 M and 436 M parameters, and both kinds of RLVR-World's."""

THEIRS = "transformers float32"

Go = Callable[[int], float]  # predicts a clip from a seed; the seconds that MLPs took, 0 where it does not know


@dataclass(frozen=True)
class PredictedClip:
    """What to time: a model's shape, frames with context, share of all MLPs replayed."""

    spec: Spec
    frames: int = 16
    ratio: float = 0.8
    turns: int = 5


def networks(plan: PredictedClip) -> dict[str, Network]:
    """The same weights in the formats that are compared, by format; the tokenizer has none."""
    like = {k: v for k, v in empty_network(plan.spec).state_dict().items() if not k.startswith("tokenizer.")}
    weights = {name: random_tensor(name, t.shape, torch.float32, 0) for name, t in like.items()}
    formats = IVideoGPTCheckpoint(Path()).formats
    few = WeightFormat("int4", torch.float32, blocks="int4", projector="int4", depth="int4")
    forms = (formats["float32"], formats["int8"], few)
    return {form.name: stored_in(form, plan.spec, weights, torch.device("cpu")) for form in forms}


def prompt_of(spec: Spec) -> list[int]:
    """Random ids of a prompt, without given ids after it."""
    assert spec.layout.prompt is not None
    ids = torch.randint(spec.codes // 2, (spec.layout.prompt,), generator=torch.Generator().manual_seed(0))
    return ids.tolist()


def forced(plan: PredictedClip, spec: Spec) -> Tensor:
    """Decisions with the plan's ratio of all MLPs, bool [layers, 1, tokens - 1], none where nothing may replay. Raises
    RequestError for a ratio that the first frame and the delimiters do not leave room for.
    """
    layout, layers = spec.layout, spec.decoder.layers
    passes = (plan.frames - layout.context) * layout.stride - 1
    first = 0 if layout.prompt_frames else layout.stride
    free = [t for t in range(first, passes) if t % layout.stride not in layout.delimiters]
    if plan.ratio * passes > len(free):
        raise RequestError(
            "the first predicted frame and delimiters are always computed",
            key="replay_ratio",
            value=f"{plan.ratio:g}",
            allowed=f"at most {len(free) / passes:.3f}",
        )
    decisions = torch.zeros(layers, 1, passes + 1, dtype=torch.bool)
    decisions[:, :, free] = pattern(plan.ratio * passes / len(free), layers, 1, len(free), joint=True)
    return decisions[:, :, :passes]


def ours(network: Network, plan: PredictedClip, replay: bool) -> Go:
    """Our engine as it generates, with the fastest kernels there are."""
    spec = network.spec
    ids, frames = prompt_of(spec), plan.frames - spec.layout.context
    decisions = forced(plan, spec) if replay else None
    rule = ReplayRule(Tau((float("-inf"),)) if replay else OFF)
    settings = DecodeSettings(frames=frames, sampling=IVideoGPTCheckpoint.DEFAULTS.sampling, rule=rule)

    def go(seed: int) -> float:
        decode = Decode.of(network, [ids], settings, uniforms(seed, frames * spec.tokens_per_frame, 1)[None])
        if decisions is not None:
            assert decode.replay is not None
            decode.replay.force(decisions)
        for _ in decode.steps():
            pass
        return decode.clock.mlp

    return go


def theirs(network: Network, plan: PredictedClip) -> Go:
    """Transformers' `generate` with the same weights, as the released inference code calls it: once for the tokens up
    to the next given ones, with one KV cache.
    """
    import transformers

    spec, layout = network.spec, network.spec.layout
    weights = {f"model.{k}": v for k, v in network.llm.state_dict().items() if "inv_freq" not in k}
    assert network.lm_head is not None
    weights["lm_head.weight"] = network.lm_head.weight
    twin = twin_of(transformers.LlamaForCausalLM, network, weights, 0)
    prompt, count = torch.tensor([prompt_of(spec)]), (plan.frames - layout.context) * layout.stride
    runs = [(own, [*run]) for own, run in itertools.groupby(network.given(count, None)[0].tolist(), lambda i: i < 0)]

    @torch.inference_mode()
    def go(seed: int) -> float:
        torch.manual_seed(seed)
        options: dict[str, Any] = {
            "do_sample": True,
            "top_k": IVideoGPTCheckpoint.DEFAULTS.top_k,
            "temperature": 1.0,
            "pad_token_id": 0,
        }
        cache, ids = transformers.DynamicCache(), prompt
        for drawn, run in runs:
            if drawn:
                options |= {"attention_mask": torch.ones_like(ids), "max_new_tokens": len(run)}
                ids = twin.generate(ids, past_key_values=cache, **options)
            else:
                ids = torch.cat([ids, torch.tensor([run])], 1)
        assert ids.shape[1] == prompt.shape[1] + count
        return 0.0

    return go


def measure(plan: PredictedClip, on_progress: Callable[[int, int], None] = lambda done, total: None) -> dict[str, Any]:
    """Time every contestant in each turn; `on_progress(done, total)` counts clips.

    A line each: median seconds, least and most, tokens/s, how many times as fast as transformers, and with replay how
    much faster than dense and which part of Amdahl's ceiling 1 / (1 - m r) that is (m: share of MLPs in the dense
    clip's seconds, prompt included; r: ratio). Ratios of two are medians over turns. Raises RequestError for a ratio
    that can't be reached and without transformers.
    """
    loaded = networks(plan)
    made: dict[str, Go] = {THEIRS: theirs(loaded["float32"], plan)}
    for name, network in loaded.items():
        made[f"{name} dense"] = ours(network, plan, False)
        made[f"{name} replay"] = ours(network, plan, True)
    seconds: dict[str, list[float]] = {name: [] for name in made}
    mlps: dict[str, list[float]] = {name: [] for name in made}
    for turn in range(plan.turns + 1):
        for number, (name, go) in enumerate(made.items(), 1):
            began = time.perf_counter()
            mlp = go(turn)
            if turn:
                seconds[name].append(time.perf_counter() - began)
                mlps[name].append(mlp)
            on_progress(turn * len(made) + number, (plan.turns + 1) * len(made))
    spec = loaded["float32"].spec
    tokens = (plan.frames - spec.layout.context) * spec.layout.stride - 1

    def faster(name: str, other: str) -> float:
        return statistics.median(b / a for a, b in zip(seconds[name], seconds[other], strict=True))

    lines: dict[str, dict[str, Any]] = {}
    for name, times in seconds.items():
        middle = statistics.median(times)
        line: dict[str, Any] = {
            "seconds": middle,
            "spread_s": [min(times), max(times)],
            "tokens_per_s": tokens / middle,
        }
        line["vs_transformers"] = faster(name, THEIRS)
        form, _, kind = name.partition(" ")
        if kind == "replay":
            dense = f"{form} dense"
            share = statistics.median(m / s for m, s in zip(mlps[dense], seconds[dense], strict=True))
            speedup, ceiling = faster(name, dense), 1 / (1 - share * plan.ratio)
            line |= {"speedup": speedup, "mlp_share": share, "ceiling": ceiling, "of_ceiling": speedup / ceiling}
        lines[name] = line
    return {
        "version": __version__,
        "cpu": processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "parameters": sum(p.numel() for n, p in loaded["float32"].named_parameters() if not n.startswith("tokenizer.")),
        "frames": plan.frames,
        "prompt": spec.layout.prompt,
        "tokens": tokens,
        "ratio": plan.ratio,
        "turns": plan.turns,
        "lines": lines,
    }
