"""Training of the decoders of all worlds: settings, the pass over whole videos, and the steps of a stage.

Teacher forcing over whole videos. With `replay` the pass applies the replay rule as decoding does: block by block,
frames in order, an MLP output above a random tau is the one used a frame earlier, so chains of replays are right. An
alignment term makes TAS follow redundancy.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastcar_cli.decoding.replay.replay import replays, temporal_attention_score
from fastcar_cli.models.bundled.placement_map import Near, PlacementMap
from fastcar_cli.models.decoder import Branch, Decoder, rotate
from fastcar_cli.models.vila_u.network import VideoModel
from fastcar_lab.training.loop import Watch, descend, rng_of
from fastcar_lab.training.muon import Muon


@dataclass(frozen=True)
class TrainSettings:
    """How to train: `steps` of `batch` videos each, on which the schedule runs, evaluated 20 times."""

    steps: int  # of `batch` videos each, on which the schedule runs, evaluated 20 times
    batch: int = 4
    lr: float = 3e-3
    muon_lr: float = 1.5e-2
    seed: int = 0
    device: str = "cpu"
    changed_weight: float = 3.0
    drop_attribute: float = 0.08
    drop_caption: float = 0.05
    replay: bool = False
    dense_share: float = 0.25  # of the videos of the replay stage
    all_share: float = 0.4  # that replay everything; the rest have a threshold between
    align: float = 0.05
    warmup: float = 0.02
    bfloat16: bool = True
    compile: bool = False  # fuse the pass with torch.compile (needs a C++ compiler)
    rate: float = 1.0  # share of the learning rates; less for a model that has learned already
    workers: int = 0  # processes that draw batches ahead, in worlds that render them as they go

    def replay_stage(self) -> TrainSettings:
        """The same for the replay stage: gentler, with the replay rule, other random numbers."""
        return replace(self, replay=True, muon_lr=1e-2, lr=2e-3, seed=self.seed + 1)

    def precision(self) -> torch.autocast:
        """Matrices in bfloat16, or everything in float32."""
        return torch.autocast(self.device, torch.bfloat16, enabled=self.bfloat16)


def replay_known(outputs: Tensor, hits: Tensor, n: int) -> Tensor:
    """MLP outputs used where all are computed at once and some replay (a teacher-forced run, as in training). outputs
    [B, S, width] of S visual tokens in frames of n; hits bool [B, S - n] says which of the tokens from n on replay.
    What a frame used is what the next one may replay, so chains are right.
    """
    frames = [outputs[:, :n]]
    for begin in range(n, outputs.shape[1], n):
        now = outputs[:, begin : begin + n]
        hit = hits[:, begin - n : begin - n + now.shape[1], None]
        frames.append(torch.where(hit, frames[-1][:, : now.shape[1]], now))
    return torch.cat(frames, 1)


_SHORT = 512
"""Sequences up to which bfloat16 attention on a CPU is written out: the fused backward takes three times as long."""


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of q, k, v [B, heads, S, d]; of short sequences written out."""
    heads, size = q.shape[1:3]
    if size > _SHORT or q.device.type != "cpu" or not torch.is_autocast_enabled("cpu"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    later = torch.full((size, size), -math.inf).triu(1)
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    scores = torch.baddbmm(later, q, k.transpose(1, 2), alpha=q.shape[-1] ** -0.5)
    return torch.bmm(scores.softmax(-1), v).unflatten(0, (-1, heads))


def run_blocks(
    llm: Decoder, x: Tensor, positions: Tensor, taus: Tensor | None, n: int, start: int = 0
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Run inputs [B, S, width] at `positions` [B, S] through all blocks; returns what the last one gives, before norm.

    The first `start` inputs are text, the others are tokens of frames of n. With taus [B], those after the first frame
    may replay, and with the result come each block's TAS [B, S - start - n] and its share of replays.
    """
    cos, sin = (a[:, None] for a in llm.rotary(positions, torch.float32))
    scores: list[Tensor] = []
    shares: list[Tensor] = []

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if taus is not None:
            scores.append(temporal_attention_score(q[:, :, start + n :], k[:, :, start:-n]).float())
        return causal_attention(q, k, v)

    for block in llm.blocks:

        def mlp(x: Tensor, branch: Branch = block.mlp_branch) -> Tensor:
            output = branch(x)
            if taus is None:
                return output
            hit = replays(scores[-1].detach(), taus[:, None])
            shares.append(hit.float().mean())
            return torch.cat([output[:, :start], replay_known(output[:, start:], hit, n)], 1)

        x = block(x, attend, mlp)
    return x, scores, shares


def hidden_states(
    model: VideoModel,
    text: Tensor,
    codes: Tensor,
    taus: Tensor | None = None,
    begins: Tensor | None = None,
    kept: Tensor | None = None,
    noise: Tensor | None = None,
    near: Near | None = None,
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Hidden states [B, T*N, width] that draw the visual tokens; with taus [B] also TAS and replay share.

    text [B, P], codes [B, T*N, depth]. taus: threshold of each video, +inf for dense; None skips
    TAS. TAS comes back a block as [B, T*N - 1 - N], decisions as the mean of the eligible ones.
    `begins` [B] is the frame of the video with which its codes begin, where that is not the first. `kept` [B, K]
    are the tokens to draw, rising and with 0 among them, where not all are; the rest is as if it were not there, and
    the hidden states are [B, K, width]. It goes with no taus. `noise` [B, K - 1, code_width] is added to the code
    vectors that are fed back. `near` is what the placement map knows of the drawn tokens, where not from `text`.
    """
    spec = model.spec
    n = spec.tokens_per_frame
    start = text.shape[1]
    if kept is None:
        kept = torch.arange(codes.shape[1], device=codes.device)[None]
    index = kept[:, 1:] - 1
    before = codes.gather(1, index.expand(len(codes), -1)[..., None].expand(-1, -1, codes.shape[-1]))
    vectors = model.rqvae.quantizer.vectors(before).sum(-2)
    if noise is not None:
        vectors = vectors + noise
    visual = model.feedback_latent(vectors, index)
    at = index if begins is None else index + n * begins[:, None]
    if model.map is not None:
        known = model.map.near(text.cpu(), (at + 1).cpu()) if near is None else near
        visual = visual + model.map.embed(known, visual.shape[0] * visual.shape[1]).view_as(visual)
    x = torch.cat([model.llm.embed_tokens(text), visual], 1)
    places = at + start
    words = torch.arange(start, device=x.device)[None]
    positions = torch.cat([words.expand(len(places), -1), places], 1)
    x, scores, shares = run_blocks(model.llm, x, positions, taus, n, start)
    return model.llm.norm(x[:, start - 1 :]), scores, shares


def forward(
    model: VideoModel, text: Tensor, codes: Tensor, taus: Tensor | None = None
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Logits [B, T*N, depth, codes] of every visual token, TAS and replay share as in `hidden_states`."""
    hidden, scores, shares = hidden_states(model, text, codes, taus)
    vectors = model.rqvae.quantizer.vectors(codes)
    partial = vectors.cumsum(-2)[..., :-1, :]
    b, s = codes.shape[:2]
    logits = model.depth(hidden.reshape(b * s, -1), partial.reshape(b * s, *partial.shape[2:]))
    return logits.view(b, s, model.spec.depth.depth, -1), scores, shares


CHANGED_TAS = -6.0  # score that training aims at where a pass's input or target differs from the frame before

STILL_TAS = (-1.4, 0.0, 1.5)
"""The same where both repeat it, by distance to the nearest change: 1, 2, or more positions."""


def tas_target(codes: Tensor, grid: tuple[int, int]) -> Tensor:
    """TAS that training aims at, [B, T*N - 1 - N], of codes [B, T*N, depth] on a grid (rows, columns).

    The farther a position is from the nearest change, the more redundant it is. In this world 16 % of
    the passes change, 21 % lie next to a change, 21 % one further, so that with these scores about
    half of all passes are above 0 and about four in five above -2.
    """
    n = grid[0] * grid[1]
    changed = (codes[:, n:] != codes[:, :-n]).any(-1)
    changed = changed[:, :-1] | changed[:, 1:]
    maps = F.pad(changed, (0, 1)).view(-1, 1, *grid).float()
    target = torch.full_like(maps, STILL_TAS[2])
    for radius in (2, 1):
        near = F.max_pool2d(maps, 2 * radius + 1, 1, radius) > 0
        target = target.masked_fill(near, STILL_TAS[radius - 1])
    return target.masked_fill(maps > 0, CHANGED_TAS).view(len(codes), -1)[:, :-1]


def align(
    loss: Tensor, values: dict[str, Any], scores: list[Tensor], shares: list[Tensor], target: Tensor, weight: float
) -> Tensor:
    """The loss with a term that makes TAS of the blocks follow a target; adds its numbers to those for the log."""
    aligned = torch.stack([F.smooth_l1_loss(score, target) for score in scores]).mean()
    values |= {"align": aligned.detach(), "replayed": torch.stack(shares).mean()}
    return loss + weight * aligned


def draw_tau(settings: TrainSettings, rng: random.Random) -> float:
    """Threshold of one training video: dense, everything replays, or anything between."""
    number = rng.random()
    if number < settings.dense_share:
        return math.inf
    if number < settings.dense_share + settings.all_share:
        return -math.inf
    return rng.uniform(-8.0, 1.0)


def draw_taus(settings: TrainSettings, rng: random.Random, videos: int) -> Tensor | None:
    """Thresholds [videos] of the replay stage; None in another."""
    if not settings.replay:
        return None
    return torch.tensor([draw_tau(settings, rng) for _ in range(videos)], device=settings.device)


TABLES = 6.0
"""By how much a placement map learns faster than what else is no matrix: a row of its tables is met in few tokens."""


def optimizers(model: nn.Module, settings: TrainSettings) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the blocks, AdamW for everything else; each group has its full rate as `full`. On a GPU
    rates are tensors, so that a step can be captured.
    """
    cuda = settings.device == "cuda"

    def rate(full: float) -> float:
        return torch.tensor(full, device=settings.device) if cuda else full  # type: ignore[return-value]

    matrices: list[nn.Parameter] = []
    tables: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        inside = p.dim() == 2 and ("llm.layers" in name or "head_transformer" in name)
        mapped = name.startswith("map.") or isinstance(model, PlacementMap)
        (matrices if inside else tables if mapped else rest).append(p)
    optimizers: list[torch.optim.Optimizer] = []
    if matrices:
        dtype = torch.bfloat16 if settings.bfloat16 else torch.float32
        optimizers.append(Muon(matrices, lr=rate(settings.muon_lr), dtype=dtype))
        optimizers[0].param_groups[0]["full"] = settings.muon_lr
    fulls = ((rest, settings.lr), (tables, TABLES * settings.lr))
    groups = [{"params": p, "full": full, "lr": rate(full)} for p, full in fulls if p]
    adam = torch.optim.AdamW(
        groups, lr=rate(settings.lr), betas=(0.9, 0.97), weight_decay=0.0, fused=cuda or None, capturable=cuda
    )
    return [*optimizers, adam]


def factor(done: float, warmup: float = 0.02, fall: float = 0.6) -> float:
    """Share of the full learning rate when this share of the steps is done; it falls over the last `fall` of them."""
    return min(1.0, (done + 1e-3) / warmup) * max(0.02, min(1.0, (1.0 - done) / fall))


def run_stage(
    out: Path,
    model: nn.Module,
    settings: TrainSettings,
    loss_at: Callable[[int, random.Random], tuple[Tensor, Mapping[str, float | Tensor], int]],
    judge: Callable[[], dict[str, float]],
    *,
    every: int | None = None,
    start: Path | None,
    watch: Watch,
    updating: Sequence[torch.optim.Optimizer] | None = None,
) -> None:
    """The steps of one stage in folder `out`; a stopped one resumes from its checkpoint as if it had not been stopped.

    `loss_at(step, rng)` gives a batch's loss, numbers for the log and its videos; `judge` those of held-out ones,
    `every` so many steps, or 20 times in all. `start` is a checkpoint of an earlier stage to begin from. Writes
    `checkpoint.pt` (everything to resume from) and `log.jsonl` (one line an evaluation). Errors: see
    `remaining_steps`. `updating` are the optimizers where `loss_at` updates weights itself, as a captured step does.
    """
    out.mkdir(parents=True, exist_ok=True)
    every = every or max(1, settings.steps // 20)
    opts = optimizers(model, settings) if updating is None else list(updating)
    if start is not None:
        model.load_state_dict(torch.load(start, map_location=settings.device, weights_only=True)["model"])
    state: dict[str, Any] = {"means": {}, "log": [], "videos": 0}
    # Where a step is computed and how often it is looked at may change on the way, what it computes may not.
    fixed = {k: v for k, v in asdict(settings).items() if k not in ("device", "compile", "evaluate_every", "workers")}

    def loss_of(step: int) -> Tensor:
        loss, values, videos = loss_at(step, rng_of(settings.seed, step))
        state["videos"] += videos
        for key, value in values.items():
            state["means"][key] = 0.95 * state["means"].get(key, value) + 0.05 * value
        return loss

    def report(step: int, loss: Tensor) -> None:
        done = step + 1
        if done % every == 0 or done == settings.steps:
            row = {
                "step": done,
                "videos": state["videos"],
                **{k: float(v) for k, v in state["means"].items()},
                **judge(),
            }
            state["log"].append(row)
            (out / "log.jsonl").write_text("".join(json.dumps(r) + "\n" for r in state["log"]), encoding="utf-8")
            watch.log(" ".join(f"{k} {v:.4g}" for k, v in row.items()))

    descend(
        out / "checkpoint.pt",
        settings.steps,
        model,
        opts,
        loss_of,
        rate=lambda full, step: settings.rate * full * factor(step / settings.steps, settings.warmup),
        settings=fixed,
        state=state,
        watch=watch,
        updated=updating is not None,
        after=report,
    )
