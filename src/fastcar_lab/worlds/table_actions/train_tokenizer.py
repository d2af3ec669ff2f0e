"""Training of `table-actions`'s tokenizer on rendered frames, whose codes are known: it learns to draw and read them.

Both halves learn from the same frames and know nothing of each other. Patches of ground are known too. Vectors of codes
are made of vectors of their parts while it is trained.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from fastcar_cli.errors import RequestError
from fastcar_cli.media.metrics import psnr_of
from fastcar_cli.models.bundled.patch_tokenizer import PatchTokenizer
from fastcar_lab.training.loop import Watch, descend, rng_of
from fastcar_lab.training.muon import Muon
from fastcar_lab.training.tokenizer import TrainedTokenizer
from fastcar_lab.worlds.table.ground import ground
from fastcar_lab.worlds.table.scene import GROUNDS, LIGHTS
from fastcar_lab.worlds.table_actions.codes import GROUND_CODES, SIZES, TILES, encode
from fastcar_lab.worlds.table_actions.frames import render
from fastcar_lab.worlds.table_actions.hyperparameters import TOKENIZER
from fastcar_lab.worlds.table_actions.learner import split
from fastcar_lab.worlds.table_actions.samples import play, scene_of
from fastcar_lab.worlds.table_actions.scene import draw_state

EVERY = 2  # the encoder learns in one step of so many; it needs fewer


def ground_patches() -> Tensor:
    """Pixels float32 [codes of ground, 3, 16, 16] in 0..1."""
    side, made = TOKENIZER.patch, []
    for name in GROUNDS:
        for light in LIGHTS.values():
            whole = np.clip(ground(name, 0) * np.asarray(light, np.float32) * 255 + 0.5, 0, 255).astype(np.uint8)
            for r in range(TILES):
                for c in range(TILES):
                    made.append(whole[side * r : side * (r + 1), side * c : side * (c + 1)])
    return torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2) / 255.0


class CodeVectors(nn.Module):
    """Vectors of codes from those of their parts."""

    def __init__(self, width: int) -> None:
        super().__init__()
        kinds, colors, right, down = SIZES
        self.ground = nn.Parameter(torch.randn(GROUND_CODES, width) * 0.5)
        self.kind, self.color = nn.Parameter(torch.randn(kinds, width)), nn.Parameter(torch.randn(colors, width))
        self.place = nn.Parameter(torch.randn(right * down, width))
        self.mix = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, codes: Tensor) -> Tensor:
        """[...] -> [..., width]."""
        made, (kind, color, right, down) = split(codes)
        ground = self.ground[codes.clamp(max=GROUND_CODES - 1)]
        where = made.nonzero(as_tuple=True)
        place = right[where] * SIZES[3] + down[where]
        parts = self.kind[kind[where]] + self.color[color[where]] + self.place[place]
        return ground.index_put(where, parts + self.mix(parts))


class ActionsTokenizer(TrainedTokenizer):
    """The tokenizer with the parts of its vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.tokenizer = PatchTokenizer(TOKENIZER)
        self.codes = CodeVectors(TOKENIZER.code_width)
        with torch.no_grad():
            self.tokenizer.ground.copy_(ground_patches())
            self.tokenizer.vectors.zero_()
            out = self.tokenizer.painter.out
            out.weight.zero_()
            assert out.bias is not None
            # In order of the shares' pixels, then the colours'.
            out.bias.zero_()[: TOKENIZER.patch**2] = 1.0
        for p in (self.tokenizer.ground, self.tokenizer.vectors):
            p.requires_grad_(False)

    @torch.no_grad()
    def finished(self) -> PatchTokenizer:
        """The tokenizer with all vectors written out."""
        self.tokenizer.vectors.copy_(self.codes(torch.arange(TOKENIZER.codes)))
        return self.tokenizer.eval()

    def save(self, path: Path) -> None:
        """See `TrainedTokenizer`."""
        self.finished()
        super().save(path)

    @classmethod
    def of_model(cls, model: str) -> ActionsTokenizer:
        """The tokenizer of a model by name or folder. Raises RequestError: models hold no parts of code vectors."""
        raise RequestError(
            "training can't begin with it", key="model", value=model, hint="begin with a tokenizer.safetensors"
        )


def frames_of(rng: random.Random, count: int, *, kept_out: bool = False) -> tuple[NDArray[np.uint8], Tensor]:
    """Frames [count, 128, 128, 3] of as many scenes, and their codes [count, 64]; every other in the middle of play."""
    frames, codes = [], []
    for i in range(count):
        if i % 2:
            session = play(rng, rng.choice((8, 24)), kept_out=kept_out)
            scene, state = session.scene, session.states[-1]
        else:
            scene = scene_of(rng, kept_out=kept_out)
            state = draw_state(scene, rng)
        frames.append(render(scene, [state]))
        codes.append(encode(scene, [state]))
    return np.concatenate(frames), torch.from_numpy(np.concatenate(codes))


def pixels_of(frames: NDArray[np.uint8]) -> Tensor:
    """Frames [B, H, W, 3] as float32 [B, 3, H, W] in 0..1."""
    return torch.from_numpy(frames).permute(0, 3, 1, 2) / 255.0


def reading_loss(numbers: Tensor, codes: Tensor) -> Tensor:
    """How far what the encoder says of frames is from their codes [B, 64]."""
    spec = TOKENIZER
    is_made, plain, *parts = numbers.flatten(2).transpose(1, 2).split([1, spec.plain, *spec.parts], -1)
    made, values = split(codes)
    loss = 8 * F.binary_cross_entropy_with_logits(is_made[..., 0], made.float())
    loss = loss + F.cross_entropy(plain[~made], codes[~made])
    for part, value in zip(parts, values, strict=True):
        loss = loss + F.cross_entropy(part[made], value[made])
    return loss


@torch.no_grad()
def evaluate(tokenizer: PatchTokenizer, count: int = 64, seed: int = 999) -> dict[str, float]:
    """On held-out scenes: PSNR (dB) of drawn frames over all pixels and over those that are no plain ground, and shares
    of codes of objects and of whole frames that are read rightly.
    """
    frames, codes = frames_of(random.Random(seed), count, kept_out=True)
    drawn = tokenizer.render(codes).round().numpy()
    errors = np.square(drawn - frames.astype(np.float32)).mean(-1)
    empty = _empty(tokenizer, codes)
    there = (pixels_of(frames) - empty).abs().amax(1).numpy() > 3 / 255
    read = tokenizer.tokenize(pixels_of(frames)[:, None])
    made = codes >= GROUND_CODES
    return {
        "psnr_db": psnr_of(float(errors.mean())) or 99.0,
        "objects_psnr_db": psnr_of(float(errors[there].mean())) or 99.0,
        "read_objects": float((read == codes)[made].float().mean()),
        "read_frames": float((read == codes).all(-1).float().mean()),
    }


def train(
    file: Path,
    *,
    steps: int,
    seed: int = 0,
    batch: int = 32,
    bfloat16: bool = True,
    watch: Watch = Watch(),
) -> ActionsTokenizer:
    """Train, and write `file` at last.

    Beside it lie the log, what a stopped run resumes from, and `tokenizer.part`, the tokenizer at the last evaluation.
    """
    out = file.parent
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    model = ActionsTokenizer()
    halves = (model.tokenizer.painter, model.tokenizer.encoder.around)
    convolutions: list[Any] = [m.weight for half in halves for m in half.modules() if isinstance(m, nn.Conv2d)]
    known = {id(p) for p in convolutions}
    rest = [p for p in model.parameters() if p.requires_grad and id(p) not in known]
    dtype = torch.bfloat16 if bfloat16 else torch.float32
    optimizers = [
        Muon(convolutions, lr=0.01, dtype=dtype),
        torch.optim.AdamW(rest, lr=2e-3, betas=(0.9, 0.97), weight_decay=0.0),
    ]
    state = {"drawing": 0.0, "reading": 0.0, "seconds": 0.0}
    began = time.monotonic()

    def note(key: str, loss: Tensor) -> None:
        state[key] = 0.97 * state[key] + 0.03 * float(loss.detach()) if state[key] else float(loss.detach())

    def loss_at(step: int) -> Tensor:
        rng = rng_of(seed, step)
        frames, codes = frames_of(rng, batch)
        pixels = pixels_of(frames)
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            drawn = model.tokenizer.compose(codes, model.codes(codes))
        errors = (drawn.float() - pixels).square().mean(1)
        there = (F.max_pool2d((pixels - _empty(model.tokenizer, codes)).abs().amax(1), 3, 1, 1) > 3 / 255).float()
        loss = 100 * (errors * (0.1 + there)).sum() / there.sum()
        note("drawing", loss)
        if step % EVERY == 0:
            noisy = pixels + torch.randn_like(pixels) * (0.03 * rng.random())
            with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
                numbers = model.tokenizer.encoder(noisy)
            reading = reading_loss(numbers.float(), codes)
            note("reading", reading)
            loss = loss + 0.3 * reading
        return loss

    def report(step: int, loss: Tensor) -> None:
        nonlocal began
        if (step + 1) % 250 == 0 or step + 1 == steps:
            state["seconds"] += time.monotonic() - began
            row = {"step": step + 1, **state, **evaluate(model.finished())}
            with (out / "tokenizer.jsonl").open("a", encoding="utf-8") as f:
                f.write(json.dumps(row) + "\n")
            watch.log(" ".join(f"{k} {v:.4g}" for k, v in row.items()))
            model.save(file if step + 1 == steps else out / "tokenizer.part")
            began = time.monotonic()

    descend(
        out / "tokenizer.pt",
        steps,
        model,
        optimizers,
        loss_at,
        rate=lambda full, step: full * min(1.0, (step + 1) / 100, max(0.02, (1 - step / steps) / 0.6)),
        settings={"steps": steps, "seed": seed, "batch": batch, "bfloat16": bfloat16},
        state=state,
        watch=watch,
        after=report,
    )
    return model


@torch.no_grad()
def _empty(tokenizer: PatchTokenizer, codes: Tensor) -> Tensor:
    """The ground alone, [B, 3, 128, 128]."""
    grid = (TOKENIZER.grid, TOKENIZER.grid)
    ground = tokenizer.ground[tokenizer.under(codes)].flatten(2).transpose(1, 2).unflatten(2, grid)
    return F.pixel_shuffle(ground, TOKENIZER.patch)
