"""Parts of the causal video tokenizer: convolutions, norms and attention that never look at a later frame.

Maps are [P, T, H, W, C]: videos, frames, rows, columns, channels. A video may come in pieces: `Past` holds what a
module needs of earlier ones. Modules are named like their parameters in the released files.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fastcar_cli.models.convolutions import Stack
from fastcar_cli.system.limits import give_back_memory
from fastcar_cli.system.plain_data import WHOLE, Flag, Size


class Past:
    """What modules store of the pieces so far; `work` counts multiply-adds of convolutions, `on_work` receives the
    count.
    """

    def __init__(self, on_work: Callable[[int], None] | None = None) -> None:
        self._held: dict[nn.Module, list[Tensor]] = {}
        self.on_work = on_work
        self.work = 0

    def first(self, part: nn.Module) -> bool:
        """Whether a module has seen no piece yet."""
        return part not in self._held

    def frames(self, part: nn.Module, x: Tensor, keep: int, repeat: int) -> list[Tensor]:
        """The last `keep` frames before a piece, then its frames, each [P, 1, H, W, C]; before the first piece come
        `repeat` copies of its first frame.
        """
        before = [x[:, :1]] * repeat if self.first(part) else self._held[part]
        frames = [*before, *x.split(1, 1)]
        # A frame of a longer piece is a view, which would hold all of it in memory.
        self._held[part] = [f if x.shape[1] == 1 else f.clone() for f in frames[-keep:]]
        return frames

    def appended(self, part: nn.Module, x: Tensor, dim: int) -> Tensor:
        """All pieces so far, concatenated along a dimension."""
        self._held[part] = [x if self.first(part) else torch.cat([*self._held[part], x], dim)]
        return self._held[part][0]

    @property
    def held(self) -> int:
        """How many numbers are in memory."""
        return sum(x.numel() for held in self._held.values() for x in held)


class _Convolution(nn.Module):
    SIZE: ClassVar[tuple[int, int, int]]

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv3d = nn.Conv3d(inputs, outputs, self.SIZE)

    def _counted(self, out: Tensor, past: Past) -> Tensor:
        past.work += out.numel() // out.shape[-1] * self.conv3d.weight.numel()
        if past.on_work is not None:
            past.on_work(past.work)
        return out


class Pointwise(_Convolution):
    """A linear map at every position."""

    SIZE = 1, 1, 1

    def forward(self, x: Tensor, past: Past) -> Tensor:
        """[..., inputs] -> [..., outputs]."""
        return self._counted(F.linear(x, self.conv3d.weight.flatten(1), self.conv3d.bias), past)


class Spatial(_Convolution):
    """A 3 x 3 convolution of every frame."""

    SIZE = 1, 3, 3

    def forward(self, x: Tensor, past: Past, stride: int = 1) -> Tensor:
        """Pad a frame with zeros all around; with a stride of 2, which halves sides, only on the right and below."""
        frames = _images(x if stride == 1 else F.pad(x, (0, 0, 0, 1, 0, 1)))
        weight = self.conv3d.weight[:, :, 0]
        out = F.conv2d(frames, weight, self.conv3d.bias, stride, padding=int(stride == 1))
        return self._counted(_maps(out, x), past)


class Temporal(_Convolution):
    """A convolution over a frame and the two before it; copies of the first frame precede it."""

    SIZE = 3, 1, 1

    def forward(self, x: Tensor, past: Past) -> Tensor:
        """[P, T, H, W, inputs] -> [P, T, H, W, outputs]."""
        return self.over(past.frames(self, x, 2, 2), past)

    def over(self, frames: list[Tensor], past: Past, stride: int = 1) -> Tensor:
        """Convolve every `stride`-th frame with the two after it."""
        taps = self.conv3d.weight[..., 0, 0].unbind(2)
        made = []
        for first in range(0, len(frames) - len(taps) + 1, stride):
            out = F.linear(frames[first], taps[0], self.conv3d.bias)
            flat = out.view(-1, out.shape[-1])
            for frame, tap in zip(frames[first + 1 :], taps[1:], strict=False):
                flat.addmm_(frame.reshape(-1, frame.shape[-1]), tap.T)
            made.append(out)
        return self._counted(made[0] if len(made) == 1 else torch.cat(made, 1), past)


class Pair(nn.ModuleList):
    """A convolution over space, then one over time."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__([Spatial(inputs, outputs), Temporal(outputs, outputs)])

    def forward(self, x: Tensor, past: Past) -> Tensor:
        """[P, T, H, W, inputs] -> [P, T, H, W, outputs]."""
        return by_frame(lambda frame, past: self[1](self[0](frame, past), past), x, past)


class Norm(nn.Module):
    """Normalises each frame by itself, over its positions and channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(1, width, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """[P, T, H, W, C] -> the same."""
        return _maps(self.norm(_images(x)), x)


class ResidualBlock(nn.Module):
    """Two pairs, plus a shortcut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = Norm(inputs), Pair(inputs, outputs)
        self.norm2, self.conv2 = Norm(outputs), Pair(outputs, outputs)
        self.nin_shortcut = Pointwise(inputs, outputs) if inputs != outputs else None

    def forward(self, x: Tensor, past: Past) -> Tensor:
        """[P, T, H, W, inputs] -> [P, T, H, W, outputs]."""
        out = self.conv1(F.silu(self.norm1(x), inplace=True), past)
        out = self.conv2(F.silu(self.norm2(out), inplace=True), past)
        return out.add_(x if self.nin_shortcut is None else self.nin_shortcut(x, past))


class FrameAttention(nn.Module):
    """Attention over the positions of a frame, with one head of the full width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = Norm(width)
        self.q, self.k, self.v, self.proj_out = (Pointwise(width, width) for _ in range(4))

    def forward(self, x: Tensor, past: Past) -> Tensor:
        """[P, T, H, W, C] -> the same."""
        normed = self.norm(x)
        q, k, v = (project(normed, past) for project in (self.q, self.k, self.v))
        return x + self.proj_out(self.attend(q, k, v, past), past)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, past: Past) -> Tensor:
        """The attention output of each query; it, q, k and v are [P, T, H, W, C]."""
        q_rows, k_rows, v_rows = (t.flatten(2, 3) for t in (q, k, v))
        return F.scaled_dot_product_attention(q_rows, k_rows, v_rows).view_as(q)


class TimeAttention(FrameAttention):
    """Causal attention over frames, at every position by itself."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, past: Past) -> Tensor:
        """See `FrameAttention`."""
        q_rows, *kv = (t.flatten(2, 3).transpose(1, 2) for t in (q, k, v))
        keys, values = past.appended(self, torch.stack(kv), 3)
        new, frames = q.shape[1], keys.shape[2]
        seen = torch.ones(new, frames, dtype=torch.bool, device=q.device).tril(frames - new)
        return F.scaled_dot_product_attention(q_rows, keys, values, seen).transpose(1, 2).reshape(q.shape)


def middle(width: int, *, attention: bool) -> Stack:
    """The blocks at the lowest resolution."""
    parts: dict[str, nn.Module] = {"block_1": ResidualBlock(width, width)}
    if attention:
        parts |= {"attn_1.0": FrameAttention(width), "attn_1.1": TimeAttention(width)}
    return Stack(parts | {"block_2": ResidualBlock(width, width)})


class Downsampler(nn.Module):
    """Halves sides, time, or both: a convolution plus the average of its inputs."""

    def __init__(self, width: int, *, space: bool, time: bool) -> None:
        super().__init__()
        self.conv1 = Spatial(width, width) if space else None
        self.conv2 = Temporal(width, width) if time else None
        self.conv3 = Pointwise(width, width)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        """[P, T, H, W, C] -> [P, T / 2, H / 2, W / 2, C]; from the first piece (T + 1) / 2 frames."""
        if self.conv1 is not None:
            average = _maps(F.avg_pool2d(_images(x), 2), x)
            x = self.conv1(x, past, 2).add_(average)
        if self.conv2 is not None:
            frames = past.frames(self.conv2, x, 1, 2)
            average = torch.cat([(a + b).div_(2) for a, b in zip(frames[1::2], frames[2::2], strict=True)], 1)
            x = self.conv2.over(frames, past, 2).add_(average)
        return self.conv3(x, past)


class Upsampler(nn.Module):
    """Doubles time, sides, or both: copies plus a convolution of them."""

    def __init__(self, width: int, *, space: bool, time: bool) -> None:
        super().__init__()
        self.conv1 = Temporal(width, width) if time else None
        self.conv2 = Spatial(width, width) if space else None
        self.conv3 = Pointwise(width, width)

    def frames(self, x: Tensor, past: Past) -> Iterator[Tensor]:
        """Frames [P, 1, 2 H, 2 W, C] of [P, T, H, W, C], one by one: 2 T, one fewer for the first piece."""
        if self.conv1 is not None:
            x = x.repeat_interleave(2, 1)[:, int(past.first(self.conv1)) :]
            x = self.conv1(x, past).add_(x)
        for frame in x.split(1, 1):
            if self.conv2 is not None:
                wider = _maps(F.interpolate(_images(frame), scale_factor=2, mode="nearest"), frame)
                frame = self.conv2(wider, past).add_(wider)
            yield self.conv3(frame, past)


@dataclass(frozen=True, config=WHOLE)
class LevelSpec:
    """A level of the encoder or decoder: channels after its residual blocks, and whether sides and time are halved (in
    the encoder) or doubled (in the decoder) after them.
    """

    widths: tuple[Size, ...]
    space: Flag = False
    time: Flag = False


class Level(nn.Module):
    """Residual blocks, and a sampler after them if the level has one."""

    def __init__(self, width: int, spec: LevelSpec, *, up: bool) -> None:
        super().__init__()
        widths = (width, *spec.widths)
        self.block = Stack({str(i): ResidualBlock(a, b) for i, (a, b) in enumerate(itertools.pairwise(widths))})
        self.sampler = "upsample" if up else "downsample"
        if spec.space or spec.time:
            kind = Upsampler if up else Downsampler
            self.add_module(self.sampler, kind(widths[-1], space=spec.space, time=spec.time))

    def forward(self, x: Tensor, past: Past) -> Tensor:
        """[P, T, H, W, width] -> maps of the next level, with its sampler's halved sides."""
        x = by_frame(self.block, x, past)
        give_back_memory()
        sampler = self._modules.get(self.sampler)
        return x if sampler is None else sampler(x, past)

    def frames(self, frames: Iterable[Tensor], past: Past) -> Iterator[Tensor]:
        """The next level's frames of this one's [P, 1, H, W, width], sides doubled; one at a time is in memory."""
        sampler = self._modules.get(self.sampler)
        for frame in frames:
            x = self.block(frame, past)
            give_back_memory()
            yield from sampler.frames(x, past) if isinstance(sampler, Upsampler) else [x]


def by_frame(part: Callable[[Tensor, Past], Tensor], x: Tensor, past: Past) -> Tensor:
    """Run a module frame by frame, so that it takes memory for the maps of only one frame."""
    frames = [part(frame, past) for frame in x.split(1, 1)]
    return frames[0] if len(frames) == 1 else torch.cat(frames, 1)


def _images(x: Tensor) -> Tensor:
    """Maps as [P * T, C, H, W], channels last in memory."""
    return x.flatten(0, 1).permute(0, 3, 1, 2)


def _maps(images: Tensor, like: Tensor) -> Tensor:
    """[P * T, C, H, W] as maps of as many videos as `like` has."""
    return images.permute(0, 2, 3, 1).contiguous().unflatten(0, like.shape[:2])


def patched(x: Tensor, steps: int) -> Tensor:
    """Haar wavelets: [P, T, H, W, C] -> [P, T / 2, H / 2, W / 2, 8 C] in each of `steps` steps.
    Bands are in the order LLL, LLH, .. HHH of time, height, width, channels within a band.
    """
    for _ in range(steps):
        p, t, h, w, c = x.shape
        x = x.view(p, t // 2, 2, h // 2, 2, w // 2, 2, c)
        for axis in (2, 4, 6):
            a, b = x.unbind(axis)
            x = torch.stack([a + b, a - b], axis).div_(2)
        x = x.permute(0, 1, 3, 5, 2, 4, 6, 7).flatten(4)
    return x


def unpatched(x: Tensor, steps: int) -> Tensor:
    """The inverse of `patched`."""
    for _ in range(steps):
        p, t, h, w, _ = x.shape
        x = x.view(p, t, h, w, 2, 2, 2, -1)
        for axis in (4, 5, 6):
            low, high = x.unbind(axis)
            x = torch.stack([low + high, low - high], axis)
        x = x.permute(0, 1, 4, 2, 5, 3, 6, 7).reshape(p, 2 * t, 2 * h, 2 * w, -1)
    return x
