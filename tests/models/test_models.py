"""The networks against independent implementations of the same formulas."""

from __future__ import annotations

import pytest
import torch
from support.tiny import tiny_model

from fastcar_cli.config.tau import Tau
from fastcar_cli.decoding.batch import DecodeSettings
from fastcar_cli.decoding.engine import Decode
from fastcar_cli.decoding.replay.replay import ReplayRule
from fastcar_cli.models.sampling import SamplingSettings


def test_decoder_equals_transformers_llama() -> None:
    transformers = pytest.importorskip("transformers", reason="needs pip install 'fastcar[bench]'")
    model = tiny_model(kv_heads=1)
    spec = model.spec.decoder
    config = transformers.LlamaConfig(
        hidden_size=spec.width,
        intermediate_size=spec.mlp_width,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.kv_heads,
        vocab_size=spec.vocab,
        rms_norm_eps=spec.rms_eps,
        rope_theta=spec.rope_theta,
        max_position_embeddings=64,
    )
    theirs = transformers.LlamaModel(config).eval()
    missing, unexpected = theirs.load_state_dict(model.llm.state_dict(), strict=False)
    assert not unexpected
    assert all("rotary" in name for name in missing)
    codes = torch.randint(0, 9, (1, 12, 3), generator=torch.Generator().manual_seed(0))
    prompt = [1, 4, 5, 2]
    decode = Decode.of(model, [prompt], DecodeSettings(3, SamplingSettings(cfg=1.0)), torch.zeros(1, 12, 3))
    hidden = torch.stack([s.hidden[0, 0] for s in decode.steps(codes)])
    with torch.no_grad():
        text = model.llm.embed_tokens(torch.tensor(prompt))
        inputs = torch.cat([text, model.feedback_latent(model.embed(codes[0, :-1]), torch.arange(11))])
        expected = theirs(inputs_embeds=inputs[None]).last_hidden_state[0, len(prompt) - 1 :]
    assert float((hidden - expected).abs().max()) < 1e-5


def test_depth_steps_equal_the_whole_pass() -> None:
    model = tiny_model()
    hidden = torch.randn(4, 16, generator=torch.Generator().manual_seed(1))
    codes = torch.randint(0, 9, (4, 3), generator=torch.Generator().manual_seed(2))
    partial = model.rqvae.quantizer.vectors(codes).cumsum(1)
    whole = model.depth(hidden, partial[:, :-1])
    past = None
    x = hidden
    for d in range(3):
        logits, past = model.depth.step(x, d, past)
        assert float((logits - whole[:, d]).abs().max()) < 1e-5
        x = partial[:, d]


def test_rqvae_decodes_each_frame_alone_and_in_range() -> None:
    model = tiny_model()
    codes = torch.randint(0, 9, (3, 4, 3), generator=torch.Generator().manual_seed(4))
    frames = model.rqvae.frame(codes)
    assert frames.shape == (3, 4, 4, 3)
    assert float(frames.min()) >= 0
    assert float(frames.max()) <= 255
    assert float((model.rqvae.frame(codes[1:2]) - frames[1:2]).abs().max()) < 1e-3


def test_training_pass_equals_the_engine_with_replay() -> None:
    from fastcar_lab.training.decoder import forward

    model = tiny_model()
    codes = torch.randint(0, 9, (2, 16, 3), generator=torch.Generator().manual_seed(5))
    prompts = [[1, 4, 5, 2], [1, 0, 6, 2]]
    for tau in (float("inf"), 0.0, -0.5, float("-inf")):
        with torch.no_grad():
            logits, _, shares = forward(model, torch.tensor(prompts), codes, torch.tensor([tau, tau]))
        decode = Decode.of(
            model,
            prompts,
            DecodeSettings(4, SamplingSettings(cfg=1.0), ReplayRule(Tau((tau,)))),
            torch.zeros(codes.shape),
        )
        kept = [s.logits for s in decode.steps(codes, keep_logits=True)]
        mine = torch.stack([x[:, :, 0] for x in kept if x is not None])
        assert float((mine.permute(2, 0, 1, 3) - logits).abs().max()) < 1e-4
        ratio = float(torch.stack(shares).mean())
        if tau == float("inf"):
            assert decode.replay is None and ratio == 0.0
            continue
        assert decode.replay is not None
        assert abs(decode.replay.stats(decode.passed).eligible_ratio - ratio) < 1e-6


def test_scripts_find_the_maker_of_small_models_where_it_was() -> None:
    from fastcar_cli.models import dummy

    assert {"llm", "tower"} <= dummy.FULL.keys()
    assert dummy.__name__ == "fastcar_lab.dummy.vila_u"
