"""Training of the table world's tokenizer on rendered clips, in two stages.

`codes`: encoder, codebooks and what a position draws by itself, on single patches, no two the same.
`pixels`: everything together on windows of frames, where a position is also drawn from its neighbours.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastcar_cli.models.shuffle import ShuffleDecoder
from fastcar_cli.world.patches import to_patches
from fastcar_cli.world.steps import remaining_steps, rng_of
from fastcar_cli.world.table.codebooks import Averages
from fastcar_cli.world.table.frames import Pool, changed_patches, cut
from fastcar_cli.world.table.render import render
from fastcar_cli.world.table.stories import scene_of
from fastcar_cli.world.table.tokenizer import PATCH, TableTokenizer


@dataclass(frozen=True)
class TokenizerSettings:
    """How to train: `steps` of a stage, of `patches` single patches or of `windows` windows of `side` x `side`.

    For the first `free` steps of the codes nothing is quantised; then they begin as means of latents.
    """

    steps: int
    patches: int = 1024
    windows: int = 24
    side: int = 4
    lr: float = 1.5e-3
    pool: int = 320
    commitment: float = 0.15
    decay: float = 0.98
    seed: int = 0
    warmup: int = 100
    free: int = 100
    evaluate_every: int = 250

    def rate(self, step: int) -> float:
        """Learning rate of a step: a linear rise, a plateau, a linear fall over the last 70 %."""
        return self.lr * min(1.0, (step + 1) / self.warmup, (1.0 - step / self.steps) / 0.7)


@torch.no_grad()
def evaluate(model: TableTokenizer, clips: int = 12, seed: int = 999, *, own: bool = False) -> dict[str, float]:
    """Quality on clips never trained on; with `own` of what each position draws by itself.

    PSNR (dB) over all pixels and in patches that change, each of the mean squared error; the share of
    unchanged patches that keep all their codes; bits a code of each depth carries on average.
    """
    errors, changed, keeps, seen = [], [], [], []
    for number in range(clips):
        clip = render(scene_of(seed, number, kept_out=True))
        codes = model.encode(torch.from_numpy(clip))
        image = (model.decode_own(codes) if own else model.decode(codes)).numpy()
        blocks = np.square(cut(image).astype(np.float32) - cut(clip)).mean(-1)
        moved = changed_patches(clip)
        errors.append(blocks.mean())
        changed += list(blocks[1:][moved[1:]])
        keeps += list((codes[1:] == codes[:-1]).all(-1).numpy()[~moved[1:]])
        seen.append(codes.flatten(0, -2))
    used = torch.cat(seen)
    bits = []
    for d in range(used.shape[-1]):
        p = torch.bincount(used[:, d]).float()
        p = p[p > 0] / p.sum()
        bits.append(float(-(p * p.log2()).sum()))
    peak = 20 * np.log10(255)
    return {
        "psnr_db": float(peak - 10 * np.log10(np.mean(errors))),
        "changed_psnr_db": float(peak - 10 * np.log10(np.mean(changed))),
        "still_kept": float(np.mean(keeps)),
        **{f"bits_{d}": b for d, b in enumerate(bits)},
    }


@torch.no_grad()
def begin(model: TableTokenizer, patches: Tensor) -> None:
    """Weights to start from: the principal components of patches [count, 768], to which nothing is added yet."""
    for name, p in model.named_parameters():
        if name.startswith("encoder.layers.4.") or any(part in name for part in ("conv2", "conv_out", "patch_out")):
            nn.init.zeros_(p)
        elif "codebooks" in name:
            nn.init.normal_(p, 0, 0.1)
    x = patches * 2 - 1
    mean = x.mean(0)
    components = torch.linalg.eigh((x - mean).T @ (x - mean))[1][:, -model.spec.code_width :]
    scale = float(((x - mean) @ components).square().mean().sqrt())
    model.encoder.linear.weight.copy_(components.T / scale)
    model.encoder.linear.bias.copy_(-(components.T @ mean) / scale)
    decoder = model.rqvae.decoder
    assert isinstance(decoder, ShuffleDecoder)
    # Patches hold their colours last, pixel_shuffle wants them first.
    order = torch.arange(len(mean)).view(PATCH, PATCH, 3).permute(2, 0, 1).flatten()
    decoder.patch_linear.weight.copy_(components[order, :, None, None] * scale)
    assert decoder.patch_linear.bias is not None
    decoder.patch_linear.bias.copy_(mean[order])
    after = model.rqvae.post_quant_conv
    nn.init.dirac_(after.weight)
    assert after.bias is not None
    nn.init.zeros_(after.bias)


def _codes_loss(model: TableTokenizer, books: Averages, pool: Pool, settings: TokenizerSettings, step: int) -> Tensor:
    rng = rng_of(settings.seed, step)
    patches = torch.from_numpy(pool.draw_patches(settings.patches, rng)).float() / 255
    latents = model.encoder(patches)
    if step == settings.free:
        sample = torch.from_numpy(pool.draw_patches(8 * settings.patches, rng)).float() / 255
        with torch.no_grad():
            books.begin(model.encoder(sample))
    sums = latents[None] if step < settings.free else books.quantise(latents.detach())
    quantised = latents + (sums[-1] - latents).detach()
    image = model.draw_own(quantised[:, None])
    pixels = F.mse_loss(image.permute(0, 2, 3, 1).flatten(1), patches * 2 - 1)
    return 20 * pixels + settings.commitment * (latents[None] - sums).square().mean()


def _pixels_loss(model: TableTokenizer, books: Averages, pool: Pool, settings: TokenizerSettings, step: int) -> Tensor:
    side = settings.side
    windows = torch.from_numpy(pool.draw_windows(settings.windows, side, rng_of(settings.seed, step)))
    latents = model.encoder(to_patches(windows.float() / 255, PATCH))
    sums = books.quantise(latents.detach().flatten(0, 1)).unflatten(1, latents.shape[:2])
    quantised = latents + (sums[-1] - latents).detach()
    z = quantised.transpose(1, 2).unflatten(2, (side, side))
    image = model.rqvae.decoder(model.rqvae.post_quant_conv(z))
    pixels = F.mse_loss(image, windows.permute(0, 3, 1, 2).float() / 127.5 - 1)
    return 20 * pixels + settings.commitment * (latents[None] - sums).square().mean()


def standardise(model: TableTokenizer, patches: Tensor) -> None:
    """Scale latents, and codes with them, to unit mean square over patches [count, 768]; nothing drawn changes."""
    with torch.no_grad():
        rms = float(model.encoder(patches).square().mean().sqrt())
        last = model.encoder.layers[-1]
        for part in (last, model.encoder.linear, *model.rqvae.quantizer.books):
            for p in part.parameters():
                p.div_(rms)
        model.rqvae.post_quant_conv.weight.mul_(rms)


def train(
    out: Path,
    stage: str,
    settings: TokenizerSettings,
    *,
    deadline: float | None = None,
    log: Callable[[str], None] = print,
) -> TableTokenizer:
    """Train a stage, `codes` or `pixels`, in folder `out`; a stopped stage goes on from its checkpoint.

    Writes `codes.pt` or `pixels.pt` (everything to go on from), `tokenizer.jsonl` (one line an evaluation)
    and, when the stage is done, `codes.safetensors`, with which `pixels` begins, or `tokenizer.safetensors`.
    """
    out.mkdir(parents=True, exist_ok=True)
    first = stage == "codes"
    torch.manual_seed(settings.seed)
    model = TableTokenizer() if first else TableTokenizer.load(out / "codes.safetensors").train()
    names = ("encoder.", "rqvae.post_quant_conv.", "rqvae.decoder.patch_" if first else "rqvae.decoder.")
    trained = [p for name, p in model.named_parameters() if name.startswith(names)]
    books = Averages(model, settings.decay)
    optimizer = torch.optim.AdamW(trained, lr=settings.lr, betas=(0.9, 0.97), weight_decay=0.0)
    state: dict[str, Any] = {"count": books.count, "sum": books.sum, "loss": 0.0, "seconds": 0.0}
    pool: Pool | None = None
    began = time.monotonic()
    fixed = {k: v for k, v in asdict(settings).items() if k != "evaluate_every"}
    for step in remaining_steps(
        out / f"{stage}.pt", settings.steps, model, [optimizer], settings=fixed, state=state, deadline=deadline, log=log
    ):
        if pool is None:
            books.count, books.sum = state["count"], state["sum"]
            pool = Pool(settings.pool, 128, 2, settings.seed + (not first), step)
            if first and step == 0:
                begin(model, torch.from_numpy(pool.patches.reshape(-1, PATCH * PATCH * 3)[::2]).float() / 255)
        pool.advance(step)
        optimizer.param_groups[0]["lr"] = settings.rate(step)
        loss = (_codes_loss if first else _pixels_loss)(model, books, pool, settings, step)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        now = float(loss.detach())
        state["loss"] = 0.98 * state["loss"] + 0.02 * now if state["loss"] else now
        state["seconds"] += time.monotonic() - began
        began = time.monotonic()
        last = step + 1 == settings.steps
        if last:
            standardise(model, torch.from_numpy(pool.draw_patches(4096, rng_of(settings.seed, step))).float() / 255)
        if (step + 1) % settings.evaluate_every == 0 or last:
            row = {"stage": stage, "step": step + 1, "seconds": round(state["seconds"], 1), "loss": state["loss"]}
            row |= evaluate(model, own=first)
            with (out / "tokenizer.jsonl").open("a", encoding="utf-8") as f:
                f.write(json.dumps(row) + "\n")
            log(" ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()))
            if last:
                model.save(out / ("codes.safetensors" if first else "tokenizer.safetensors"))
            began = time.monotonic()
    return model.eval()
