"""Patches, their codes, and the encoder that finds them.

An encoder that sees only its own 8 x 8 patch gives a static patch the same codes in every frame. A latent has two parts
that do not overlap: `palette` (which colours meet in the patch) and `mask` (the silhouette and its shading). The
codebook of depth 0 lives in the palette part and that of depth 1 in the mask part, so nearest-code residual
quantisation of the sum picks one after the other, and a silhouette keeps its mask code whatever its colour.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fastcar_lab.training.tokenizer import to_patches
from fastcar_lab.worlds.mini.render import background, coverage, place
from fastcar_lab.worlds.mini.scene import BACKGROUNDS, COLORS, SIDE, Pose, Scene, combinations, poses, scenes_of

PATCH = 8
PALETTE_WIDTH = 16
EMPTY, EDGE, FULL = range(3)  # kinds of patch: background only, both, object only. Each kind has palettes of its own


@functools.cache
def _looks(shape: str, pose: Pose, facing: int) -> tuple[NDArray[np.float32], tuple[bytes, ...], NDArray[np.int64]]:
    """What each patch shows apart from colour, [64, 192], the same as keys, and its kind, [64]."""
    dark = np.zeros((SIDE, SIDE, 3), np.float32)
    views = [
        place(canvas, shape, (tone, tone, tone), pose, facing).mean(-1)
        for canvas, tone in ((dark, 1.0), (dark, 0.0), (dark + 1, 0.0))
    ]
    looks = np.concatenate([to_patches(torch.from_numpy(v)[..., None]).numpy() for v in views], -1)
    scene = Scene(shape, "red", "small", "left" if facing < 0 else "right", "sky", (0, 0))
    alpha = to_patches(torch.from_numpy(coverage(scene, pose))[..., None]).numpy()
    kinds = np.where(alpha.max(-1) < 1e-4, EMPTY, np.where(alpha.min(-1) > 1 - 1e-4, FULL, EDGE))
    return looks, tuple(np.round(look * 255).astype(np.uint8).tobytes() for look in looks), kinds


@dataclass(frozen=True)
class Dictionary:
    """Every distinct patch of the world, its codes and their vectors."""

    masks: dict[bytes, int]  # by the look of a patch
    palettes: dict[tuple[int, str, str], int]  # by kind, colour, background
    vectors: NDArray[np.float32]  # [depth 2, codes, width], unused rows zero
    used: NDArray[np.bool_]  # [2, codes]

    def codes(self, scene: Scene, pose: Pose) -> NDArray[np.int16]:
        """The true codes of a frame, [64, 2]: palette, mask."""
        _, keys, kinds = _looks(scene.shape, pose, scene.facing)
        palettes = [self.palettes[_palette(kind, scene.color, scene.background)] for kind in (EMPTY, EDGE, FULL)]
        return np.stack([np.take(palettes, kinds), [self.masks[key] for key in keys]], 1).astype(np.int16)


def _palette(kind: int, color: str, where: str) -> tuple[int, str, str]:
    return kind, "" if kind == EMPTY else color, "" if kind == FULL else where


@functools.cache
def build_dictionary(codes: int, width: int, seed: int = 0) -> Dictionary:
    """Enumerate the patches of the world and place their code vectors. A mask's vector is its look in the principal
    components of all looks, so masks that look alike lie close together; a palette's is its colours and kind. Both are
    scaled to unit variance a leading component. Raises ValueError where there are more patches than `codes`.
    """
    masks: dict[bytes, int] = {}
    looks: list[NDArray[np.float32]] = []
    for c in combinations():
        if c[1] == "red" and c[4] == "sky":
            for scene in scenes_of(c):
                for pose in poses(scene):
                    for look, key in zip(*_looks(scene.shape, pose, scene.facing)[:2], strict=True):
                        if key not in masks:
                            masks[key] = len(masks)
                            looks.append(look)
    palettes = {
        _palette(kind, color, where): 0 for kind in (EMPTY, EDGE, FULL) for color in COLORS for where in BACKGROUNDS
    }
    palettes = {key: i for i, key in enumerate(palettes)}
    if max(len(masks), len(palettes)) > codes:
        raise ValueError(f"{len(masks)} masks and {len(palettes)} palettes do not fit {codes} codes")
    rng = np.random.default_rng(seed)
    matrix = np.stack(looks) - np.mean(looks, 0)
    u, s, _ = np.linalg.svd(matrix, full_matrices=False)
    n = width - PALETTE_WIDTH
    components = u[:, :n] * np.sqrt(len(u)) * np.sqrt(s[:n] / s[0])
    spread = rng.standard_normal((9, PALETTE_WIDTH)).astype(np.float32)
    features = []
    for kind, color, where in palettes:
        ground = background(where).mean((0, 1)) * 2 - 1 if where else np.zeros(3)
        tint = np.asarray(COLORS[color]) * 2 - 1 if color else np.zeros(3)
        features.append(np.concatenate([ground, tint, np.eye(3)[kind]]))
    tints = np.stack(features) @ spread
    vectors = np.zeros((2, codes, width), np.float32)
    vectors[0, : len(tints), :PALETTE_WIDTH] = tints / tints.std()
    vectors[1, : len(components), PALETTE_WIDTH:] = components
    used = np.zeros((2, codes), bool)
    used[0, : len(tints)], used[1, : len(components)] = True, True
    return Dictionary(masks, palettes, vectors, used)


class PatchEncoder(nn.Module):
    """Patches to latents, each on its own: [..., 192] -> [..., code_width]."""

    def __init__(self, code_width: int = 64, hidden: int = 384) -> None:
        super().__init__()
        self.palette = self._branch(hidden, PALETTE_WIDTH)
        self.mask = self._branch(hidden, code_width - PALETTE_WIDTH)

    @staticmethod
    def _branch(hidden: int, out: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Linear(PATCH * PATCH * 3, hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.Linear(hidden, out),
        )

    def forward(self, patches: Tensor) -> Tensor:
        """Patches [..., 192] in 0..1 to latents [..., code_width]: palette part, then mask part."""
        x = patches * 2 - 1
        return torch.cat([self.palette(x), self.mask(x)], dim=-1)
