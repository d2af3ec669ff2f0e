"""Parity with the released FastCar code on recorded data (not part of the project: skipped where absent)."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.paths import GOLDEN

from fastcar_cli.decoding import Trace, trace
from fastcar_cli.models import load
from fastcar_cli.models.checkpoint import LoadedModel
from fastcar_cli.models.vila_u.network import VideoModel
from fastcar_cli.models.vila_u.text import templated

CASES = (
    [c["name"] for c in json.loads((GOLDEN / "golden.json").read_text())["cases"]]
    if (GOLDEN / "golden.json").exists()
    else []
)
pytestmark = pytest.mark.skipif(not CASES, reason=f"no recorded outputs of the released code in {GOLDEN}")


DENSE = [name for name in CASES if name.endswith("/none")]
# Tests of a case run one after another and share its decode.
OF_CASES = pytest.mark.parametrize("name", CASES, scope="module")
# Plain torch takes minutes for what the native kernels do in seconds; test_golden_small.py holds it to a part.
BOTH = pytest.mark.parametrize("executor", [pytest.param("torch", marks=pytest.mark.slow), "native"], scope="module")


@cache
def golden() -> tuple[dict[str, Any], dict[str, torch.Tensor], LoadedModel]:
    data = json.loads((GOLDEN / "golden.json").read_text())
    return data, load_file(str(GOLDEN / "golden.safetensors")), load(str(GOLDEN / "checkpoint"))


@cache
def _traced(name: str, executor: str, scored: bool) -> tuple[dict[str, Any], Trace]:
    data, tensors, model = golden()
    case = next(c for c in data["cases"] if c["name"] == name)
    prompts = [data["prompts"][i] for i in case["prompt_indices"]]
    codes = tensors[f"{name}/codes"][: len(prompts)].long()
    tau = case["tau_per_layer"]
    if name in DENSE:
        tau = float("inf") if scored else None
    steps = sorted({*case["hidden_steps"], *case["logit_steps"], *data["layer_out_steps"]})
    tokens = case["mlp_positions"] if executor == "torch" else ()
    return case, trace(
        model, prompts, codes, tau=tau, cfg=case["cfg"], steps=steps, mlp_tokens=tokens, executor=executor
    )


def traced(name: str, executor: str = "torch", scored: bool = False) -> tuple[dict[str, Any], Trace]:
    """A recorded case and its decode, one for all tests of a process; scored: of a dense case too."""
    return _traced(name, executor, scored and name in DENSE)


def close(found: torch.Tensor, wanted: torch.Tensor, limit: float) -> None:
    assert found.shape == wanted.shape
    assert float((found - wanted.float()).abs().max()) <= limit


def at(run: Trace, steps: list[int]) -> list[int]:
    return [run.steps.index(s) for s in steps]


@pytest.mark.slow
@pytest.mark.parametrize("group", sorted({c.split("/")[0] for c in CASES}))
def test_prompt_ids_and_positions(group: str) -> None:
    data, tensors, _ = golden()
    batch = next(b for b in data["batches"] if b["name"] == group)
    _, run = traced(f"{group}/none", "native")
    prompts = [data["prompts"][i] for i in batch["prompt_indices"]]
    texts = [*map(templated, prompts), templated(" ")]
    assert [t + "<vi_start>" for t in texts] == batch["row_strings"]
    ids, mask = tensors[f"{group}/input_ids"], tensors[f"{group}/attention_mask"].bool()
    assert run.input_ids == [ids[r][mask[r]].tolist() for r in range(len(ids))]
    assert torch.equal(run.position_ids, tensors[f"{group}/position_ids"].long())
    later = run.position_ids[:, -1:] + 1 + torch.arange(data["tokens"] - 1)
    assert torch.equal(later, tensors[f"{group}/decode_position_ids"].long())


@pytest.mark.slow
@OF_CASES
@BOTH
def test_hidden_states_and_logits(name: str, executor: str) -> None:
    case, run = traced(name, executor)
    tensors = golden()[1]
    close(run.hidden[at(run, case["hidden_steps"])], tensors[f"{name}/hidden"], 2e-4)
    close(run.logits[at(run, case["logit_steps"])], tensors[f"{name}/logits"], 1e-3)


@pytest.mark.slow
@OF_CASES
@BOTH
def test_scores_and_decisions(name: str, executor: str) -> None:
    case, run = traced(name, executor, scored=True)
    data, tensors, _ = golden()
    first = data["first_eligible_input_token"]
    wanted = tensors[f"{name}/tas"].permute(0, 2, 1)
    found = run.tas[:, :, first:]
    assert torch.equal(found.isnan(), wanted.isnan())
    close(found.nan_to_num(), wanted.nan_to_num(), 2e-4)
    assert run.tas[:, :, :first].isnan().all()
    replay = tensors.get(f"{name}/replay")
    assert torch.equal(
        run.replayed, torch.zeros_like(run.replayed) if replay is None else replay.permute(0, 2, 1).bool()
    )
    assert int(run.replayed.sum()) == case["skipped"]
    assert run.replay_ratio == pytest.approx(case["skipped"] / case["total"], abs=1e-6)


@pytest.mark.slow
@OF_CASES
def test_mlp_outputs_and_frames(name: str) -> None:
    _, run = traced(name)
    tensors = golden()[1]
    close(run.mlp, tensors[f"{name}/mlp_out"], 2e-4)
    # Recorded as float16, which rounds by up to 0.0625.
    close(run.frames.permute(0, 1, 4, 2, 3), tensors[f"{name}/frames"], 0.1 + 0.0625)


@pytest.mark.slow
@pytest.mark.parametrize("group", sorted({c.split("/")[0] for c in CASES}))
def test_block_outputs_and_feedback(group: str) -> None:
    data, tensors, model = golden()
    _, run = traced(f"{group}/none")
    close(run.block_out[at(run, data["layer_out_steps"])], tensors[f"{group}/layer_out"], 2e-4)
    codes = tensors[f"{group}/none/codes"].long()[:, [0, 1, 256]]
    assert isinstance(model.network, VideoModel)
    fed = model.network.feedback_latent(model.network.embed(codes), torch.tensor([0, 1, 256]))
    close(fed, tensors[f"{group}/feedback_embed"], 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name.endswith(("t20", "t50", "t80", "mixed"))])
def test_keys_and_values_in_int8_change_one_decision_in_a_thousand(name: str) -> None:
    """Of those that are taken, by a threshold in the midst of the scores."""
    case, exact = traced(name, "native")
    data, tensors, model = golden()
    prompts = [data["prompts"][i] for i in case["prompt_indices"]]
    codes = tensors[f"{name}/codes"][: len(prompts)].long()
    options = {"tau": case["tau_per_layer"], "cfg": case["cfg"], "executor": "native", "steps": exact.steps}
    rounded = trace(model, prompts, codes, kv_dtype="int8", **options)
    taken = ~exact.tas.isnan()
    assert float((rounded.replayed != exact.replayed)[taken].float().mean()) <= 1e-3
    assert 0 < float((rounded.hidden - exact.hidden).norm() / exact.hidden.norm()) <= 0.01


def test_dense_run_has_no_scores() -> None:
    _, run = traced(CASES[0], "native")
    assert run.tas.isnan().all() and not run.replayed.any() and run.replay_ratio == 0.0
    assert np.isfinite(run.logits.numpy()).all()
