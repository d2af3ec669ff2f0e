"""Parity with the released RLVR-World models on recorded data (not part of the project: skipped where absent)."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.paths import GOLDEN_ROBOT as GOLDEN
from torch import Tensor

from fastcar_cli.config.run_config import RunConfig
from fastcar_cli.decoding import Trace, trace
from fastcar_cli.inputs.prompt import clips_of
from fastcar_cli.models import load
from fastcar_cli.models.checkpoint import LoadedModel
from fastcar_cli.models.rlvr.actions import bins_of
from fastcar_cli.models.rlvr.network import RLVR
from fastcar_cli.pipeline.pipeline import VideoPipeline

MODELS: dict[str, Any] = (
    json.loads((GOLDEN / "golden.json").read_text())["models"] if (GOLDEN / "golden.json").exists() else {}
)
KINDS, EXECUTORS = ["single", "multi"], [pytest.param("torch", marks=pytest.mark.slow), "native"]
pytestmark = pytest.mark.skipif(not MODELS, reason=f"no recorded outputs of the released code in {GOLDEN}")


@cache
def tensors() -> dict[str, Tensor]:
    return load_file(str(GOLDEN / "golden.safetensors"))


def recorded(kind: str, key: str) -> Tensor:
    return tensors()[f"{kind}/{key}"]


@cache
def model(kind: str, dtype: str = "auto") -> LoadedModel:
    return load(str(GOLDEN / "checkpoint" / MODELS[kind]["transformer"]), dtype)


def network(kind: str) -> RLVR:
    found = model(kind).network
    assert isinstance(found, RLVR)
    return found


def prompt(kind: str) -> int:
    return network(kind).spec.layout.prompt or 0


def close(found: Tensor, wanted: Tensor, limit: float) -> None:
    assert found.shape == wanted.shape
    assert float((found.float() - wanted.float()).abs().max()) <= limit


def close_bytes(found: Any, wanted: Tensor) -> None:
    difference = (torch.as_tensor(np.asarray(found)).int() - wanted.int()).abs()
    assert int(difference.max()) <= 1 and float((difference > 0).float().mean()) <= 0.002


@pytest.mark.parametrize("kind", KINDS)
def test_actions_become_bins(kind: str) -> None:
    assert torch.equal(bins_of(recorded(kind, "actions")), recorded(kind, "action_bins").long())


@pytest.mark.parametrize("kind", KINDS)
def test_frames_and_actions_become_ids(kind: str) -> None:
    """Up to the token that nothing follows: eos, or the last frame's action."""
    with torch.inference_mode():
        found = network(kind).encode(recorded(kind, "clip"), None, recorded(kind, "actions"))
    assert found.shape[1] == {"single": 1653, "multi": 1732}[kind]
    assert torch.equal(found, recorded(kind, "ids")[:, : found.shape[1]].long())


@cache
def forced(kind: str, executor: str) -> Trace:
    inputs, actions = recorded(kind, "clip"), recorded(kind, "actions")
    return trace(model(kind), inputs=inputs, actions=actions, tau=None, executor=executor)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("kind", KINDS)
def test_forced_ids(kind: str, executor: str) -> None:
    found, first = forced(kind, executor), prompt(kind)
    at = [(i, p + 1 - first) for i, p in enumerate(MODELS[kind]["forced_positions"]) if p + 1 - first in found.steps]
    here, steps = map(list, zip(*at, strict=True))
    assert len(steps) >= 4
    close(found.logits[steps, 0].transpose(0, 1), recorded(kind, "forced/logits")[:, here], 5e-4)
    close(found.hidden[steps, 0], recorded(kind, "forced/final_hidden")[here], 5e-4)
    if executor == "torch":
        close(found.block_out[steps, :, 0].transpose(0, 1), recorded(kind, "forced/layer_out")[:, here], 5e-4)
    wanted = recorded(kind, "decode/frames_u8")
    close_bytes(network(kind).to_bytes(found.frames[-1, : len(wanted)]), wanted)


def pipeline(kind: str, **keys: Any) -> VideoPipeline:
    """Of greedy choices, with these dotted keys."""
    return VideoPipeline(model(kind), RunConfig().changed({"sampling.temperature": 0.0} | keys))


def continued(kind: str, rows: int, **keys: Any) -> tuple[VideoPipeline, Tensor]:
    """A pipeline that has continued the clips of some rows, and the decoded frames."""
    pipe = pipeline(kind, **keys)
    clips = clips_of(recorded(kind, "clip")[:rows], recorded(kind, "actions")[:rows])
    videos = [*pipe.videos(clips, range(rows))]
    return pipe, torch.from_numpy(np.stack([video.frames[pipe.context :] for video in videos]))


SLOW = [("torch", "off"), ("native", "off"), ("native", "frame")]
WAYS = [*(pytest.param(*way, marks=pytest.mark.slow) for way in SLOW), ("native", "auto")]


@pytest.mark.parametrize(("executor", "draft"), WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_generation(kind: str, executor: str, draft: str) -> None:
    keys: dict[str, Any] = {"runtime.executor": executor, "draft.kind": draft}
    pipe, frames = continued(kind, 2, **keys, **{"generation.frames": {"single": 5, "multi": 6}[kind]})
    codes, ids = torch.from_numpy(pipe.codes[..., 0]), recorded(kind, "greedy/ids").long()[:, prompt(kind) :]
    # The records end with eos, which needs no pass.
    assert torch.equal(codes, ids[:, : codes.shape[1]]) and ids.shape[1] - codes.shape[1] == (kind == "single")
    close_bytes(frames.squeeze(1) if kind == "single" else frames, recorded(kind, "greedy/frames_u8"))


@pytest.mark.parametrize(("executor", "draft"), WAYS)
def test_a_single_step_model_continues_from_its_own_frames(executor: str, draft: str) -> None:
    keys = {"generation.frames": 7, "runtime.executor": executor, "draft.kind": draft}
    pipe, frames = continued("single", 1, **keys)
    ids = recorded("single", "slide/ids").long()[:, prompt("single") : -1]
    assert torch.equal(torch.from_numpy(pipe.codes[0, :, 0]).view(3, -1), ids)
    close_bytes(frames[0], recorded("single", "slide/frames_u8"))
    assert pipe.decode is not None and pipe.decode.rolls == 2


@pytest.mark.parametrize(("executor", "draft"), WAYS)
def test_a_policy_plays_a_multi_step_model(executor: str, draft: str) -> None:
    """Seven frames, then the context again with the last frame; ids that are no codes are taken modulo."""
    world = pipeline("multi", **{"runtime.executor": executor, "draft.kind": draft}).play(
        recorded("multi", "clip")[0, :2].numpy()
    )
    seen = [world.context[1], *(world.step(action)[0] for action in recorded("multi", "interactive/actions").numpy())]
    close_bytes(np.stack(seen[:-1]), recorded("multi", "interactive/seen_u8"))
    close_bytes(seen[-1], recorded("multi", "interactive/last_u8"))
    rounds = [recorded("multi", f"interactive/round{i}_ids")[prompt("multi") :] for i in (0, 1)]
    assert torch.equal(torch.from_numpy(world.codes[:, 0]), torch.cat(rounds).long())
    assert MODELS["multi"]["no_codes_in_interactive"] > 0


@pytest.mark.parametrize("key", ["clamped_u8", "modulo_u8"])
@torch.inference_mode()
def test_ids_that_are_no_codes_have_a_frame(key: str) -> None:
    net, ids = network("multi"), recorded("multi", "odd/ids").long()
    prompts = recorded("multi", "ids")[:1, : prompt("multi")].long()
    decoder = net.frame_decoder(prompts) if key == "clamped_u8" else net.play_decoder(prompts)
    codes = torch.nn.functional.pad(ids, (13, 0))[None, :, None]
    close_bytes(net.to_bytes(decoder.frame(codes))[0], recorded("multi", f"odd/{key}"))


@torch.inference_mode()
def test_ids_that_are_no_codes_have_a_single_step_frame() -> None:
    net, codes = network("single"), torch.nn.functional.pad(recorded("single", "odd/ids").long(), (14, 0))
    decoder = net.frame_decoder(recorded("single", "ids")[:1, :1319].long())
    close_bytes(net.to_bytes(decoder.frame(codes[None, :, None]))[0], recorded("single", "odd/frame_u8"))


def replayed(kind: str, executor: str, tau: float) -> Trace:
    """Row 0 over the recorded ids, and for single-step one frame more, so that its last code is an input too."""
    inputs, actions = recorded(kind, "clip")[:1], recorded(kind, "actions")[:1]
    with torch.inference_mode():
        codes = network(kind).encode(inputs, None, actions)[:, prompt(kind) :]
    codes = torch.cat([codes, codes], 1) if kind == "single" else codes
    return trace(model(kind), inputs=inputs, actions=actions, codes=codes, tau=tau, tas="attention", executor=executor)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("kind", KINDS)
def test_replay_decisions(kind: str, executor: str) -> None:
    data, opening = MODELS[kind]["replay"], network(kind).spec.layout.opening
    wanted = recorded(kind, "replay/replayed").bool()
    first, tokens = data["start"] - prompt(kind), wanted.shape[1]
    assert data["distance"] == network(kind).spec.layout.stride
    gated, dense = replayed(kind, executor, data["tau"]), replayed(kind, executor, float("inf"))
    assert torch.equal(gated.replayed[:, 0, first : first + tokens], wanted) and int(wanted.sum()) == data["replayed"]
    scored = slice(opening, first + tokens)
    for found, key in ((gated, "score"), (dense, "dense_score")):
        close(found.tas[:, 0, scored], recorded(kind, f"replay/{key}")[:, opening - first :], 2e-4)
    steps = [first + offset + 1 for offset in data["logit_offsets"]]
    close(gated.logits[steps, 0, 0], recorded(kind, "replay/logits"), 5e-4)
    close(dense.logits[steps, 0, 0], recorded(kind, "replay/dense_logits"), 5e-4)
