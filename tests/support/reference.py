"""The decode loop in its plainest form, written from the formulas: no caches, every pass over everything.

For each new token the whole sequence so far is run again through masked full attention; replay is
a table of MLP outputs by (layer, row, token). Slow and simple, to compare the engine with.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fastcar_cli.models.vila_u.network import VideoModel
from support.reference_ratio import ReferenceRatio


@dataclass
class Reference:
    hidden: list[Tensor] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    replayed: dict[tuple[int, int, int], bool] = field(default_factory=dict)
    tas: dict[tuple[int, int, int], float] = field(default_factory=dict)
    gated: dict[tuple[int, int, int], float] = field(default_factory=dict)


def _rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def _rounded(x: Tensor, prompt: int) -> Tensor:
    mean = x[:, :prompt].mean(1, keepdim=True)
    scale = (x - mean).abs().amax(-1, keepdim=True) / 127
    return ((x - mean) / scale).round().nan_to_num() * scale + mean


def _rope(x: Tensor, position: Tensor, theta: float) -> Tensor:
    half = x.shape[-1] // 2
    freq = theta ** (-torch.arange(half, dtype=x.dtype) / half)
    a = position[:, None].to(x.dtype) * freq
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * a.cos() - second * a.sin(), second * a.cos() + first * a.sin()], -1)


@torch.inference_mode()
def decode(
    model: VideoModel,
    prompts: list[list[int]],
    codes: Tensor,
    *,
    cfg: float,
    taus: list[float] | None = None,
    tas: str = "attention",
    pairs: bool = False,
    max_age: int | None = None,
    window: int | None = None,
    sinks: int = 0,
    forced: Tensor | None = None,
    ratio: float | None = None,
    scope: str = "layer",
    kv_dtype: str = "auto",
    recent: int | None = None,
    code: Callable[[Tensor], Tensor] = lambda x: x,
    code_latent: Callable[[Tensor], Tensor] = lambda x: x,
) -> Reference:
    """Float64 decode of forced codes [P, tokens, depth]; rows as in the engine.

    taus: a threshold a layer, infinity where it never replays. forced: decisions bool [layers, rows, tokens - 1] in
    their place. kv_dtype int8: visual tokens attend to keys and values that lie more than `recent` (at most N) tokens
    back, and are not of the prompt (with a window of the sinks), as rounded to 127ths of the largest of their head and
    token, around the prompt's mean. code, code_latent: what products of the blocks and the projector's keep of their
    inputs. ratio: the part of all MLPs to replay, in each layer (scope `layer`) or in all together (`global`), which
    then sets the thresholds.
    """
    model = model.double()

    def feedback(seen: Tensor, index: Tensor) -> Tensor:
        return model.feedback_latent(code_latent(model.rqvae.embed(seen)), index)

    spec = model.spec.decoder
    n, d = model.spec.tokens_per_frame, spec.head_dim
    groups = spec.heads // spec.kv_heads
    videos = codes.shape[0]
    out = Reference()
    rows = len(prompts)
    # What every MLP put out, by layer, row and visual token: replay reads it, nothing is recomputed for the past.
    mlp: dict[tuple[int, int, int], Tensor] = {}
    age: dict[tuple[int, int, int], int] = {}
    layers, passes = spec.layers, codes.shape[1] - 1
    ratios: list[ReferenceRatio] = []
    if ratio is not None:
        for group in [[i] for i in range(layers)] if scope == "layer" else [list(range(layers))]:
            for video in range(videos):
                members = [(i, r) for i in group for r in range(video, rows, videos)]
                ratios.append(ReferenceRatio(ratio, n, passes, members, max_age))
    for step in range(codes.shape[1]):
        t = step - 1  # index of the input token
        limits = [[tau] * rows for tau in taus or [math.inf] * layers]
        for kept in ratios if t >= n else []:
            tau = kept.threshold(t, out.gated, out.replayed, age)
            for i, r in kept.members:
                limits[i][r] = tau
        inputs = []
        for r, prompt in enumerate(prompts):
            text = model.llm.embed_tokens(torch.tensor(prompt))
            seen = codes[r % videos, :step]
            inputs.append(torch.cat([text, feedback(seen, torch.arange(step))]) if step else text)
        for i, block in enumerate(model.llm.blocks):
            scores: list[float] = []
            attended = []
            for r, x in enumerate(inputs):
                p = len(prompts[r])
                h = code(_rms(x, block.input_layernorm.weight, spec.rms_eps))
                s = len(h)
                position = torch.arange(s)
                q, k, v = (
                    (h @ m.weight.T).view(s, -1, d).transpose(0, 1)
                    for m in (block.self_attn.q_proj, block.self_attn.k_proj, block.self_attn.v_proj)
                )
                k, v = k.repeat_interleave(groups, 0), v.repeat_interleave(groups, 0)
                qr, kr = _rope(q, position, spec.rope_theta), _rope(k, position, spec.rope_theta)
                score = qr @ kr.transpose(1, 2) / math.sqrt(d)
                query, key = position[:, None], position[None]
                allowed = key <= query
                if window is not None:
                    allowed &= (query - key < window) | (key < min(sinks, p))
                heads = score.masked_fill(~allowed, float("-inf")).softmax(-1) @ v
                if kv_dtype == "int8":
                    exact = (query - key <= min(recent or n, n)) | (query < p)
                    exact |= key < (p if window is None else min(sinks, p))
                    rounded = qr @ _rounded(kr, p).transpose(1, 2) / math.sqrt(d)
                    weights = torch.where(exact, score, rounded).masked_fill(~allowed, float("-inf")).softmax(-1)
                    heads = weights.masked_fill(~exact, 0) @ v + weights.masked_fill(exact, 0) @ _rounded(v, p)
                attended.append(x + code(heads.transpose(0, 1).reshape(s, -1)) @ block.self_attn.o_proj.weight.T)
                if t >= n:
                    used = qr if tas == "attention" else q
                    scores.append(float((used[:, -1] * kr[:, p + t - n]).sum(-1).mean() / math.sqrt(d)))
            decisions = [False] * rows
            if t >= n:
                gate = list(scores)
                if pairs:
                    gate = [(scores[r % videos] + scores[r % videos + videos]) / 2 for r in range(rows)]
                for r in range(rows):
                    out.tas[i, r, t], out.gated[i, r, t] = scores[r], gate[r]
                decisions = [gate[r] > limits[i][r] for r in range(rows)]
                if forced is not None:
                    decisions = [bool(forced[i, r, t]) for r in range(rows)]
                if max_age is not None:
                    young = [age.get((i, r, t - n), 0) < max_age for r in range(rows)]
                    if pairs:
                        young = [young[r % videos] and young[r % videos + videos] for r in range(rows)]
                    decisions = [a and b for a, b in zip(decisions, young, strict=True)]
            after = []
            for r, x in enumerate(attended):
                h = code(_rms(x, block.post_attention_layernorm.weight, spec.rms_eps))
                gate_ = h @ block.mlp.gate_proj.weight.T
                y = code(gate_ * gate_.sigmoid() * (h @ block.mlp.up_proj.weight.T)) @ block.mlp.down_proj.weight.T
                y = y.clone()
                p = len(prompts[r])
                for past in range(t):
                    y[p + past] = mlp[i, r, past]
                if t >= 0:
                    age[i, r, t] = age.get((i, r, t - n), 0) + 1 if decisions[r] else 0
                    if decisions[r]:
                        y[p + t] = mlp[i, r, t - n]
                    mlp[i, r, t] = y[p + t]
                    out.replayed[i, r, t] = decisions[r]
                after.append(x + y)
            inputs = after
        hidden = torch.stack([_rms(x[-1], model.llm.norm.weight, spec.rms_eps) for x in inputs])
        vectors = model.rqvae.quantizer.vectors(codes[:, step])
        partial = vectors.cumsum(1)[:, :-1].repeat(rows // videos, 1, 1)
        raw = model.depth(hidden, partial)
        guided = raw if cfg == 1.0 else raw[videos:] + cfg * (raw[:videos] - raw[videos:])
        out.hidden.append(hidden)
        out.logits.append(guided)
    return out
