"""Parity with the released Cosmos-Predict1 on recorded data (not part of the project: skipped where absent)."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.paths import GOLDEN_LATENTS as GOLDEN
from torch import Tensor

from fastcar_cli.config.run_config import RunConfig
from fastcar_cli.decoding import Trace, trace
from fastcar_cli.decoding.batch import DecodeSettings
from fastcar_cli.decoding.drafts.drafts import DraftSettings
from fastcar_cli.decoding.engine import begin
from fastcar_cli.decoding.replay.replay import temporal_attention_score
from fastcar_cli.decoding.sampling import distribution
from fastcar_cli.inputs.prompt import Clip
from fastcar_cli.models import load
from fastcar_cli.models.checkpoint import LoadedModel
from fastcar_cli.models.cosmos.network import Cosmos
from fastcar_cli.models.decoder import attention, rotate
from fastcar_cli.models.sampling import SamplingSettings
from fastcar_cli.pipeline.pipeline import VideoPipeline

DATA: dict[str, Any] = (
    json.loads((GOLDEN / "golden.json").read_text()) if (GOLDEN / "golden.json").exists() else {"models": {}}
)
MODELS: dict[str, dict[str, Any]] = DATA["models"]
RUNS = [(name, run) for name, m in MODELS.items() for run in m["replay"]]
EXECUTORS = ["torch", "native"]
pytestmark = pytest.mark.skipif(not MODELS, reason=f"no recorded outputs of the released code in {GOLDEN}")


@cache
def tensors() -> dict[str, Tensor]:
    return load_file(str(GOLDEN / "golden.safetensors"))


def recorded(name: str, key: str) -> Tensor:
    return tensors()[f"{name}/{key}"]


@cache
def model(name: str) -> LoadedModel:
    _, rows, columns = MODELS[name]["latent_shape"]
    return load(str(GOLDEN / "checkpoint" / MODELS[name]["directory"]), size=(16 * rows, 16 * columns))


def network(name: str) -> Cosmos:
    found = model(name).network
    assert isinstance(found, Cosmos)
    return found


def clip(name: str, frames: int) -> Clip:
    """The clip's first frames of codes as pictures, with its text."""
    text = tensors().get(f"{name}/context")
    return Clip(recorded(name, "clip")[: 1 + 8 * (frames - 1)].numpy(), text=None if text is None else text.numpy())


def start(name: str, frames: int) -> int:
    """Tokens of a prompt that holds so many frames of codes."""
    return MODELS[name]["lead"] + frames * MODELS[name]["stride"]


def close(found: Tensor, wanted: Tensor, limit: float) -> None:
    assert found.shape == wanted.shape
    assert float((found.float() - wanted.float()).abs().max()) <= limit


def close_bytes(found: Tensor, wanted: Tensor) -> None:
    difference = (found.int() - wanted.int()).abs()
    assert int(difference.max()) <= 1 and float((difference > 0).float().mean()) <= 0.002


@pytest.mark.parametrize("name", MODELS)
def test_angles_and_places_by_index(name: str) -> None:
    llm, ids = network(name).llm, recorded(name, "ids")
    index = torch.arange(len(ids))
    for found, part in zip(llm.rotary(index, torch.float32), ("cos", "sin"), strict=True):
        close(found, recorded(name, f"rope/{part}")[: len(ids)], 1e-6)
    if llm.absolute is not None:
        assert torch.equal(llm.absolute(index, torch.float32), recorded(name, "abs_pos")[: len(ids)])


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_a_whole_sequence_at_once(name: str) -> None:
    """Every recorded position, prompt included, without the engine; q, k, TAS and MLP outputs of every token."""
    net, ids, at = network(name), recorded(name, "ids").long()[None], MODELS[name]["forced_positions"]
    llm, stride, lead = net.llm, MODELS[name]["stride"], MODELS[name]["lead"]
    index = torch.arange(ids.shape[1])
    x = llm.embed_tokens(ids)
    close(x[0, at], recorded(name, "forced/embeds"), 5e-4)
    cos, sin = llm.rotary(index, x.dtype)
    source = tensors().get(f"{name}/context")
    cross_kv = [] if source is None else llm.cross_kv(source[None])
    for layer, block in enumerate(llm.blocks):
        if llm.absolute is not None:
            x = x + llm.absolute(index, x.dtype)
            close(x[0, at], recorded(name, "forced/layer_in")[layer], 5e-4)
        q, k, v = block.self_attn.project(block.input_layernorm(x))
        turned, keys = rotate(q, cos, sin), rotate(k, cos, sin)
        for found, key in ((q, "q"), (turned, "q_rot"), (keys, "k_rot")):
            close(found[0].transpose(0, 1), recorded(name, f"replay/dense/{key}")[layer], 5e-4)
        for query, definition in ((turned, "attention"), (q, "released")):
            scores = temporal_attention_score(query[:, :, lead + stride :], keys[:, :, lead:-stride])
            close(scores[0], recorded(name, f"replay/dense/tas_{definition}")[layer, lead + stride :], 2e-4)
        out = block.self_attn.merge(attention(turned, keys, v))
        close(out[0, at], recorded(name, "forced/attn_out")[layer], 5e-4)
        x = x + out
        if block.cross_attn is not None:
            query = block.cross_attn.query(block.cross_layernorm(x))
            out = block.cross_attn.merge(attention(query, *cross_kv[layer], causal=False))
            close(out[0, at], recorded(name, "forced/cross_out")[layer], 5e-4)
            x = x + out
        out = block.mlp_branch(x)
        close(out[0], recorded(name, "replay/dense/mlp_out")[layer], 5e-4)
        x = x + out
        close(x[0, at], recorded(name, "forced/layer_out")[layer], 5e-4)
    hidden = llm.norm(x)
    close(hidden[0, at], recorded(name, "forced/final_hidden"), 5e-4)
    assert net.lm_head is not None
    close(net.lm_head(hidden)[0, at], recorded(name, "forced/logits"), 1e-3)


def run(name: str, frames: int, executor: str, **options: Any) -> Trace:
    """The recorded ids behind a prompt, and the last frame of codes once more, so that its last token is an input."""
    ids = recorded(name, "ids").long()
    codes = torch.cat([ids[start(name, frames) :], ids[-MODELS[name]["stride"] :]])
    return trace(model(name), [clip(name, frames)], codes[None], executor=executor, **options)


@pytest.mark.slow
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("frames", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_forced_ids(name: str, frames: int, executor: str) -> None:
    found, first = run(name, frames, executor, tau=float("inf")), start(name, frames)
    assert found.input_ids == [recorded(name, "ids")[:first].tolist()]
    at = [(i, p + 1 - first) for i, p in enumerate(MODELS[name]["forced_positions"]) if p + 1 >= first]
    here, steps = map(list, zip(*at, strict=True))
    close(found.logits[steps, 0, 0], recorded(name, "forced/logits")[here], 1e-3)
    close(found.hidden[steps, 0], recorded(name, "forced/final_hidden")[here], 5e-4)
    if executor == "torch":
        close(found.block_out[steps, :, 0].transpose(0, 1), recorded(name, "forced/layer_out")[:, here], 5e-4)
    pictures = found.frames[0, MODELS[name]["frame_indices"]]
    close_bytes(network(name).to_bytes(pictures), recorded(name, "decode/frames_u8"))


@pytest.mark.slow
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(("name", "case"), RUNS)
def test_replay_decisions(name: str, case: str, executor: str) -> None:
    data, wanted = MODELS[name]["replay"][case], recorded(name, f"{case}/replayed").bool()
    tokens, offsets = wanted.shape[1], data["recorded_offsets"]
    found = run(
        name, data["prompt_latents"], executor, tau=data["tau"], tas=data["definition"],
        mlp_tokens=offsets if executor == "torch" else (),
    )  # fmt: skip
    assert torch.equal(found.replayed[:, 0, :tokens], wanted) and int(wanted.sum()) == data["replayed"]
    scored = torch.tensor([tau is not None for tau in data["tau"]])
    close(found.tas[scored, 0, :tokens], recorded(name, f"{case}/tas")[scored], 2e-4)
    close(found.logits[[t + 1 for t in offsets], 0, 0], recorded(name, f"{case}/logits"), 1e-3)
    if executor == "torch":
        close(found.mlp[:, :, 0], recorded(name, f"{case}/mlp_out"), 5e-4)


def generated(name: str, frames: int, **settings: Any) -> tuple[VideoPipeline, list[Any]]:
    """A pipeline that has continued from so many frames of codes, and its pictures."""
    begin = clip(name, frames)
    pipe = VideoPipeline(model(name), RunConfig.from_dict({"generation": {"context": len(begin.frames)}, **settings}))
    return pipe, list(pipe.stream([begin], [0]))


@pytest.mark.slow
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("draft", ["off", "jacobi"])
@pytest.mark.parametrize("frames", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_greedy_generation(name: str, frames: int, draft: str, executor: str) -> None:
    pipe, shown = generated(
        name, frames, sampling={"temperature": 0.0}, runtime={"executor": executor}, draft={"kind": draft, "window": 4}
    )
    pictures = 1 + 8 * (frames - 1)
    wanted = recorded(name, f"greedy{pictures}/ids").long()[frames * MODELS[name]["stride"] :]
    assert torch.equal(torch.from_numpy(pipe.codes[0, :, 0]), wanted)
    assert [picture.index for picture in shown] == list(range(33)) and pipe.context == pictures
    if pictures == 9:
        found = torch.stack([torch.from_numpy(shown[i].image) for i in (9, 32)])
        close_bytes(found, recorded(name, "greedy9/frames_u8"))


@pytest.mark.parametrize("name", MODELS)
def test_every_drawn_id_is_within_top_p(name: str) -> None:
    """Of the released code's own draws, by its default: at most 0.8 of the mass lies before each."""
    first, lead = start(name, 2), MODELS[name]["lead"]
    ids = recorded(name, "sampled/ids").long()[first - lead :]
    found = trace(model(name), [clip(name, 2)], ids[None], tau=None)
    defaults = model(name).defaults
    assert (defaults.temperature, defaults.top_k, defaults.top_p, defaults.top_p_strict) == (1.0, 0, 0.8, True)
    probs, order = distribution(found.logits[:, 0, 0], 1.0, 0, 0.8, strict=True)
    kept = torch.zeros_like(probs).scatter(1, order, probs)
    assert bool((kept.gather(1, ids[:, None]) > 0).all())


def test_what_the_released_sampler_hands_to_the_draw() -> None:
    """Sorted rows: which of equal entries falls at the cut depends on the sort."""
    logits = tensors()["sampler/logits"]
    keys = [key for key in tensors() if key.startswith("sampler/") and key != "sampler/logits"]
    assert len(keys) == 2
    for key, (top_p, temperature) in zip(sorted(keys), ((0.8, 1.0), (0.95, 0.7)), strict=True):
        probs, _ = distribution(logits, temperature, 0, top_p, strict=True)
        close(probs, tensors()[key].sort(-1, descending=True).values, 1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_drafts_of_the_first_frame_are_the_prompts_last(name: str) -> None:
    """Where the prompt's last frame is repeated, every draft of a frame is right from its second token on."""
    stride, ids = MODELS[name]["stride"], recorded(name, "ids").long()
    first = start(name, 2)
    prompt = clip(name, 2)
    settings = DecodeSettings(frames=1, sampling=SamplingSettings(cfg=1.0), draft=DraftSettings("frame", 4))
    decode, _ = begin(model(name), [prompt], None, settings)
    list(decode.steps(ids[None, first - stride : first, None]))
    drafts = decode.drafter.report(0)
    assert drafts["accepted_by_frame"][0] > 0.5 and drafts["passes"] < stride / 2
