"""Models that continue from frames, on a tiny random one: loading, what is refused, prompts as frames, replay."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.paths import ROOT
from support.processes import Run
from torch import Tensor

from fastcar_cli.checkpoints.names import IVIDEOGPT
from fastcar_cli.checkpoints.open import spec_of
from fastcar_cli.config.run_config import RunConfig
from fastcar_cli.config.tau import Tau
from fastcar_cli.convert.convert import Conversion, Source, padded, target_format
from fastcar_cli.decoding import trace
from fastcar_cli.decoding.batch import DecodeSettings
from fastcar_cli.decoding.engine import Decode
from fastcar_cli.decoding.replay.replay import ReplayRule
from fastcar_cli.errors import RequestError
from fastcar_cli.inputs.prompt import Clip, clips_of
from fastcar_cli.models import load
from fastcar_cli.models.clip_reader import ClipReader
from fastcar_cli.models.decoder import DecoderSpec
from fastcar_cli.models.ivideogpt.blocks import TokenizerSpec
from fastcar_cli.models.ivideogpt.network import IVideoGPT, IVideoGPTSpec
from fastcar_cli.models.sampling import SamplingSettings
from fastcar_cli.pipeline.pipeline import VideoPipeline

STRIDE = 17
EXECUTORS = ["torch", "native"]


def tiny(actions: int = 0, context: int = 1) -> IVideoGPT:
    """Random weights, scaled so that scores and logits are of order one."""
    tokenizer = TokenizerSpec(
        channels=(32, 32), blocks=1, latent=4, code_width=4, groups=4, context=context, codes=20, dynamics=120,
        attended=16, mid_attention=False,
    )  # fmt: skip
    decoder = DecoderSpec(
        width=32, layers=3, heads=2, kv_heads=2, mlp_width=48, vocab=tokenizer.vocabulary, max_positions=1024
    )
    torch.manual_seed(4)
    network = IVideoGPT(IVideoGPTSpec("tiny", 4, 4, decoder, tokenizer, actions))
    with torch.no_grad():
        for name, p in network.named_parameters():
            if p.dim() > 1:
                p.normal_(0.0, (1.0 if "quantize" in name or "embed" in name else 1.3 * p[0].numel() ** -0.5))
            elif "norm" not in name:
                p.normal_(0.0, 0.05)
    return network.eval().requires_grad_(False)


def official(network: IVideoGPT, folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    """The network in the layout of the released checkpoints."""
    spec, decoder, tokenizer = network.spec, network.spec.decoder, network.spec.tokenizer
    documents = {
        "tokenizer": {
            "block_out_channels": list(tokenizer.channels), "resolution": tokenizer.size[0],
            "layers_per_block": tokenizer.blocks,
            "latent_channels": tokenizer.latent, "norm_num_groups": tokenizer.groups,
            "max_att_resolution": tokenizer.attended, "context_length": tokenizer.context, "vq_embed_dim": None,
            "num_vq_embeddings": tokenizer.codes, "num_dyn_embeddings": tokenizer.dynamics,
            "mid_block_add_attention": False,
        },
        "transformer": {
            "model_type": "llama", "hidden_size": decoder.width, "num_hidden_layers": decoder.layers,
            "num_attention_heads": decoder.heads, "intermediate_size": decoder.mlp_width,
            "vocab_size": decoder.vocab, "max_position_embeddings": decoder.max_positions,
        },
    }  # fmt: skip
    weights: dict[str, dict[str, Tensor]] = {"tokenizer": {}, "transformer": {}}
    for name, tensor in network.state_dict().items():
        part, _, rest = name.partition(".")
        key = {"tokenizer": rest, "llm": f"model.{rest}"}.get(part, name)
        if spec.actions and part in ("llm", "lm_head"):
            key = f"llm.{key}"
        weights["tokenizer" if part == "tokenizer" else "transformer"][key] = tensor.to(dtype).clone()
    for part, file in (("tokenizer", "diffusion_pytorch_model"), ("transformer", "model")):
        (folder / part).mkdir(parents=True)
        (folder / part / "config.json").write_text(json.dumps(documents[part]))
        save_file(weights[part], folder / part / f"{file}.safetensors")
    return folder


def clip(frames: int = 4, rows: int = 1, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (rows, frames, 32, 32, 3), dtype=np.uint8)


def moves(frames: int = 4, rows: int = 1, width: int = 3) -> Any:
    return np.random.default_rng(9).normal(size=(rows, frames, width)).astype(np.float32)


@pytest.fixture(scope="module")
def free(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return official(tiny(), tmp_path_factory.mktemp("models") / "free")


@pytest.fixture(scope="module")
def acting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return official(tiny(actions=3), tmp_path_factory.mktemp("models") / "acting", torch.float16)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("delimiters", [False, True])
@pytest.mark.parametrize("options", [{}, {"window": 40}], ids=["plain", "window"])
def test_a_prompt_laid_out_as_frames_can_be_replayed(executor: str, delimiters: bool, options: dict[str, Any]) -> None:
    """With a frame in the prompt, the frame behind it decides and computes as if that had been decoded."""
    network = tiny(actions=3)
    layout = network.spec.layout
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(0, 20, (2, layout.prefix or 0), generator=generator)
    codes = torch.randint(20, 140, (2, 3 * STRIDE, 1), generator=generator)
    actions = torch.randn(2, 4, 3, generator=generator)
    found = []
    for given in (0, 1):
        frames = 3 - given
        settings = DecodeSettings(
            frames, SamplingSettings(cfg=1.0), ReplayRule(Tau((0.1,)), replay_delimiters=delimiters), keep_tas=True,
            executor=executor, **options,
        )  # fmt: skip
        rows = torch.cat([prompts, codes[:, : given * STRIDE, 0]], 1).tolist()
        decode = Decode.of(network, rows, settings, torch.zeros(2, frames * STRIDE, 1), conditions=actions)
        assert decode.prompts.aligned == given * STRIDE
        steps = [step.hidden[:, 0].clone() for step in decode.steps(codes[:, given * STRIDE :])]
        assert decode.replay is not None and decode.replay.tas is not None
        found.append((torch.stack(steps)[-2 * STRIDE :], decode.replay.replayed, decode.replay.tas))
    (hidden, replayed, tas), (others, others_replayed, others_tas) = found
    assert torch.equal(replayed[:, :, STRIDE:], others_replayed)
    assert 0.1 < float(others_replayed.float().mean()) < 0.9
    assert bool(others_replayed[:, :, ::STRIDE].any()) == delimiters
    assert torch.allclose(tas[:, :, STRIDE:], others_tas, atol=1e-4)
    assert torch.allclose(hidden, others, atol=1e-3)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_ratio_is_kept_without_the_delimiters(free: Path, executor: str) -> None:
    replay = {"ratio": 0.4}
    config = {"generation": {"frames": 13}, "replay": replay, "runtime": {"executor": executor}}
    pipe = VideoPipeline(load(str(free)), RunConfig.from_dict(config))
    shown = list(pipe.stream(clips_of(clip()), [3]))
    assert [frame.index for frame in shown] == list(range(13))
    report = pipe.report(0)["replay"]
    assert abs(report["ratio"] - 0.4) <= 1 / (12 * STRIDE - 1)
    assert report["eligible_ratio"] == pytest.approx(report["ratio"] * (12 * STRIDE - 1) / (11 * 16 - 1), rel=1e-6)
    decode = pipe.decode
    assert decode is not None and decode.replay is not None
    assert not decode.replay.replayed[:, :, ::STRIDE].any()
    with pytest.raises(RequestError, match="allow at most 0.8"):
        VideoPipeline(load(str(free)), RunConfig.from_dict({**config, "replay": {"ratio": 0.9}}))


def test_what_shares_a_batch_changes_nothing(acting: Path) -> None:
    clips = clips_of(clip(2, 3), moves(4, 3))
    model, config = load(str(acting)), RunConfig.from_dict({"generation": {"frames": 4}})
    together = VideoPipeline(model, config)
    frames = list(together.stream(clips, [5, 6, 7]))
    alone = VideoPipeline(model, config)
    single = list(alone.stream(clips[1:2], [6]))
    assert np.array_equal(together.codes[1], alone.codes[0])
    assert all(
        np.array_equal(a.image, b.image) for a, b in zip([f for f in frames if f.video == 1], single, strict=True)
    )
    assert (together.codes[:, ::STRIDE] == model.network.spec.layout.delimiter).all()


def test_given_ids_need_the_context_frames_alone(acting: Path) -> None:
    model, frames = load(str(acting)), clip(4, 2)
    whole = trace(model, inputs=frames, actions=moves(4, 2), tau=-0.2, eligible="all")
    assert whole.frames.shape == (2, 4, 32, 32, 3) and whole.logits.shape == (3 * STRIDE, 1, 2, 142)
    assert whole.tas.shape == whole.replayed.shape == (3, 2, 3 * STRIDE - 1)
    reader = model.tokenizer
    assert isinstance(reader, ClipReader)
    codes = torch.tensor([reader.read_all(c) for c in clips_of(frames, moves(4, 2))])
    actions = moves(4, 2)[:, :3]
    context = trace(model, inputs=frames[:, :1], actions=actions, codes=codes, tau=-0.2, eligible="all")
    assert torch.equal(whole.logits, context.logits) and torch.equal(whole.frames, context.frames)
    assert torch.equal(whole.replayed, context.replayed) and bool(whole.replayed[:, :, STRIDE].any())


@pytest.mark.parametrize("dtype", ["int8", "int4", "bfloat16"])
def test_converted(acting: Path, tmp_path: Path, dtype: str) -> None:
    source = Source(str(acting))
    spec = padded(source.spec, dtype)
    folder = tmp_path / dtype
    Conversion(source, folder, target_format(source, spec, dtype), spec).run()
    model, original = load(str(folder)), load(str(acting))
    assert model.network.spec.to_dict() == spec.to_dict() and model.network.weight_format == dtype
    a, b = (trace(m, inputs=clip(4), actions=moves(), tau=None, executor="native") for m in (model, original))
    assert torch.equal(a.frames, b.frames) and a.input_ids == b.input_ids
    error = float((a.logits - b.logits).norm() / b.logits.norm())
    assert 0 < error < {"int8": 0.05, "int4": 0.5, "bfloat16": 0.05}[dtype]


def test_int8_is_what_convert_makes(free: Path, tmp_path: Path) -> None:
    source = Source(str(free))
    Conversion(source, tmp_path / "int8", target_format(source, source.spec, "int8"), source.spec).run()
    loaded, converted = load(str(free), "int8").network, load(str(tmp_path / "int8")).network
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, converted.state_dict()[name]), name


def _edit(folder: Path, part: str, change: Callable[[dict[str, Any]], None]) -> None:
    file = folder / part / "config.json"
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


def _weights(folder: Path, part: str, change: Callable[[dict[str, Tensor]], object]) -> None:
    file = next((folder / part).glob("*.safetensors"))
    data = load_file(file)
    change(data)
    save_file(data, file)


LATE = "transformer/model.safetensors"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda f: _weights(f, "tokenizer", lambda w: w.pop("quant_linear.bias")), "lacks key 'quant_linear.bias'"),
        (lambda f: _weights(f, "transformer", lambda w: w.pop("llm.lm_head.weight")), "lacks key 'llm.lm_head.weight'"),
        (
            lambda f: _weights(f, "transformer", lambda w: w.pop("action_linear.weight")),
            "lacks key 'action_linear.weight'",
        ),
        (
            lambda f: _weights(f, "transformer", lambda w: w.update({"reward_linear.weight": torch.ones(1, 32)})),
            "unexpected key 'reward_linear.weight'",
        ),
        (
            lambda f: _weights(f, "transformer", lambda w: w.update({"action_linear.weight": torch.ones(31, 3)})),
            r"'action_linear.weight': shape \[31, 3\], expected \[32, 3\]",
        ),
        (lambda f: _edit(f, "transformer", lambda c: c.update(vocab_size=150)), "'vocab_size' is 150, expected 142"),
        (lambda f: _edit(f, "tokenizer", lambda c: c.update(resolution=64)), "'resolution' is 64, expected 32"),
        (lambda f: _edit(f, "tokenizer", lambda c: c.pop("resolution")), "'resolution' is 256, expected 32"),
        (lambda f: _edit(f, "tokenizer", lambda c: c.update(block_out_channels=[32, 40])), "multiples of 32"),
        (lambda f: (f / LATE).write_bytes((f / LATE).read_bytes()[:-99]), "model.safetensors is damaged"),
        (lambda f: (f / LATE).rename((f / LATE).with_suffix(".bin")), "model.safetensors is missing"),
        (lambda f: (f / "tokenizer" / "config.json").write_text("{"), "config.json can't be read"),
        (
            lambda f: os.truncate(f / "tokenizer" / "config.json", 2**27),
            "can't be read: has 134,217,728 bytes, allowed: at most ",
        ),
        (lambda f: (f / "tokenizer" / "config.json").unlink(), "tokenizer/config.json is missing"),
        (lambda f: shutil.rmtree(f / "transformer"), "transformer/config.json is missing"),
    ],
)
def test_a_wrong_checkpoint_is_refused(tmp_path: Path, spoil: Callable[[Path], Any], said: str) -> None:
    folder = official(tiny(actions=3), tmp_path / "model")
    spoil(folder)
    with pytest.raises(RequestError, match=said):
        load(str(folder))


def test_files_of_other_kinds_are_never_opened(tmp_path: Path) -> None:
    folder = official(tiny(), tmp_path / "model")
    file = folder / "tokenizer" / "diffusion_pytorch_model.safetensors"
    file.rename(file.with_suffix(".bin"))
    with pytest.raises(RequestError, match="is missing") as error:
        load(str(folder))
    assert "can run code" in str(error.value.hint)


def test_names_of_attention_in_older_files(acting: Path, tmp_path: Path) -> None:
    old = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
    folder = official(tiny(), tmp_path / "model")

    def rename(weights: dict[str, Tensor]) -> None:
        for key in list(weights):
            for new, name in old.items():
                if f".attentions.0.{new}." in key:
                    weights[key.replace(f".{new}.", f".{name}.")] = weights.pop(key)
        weights["rotary_emb.inv_freq"] = torch.ones(1)
        weights.pop("rotary_emb.inv_freq")

    _weights(folder, "tokenizer", rename)
    _weights(folder, "transformer", lambda w: w.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}))
    found, wanted = load(str(folder)).network.state_dict(), tiny().state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("a red ball", "takes frames, not text"),
        (Clip(clip()[0], None), "no actions, but the model 'acting' takes 3 numbers per frame"),
        (Clip(clip()[0], moves(width=2)[0]), r"actions have shape \[4, 2\], but the model 'acting' takes 3 numbers"),
        (Clip(clip()[0], moves(2)[0]), "2 actions, but 4 frames need at least 3"),
        (Clip(clip(0)[0], moves()[0]), "has 0 frames, but the model 'acting' needs at least 1"),
        (
            Clip(np.zeros((4, 64, 32, 3), np.uint8), moves()[0]),
            "frames are 32x64, but the model",
        ),
    ],
)
def test_a_wrong_prompt_is_refused(acting: Path, prompt: Any, said: str) -> None:
    pipe = VideoPipeline(load(str(acting)), RunConfig.from_dict({"generation": {"frames": 4}}))
    with pytest.raises(RequestError, match=said):
        list(pipe.stream([prompt], [0]))


def test_other_wrong_requests(free: Path) -> None:
    model = load(str(free))
    with pytest.raises(RequestError, match="'free' takes no actions"):
        trace(model, inputs=clip(), actions=moves(), tau=None)
    for data, said in (
        ({"sampling": {"cfg": 3.0}}, "has no guidance"),
        ({"generation": {"frames": 1}}, "`frames` 1: the model 'free' takes 1 of the frames as context"),
        ({"generation": {"frames": 90}}, "1024 positions"),
    ):
        with pytest.raises(RequestError, match=said):
            VideoPipeline(model, RunConfig.from_dict(data))
    for given, said in (
        ({"inputs": clip(1)}, "no frames after the model's context"),
        ({}, "either prompts or inputs"),
        ({"prompts": ["a ball"], "inputs": clip()}, "either prompts or inputs"),
        ({"inputs": clip()[0]}, r"expected \[rows, S, H, W, 3\]"),
        ({"inputs": clip().astype(float)}, "expected uint8"),
        ({"inputs": clip(), "codes": torch.full((1, 20), 3)}, r"expected \[1, T \* 17, 1\]"),
        ({"inputs": clip(), "codes": torch.full((1, 17), 142)}, "from 0 to 141"),
        ({"inputs": clip(), "cfg": 2.0}, "has no guidance"),
        ({"inputs": clip(), "eligible": "some"}, "allowed: 'codes', 'all'"),
    ):
        with pytest.raises(RequestError, match=said):
            trace(model, tau=None, **given)
    with pytest.raises(RequestError, match="takes text, not frames"):
        trace(load("mini"), inputs=clip(), codes=torch.zeros(1, 64, 2, dtype=torch.int64), tau=None)


def test_published_shapes() -> None:
    """Parameters as counted from the released configurations."""
    for name, millions in (("ivideogpt-oxe-64-act-free", 114.16 + 138.43), ("ivideogpt-oxe-256-act-free", 448.90)):
        spec = spec_of(name)
        with torch.device("meta"):
            assert spec.network().parameter_count() / 1e6 == pytest.approx(millions, abs=0.01)
    assert [spec_of(name).name for name in IVIDEOGPT] == list(IVIDEOGPT)


@pytest.mark.parametrize("name", ["ivideogpt-oxe-64-act-free-medium", "thuml/ivideogpt-robonet-64-act-cond@main"])
def test_a_dry_run_of_a_published_model_needs_no_network(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    done = run("generate", "--model", name, "--dry-run", "--json", "--tau", "-2", "--dtype", "float32")
    plan = json.loads(done.stdout)
    spec = spec_of(name)
    assert plan["folder"] is None and plan["files"] == {}
    with torch.device("meta"):
        assert plan["weights_bytes"] == 4 * spec.network().parameter_count()
    decoder, frames = spec.decoder, spec.frames - spec.layout.context
    slots = (spec.layout.prefix or 0) + frames * STRIDE - 1
    assert plan["kv_cache_bytes"] == 2 * decoder.layers * slots * decoder.width * 4
    assert plan["replay_cache_bytes"] == decoder.layers * STRIDE * decoder.width * 4
    assert plan["max_replay_ratio"] == pytest.approx(((frames - 1) * 16 - 1) / (frames * STRIDE - 1))
    assert 2 < plan["replay_ceiling"] < 3.7


def test_the_engine_knows_no_model_by_name_and_models_no_replay() -> None:
    source = ROOT / "src" / "fastcar_cli"
    for file in (source / "decoding").rglob("*.py"):
        assert "ivideogpt" not in file.read_text(encoding="utf-8").lower(), file.name
    for file in (source / "models").rglob("*.py"):
        assert "fastcar_cli.decoding" not in file.read_text(encoding="utf-8"), file.name
