from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

# Kernels run through Triton's interpreter where there is no GPU; triton reads it when it is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from fastcar_cli.cli.app import main
from fastcar_cli.models.decoder import DecoderSpec
from fastcar_cli.models.depth import DepthSpec
from fastcar_cli.models.rqvae import RQVAESpec
from fastcar_cli.models.video_model import ModelSpec, VideoModel

Run = Callable[..., "subprocess.CompletedProcess[str]"]
SCREEN = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}

# Nothing that a test says depends on how long it takes.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _signals_as_usual() -> Iterator[None]:
    """Here and in children: background jobs, nohup and some runners hand down an ignored SIGINT."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def tiny_spec(kv_heads: int = 2, place_tables: bool = True, times: int = 1) -> ModelSpec:
    """A model of the real kind with 4 tokens a frame; the decoder and the code vectors are `times` as wide."""
    return ModelSpec(
        name="tiny",
        frames=4,
        fps=8,
        decoder=DecoderSpec(
            width=16 * times, layers=3, heads=2, kv_heads=kv_heads, mlp_width=24 * times, vocab=11, rope_theta=50.0,
            max_positions=64,
        ),
        depth=DepthSpec(width=12, blocks=2, heads=2, depth=3, codes=9, code_width=8 * times, hidden=16 * times),
        rqvae=RQVAESpec(
            grid=(2, 2), depth=3, codes=9, code_width=8 * times, z_channels=8, ch=8, ch_mult=(1, 2), num_res_blocks=1,
            resolution=4, attn_resolutions=(2,), norm_groups=4,
        ),
        place_tables=place_tables,
    )  # fmt: skip


def tiny_model(seed: int = 0, kv_heads: int = 2, times: int = 1) -> VideoModel:
    """Random weights, scaled so that scores and logits are of order one."""
    torch.manual_seed(seed)
    model = VideoModel(tiny_spec(kv_heads, times=times))
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.normal_(0.0, 1.5 * p.shape[-1] ** -0.5)
            else:
                p.add_(torch.randn_like(p) * 0.05)
    return model.eval().requires_grad_(False)


@pytest.fixture
def process(tmp_path: Path) -> Run:
    """Run `fastcar` as a process in an empty folder: where the process is the claim."""

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, **SCREEN}
        return subprocess.run(
            [sys.executable, "-m", "fastcar_cli", *arguments],
            capture_output=True, text=True, cwd=tmp_path, env=env,
        )  # fmt: skip

    return call


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `fastcar` in an empty folder, within this process, which has loaded torch already."""
    monkeypatch.chdir(tmp_path)
    for name, value in SCREEN.items():
        monkeypatch.setenv(name, value)

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["fastcar", *arguments])
        out, err, status = io.StringIO(), io.StringIO(), 0
        threads, handler = torch.get_num_threads(), signal.getsignal(signal.SIGTERM)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                main()
        except SystemExit as e:
            status = e.code if isinstance(e.code, int) else int(e.code is not None)
        finally:
            torch.set_num_threads(threads)
            signal.signal(signal.SIGTERM, handler)
        return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())

    return call
