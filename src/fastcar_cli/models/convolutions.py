"""Blocks of convolutional autoencoders, with the parameter names of each model's checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Stack(nn.Module):
    """Modules in sequence, each named by its path in checkpoints, such as `resnets.0`."""

    def __init__(self, parts: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.paths = list(parts)
        for path, part in parts.items():
            group, _, index = path.partition(".")
            if index and group not in self._modules:
                self.add_module(group, nn.ModuleDict())
            (self.get_submodule(group) if index else self).add_module(index or group, part)

    def forward(self, x: Tensor, *others: Any) -> Tensor:
        """The last module's output; every module also gets `others`."""
        for path in self.paths:
            x = self.get_submodule(path)(x, *others)
        return x


def norm(channels: int, groups: int) -> nn.GroupNorm:
    """GroupNorm with the constants of this family of autoencoders."""
    return nn.GroupNorm(groups, channels, eps=1e-6)


def conv(width_in: int, width_out: int) -> nn.Conv2d:
    """A 3 x 3 convolution, padded with zeros."""
    return nn.Conv2d(width_in, width_out, 3, padding=1)


class ResnetBlock(nn.Module):
    """norm, SiLU, conv 3x3, twice, plus the input, through a 1x1 named `shortcut` if widths differ."""

    def __init__(self, width_in: int, width_out: int, groups: int, shortcut: str = "nin_shortcut") -> None:
        super().__init__()
        self.norm1, self.conv1 = norm(width_in, groups), conv(width_in, width_out)
        self.norm2, self.conv2 = norm(width_out, groups), conv(width_out, width_out)
        self._shortcut = shortcut
        self.add_module(shortcut, nn.Conv2d(width_in, width_out, 1) if width_in != width_out else nn.Identity())

    def forward(self, x: Tensor) -> Tensor:
        """[B, width_in, H, W] -> [B, width_out, H, W]."""
        h = self.conv1(F.silu(self.norm1(x), inplace=True))
        h = self.conv2(F.silu(self.norm2(h), inplace=True))
        return self.get_submodule(self._shortcut)(x) + h


WIDE = 128
"""Number of channels from which on the rearranged convolutions are faster."""


class Upsample(nn.Module):
    """Nearest x2, then conv 3x3."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = conv(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, C, 2H, 2W]."""
        if x.shape[1] < WIDE:
            return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        # The kernel covers at most 2 x 2 different inputs, the same ones for every second output.
        b, c, h, w = x.shape
        out = x.new_empty(b, 2 * h, 2 * w, c).permute(0, 3, 1, 2)
        for i, rows in enumerate(_halves(self.conv.weight, 2)):
            for j, kernel in enumerate(_halves(rows, 3)):
                out[:, :, i::2, j::2] = F.conv2d(F.pad(x, (1 - j, j, 1 - i, i)), kernel, self.conv.bias)
        return out


def _halves(kernel: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """For even and odd outputs, the two taps over the inputs that equal three taps over doubled inputs."""
    first, middle, last = kernel.unbind(dim)
    return torch.stack([first, middle + last], dim), torch.stack([first + middle, last], dim)
