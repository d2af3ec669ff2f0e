"""Parity with the released iVideoGPT on recorded data (not part of the project: skipped where absent)."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.ivideogpt import use_context
from support.paths import GOLDEN_FRAMES as GOLDEN
from torch import Tensor

from fastcar_cli.config.run_config import RunConfig
from fastcar_cli.decoding import Trace, trace
from fastcar_cli.decoding.sampling import distribution
from fastcar_cli.inputs.prompt import clips_of
from fastcar_cli.models import load
from fastcar_cli.models.checkpoint import LoadedModel
from fastcar_cli.models.decoder import rotate
from fastcar_cli.models.ivideogpt.network import IVideoGPT
from fastcar_cli.pipeline.pipeline import VideoPipeline

DATA: dict[str, Any] = (
    json.loads((GOLDEN / "golden.json").read_text()) if (GOLDEN / "golden.json").exists() else {"models": []}
)
MODELS = {m["name"]: m for m in DATA["models"]}
RUNS = [(name, run["name"]) for name, m in MODELS.items() for run in m["replay"]]
GREEDY = [(name, g["segment_length"]) for name, m in MODELS.items() for g in m["generated"] if g["kind"] == "greedy"]
EXECUTORS = ["torch", "native"]
pytestmark = pytest.mark.skipif(not MODELS, reason=f"no recorded outputs of the released code in {GOLDEN}")


@cache
def tensors() -> dict[str, Tensor]:
    return load_file(str(GOLDEN / "golden.safetensors"))


def recorded(name: str, key: str) -> Tensor:
    return tensors()[f"{name}/{key}"]


@cache
def model(name: str) -> LoadedModel:
    return load(str(GOLDEN / "checkpoint" / name))


def network(name: str) -> IVideoGPT:
    found = model(name).network
    assert isinstance(found, IVideoGPT)
    return found


def actions(name: str) -> Tensor | None:
    return tensors().get(f"{name}/actions")


def later(name: str) -> Tensor:
    """Ids of all rows from the first delimiter on."""
    return recorded(name, "ids")[:, MODELS[name]["first_delimiter"] :]


def close(found: Tensor, wanted: Tensor, limit: float) -> None:
    assert found.shape == wanted.shape
    assert float((found.float() - wanted.float()).abs().max()) <= limit


def close_bytes(found: Tensor, wanted: Tensor) -> None:
    difference = (found.int() - wanted.int()).abs()
    assert int(difference.max()) <= 1 and float((difference > 0).float().mean()) <= 0.002


def pixels(name: str) -> Tensor:
    return recorded(name, "clip").float().div(255.0).permute(0, 1, 4, 2, 3)


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_tokenizer_reads_frames(name: str) -> None:
    tokenizer, frames = network(name).tokenizer, pixels(name)
    assert torch.equal(tokenizer.tokenize(frames), recorded(name, "ids"))
    context = tokenizer.spec.context
    z, _ = tokenizer.encoder(frames[0, :context])
    close(tokenizer.quant_conv(z), recorded(name, "encode/context_latent"), 2e-3)
    _, cross = tokenizer.read_context(frames[:1, :context])
    close(tokenizer.patches(frames[:1, context:], cross)[0], recorded(name, "encode/dynamics_latent"), 2e-3)
    out, _ = tokenizer.cond_encoder(frames[0, context : context + 1], cross)
    close(out[0], recorded(name, "encode/cond_encoder_out"), 2e-3)


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_tokenizer_draws_frames(name: str) -> None:
    tokenizer, data = network(name).tokenizer, MODELS[name]
    ids = recorded(name, "ids").long()
    prompt, rest = ids[:, : data["first_delimiter"]], ids[:, data["first_delimiter"] :]
    seen: dict[str, Tensor] = {}

    def keep(key: str) -> Any:
        return lambda module, inputs, output: seen.setdefault(key, output)

    handles = [
        tokenizer.decoder.mid_block.register_forward_hook(keep("decoder_mid")),
        tokenizer.cond_decoder.mid_block.register_forward_hook(keep("cond_decoder_mid")),
        tokenizer.cond_decoder.cross_att_blocks[0].register_forward_hook(keep("cross_out")),
    ]
    context, cross = tokenizer.decode_context(prompt)
    frames = torch.cat([context, tokenizer.decode_later(rest, cross)], 1)
    for handle in handles:
        handle.remove()
    for key, found in seen.items():
        close(found[0, :8], recorded(name, f"decode/{key}"), 5e-4)
    close(frames[0, data["frame_indices"]], recorded(name, "decode/frames"), 2e-3)
    alone = tokenizer.decode_later(rest[:, -17:], cross)[:, 0]
    assert float((alone - frames[:, -1]).abs().max()) < 1e-5


@pytest.mark.parametrize("name", MODELS)
def test_frames_of_ids_as_bytes(name: str) -> None:
    data, ids = MODELS[name], recorded(name, "ids")
    found = trace(model(name), inputs=recorded(name, "clip"), actions=actions(name), codes=later(name), tau=None)
    assert found.input_ids == ids[:, : data["first_delimiter"]].tolist()
    frames = network(name).to_bytes(found.frames)
    close_bytes(frames[-1, data["u8_frame_indices"]], recorded(name, "decode/frames_u8"))


@pytest.mark.parametrize("name", [name for name in MODELS if f"{name}/odd/frames_u8" in tensors()])
@torch.inference_mode()
def test_ids_that_are_no_codes_have_a_frame(name: str) -> None:
    ids, first = recorded(name, "odd/ids").long()[None], MODELS[name]["first_delimiter"]
    frame_decoder = network(name).frame_decoder(ids[:, :first])
    found = network(name).to_bytes(frame_decoder.frame(ids[:, -17:, None]))
    close_bytes(found, recorded(name, "odd/frames_u8"))


@cache
def forced(name: str, executor: str) -> Trace:
    inputs = recorded(name, "clip")
    return trace(model(name), inputs=inputs, actions=actions(name), codes=later(name), tau=None, executor=executor)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", MODELS)
def test_forced_ids(name: str, executor: str) -> None:
    found, first = forced(name, executor), MODELS[name]["first_delimiter"]
    at = [(i, p + 1 - first) for i, p in enumerate(MODELS[name]["forced_positions"]) if p + 1 - first in found.steps]
    here, steps = map(list, zip(*at, strict=True))
    assert len(steps) > 10
    close(found.logits[steps, 0].transpose(0, 1), recorded(name, "forced/logits")[:, here], 2e-3)
    close(found.hidden[steps, 0], recorded(name, "forced/final_hidden")[here], 1e-3)
    if executor == "torch":
        close(found.block_out[steps, :, 0].transpose(0, 1), recorded(name, "forced/layer_out")[:, here], 1e-3)


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_a_whole_sequence_at_once(name: str) -> None:
    """Embeddings, attention and every position of the records, prompt included, without the engine."""
    net, ids, data = network(name), recorded(name, "ids")[:1].long(), MODELS[name]
    x = net.llm.embed_tokens(ids)
    tokens = ids.shape[1] - data["first_delimiter"]
    given = actions(name)
    if (added := net.added(tokens, ids, None if given is None else given[:1])) is not None:
        x[:, data["first_delimiter"] :] += added.transpose(0, 1)
    at = data["forced_positions"]
    close(x[0, at], recorded(name, "forced/embeds"), 1e-3)
    cos, sin = net.llm.rotary(torch.arange(ids.shape[1]), x.dtype)
    for layer, block in enumerate(net.llm.blocks):
        q, k, v = block.self_attn.project(block.input_layernorm(x))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out = block.self_attn.merge(out)
        close(out[0, at], recorded(name, "forced/attn_out")[layer], 1e-3)
        x = x + out
        x = x + block.mlp_branch(x)
        close(x[0, at], recorded(name, "forced/layer_out")[layer], 1e-3)
    assert net.lm_head is not None
    close(net.lm_head(net.llm.norm(x))[0, at], recorded(name, "forced/logits")[0], 2e-3)


def generated(name: str, frames: int, rows: slice = slice(None), **settings: Any) -> tuple[VideoPipeline, list[Any]]:
    """A pipeline that has continued the clips of some rows, and its frames."""
    given = actions(name)
    clips = clips_of(recorded(name, "clip")[rows], None if given is None else given[rows])
    config = RunConfig.from_dict({"generation": {"frames": frames}, **settings})
    pipe = VideoPipeline(model(name), config)
    return pipe, list(pipe.stream(clips, list(range(len(clips)))))


@pytest.mark.slow
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(("name", "frames"), GREEDY)
def test_greedy_generation(name: str, frames: int, executor: str) -> None:
    config: dict[str, Any] = {"sampling": {"temperature": 0.0}, "runtime": {"executor": executor}}
    pipe, shown = generated(name, frames, **config)
    ids = recorded(name, f"greedy{frames}/ids")
    first = MODELS[name]["first_delimiter"]
    # The records end before the delimiter that would follow.
    assert torch.equal(torch.from_numpy(pipe.codes[..., 0]), ids[:, first:].long())
    assert [(f.video, f.index) for f in shown if f.video == 0] == [(0, i) for i in range(frames)]
    if f"{name}/greedy{frames}/frames_u8" in tensors():
        last = torch.stack([torch.from_numpy(f.image) for f in shown if f.index == frames - 1])
        close_bytes(last, recorded(name, f"greedy{frames}/frames_u8")[:, -1])


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", MODELS)
def test_every_drawn_id_is_among_the_hundred_best(name: str, executor: str) -> None:
    """Delimiters too where the model draws them; where it doesn't, they are where they belong."""
    data, spec = MODELS[name], model(name).network.spec
    frames = min(data["segment_lengths"])
    pipe, _ = generated(name, frames, slice(0, 1), runtime={"executor": executor})
    drawn = torch.from_numpy(pipe.codes)
    given = actions(name)
    found = trace(
        model(name),
        inputs=recorded(name, "clip")[:1],
        actions=None if given is None else given[:1],
        codes=drawn,
        tau=None,
    )
    ids, logits = drawn[0, :, 0], found.logits[:, 0, 0]
    better = (logits > logits.gather(1, ids[:, None])).sum(1)
    fixed = [t for t, code in enumerate(spec.layout.fixed(len(ids))) if code is not None]
    assert fixed == ([0] if given is None else list(range(0, len(ids), 17)))
    assert all(int(i) == spec.layout.delimiter for i in ids[fixed])
    better[fixed] = 0
    assert int(better.max()) < 100 and int(better.max()) > 0


@pytest.mark.parametrize("name", [name for name in MODELS if f"{name}/shrunk/ids" in tensors()])
def test_fewer_context_frames(name: str) -> None:
    shrunk, data = load(str(GOLDEN / "checkpoint" / name)), MODELS[name]["shrunk"]
    assert isinstance(shrunk.network, IVideoGPT)
    use_context(shrunk.network, data["context_length"])
    with torch.inference_mode():
        ids = shrunk.network.tokenizer.tokenize(pixels(name)[:, 1:])
    assert torch.equal(ids, recorded(name, "shrunk/ids"))
    config = {"generation": {"frames": data["segment_length"]}, "sampling": {"temperature": 0.0}}
    pipe = VideoPipeline(shrunk, RunConfig.from_dict(config))
    list(pipe.stream(clips_of(recorded(name, "clip")[:, 1:]), [0, 0]))
    codes = torch.from_numpy(pipe.codes[..., 0])
    assert torch.equal(codes, recorded(name, "shrunk/greedy_ids")[:, -codes.shape[1] :])
    found = trace(shrunk, inputs=recorded(name, "clip")[:1, 1:], tau=None)
    close_bytes(shrunk.network.to_bytes(found.frames[:, -1:]), recorded(name, "shrunk/frames_u8"))


def replayed(name: str, executor: str, tau: Any, tas: str, eligible: str = "codes", mlp_tokens: Any = ()) -> Trace:
    """Row 0 over the recorded ids and one made-up frame more, so that the last recorded id is an input too."""
    given, codes = actions(name), later(name)[:1]
    if given is not None:
        given = torch.cat([given[:1], given[:1, -1:]], 1)
    return trace(
        model(name), inputs=recorded(name, "clip")[:1], actions=given, codes=torch.cat([codes, codes[:, :17]], 1),
        tau=tau, tas=tas, eligible=eligible, executor=executor, mlp_tokens=mlp_tokens,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(("name", "run"), RUNS)
def test_replay_decisions(name: str, run: str, executor: str) -> None:
    data = next(r for r in MODELS[name]["replay"] if r["name"] == run)
    wanted = recorded(name, f"{run}/replayed").bool()
    tokens, offsets = wanted.shape[1], data["recorded_offsets"]
    found = replayed(
        name, executor, data["tau_per_layer"], data["definition"], data["eligible"],
        offsets if executor == "torch" else (),
    )  # fmt: skip
    assert torch.equal(found.replayed[:, 0, :tokens], wanted) and int(wanted.sum()) == data["replayed"]
    scored = torch.tensor([tau is not None for tau in data["tau_per_layer"]])
    close(found.tas[scored, 0, 17:tokens], recorded(name, f"{run}/tas")[scored, 17:], 3e-4)
    assert bool(found.tas[:, :, :17].isnan().all())
    close(found.logits[[t + 1 for t in offsets], 0, 0], recorded(name, f"{run}/logits"), 2e-3)
    if executor == "torch":
        close(found.mlp[:, :, 0], recorded(name, f"{run}/mlp_out"), 1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_dense_scores_and_mlp_outputs(name: str) -> None:
    for tas in ("attention", "released"):
        wanted = recorded(name, f"replay/dense/tas_{tas}")
        found = replayed(name, "torch", float("inf"), tas, mlp_tokens=range(wanted.shape[1]))
        close(found.tas[:, 0, 17 : wanted.shape[1]], wanted[:, 17:], 3e-4)
        close(found.mlp[:, :, 0], recorded(name, "replay/dense/mlp_out"), 1e-3)
        assert not found.replayed.any()


def test_what_the_released_sampler_hands_to_the_draw() -> None:
    logits = tensors()["sampler/logits"]
    probs, order = distribution(logits, 1.0, 100, 1.0)
    close(torch.zeros_like(logits).scatter(1, order, probs), tensors()["sampler/probs"], 1e-5)


def test_forced_ids_may_be_left_to_the_frames() -> None:
    """With all frames given and no codes, those of the frames are taken."""
    name = next(iter(MODELS))
    found = trace(model(name), inputs=recorded(name, "clip").numpy(), tau=None, steps=[0, 40])
    assert torch.equal(found.logits, forced(name, "torch").logits[[0, 40]])
    assert np.array_equal(found.input_ids, forced(name, "torch").input_ids)
