"""Training of the bundled tokenizer: convolutional decoder and patch encoder around fixed codes.

The world is finite, so its dictionary (patches.py) gives every distinct patch its code and its code
vector before anything is trained. The decoder then learns to draw quantised latents, the encoder
to find the code vectors from pixels, each on its own.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from fastcar_cli.media.metrics import psnr_of
from fastcar_cli.models.vila_u.rqvae import RQVAESpec
from fastcar_lab.training.loop import Watch, descend, rng_of
from fastcar_lab.training.tokenizer import WorldTokenizer, quantize, to_patches
from fastcar_lab.worlds.mini.patches import PatchEncoder, build_dictionary
from fastcar_lab.worlds.mini.render import image
from fastcar_lab.worlds.mini.scene import Pose, Scene, poses, scenes_of, split_combinations

TOKENIZER_SPEC = RQVAESpec(
    grid=(8, 8),
    depth=2,
    codes=640,
    code_width=64,
    z_channels=64,
    ch=32,
    ch_mult=(1, 1, 2, 2),
    num_res_blocks=0,
    resolution=64,
    norm_groups=4,
)

BATCH, LR = 16, 2e-3
"""Windows of frames that pixels are learned from in a step, and the full learning rate of both stages."""


class Tokenizer(WorldTokenizer):
    """Patch encoder and RQ-VAE together: pixels to codes and back."""

    spec = TOKENIZER_SPEC
    encoder: PatchEncoder

    def __init__(self) -> None:
        super().__init__(PatchEncoder(TOKENIZER_SPEC.code_width))

    def encode(self, frames: Tensor) -> Tensor:
        """Frames [..., 64, 64, 3] in 0..1 to codes [..., 64, depth]."""
        return quantize(self.encoder(to_patches(frames)), self.codebooks())

    @classmethod
    def with_dictionary(cls) -> Tokenizer:
        """Untrained, with the codes of the world in its codebooks."""
        model = cls()
        dictionary = build_dictionary(cls.spec.codes, cls.spec.code_width)
        with torch.no_grad():
            for book, vectors in zip(model.rqvae.quantizer.codebooks, dictionary.vectors, strict=True):
                book.weight.zero_()
                book.weight[: cls.spec.codes] = torch.from_numpy(vectors)
        return model


def _draw(scenes: list[Scene], count: int, rng: random.Random) -> list[tuple[Scene, Pose]]:
    return [(s, poses(s)[rng.randrange(8)]) for s in rng.choices(scenes, k=count)]


@torch.no_grad()
def evaluate(model: Tokenizer, scenes: list[Scene], count: int = 200, seed: int = 1) -> float:
    """PSNR in dB of `count` frames of these scenes, encoded and decoded again (rounded to bytes)."""
    chosen = _draw(scenes, count, random.Random(seed))
    x = torch.from_numpy(np.stack([image(s, p) for s, p in chosen]))
    y = model.rqvae.frame(model.encode(x)).round() / 255
    return psnr_of(float((x - y).square().mean()) * 255**2) or math.inf


Loss = Callable[[int, random.Random], Tensor]  # that of a step with its random numbers


def _encoder_loss(model: Tokenizer, scenes: list[Scene], log: Callable[[str], None]) -> Loss:
    """Regress the code vectors of patches from their pixels (slightly noisy)."""
    dictionary = build_dictionary(model.spec.codes, model.spec.code_width)
    codebooks = model.codebooks().detach()

    def loss_at(step: int, rng: random.Random) -> Tensor:
        chosen = _draw(scenes, 48, rng)
        patches = to_patches(torch.from_numpy(np.stack([image(s, p) for s, p in chosen])))
        codes = torch.from_numpy(np.stack([dictionary.codes(s, p) for s, p in chosen]).astype(np.int64))
        busy = codes[..., 1] != codes[..., 1].mode(1, keepdim=True).values
        busy |= torch.rand(busy.shape) < 0.1
        patches, codes = patches[busy], codes[busy]
        z = model.encoder(patches + 0.01 * torch.randn_like(patches))
        target = codebooks[0][codes[:, 0]] + codebooks[1][codes[:, 1]]
        loss = (z - target).square().sum(-1).mean()
        if (step + 1) % 250 == 0:
            right = (quantize(z.detach(), codebooks) == codes).float().mean(0)
            log(f"encoder step {step + 1} loss {float(loss.detach()):.4f} codes right {right.tolist()}")
        return loss

    return loss_at


def _pixels_loss(
    model: Tokenizer,
    scenes: list[Scene],
    held_out: list[Scene],
    steps: int,
    state: dict[str, float],
    log: Callable[[str], None],
) -> Loss:
    """Draw the true codes of frames: windows around the object first, whole frames later."""
    dictionary = build_dictionary(model.spec.codes, model.spec.code_width)

    def loss_at(step: int, rng: random.Random) -> Tensor:
        whole = step > 0.4 * steps
        side = 8 if whole else 4
        chosen = _draw(scenes, BATCH // 2 if whole else BATCH, rng)
        window = np.stack([_window(p, side, rng) for _, p in chosen])
        codes = np.stack([dictionary.codes(s, p) for s, p in chosen]).astype(np.int64)
        pixels = to_patches(torch.from_numpy(np.stack([image(s, p) for s, p in chosen])))
        pick = torch.from_numpy(window)[..., None]
        code = torch.take_along_dim(torch.from_numpy(codes), pick, 1)
        with torch.no_grad():
            z = model.rqvae.embed(code).transpose(1, 2).reshape(len(chosen), -1, side, side)
        y = model.rqvae.decoder(model.rqvae.post_quant_conv(z))
        plain = torch.from_numpy(codes[..., 1]).mode(1, keepdim=True).values
        busy = (code[..., 1] != plain).reshape(-1, 1, side, side).float()
        weight = F.interpolate(1.0 + 4.0 * busy, scale_factor=8)
        patches = torch.take_along_dim(pixels, pick, 1).reshape(-1, side, side, 8, 8, 3)
        target = patches.permute(0, 5, 1, 3, 2, 4).reshape(-1, 3, side * 8, side * 8) * 2 - 1
        loss = ((y - target).square() * weight).mean()
        state["loss"] = 0.98 * state["loss"] + 0.02 * float(loss.detach())
        if (step + 1) % 500 == 0:
            log(f"pixels step {step + 1} loss {state['loss']:.5f} PSNR {evaluate(model, held_out, 64):.2f} dB")
        return loss

    return loss_at


def _window(pose: Pose, side: int, rng: random.Random) -> np.ndarray:
    """Indices of side x side patches around the object."""
    row, column = (min(max(round(c / 8 - side / 2 + rng.uniform(-1, 1)), 0), 8 - side) for c in (pose.y, pose.x))
    return (np.arange(row, row + side)[:, None] * 8 + np.arange(column, column + side)).ravel()


def train(out: Path, *, steps: int, seed: int = 0, watch: Watch = Watch()) -> Tokenizer:
    """Train the encoder for a quarter of the steps and pixels for the rest, and write `out`; returns the model. Their
    checkpoints lie in the folder `out` without its suffix. Errors: see `remaining_steps`.
    """
    torch.manual_seed(seed)
    trained, held_out = ([s for c in part for s in scenes_of(c)] for part in split_combinations())
    model = Tokenizer.with_dictionary()
    parts = out.with_suffix("")
    parts.mkdir(parents=True, exist_ok=True)

    def descends(
        part: str,
        steps: int,
        parameters: list[nn.Parameter],
        loss_at: Loss,
        state: dict[str, float],
        largest: float = math.inf,
        **settings: float,
    ) -> None:
        descend(
            parts / f"{part}.pt",
            steps,
            model,
            [torch.optim.AdamW(parameters, lr=LR, betas=(0.9, 0.99), weight_decay=0.0)],
            lambda step: loss_at(step, rng_of(seed, step)),
            rate=lambda full, step: full * min(1.0, (step + 1) / 50) * max(0.01, 1 - step / steps),
            settings={"steps": steps, "seed": seed, **settings},
            state=state,
            watch=watch,
            parameters=parameters,
            largest=largest,
        )

    descends("encoder", steps // 4, [*model.encoder.parameters()], _encoder_loss(model, trained, watch.log), {})
    state, left = {"loss": 1.0}, steps - steps // 4
    drawn = [*model.rqvae.decoder.parameters(), *model.rqvae.post_quant_conv.parameters()]
    loss_at = _pixels_loss(model, trained, held_out, left, state, watch.log)
    descends("pixels", left, drawn, loss_at, state, largest=1.0, batch=BATCH, lr=LR)
    model.eval()
    model.save(out)
    watch.log(f"tokenizer saved: {asdict(model.spec)}; held-out PSNR {evaluate(model, held_out):.2f} dB")
    return model


@dataclass(frozen=True)
class Codes:
    """Scenes and their codes, int16 [scenes, frames * 64, depth]."""

    scenes: list[Scene]
    codes: NDArray[np.int16]


def encode_world(cache: Path, log: Callable[[str], None] = print) -> tuple[Codes, Codes]:
    """(trained, held-out) codes of every scene; computed at the first call, then read from `cache`."""
    file = cache / "codes.npz"
    parts = [[s for c in part for s in scenes_of(c)] for part in split_combinations()]
    if not file.exists():
        log("encoding every scene of the world")
        dictionary = build_dictionary(TOKENIZER_SPEC.codes, TOKENIZER_SPEC.code_width)
        arrays = [
            np.stack([np.concatenate([dictionary.codes(s, p) for p in poses(s)]) for s in scenes]) for scenes in parts
        ]
        cache.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(".tmp.npz")
        np.savez(temporary, trained=arrays[0], held_out=arrays[1])
        temporary.replace(file)
    with np.load(file) as data:
        return Codes(parts[0], data["trained"]), Codes(parts[1], data["held_out"])
