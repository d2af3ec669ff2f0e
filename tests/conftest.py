from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

# Kernels run through Triton's interpreter where there is no GPU; triton reads it when it is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from fastcar_cli.models.decoder import DecoderSpec
from fastcar_cli.models.depth import DepthSpec
from fastcar_cli.models.rqvae import RQVAESpec
from fastcar_cli.models.video_model import ModelSpec, VideoModel

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def tiny_spec(kv_heads: int = 2, place_tables: bool = True) -> ModelSpec:
    """A model of the real kind with 4 tokens a frame."""
    return ModelSpec(
        name="tiny",
        frames=4,
        fps=8,
        decoder=DecoderSpec(
            width=16, layers=3, heads=2, kv_heads=kv_heads, mlp_width=24, vocab=11, rope_theta=50.0, max_positions=64
        ),
        depth=DepthSpec(width=12, blocks=2, heads=2, depth=3, codes=9, code_width=8, hidden=16),
        rqvae=RQVAESpec(
            grid=(2, 2), depth=3, codes=9, code_width=8, z_channels=8, ch=8, ch_mult=(1, 2), num_res_blocks=1,
            resolution=4, attn_resolutions=(2,), norm_groups=4,
        ),
        place_tables=place_tables,
    )  # fmt: skip


def tiny_model(seed: int = 0, kv_heads: int = 2) -> VideoModel:
    """Random weights, scaled so that scores and logits are of order one."""
    torch.manual_seed(seed)
    model = VideoModel(tiny_spec(kv_heads))
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.normal_(0.0, 1.5 * p.shape[-1] ** -0.5)
            else:
                p.add_(torch.randn_like(p) * 0.05)
    return model.eval().requires_grad_(False)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run `fastcar` as a process in an empty folder."""

    def call(*arguments: str, timeout: float = 120, **kwargs: object) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
        return subprocess.run(
            [sys.executable, "-m", "fastcar_cli", *arguments],
            capture_output=True, text=True, timeout=timeout, cwd=tmp_path, env=env, **kwargs,  # type: ignore[call-overload]
        )  # fmt: skip

    return call
