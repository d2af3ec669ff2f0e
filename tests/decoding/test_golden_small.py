"""Parity with the released FastCar code on records that travel with the repository.

golden.safetensors.xz holds what belongs to the first two blocks in a recording of the released code on a small
checkpoint of random weights: weights, codes, replay scores, decisions, MLP and block outputs, and its sampler. Blocks
depend on those before them only, so two are compared as they ran in the whole; everything behind them is zero here.
float32 is stored in four byte planes, which pack better. test_golden.py compares the rest where the recording is.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load, save_file

from fastcar_cli.decoding import Trace, trace
from fastcar_cli.decoding.sampling import distribution
from fastcar_cli.models import load as load_model
from fastcar_cli.models.checkpoint import LoadedModel

FILE = Path(__file__).with_name("golden.safetensors.xz")
SLOW = ("p0/none", "p0/mixed", "p0/all", "b01/t50")
CASES = ["p0/t50", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


class Golden(NamedTuple):
    facts: dict[str, Any]
    records: dict[str, torch.Tensor]
    model: LoadedModel


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Golden:
    folder = tmp_path_factory.mktemp("golden")
    packed = load(lzma.decompress(FILE.read_bytes()))
    facts = json.loads(packed.pop("json").numpy().tobytes())
    tokenizer = packed.pop("llm/tokenizer.model").numpy().tobytes()
    planes = {k for k, t in packed.items() if t.dtype == torch.uint8 and not k.endswith(("replay", "attention_mask"))}
    tensors = {
        k: t.movedim(0, -1).flatten().view(torch.float32).view(t.shape[1:]) if k in planes else t
        for k, t in packed.items()
    }
    for part in ("llm", "vision_tower", "mm_projector"):
        (folder / part).mkdir()
        weights = {k.removeprefix(f"{part}/"): tensors.pop(k) for k in list(tensors) if k.startswith(f"{part}/")}
        save_file(weights, folder / part / "model.safetensors")
    for name, content in facts["files"].items():
        (folder / name).write_text(json.dumps(content))
    (folder / "llm" / "tokenizer.model").write_bytes(tokenizer)
    return Golden(facts, tensors, load_model(str(folder)))


@pytest.fixture(scope="module", params=CASES)
def case(golden: Golden, request: pytest.FixtureRequest) -> tuple[str, dict[str, Any], Trace]:
    facts, records, model = golden
    found = next(c for c in facts["cases"] if c["name"] == request.param)
    prompts = [facts["prompts"][i] for i in found["prompt_indices"]]
    # A dense run has its scores from one whose threshold nothing reaches.
    tau = float("inf") if all(t is None for t in found["tau"]) else found["tau"]
    codes, steps = records[f"{request.param}/codes"].long(), facts["layer_out_steps"]
    run = trace(model, prompts, codes, tau=tau, cfg=found["cfg"], steps=steps, mlp_tokens=found["mlp_positions"])
    return request.param, found, run


def _close(found: torch.Tensor, wanted: torch.Tensor, limit: float) -> None:
    assert found.shape == wanted.shape
    assert torch.equal(found.isnan(), wanted.isnan())
    assert float((found - wanted).nan_to_num().abs().max()) <= limit


@pytest.mark.slow
def test_prompts(golden: Golden, case: tuple[str, dict[str, Any], Trace]) -> None:
    name, _, run = case
    records, group = golden.records, name.split("/")[0]
    ids, mask = records[f"{group}/input_ids"], records[f"{group}/attention_mask"].bool()
    assert run.input_ids == [ids[r][mask[r]].tolist() for r in range(len(ids))]
    assert torch.equal(run.position_ids, records[f"{group}/position_ids"].long())


def test_scores(golden: Golden, case: tuple[str, dict[str, Any], Trace]) -> None:
    name, _, run = case
    _close(run.tas[:, :, golden.facts["first"] :], golden.records[f"{name}/tas"].permute(0, 2, 1), 2e-4)


def test_decisions_are_the_same_ones(golden: Golden, case: tuple[str, dict[str, Any], Trace]) -> None:
    name, _, run = case
    tokens = run.replayed.shape[-1]
    packed = golden.records[f"{name}/replay"]
    bits = (packed[:, :, None, :] >> torch.arange(7, -1, -1, dtype=torch.uint8)[None, None, :, None]) & 1
    wanted = bits.flatten(1, 2)[:, :tokens].permute(0, 2, 1).bool()
    assert bool(wanted.any()) == (name != "p0/none")
    assert torch.equal(run.replayed, wanted)


def test_mlp_outputs(golden: Golden, case: tuple[str, dict[str, Any], Trace]) -> None:
    name, _, run = case
    _close(run.mlp, golden.records[f"{name}/mlp_out"], 2e-4)


@pytest.mark.parametrize("case", ["p0/none"], indirect=True)
def test_block_outputs_of_the_dense_run(golden: Golden, case: tuple[str, dict[str, Any], Trace]) -> None:
    _close(case[2].block_out, golden.records["p0/layer_out"], 2e-4)


def test_sampler(golden: Golden) -> None:
    logits, wanted = golden.records["sampler/logits"], golden.records["sampler/probs"]
    probs, order = distribution(logits, 1.0, 900, 0.96)
    found = torch.zeros_like(probs).scatter(-1, order, probs)
    # The last row has exact ties at the cut: which of the equal entries survive is open, how many is not.
    assert torch.allclose(found[:-1], wanted[:-1], atol=1e-6)
    assert torch.allclose(found[-1].sort().values, wanted[-1].sort().values, atol=1e-6)
