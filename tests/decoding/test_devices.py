"""Devices other than CPU and CUDA: plain torch runs on those that torch offers. Here one is made up."""

from __future__ import annotations

import pytest
import torch
from support.tiny import tiny_model

from fastcar_cli.checkpoints.memory_plan import default_dtype
from fastcar_cli.decoding.batch import DecodeSettings
from fastcar_cli.decoding.engine import Decode
from fastcar_cli.decoding.executors.select import choose
from fastcar_cli.errors import RequestError
from fastcar_cli.pipeline.resolve import resolve_device
from fastcar_cli.system.device import synchronise


@pytest.mark.parametrize("kind", ["mps", "xpu"])
def test_a_device_that_torch_offers_is_taken(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, waited = torch.get_device_module(kind), list[str]()
    monkeypatch.setattr(module, "device_count", lambda: 1)
    monkeypatch.setattr(module, "synchronize", lambda: waited.append(kind))
    assert resolve_device(kind) == kind and default_dtype(kind) == "float32"
    synchronise(torch.device(kind))
    assert waited == [kind]


def test_a_device_without_kernels_of_its_own_runs_plain_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    decode = Decode.of(tiny_model(), [[1, 2]] * 2, DecodeSettings(frames=1), torch.rand(1, 4, 3))
    monkeypatch.setattr(type(decode.model), "device", torch.device("meta"))
    executor, why = choose(decode)
    assert executor.name == "torch" and why == "the device is meta"


@pytest.mark.parametrize(
    ("device", "said", "allowed"),
    [("mps", "finds no MPS device", "cpu, auto"), ("xpu:3", "no XPU device has this number", "xpu:0, xpu:1")],
)
def test_a_device_that_is_not_there_is_refused(
    device: str, said: str, allowed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.mps, "device_count", lambda: 0)
    monkeypatch.setattr(torch.xpu, "device_count", lambda: 2)
    with pytest.raises(RequestError, match=said) as error:
        resolve_device(device)
    assert str(error.value.hint) == f"allowed: {allowed}"
