"""Training of the table world's tokenizer on rendered frames; codes are moving averages of what they stand for."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from fastcar_cli.world.patches import to_patches
from fastcar_cli.world.table.render import render
from fastcar_cli.world.table.scene import SIDE
from fastcar_cli.world.table.stories import scenes
from fastcar_cli.world.table.tokenizer import PATCH, TableTokenizer


@dataclass(frozen=True)
class TokenizerSettings:
    """How to train. `side` is the window of patches a sample shows, whole frames in the last `whole` of the steps.

    For the first `free` steps nothing is quantised; then the codes begin as means of latents.
    """

    steps: int = 4000
    batch: int = 32
    lr: float = 1.5e-3
    side: int = 4
    whole: float = 0.1
    pool: int = 3072
    commitment: float = 0.15
    decay: float = 0.99
    seed: int = 0
    warmup: int = 100
    free: int = 200
    save_every: int = 100
    evaluate_every: int = 200


class Frames:
    """A pool of rendered frames, uint8 [pool, 128, 128, 3], that new clips replace a few at a time.

    `busy` [pool, 64] says which patches differ from the frame before in the clip.
    """

    def __init__(self, size: int, seed: int, *, kept_out: bool = False) -> None:
        self.source = scenes(seed, kept_out=kept_out)
        self.frames = np.empty((size, SIDE, SIDE, 3), np.uint8)
        self.busy = np.zeros((size, 64), bool)
        self.at = 0
        while self.at < size:
            self.add()
        self.at = 0

    def add(self) -> None:
        """Render one more clip over the oldest frames."""
        clip = render(self.source())
        changed = changed_patches(clip)
        for frame, busy in zip(clip, changed, strict=True):
            self.frames[self.at % len(self.frames)] = frame
            self.busy[self.at % len(self.frames)] = busy
            self.at += 1

    def windows(self, count: int, side: int, rng: random.Random) -> NDArray[np.uint8]:
        """Windows of side x side patches, most of them around something that changes."""
        out = np.empty((count, side * PATCH, side * PATCH, 3), np.uint8)
        most = SIDE // PATCH - side
        for i in range(count):
            k = rng.randrange(len(self.frames))
            row, column = rng.randint(0, most), rng.randint(0, most)
            places = np.flatnonzero(self.busy[k])
            if len(places) and rng.random() < 0.85:
                place = int(places[rng.randrange(len(places))])
                row, column = (
                    min(max(p - rng.randrange(side), 0), most) for p in divmod(place, SIDE // PATCH)
                )
            y, x = row * PATCH, column * PATCH
            out[i] = self.frames[k, y : y + side * PATCH, x : x + side * PATCH]
        return out


def changed_patches(clip: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Patches [T, 64] of a clip [T, 128, 128, 3] that differ from the frame before; the first frame as the second."""
    differs = (clip[1:] != clip[:-1]).any(-1)
    n = SIDE // PATCH
    blocks = differs.reshape(-1, n, PATCH, n, PATCH).any((2, 4)).reshape(-1, n * n)
    return np.concatenate([blocks[:1], blocks])


class Averages:
    """Codebooks as exponential averages of the residuals they stand for; codes that nobody uses begin anew."""

    def __init__(self, model: TableTokenizer, decay: float) -> None:
        self.books = [b.weight for b in model.rqvae.quantizer.books]
        self.codes, self.decay = model.spec.codes, decay
        self.count = torch.ones(len(self.books), self.codes)
        self.sum = model.codebooks().detach().clone()
        self.generator = torch.Generator().manual_seed(0)

    @torch.no_grad()
    def assign(self, latents: Tensor, learn: bool) -> tuple[Tensor, Tensor]:
        """Codes [..., depth] of latents [..., width], and the sums of code vectors after each depth [depth, ..., width]."""
        flat = latents.reshape(-1, latents.shape[-1])
        residual, total = flat, torch.zeros_like(flat)
        codes, sums = [], []
        for d, weight in enumerate(self.books):
            book = weight[: self.codes]
            index = (book.square().sum(-1) - 2 * residual @ book.T).argmin(-1)
            picked = book[index]
            if learn:
                self._learn(d, index, residual)
            residual, total = residual - picked, total + picked
            codes.append(index)
            sums.append(total.view_as(latents))
        return torch.stack(codes, -1).view(*latents.shape[:-1], -1), torch.stack(sums)

    @torch.no_grad()
    def begin(self, latents: Tensor, rounds: int = 8) -> None:
        """Set the codes to means (k-means) of latents [count, width] and of what each depth leaves over."""
        residual = latents
        for d, weight in enumerate(self.books):
            order = torch.randperm(len(residual), generator=self.generator)[: self.codes]
            book = residual[order].clone()
            for _ in range(rounds):
                index = (book.square().sum(-1) - 2 * residual @ book.T).argmin(-1)
                seen = torch.bincount(index, minlength=self.codes).float()[:, None]
                total = torch.zeros_like(book).index_add_(0, index, residual)
                book = torch.where(seen > 0, total / seen.clamp(min=1), book)
            weight[: self.codes] = book
            self.sum[d], self.count[d] = book, 1.0
            residual = residual - book[(book.square().sum(-1) - 2 * residual @ book.T).argmin(-1)]

    def _learn(self, d: int, index: Tensor, residual: Tensor) -> None:
        seen = torch.bincount(index, minlength=self.codes).float()
        total = torch.zeros_like(self.sum[d]).index_add_(0, index, residual)
        self.count[d].mul_(self.decay).add_(seen, alpha=1 - self.decay)
        self.sum[d].mul_(self.decay).add_(total, alpha=1 - self.decay)
        dead = torch.nonzero(self.count[d] < 0.05)[:, 0]
        if len(dead):
            chosen = torch.randint(len(residual), (len(dead),), generator=self.generator)
            self.sum[d, dead] = residual[chosen]
            self.count[d, dead] = 1.0
        self.books[d][: self.codes] = self.sum[d] / self.count[d][:, None].clamp(min=1e-4)


def begin(model: TableTokenizer, seed: int) -> None:
    """Weights to start from: residual blocks that add nothing yet, codes of small random vectors."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, p in model.rqvae.named_parameters():
            if "conv2" in name:
                p.zero_()
            if "codebooks" in name:
                p.normal_(0, 0.1)
    for book in model.rqvae.quantizer.books:
        book.weight.requires_grad_(False)


@torch.no_grad()
def evaluate(model: TableTokenizer, clips: int = 12, seed: int = 999) -> dict[str, float]:
    """Quality on clips never trained on.

    PSNR (dB) over all pixels and in patches that change, each of the mean squared error; the share of
    unchanged patches that keep all their codes; bits a code of each depth carries on average.
    """
    source = scenes(seed, kept_out=True)
    errors, changed, keeps, codes_seen = [], [], [], []
    for _ in range(clips):
        clip = render(source())
        codes = model.encode(torch.from_numpy(clip))
        error = np.square(model.decode(codes).numpy().astype(np.float32) - clip)
        moved = changed_patches(clip)
        blocks = to_patches(torch.from_numpy(error), PATCH).mean(-1).numpy()
        errors.append(blocks.mean())
        changed += list(blocks[1:][moved[1:]])
        keeps += list((codes[1:] == codes[:-1]).all(-1).numpy()[~moved[1:]])
        codes_seen.append(codes.flatten(0, -2))
    used = torch.cat(codes_seen)
    bits = []
    for d in range(used.shape[-1]):
        p = torch.bincount(used[:, d]).float()
        p = p[p > 0] / p.sum()
        bits.append(float(-(p * p.log2()).sum()))
    return {
        "psnr_db": float(20 * np.log10(255) - 10 * np.log10(np.mean(errors))),
        "changed_psnr_db": float(20 * np.log10(255) - 10 * np.log10(np.mean(changed))),
        "still_kept": float(np.mean(keeps)),
        **{f"bits_{d}": b for d, b in enumerate(bits)},
    }


def train(out: Path, settings: TokenizerSettings, log: Callable[[str], None] = print) -> TableTokenizer:
    """Train in folder `out`, going on from its checkpoint where there is one; writes `tokenizer.safetensors`.

    `out/tokenizer.pt` holds everything to resume, `out/tokenizer.jsonl` one line an evaluation.
    """
    out.mkdir(parents=True, exist_ok=True)
    model = TableTokenizer()
    begin(model, settings.seed)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=settings.lr, betas=(0.9, 0.97), weight_decay=0.0)
    books = Averages(model, settings.decay)
    step, seconds = 0, 0.0
    checkpoint = out / "tokenizer.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        books.count, books.sum = saved["count"], saved["sum"]
        step, seconds = saved["step"], saved["seconds"]
        log(f"resumed at step {step}")
    rng = random.Random(settings.seed * 7919 + step)
    pool = Frames(settings.pool, settings.seed * 7919 + step + 1)
    began, running = time.monotonic() - seconds, 0.0

    def save() -> None:
        temporary = checkpoint.with_suffix(".tmp")
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "count": books.count}
        torch.save({**state, "sum": books.sum, "step": step, "seconds": time.monotonic() - began}, temporary)
        temporary.replace(checkpoint)
        model.save(out / "tokenizer.safetensors")

    while step < settings.steps:
        done = step / settings.steps
        optimizer.param_groups[0]["lr"] = settings.lr * min(1.0, (step + 1) / settings.warmup, (1.0 - done) / 0.7)
        whole = done > 1 - settings.whole
        side, count = (SIDE // PATCH, settings.batch // 4) if whole else (settings.side, settings.batch)
        pool.add()
        frames = torch.from_numpy(pool.windows(count, side, rng)).float() / 255
        latents = model.encoder(to_patches(frames, PATCH))
        if step == settings.free:
            sample = torch.from_numpy(pool.windows(512, 4, rng)).float() / 255
            with torch.no_grad():
                books.begin(model.encoder(to_patches(sample, PATCH)).flatten(0, 1))
        if step < settings.free:
            sums = latents[None]
        else:
            _, sums = books.assign(latents.detach(), learn=True)
        quantised = latents + (sums[-1] - latents).detach()
        z = quantised.transpose(1, 2).reshape(count, -1, side, side)
        image = model.rqvae.decoder(model.rqvae.post_quant_conv(z))
        target = frames.permute(0, 3, 1, 2) * 2 - 1
        pixels = F.mse_loss(image, target)
        committed = (latents[None] - sums).square().mean()
        loss = 20 * pixels + 0.2 * F.l1_loss(image, target) + settings.commitment * committed
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        step += 1
        now = float(pixels.detach())
        running = 0.98 * running + 0.02 * now if running else now
        if step % settings.evaluate_every == 0 or step == settings.steps:
            row = {"step": step, "seconds": round(time.monotonic() - began, 1), "mse": running, **evaluate(model)}
            with (out / "tokenizer.jsonl").open("a") as f:
                f.write(json.dumps(row) + "\n")
            log(" ".join(f"{k} {v:.4g}" for k, v in row.items()))
        if step % settings.save_every == 0 or step == settings.steps:
            save()
    (out / "tokenizer.json").write_text(json.dumps(asdict(settings)) + "\n", encoding="utf-8")
    return model.eval()
