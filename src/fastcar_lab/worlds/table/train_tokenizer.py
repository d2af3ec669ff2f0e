"""Training of the table world's tokenizer on rendered clips, in two stages.

`codes`: encoder, codebooks and what a position draws by itself. From then on the codes of a frame are fixed.
`pixels`: the decoder alone, which learns to draw a position from its codes and its neighbours'.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from fastcar_cli.media.metrics import psnr_of
from fastcar_lab.training.loop import Watch, descend, rng_of
from fastcar_lab.training.tokenizer import nearest
from fastcar_lab.worlds.table.frames import Pool, changed_patches, cut
from fastcar_lab.worlds.table.render import render
from fastcar_lab.worlds.table.samples import Encoder, things_in
from fastcar_lab.worlds.table.stories import scene_of
from fastcar_lab.worlds.table.tokenizer import TableTokenizer

_DEAD = 0.02
"""A code that stands for less than this share of the latents of an average code begins anew at one of the batch."""


@dataclass(frozen=True)
class TokenizerSettings:
    """How to train: `steps` of a stage, of `patches` patches. For the first `free` steps of the codes nothing is
    quantised; then they begin as means of `means_of` latents.
    """

    steps: int
    patches: int = 1024
    lr: float = 1.5e-3
    pool: int = 320
    clips_a_step: int = 2
    commitment: float = 0.15
    decay: float = 0.98
    seed: int = 0
    warmup: int = 100
    free: int = 100
    means_of: int = 32_768
    evaluate_every: int = 250

    def rate(self, step: int) -> float:
        """Learning rate of a step: a linear rise, a plateau, a linear fall over the last 70 %."""
        return self.lr * min(1.0, (step + 1) / self.warmup, (1.0 - step / self.steps) / 0.7)


class Averages:
    """Learns the codebooks of a tokenizer; `count` [depth, codes] and `sum` [depth, codes, width] are its memory."""

    def __init__(self, model: TableTokenizer, decay: float) -> None:
        self.codebooks = [b.weight for b in model.rqvae.quantizer.codebooks]
        for book in self.codebooks:
            book.requires_grad_(False)
        self.codes, self.decay = model.spec.codes, decay
        self.count = torch.ones(len(self.codebooks), self.codes)
        self.sum = model.codebooks().detach().clone()

    @torch.no_grad()
    def begin(self, latents: Tensor, rounds: int = 8) -> None:
        """Set the codes to means (k-means) of latents [count, width] and of what each depth leaves over."""
        residual = latents
        for d, weight in enumerate(self.codebooks):
            book = residual[torch.randperm(len(residual))[: self.codes]].clone()
            for _ in range(rounds):
                index = nearest(residual, book)
                seen = torch.bincount(index, minlength=self.codes).float()[:, None]
                total = torch.zeros_like(book).index_add_(0, index, residual)
                book = torch.where(seen > 0, total / seen.clamp(min=1), book)
            weight[: self.codes] = book
            self.sum[d], self.count[d] = book, 1.0
            residual = residual - book[nearest(residual, book)]

    @torch.no_grad()
    def quantise(self, latents: Tensor) -> Tensor:
        """Sums of code vectors after each depth, [depth, count, width], of latents [count, width]; learns from them."""
        residual, total = latents, torch.zeros_like(latents)
        sums = []
        for d, weight in enumerate(self.codebooks):
            index = nearest(residual, weight[: self.codes])
            picked = weight[index]
            self._learn(d, index, residual)
            residual, total = residual - picked, total + picked
            sums.append(total)
        return torch.stack(sums)

    def _learn(self, d: int, index: Tensor, residual: Tensor) -> None:
        seen = torch.bincount(index, minlength=self.codes).float()
        total = torch.zeros_like(self.sum[d]).index_add_(0, index, residual)
        self.count[d].mul_(self.decay).add_(seen, alpha=1 - self.decay)
        self.sum[d].mul_(self.decay).add_(total, alpha=1 - self.decay)
        dead = torch.nonzero(self.count[d] < _DEAD * len(residual) / self.codes)[:, 0]
        share = 0.5 * len(residual) / self.codes
        self.sum[d, dead] = share * residual[torch.randint(len(residual), (len(dead),))]
        self.count[d, dead] = share
        self.codebooks[d][: self.codes] = self.sum[d] / self.count[d][:, None]


def _psnr(errors: list[float] | list[NDArray[np.float32]]) -> float:
    return psnr_of(float(np.mean(errors))) or math.inf


@torch.no_grad()
def evaluate(model: TableTokenizer, clips: int = 12, seed: int = 999, *, alone: bool = False) -> dict[str, float]:
    """Quality on clips never trained on; with `alone` of what positions draw without their neighbours.

    PSNR (dB) over all pixels, in patches that change and in those with objects or shadows, each of the mean
    squared error; the share of unchanged patches that keep all their codes; bits that a code of each depth
    carries on average where there are objects.
    """
    errors, changed, busy, keeps, seen = [], [], [], [], []
    for number in range(clips):
        scene = scene_of(seed, number, kept_out=True)
        clip = render(scene)
        codes = model.encode(torch.from_numpy(clip))
        image = (model.decode_alone(codes) if alone else model.decode(codes)).numpy()
        blocks = np.square(cut(image).astype(np.float32) - cut(clip)).mean(-1)
        moved, there = changed_patches(clip), things_in(scene, clip, range(len(clip)))
        errors.append(blocks.mean())
        changed += list(blocks[1:][moved[1:]])
        busy += list(blocks[there])
        keeps += list((codes[1:] == codes[:-1]).all(-1).numpy()[~moved[1:]])
        seen.append(codes[torch.from_numpy(there)])
    used = torch.cat(seen)
    bits = []
    for d in range(used.shape[-1]):
        p = torch.bincount(used[:, d]).float()
        p = p[p > 0] / p.sum()
        bits.append(float(-(p * p.log2()).sum()))
    return {
        "psnr_db": _psnr(errors),
        "changed_psnr_db": _psnr(changed),
        "busy_psnr_db": _psnr(busy),
        "still_kept": float(np.mean(keeps)),
        **{f"bits_{d}": b for d, b in enumerate(bits)},
    }


@torch.no_grad()
def begin(model: TableTokenizer, patches: Tensor) -> None:
    """Weights to start from: the principal components of patches [count, 768], to which nothing is added yet."""
    decoder = model.decoder
    for weight in (model.encoder.layers[-1].weight, decoder.out.weight, decoder.near.weight):
        assert isinstance(weight, Tensor)
        nn.init.zeros_(weight)
    for book in model.rqvae.quantizer.codebooks:
        nn.init.zeros_(book.weight)
    # Neighbours count for nothing at first.
    nn.init.normal_(decoder.near.weight[:, 4::9], 0, model.spec.code_width**-0.5)
    x = patches * 2 - 1
    mean = x.mean(0)
    components = torch.linalg.eigh((x - mean).T @ (x - mean))[1][:, -model.spec.code_width :]
    scale = float(((x - mean) @ components).square().mean().sqrt())
    model.encoder.linear.weight.copy_(components.T / scale)
    model.encoder.linear.bias.copy_(-(components.T @ mean) / scale)
    decoder.linear.weight.copy_(components * scale)
    decoder.linear.bias.copy_(mean)


def _codes_loss(
    model: TableTokenizer, codebooks: Averages, pool: Pool, settings: TokenizerSettings, step: int
) -> Tensor:
    rng = rng_of(settings.seed, step)
    patches = pool.pixels(*pool.draw(settings.patches, rng))
    latents = model.encoder(patches)
    if step == settings.free:
        with torch.no_grad():
            codebooks.begin(model.encoder(pool.pixels(*pool.draw(settings.means_of, rng))))
    sums = latents[None] if step < settings.free else codebooks.quantise(latents.detach())
    drawn = model.decoder.render_alone(latents + (sums[-1] - latents).detach())
    return 20 * F.mse_loss(drawn, patches * 2 - 1) + settings.commitment * (latents[None] - sums).square().mean()


def _pixels_loss(
    model: TableTokenizer, codebooks: Averages, pool: Pool, settings: TokenizerSettings, step: int
) -> Tensor:
    chosen = pool.draw(settings.patches, rng_of(settings.seed, step))
    codes, inside = pool.codes_around(*chosen)
    with torch.no_grad():
        near = (model.rqvae.embed(codes) * inside[..., None]).transpose(1, 2).flatten(1)
    return 20 * F.mse_loss(model.decoder.render(near), pool.pixels(*chosen) * 2 - 1)


def standardise(model: TableTokenizer, patches: Tensor) -> None:
    """Scale latents, and codes with them, to unit mean square over patches [count, 768]; nothing drawn changes."""
    with torch.no_grad():
        rms = float(model.encoder(patches).square().mean().sqrt())
        for part in (model.encoder.layers[-1], model.encoder.linear, *model.rqvae.quantizer.codebooks):
            for p in part.parameters():
                p.div_(rms)
        for weight in (model.decoder.linear.weight, model.decoder.near.weight):
            weight.mul_(rms)


def train(out: Path, stage: str, settings: TokenizerSettings, *, watch: Watch = Watch()) -> TableTokenizer:
    """Train a stage, `codes` or `pixels`, in folder `out`; a stopped stage resumes from its checkpoint. Writes
    `codes.pt` or `pixels.pt` (everything to resume from), `tokenizer.jsonl` (one line an evaluation) and, when the
    stage is done, `codes.safetensors`, with which `pixels` begins, or `tokenizer.safetensors`.
    """
    out.mkdir(parents=True, exist_ok=True)
    first = stage == "codes"
    torch.manual_seed(settings.seed)
    model = TableTokenizer() if first else TableTokenizer.load(out / "codes.safetensors").train()
    trained = [*model.decoder.parameters(), *(model.encoder.parameters() if first else ())]
    optimizer = torch.optim.AdamW(trained, lr=settings.lr, betas=(0.9, 0.97), weight_decay=0.0)
    codebooks = Averages(model, settings.decay)
    state: dict[str, Any] = {"count": codebooks.count, "sum": codebooks.sum, "loss": 0.0, "seconds": 0.0}
    pool: Pool | None = None
    began = time.monotonic()

    def loss_at(step: int) -> Tensor:
        nonlocal pool
        if pool is None:
            codebooks.count, codebooks.sum = state["count"], state["sum"]
            encode = None if first else Encoder(model)
            pool = Pool(settings.pool, settings.clips_a_step, settings.seed + (not first), step, encode)
            if first and step == 0:
                begin(model, pool.pixels(*pool.draw(20_000, rng_of(settings.seed, 0))))
        pool.advance(step)
        return (_codes_loss if first else _pixels_loss)(model, codebooks, pool, settings, step)

    def report(step: int, loss: Tensor) -> None:
        nonlocal began
        assert pool is not None
        now = float(loss.detach())
        state["loss"] = 0.98 * state["loss"] + 0.02 * now if state["loss"] else now
        state["seconds"] += time.monotonic() - began
        began = time.monotonic()
        last = step + 1 == settings.steps
        if last and first:
            standardise(model, pool.pixels(*pool.draw(4096, rng_of(settings.seed, step))))
        if (step + 1) % settings.evaluate_every == 0 or last:
            row = {"stage": stage, "step": step + 1, "seconds": round(state["seconds"], 1), "loss": state["loss"]}
            row |= evaluate(model, alone=first)
            with (out / "tokenizer.jsonl").open("a", encoding="utf-8") as f:
                f.write(json.dumps(row) + "\n")
            watch.log(" ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()))
            if last:
                model.save(out / ("codes.safetensors" if first else "tokenizer.safetensors"))
            began = time.monotonic()

    descend(
        out / f"{stage}.pt",
        settings.steps,
        model,
        [optimizer],
        loss_at,
        rate=lambda full, step: settings.rate(step),
        settings={k: v for k, v in asdict(settings).items() if k != "evaluate_every"},
        state=state,
        watch=watch,
        parameters=trained,
        after=report,
    )
    return model.eval()
