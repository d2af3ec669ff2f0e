"""What the emulated accelerator computes: the same codes, or quantised as its formula says."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support.fpga_presets import preset
from support.tiny import tiny_model

from fastcar_cli.config.tau import Tau
from fastcar_cli.decoding.batch import DecodeSettings
from fastcar_cli.decoding.engine import Decode
from fastcar_cli.decoding.replay.replay import ReplayRule
from fastcar_cli.decoding.sampling import uniforms
from fastcar_cli.models.sampling import SamplingSettings
from fastcar_fpga.backend import FpgaBackend


def decode(tau: float | None, backend: Any, frames: int = 3) -> Decode:
    model = tiny_model()
    run = Decode.of(
        model,
        [[1, 4, 2], [1, 2]],
        DecodeSettings(frames=frames, sampling=SamplingSettings(cfg=2.0), rule=ReplayRule(Tau.read(tau))),
        uniforms(0, frames * 4, 3)[None],
        None if backend is None else FpgaBackend(model.llm, backend, 2),
    )
    for _ in run.steps():
        pass
    return run


@pytest.mark.parametrize("tau", [None, -0.5, -math.inf])
def test_float_passes_through_bit_for_bit(tau: float | None) -> None:
    ours, torchs = decode(tau, preset()), decode(tau, None)
    assert torch.equal(ours.codes, torchs.codes)


def test_int8_quantises_as_its_formula() -> None:
    model, int8 = tiny_model(), preset(format__kind="int8")
    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))
    mlp = model.llm.blocks[0].mlp

    def quantised(x: torch.Tensor) -> torch.Tensor:
        scale = x.double().abs().amax(-1, keepdim=True) / 127
        return (x.double() / scale).round() * scale

    gate, up, down = (quantised(m.weight) for m in (mlp.gate_proj, mlp.up_proj, mlp.down_proj))
    inner = torch.nn.functional.silu(quantised(x) @ gate.T) * (quantised(x) @ up.T)
    wanted = quantised(inner) @ down.T
    found = FpgaBackend(model.llm, int8, 4).mlp(0, x, None)
    assert float((found - wanted).abs().max()) < 1e-4 * float(wanted.abs().max())
    error = float((found - mlp(x)).norm() / mlp(x).norm())
    assert 1e-4 < error < 0.05
