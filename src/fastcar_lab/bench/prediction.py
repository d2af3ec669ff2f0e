"""A clip predicted by a model of iVideoGPT's shape, from the prompt to the last token, against transformers' generate.

The weights are random, so what is drawn means nothing; it costs what the real one costs. Everybody draws as many
tokens from the same prompt: ours in every format, dense and with a forced replay ratio, theirs in float32.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fastcar_cli._version import __version__
from fastcar_cli.config.tau import OFF, Tau
from fastcar_cli.decoding.engine import Decode
from fastcar_cli.decoding.replay.replay import ReplayRule
from fastcar_cli.decoding.sampling import uniforms
from fastcar_cli.decoding.settings import DecodeSettings
from fastcar_cli.errors import RequestError
from fastcar_cli.models.checkpoint import empty_network, ready
from fastcar_cli.models.ivideogpt.checkpoint import IVideoGPTCheckpoint
from fastcar_cli.models.network import Network, Spec
from fastcar_cli.models.weight_format import WeightFormat
from fastcar_cli.profile.machine import processor
from fastcar_cli.profile.profiler import random_tensor
from fastcar_lab.bench.contestants import pattern
from fastcar_lab.dummy.ivideogpt import MEDIUM, TOKENIZERS, TRANSFORMER, write_configs

SHAPES = {"small": TRANSFORMER, "medium": MEDIUM}
"""Transformers by name: 138 M and 436 M parameters."""

THEIRS = "transformers float32"

Go = Callable[[int], float]
"""Predicts a clip from a seed; the seconds that MLPs took, 0 where it does not know."""


@dataclass(frozen=True)
class PredictedClip:
    """What to time: the transformer's configuration, frames with context (of 64 pixels), share of all MLPs replayed."""

    transformer: Mapping[str, Any]
    frames: int = 16
    ratio: float = 0.8
    turns: int = 5
    tokenizer: Mapping[str, Any] = field(default_factory=lambda: TOKENIZERS[64])


def networks(plan: PredictedClip) -> dict[str, Network]:
    """The same weights in the formats that are compared, by format; the tokenizer has none."""
    with tempfile.TemporaryDirectory() as folder:
        write_configs(Path(folder), dict(plan.transformer), dict(plan.tokenizer))
        checkpoint = IVideoGPTCheckpoint(Path(folder))
        spec = checkpoint.spec
    like = {k: v for k, v in empty_network(spec).state_dict().items() if not k.startswith("tokenizer.")}
    weights = {name: random_tensor(name, t.shape, torch.float32, 0) for name, t in like.items()}
    forms = (
        checkpoint.formats["float32"],
        checkpoint.formats["int8"],
        WeightFormat("int4", torch.float32, blocks="int4", projector="int4", depth="int4"),
    )
    return {form.name: _in(form, spec, weights) for form in forms}


def _in(form: WeightFormat, spec: Spec, weights: Mapping[str, Tensor]) -> Network:
    network = empty_network(spec)
    kept = form.on(network)
    stored = {key: value for name, tensor in weights.items() for key, value in kept.stored(name, tensor).items()}
    kept.use()
    network.load_state_dict(stored, strict=False, assign=True)
    return ready(network, torch.device("cpu"))


def prompt_of(spec: Spec) -> list[int]:
    """Random ids of a prompt without its last delimiter."""
    assert spec.layout.prefix is not None
    ids = torch.randint(spec.codes // 2, (spec.layout.prefix,), generator=torch.Generator().manual_seed(0))
    return ids.tolist()


def forced(plan: PredictedClip, spec: Spec) -> Tensor:
    """Decisions with the plan's ratio of all MLPs, bool [layers, 1, tokens - 1], none where nothing may replay.

    Raises RequestError for a ratio that the first frame and the delimiters do not leave room for.
    """
    layout, layers = spec.layout, spec.decoder.layers
    passes = (plan.frames - layout.context) * layout.stride - 1
    free = [t for t in range(layout.stride, passes) if t % layout.stride not in layout.delimiters]
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
    """Transformers' `generate` with the same weights, as the released inference code calls it."""
    import transformers

    spec, config = network.spec, plan.transformer
    layout = spec.layout
    with torch.device("meta"):
        twin = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**{**config, "vocab_size": spec.codes, "bos_token_id": None, "eos_token_id": None})
        )
    weights = {f"model.{k}": v for k, v in network.llm.state_dict().items() if "inv_freq" not in k}
    assert network.lm_head is not None
    weights["lm_head.weight"] = network.lm_head.weight
    twin.load_state_dict(weights, strict=False, assign=True)
    rotary = twin.model.rotary_emb
    twin.model.rotary_emb = type(rotary)(twin.config)
    twin.eval().requires_grad_(False)
    prompt = torch.tensor([[*prompt_of(spec), layout.delimiter]])
    count = (plan.frames - layout.context) * layout.stride - 1

    @torch.inference_mode()
    def go(seed: int) -> float:
        torch.manual_seed(seed)
        options: dict[str, Any] = {
            "do_sample": True,
            "top_k": IVideoGPTCheckpoint.DEFAULTS.top_k,
            "temperature": 1.0,
            "pad_token_id": 0,
        }
        output = twin.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=count, **options)
        assert output.shape[1] == prompt.shape[1] + count
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
        "prompt": spec.layout.prefix,
        "tokens": tokens,
        "ratio": plan.ratio,
        "turns": plan.turns,
        "lines": lines,
    }
