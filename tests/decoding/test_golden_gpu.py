"""The CUDA graph against recorded data of the released FastCar code (skipped where it is absent).

Through Triton's interpreter a case takes minutes, so without a GPU the cases are long.
"""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from support.paths import GOLDEN

from fastcar_cli.config.tau import Tau
from fastcar_cli.decoding.batch import DecodeSettings
from fastcar_cli.decoding.drafts.drafts import DraftSettings
from fastcar_cli.decoding.engine import begin
from fastcar_cli.decoding.executors.graph import GraphExecutor
from fastcar_cli.decoding.inputs import Inputs
from fastcar_cli.decoding.replay.replay import ReplayRule
from fastcar_cli.models import load
from fastcar_cli.models.sampling import SamplingSettings

pytest.importorskip("triton", reason="triton is not installed: pip install triton (Linux)")
GPU = torch.cuda.is_available()
CASES = (
    [c["name"] for c in json.loads((GOLDEN / "golden.json").read_text())["cases"]]
    if (GOLDEN / "golden.json").exists()
    else []
)
pytestmark = [
    pytest.mark.skipif(not CASES, reason=f"no recorded outputs of the released code in {GOLDEN}"),
    pytest.mark.usefixtures("interpreter"),
    pytest.mark.slow,
    *([] if GPU else [pytest.mark.long]),
]


@pytest.mark.parametrize("window", [1, 8])
@pytest.mark.parametrize("name", CASES)
@torch.inference_mode()
def test_decisions_and_hidden_states(name: str, window: int) -> None:
    """Every pass begins with the recorded codes, whatever the one before drew."""
    data, tensors = json.loads((GOLDEN / "golden.json").read_text()), load_file(str(GOLDEN / "golden.safetensors"))
    case = next(c for c in data["cases"] if c["name"] == name)
    prompts = [data["prompts"][i] for i in case["prompt_indices"]]
    codes = tensors[f"{name}/codes"][: len(prompts)].long()
    settings = DecodeSettings(
        data["frames"],
        SamplingSettings(cfg=case["cfg"]),
        ReplayRule(Tau.read(case["tau_per_layer"]), "released"),
        DraftSettings("frame", window),
    )
    model = load(str(GOLDEN / "checkpoint"), "float32", "cuda" if GPU else "cpu")
    decode, _ = begin(model, prompts, None, settings)
    executor, videos, last = GraphExecutor(decode, window, capture=GPU), len(prompts), codes.shape[1] - 1
    hidden = {0: executor.prefill().cpu()}
    decode.codes.copy_(codes)
    given = decode.draws.buffer.clone()
    for t in range(0, last, window):
        inputs = Inputs((t,) * videos, min(window, last - t))
        decode.draws.buffer.copy_(given)
        step = executor.step(inputs)
        hidden |= {t + 1 + i: step.hidden[:, i].cpu().clone() for i in range(inputs.count)}
        executor.advance(inputs, (inputs.count,) * videos)
    for i, step_index in enumerate(case["hidden_steps"]):
        assert float((hidden[step_index] - tensors[f"{name}/hidden"][i].float()).abs().max()) <= 2e-4
    if (recorded := tensors.get(f"{name}/replay")) is not None:
        assert decode.replay is not None
        assert torch.equal(decode.replay.replayed.cpu(), recorded.permute(0, 2, 1).bool())
