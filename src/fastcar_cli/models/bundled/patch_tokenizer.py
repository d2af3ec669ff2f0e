"""Frames to codes and back, one code per patch: small networks that see a patch and its surroundings.

A code is plain ground, with one code for each different patch of ground, or an object on it, whose code is a number of
several parts. The encoder scores the values of each part and takes the best. The decoder stores the ground; from the
codes around it computes how much of the ground is visible at each pixel, and the colours to add.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fastcar_cli.models.ivideogpt.blocks import shown_pixels
from fastcar_cli.system.plain_data import WHOLE, Size

_UNLIKELY = -6.0  # the encoder's score of patches without an object; patches with a higher score may have one
_TRIED, _ROUNDS = 8, 8  # patches of a frame for which other codes are tried, and maximum number of changes


@dataclass(frozen=True, config=WHOLE)
class PatchTokenizerSpec:
    """Sizes: frames of `grid` x `grid` patches of `patch` x `patch` pixels.

    The first `plain` codes are ground, which repeats after `period` patches; the others are made of parts, which have
    `parts` values each, the last one varying fastest. `code_width` is the width of a code vector, `widths` are those of
    encoder and decoder.
    """

    grid: Size
    patch: Size
    plain: Size
    period: Size
    parts: tuple[Size, ...]
    code_width: Size
    widths: tuple[Size, Size]

    @property
    def places(self) -> int:
        """Number of patches of a frame."""
        return self.grid**2

    @property
    def codes(self) -> int:
        """Number of codes."""
        return self.plain + math.prod(self.parts)

    @property
    def resolution(self) -> int:
        """Side of a frame in pixels."""
        return self.grid * self.patch


class Around(nn.Module):
    """GELU and a convolution 3 x 3, added to their input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """[B, width, h, w] -> the same shape."""
        return x + self.conv(F.gelu(x))


class PatchEncoder(nn.Module):
    """Maps patches to logits: object present, then one per ground code, then one per value of each object attribute."""

    def __init__(self, spec: PatchTokenizerSpec) -> None:
        super().__init__()
        width = spec.widths[0]
        self.pixels = nn.Conv2d(3, width, spec.patch, stride=spec.patch)
        self.around = nn.ModuleList(Around(width) for _ in range(3))
        self.out = nn.Conv2d(width, 1 + spec.plain + sum(spec.parts), 1)

    def forward(self, frames: Tensor) -> Tensor:
        """Frames [B, 3, H, W] in 0..1 to [B, 1 + plain + sum of parts, h, w]."""
        x = self.pixels(frames * 2 - 1)
        for layer in self.around:
            x = layer(x)
        return self.out(F.gelu(x))


class PatchPainter(nn.Module):
    """Code vectors to the visible share of the ground at each pixel, and the colours added to it."""

    def __init__(self, spec: PatchTokenizerSpec) -> None:
        super().__init__()
        self.patch, width = spec.patch, spec.widths[1]
        self.codes = nn.Conv2d(spec.code_width, width, 3, padding=1)
        self.around = nn.ModuleList(Around(width) for _ in range(2))
        self.hidden = nn.Conv2d(width, 2 * width, 1)
        self.out = nn.Conv2d(2 * width, 4 * spec.patch**2, 1)

    def forward(self, vectors: Tensor) -> Tensor:
        """[B, code_width, h, w] to [B, 4, h * patch, w * patch]: one share, three colours in 0..1."""
        x = self.codes(vectors)
        for layer in self.around:
            x = layer(x)
        return F.pixel_shuffle(self.out(F.gelu(self.hidden(F.gelu(x)))), self.patch)


class PatchTokenizer(nn.Module):
    """Encoder, code vectors, pixels of the ground, and painter. All computation is in float32."""

    def __init__(self, spec: PatchTokenizerSpec) -> None:
        super().__init__()
        self.spec = spec
        self.encoder, self.painter = PatchEncoder(spec), PatchPainter(spec)
        self.vectors = nn.Parameter(torch.empty(spec.codes, spec.code_width))
        self.ground = nn.Parameter(torch.empty(spec.plain, 3, spec.patch, spec.patch))

    def tokenize(self, frames: Tensor) -> Tensor:
        """Codes int64 [B, S * patches] of frames float32 [B, S, 3, H, W] in 0..1."""
        flat = frames.flatten(0, 1)
        read = [self._read(*one) for one in zip(flat, self.encoder(flat), strict=True)]
        return torch.stack(read).view(len(frames), -1)

    def choices(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """From the encoder's scores [K, h, w] of a frame: scores of an object [patches], and candidates [patches, C].
        Candidate codes are the likeliest ground, by all patches in the same phase together; the likeliest object; and
        that object with the second-best value of one part.
        """
        spec = self.spec
        made, plain, *parts = numbers.flatten(1).T.split([1, spec.plain, *spec.parts], -1)
        repeats = spec.grid // spec.period
        grid = plain.unflatten(0, (repeats, spec.period, repeats, spec.period))
        ground = grid.sum((0, 2), keepdim=True).expand_as(grid).argmax(-1).flatten()
        number = made.new_zeros(1, spec.places, dtype=torch.int64)
        for size, part in zip(spec.parts, parts, strict=True):
            first, second = part.topk(2).indices.T
            number = torch.cat([number * size + first, number[:1] * size + second])
        return made[:, 0], torch.cat([ground[None], spec.plain + number]).T

    def _read(self, frame: Tensor, numbers: Tensor) -> Tensor:
        """Codes [patches] of a frame [3, H, W]: the encoder's, changed while that lowers the reconstruction error.
        Other `choices` are tried for the patches that most likely have an object.
        """
        made, choices = self.choices(numbers)
        likely = made.topk(_TRIED)
        places = likely.indices[likely.values > _UNLIKELY]
        codes, error = torch.where(made > 0, choices[:, 1], choices[:, 0]), math.inf
        for _ in range(_ROUNDS):
            candidates = codes.repeat(1 + choices[places].numel(), 1)
            rows = torch.arange(1, len(candidates), device=codes.device)
            candidates[rows, places.repeat_interleave(choices.shape[1])] = choices[places].flatten()
            errors = (self.compose(candidates, self.vectors[candidates]) - frame).square().mean((1, 2, 3))
            if float(errors.min()) >= error:
                break
            codes, error = candidates[errors.argmin()], float(errors.min())
        return codes

    def under(self, codes: Tensor) -> Tensor:
        """Ground codes [B, patches]; under an object the code of the upper or lower border in the same phase."""
        spec = self.spec
        rows = codes.unflatten(1, (spec.grid, spec.grid))
        phase = torch.arange(spec.grid, device=codes.device) % spec.period
        last = spec.grid - spec.period
        border = torch.stack([rows[:, 0] if p == 0 else rows[:, last + p] for p in range(spec.period)], 1)[:, phase]
        return torch.where(rows < spec.plain, rows, border.clamp(max=spec.plain - 1)).flatten(1)

    def settled(self, frames: Tensor) -> Tensor:
        """Codes [B, S, patches] of successive frames, changed so that each has exactly the objects of the first one.

        Of several equal objects the nearest to the last position stays, a missing object stays where it was, and other
        objects become the ground of the first frame.
        """
        return torch.stack([self._settled(video) for video in frames])

    def _settled(self, video: Tensor) -> Tensor:
        ground, (first, *later) = self.under(video[:1])[0].tolist(), video.tolist()
        made, things, across = [first], self._things(first), self.spec.grid
        for frame in later:
            there, codes = self._things(frame), [*ground]
            for i, (look, x, y) in enumerate(things):
                if alike := [thing for thing in there if thing[0] == look]:
                    things[i] = min(alike, key=lambda thing: abs(thing[1] - x) + abs(thing[2] - y))
                    there.remove(things[i])
            for thing in things:
                at, code = self._code(*thing)
                free = (n for n in range(len(codes)) if codes[n] < self.spec.plain)
                codes[min(free, key=lambda n: abs(n % across - at % across) + abs(n // across - at // across))] = code
            made.append(codes)
        return torch.tensor(made, device=video.device)

    def _things(self, codes: Sequence[int]) -> list[tuple[int, int, int]]:
        """The objects in a frame: all parts but the last two as one number, and the position right and down."""
        (width, height), found = self.spec.parts[-2:], []
        for place, code in enumerate(codes):
            if code >= self.spec.plain:
                look, at = divmod(code - self.spec.plain, width * height)
                (row, column), (right, down) = divmod(place, self.spec.grid), divmod(at, height)
                found.append((look, column * width + right, row * height + down))
        return found

    def _code(self, look: int, x: int, y: int) -> tuple[int, int]:
        """The inverse of `_things`: a patch's index, and its code."""
        (width, height) = self.spec.parts[-2:]
        (column, right), (row, down) = divmod(x, width), divmod(y, height)
        return row * self.spec.grid + column, self.spec.plain + (look * width + right) * height + down

    def compose(self, codes: Tensor, vectors: Tensor) -> Tensor:
        """Frames [B, 3, H, W] in about 0..1 of codes [B, patches] with these vectors [B, patches, code_width]."""
        spec = self.spec
        grid = (spec.grid, spec.grid)
        drawn = self.painter(vectors.transpose(1, 2).unflatten(2, grid))
        ground = self.ground[self.under(codes)].flatten(2).transpose(1, 2).unflatten(2, grid)
        return F.pixel_shuffle(ground, spec.patch) * drawn[:, :1] + drawn[:, 1:]

    def render(self, codes: Tensor) -> Tensor:
        """Frames float32 [..., H, W, 3] in 0..255 of codes [..., patches]; ids that are not codes are clamped."""
        flat = codes.flatten(0, -2).clamp(0, self.spec.codes - 1)
        return shown_pixels(self.compose(flat, self.vectors[flat])).unflatten(0, codes.shape[:-1])
