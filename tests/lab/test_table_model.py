"""The model `table`: tokenizer, training clips and a model folder that generates."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastcar_cli.checkpoints.open import load
from fastcar_cli.models.decoder import rotate
from fastcar_cli.models.vila_u.network import ModelSpec
from fastcar_lab import worlds
from fastcar_lab.training import loop as steps
from fastcar_lab.training.ahead import Ahead
from fastcar_lab.training.decoder import causal_attention, hidden_states
from fastcar_lab.training.loop import OutOfTime, Watch, rng_of
from fastcar_lab.training.muon import Muon
from fastcar_lab.training.start import new_model
from fastcar_lab.training.tokenizer import quantize, to_patches
from fastcar_lab.worlds.table import train_decoder, train_tokenizer
from fastcar_lab.worlds.table.frames import Pool, changed_patches, cut
from fastcar_lab.worlds.table.hyperparameters import TABLE, TABLE_MAP
from fastcar_lab.worlds.table.lexicon import PROMPT_LENGTH, SPECIALS, VOCABULARY
from fastcar_lab.worlds.table.render import render
from fastcar_lab.worlds.table.samples import Clips, Encoder, around_things, swapped
from fastcar_lab.worlds.table.scene import FRAMES
from fastcar_lab.worlds.table.start import heed_words, look_up_nearest, predict_aligned
from fastcar_lab.worlds.table.stories import scene_of
from fastcar_lab.worlds.table.tokenizer import TableTokenizer
from fastcar_lab.worlds.table.train_decoder import TableSettings
from fastcar_lab.worlds.table.train_tokenizer import TokenizerSettings

DEPTH = TABLE.depth.depth


@pytest.fixture(scope="module")
def tokenizer() -> TableTokenizer:
    """At its principal components, with random codes."""
    torch.manual_seed(0)
    model = TableTokenizer()
    pool = Pool(4, 1, 0, 0)
    train_tokenizer.begin(model, pool.pixels(*pool.draw(512, random.Random(0))))
    for book in model.rqvae.quantizer.codebooks:
        torch.nn.init.normal_(book.weight, 0, 0.3)
    return model.eval()


def test_principal_components_draw_a_frame_before_any_training(tokenizer: TableTokenizer) -> None:
    clip = render(scene_of(5, 0))
    with torch.no_grad():
        latents = tokenizer.encoder(torch.from_numpy(cut(clip)[:2]).float() / 255)
        drawn = (tokenizer.decoder.render_alone(latents) + 1) / 2
    error = float((drawn - torch.from_numpy(cut(clip)[:2]).float() / 255).square().mean())
    assert -10 * np.log10(error) > 24


def test_a_patch_that_stays_keeps_its_codes(tokenizer: TableTokenizer) -> None:
    clip = render(scene_of(5, 1))
    codes = tokenizer.encode(torch.from_numpy(clip))
    still = ~changed_patches(clip)[1:]
    assert still.any()
    assert (codes[1:] == codes[:-1]).all(-1).numpy()[still].all()


def test_scaling_the_latents_changes_nothing_drawn(tokenizer: TableTokenizer) -> None:
    frames = torch.from_numpy(render(scene_of(5, 2))[:2])
    model = TableTokenizer()
    model.load_state_dict(tokenizer.state_dict())
    codes, image = model.encode(frames), model.decode(model.encode(frames))
    patches = torch.from_numpy(cut(frames.numpy()).reshape(-1, 768)).float() / 255
    train_tokenizer.standardise(model, patches)
    assert torch.equal(model.encode(frames), codes)
    assert (model.decode(codes).int() - image.int()).abs().max() <= 1
    with torch.no_grad():
        scale = float(model.encoder(patches).square().mean())
    assert scale == pytest.approx(1, abs=1e-3)


def test_a_position_is_drawn_from_its_neighbours_as_training_draws_it(tokenizer: TableTokenizer) -> None:
    """The patches that training draws one by one are those of a frame drawn at once, at its border too."""
    model = TableTokenizer()
    model.load_state_dict(tokenizer.state_dict())
    torch.nn.init.normal_(model.decoder.near.weight, 0, 0.05)
    torch.nn.init.normal_(model.decoder.out.weight, 0, 0.05)
    pool = Pool(1, 1, 0, 0, Encoder(model))
    t, every = 3, np.arange(64)
    codes, inside = pool.codes_around(np.zeros(64, np.intp), 64 * t + every)
    with torch.no_grad():
        near = (model.rqvae.embed(codes) * inside[..., None]).transpose(1, 2).flatten(1)
        image = model.rqvae.decode_latents(model.rqvae.embed(pool.codes[0].view(16, 64, DEPTH)[t])[None])
        assert torch.allclose(to_patches(image.permute(0, 2, 3, 1), 16)[0], model.decoder.render(near), atol=1e-4)
        frame = model.decode(pool.codes[0].view(16, 64, DEPTH)[t][None])
        alone = model.decode_alone(pool.codes[0].view(16, 64, DEPTH)[t][None])
        assert (frame.int() - alone.int()).abs().max() > 2


def test_without_neighbours_a_position_is_drawn_alone(tokenizer: TableTokenizer) -> None:
    """Before the second stage neighbours count for nothing, so it begins with what the first one reached."""
    codes = torch.randint(0, 512, (2, 64, DEPTH))
    assert (tokenizer.decode(codes).int() - tokenizer.decode_alone(codes).int()).abs().max() <= 1


@pytest.mark.slow
def test_the_second_stage_changes_no_code(tokenizer: TableTokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "codes.safetensors")
    settings = TokenizerSettings(2, patches=64, pool=2, evaluate_every=100)
    trained = train_tokenizer.train(tmp_path, "pixels", settings, watch=Watch(lambda _: None))
    frames = torch.from_numpy(render(scene_of(5, 2))[:2])
    assert torch.equal(trained.encode(frames), tokenizer.encode(frames))
    assert not torch.equal(trained.decode(tokenizer.encode(frames)), tokenizer.decode(tokenizer.encode(frames)))


def test_clips_hold_the_codes_of_their_frames(tokenizer: TableTokenizer) -> None:
    batch, scenes = Clips(tokenizer).draw(2, 3, random.Random(1))
    for i, scene in enumerate(scenes):
        begin = int(batch.begins[i])
        video = torch.from_numpy(render(scene)[begin : begin + 3])
        assert (tokenizer.encode(video).flatten(0, 1) == batch.codes[i]).float().mean() > 0.99
    assert 0 < float(batch.busy.float().mean()) < 0.8


def test_a_caption_of_a_scene_that_says_too_much_leaves_out_its_layout(tokenizer: TableTokenizer) -> None:
    clips = Clips(tokenizer, drop_caption=0.0, drop_placement=0.0)
    clips.words.length = 22
    batch, scenes = clips.draw(12, 1, random.Random(3))
    layouts = ["column" in " ".join(TABLE_MAP.meanings[i] for i in row) for row in batch.placed.tolist()]
    assert batch.placed.shape == (12, 22) and {len(s.things) for s in scenes} >= {1, 2}
    assert any(layouts) and not all(layouts)


def test_a_word_is_swapped_for_another_of_its_kind() -> None:
    ids = torch.tensor([[VOCABULARY.index(w) for w in ("red", "ball", "moves", "left", "blue")]])
    out = swapped(ids, ("left", "right"), VOCABULARY, random.Random(0))
    assert [VOCABULARY[i] for i in out[0].tolist()] == ["red", "ball", "moves", "right", "blue"]


def test_a_clip_that_begins_later_is_seen_as_it_would_be_in_its_video(tokenizer: TableTokenizer) -> None:
    """Positions count from the beginning of the video, so the same codes further on are another input."""
    model = new_model(_small(), tokenizer.rqvae, 0)
    codes = torch.randint(0, 512, (1, 128, DEPTH))
    text = torch.zeros(1, 32, dtype=torch.long)
    whole, _, _ = hidden_states(model, text, codes)
    same, _, _ = hidden_states(model, text, codes, begins=torch.zeros(1, dtype=torch.long))
    later, _, _ = hidden_states(model, text, codes, begins=torch.ones(1, dtype=torch.long))
    assert torch.allclose(whole, same)
    assert not torch.allclose(whole, later, atol=1e-3)


def test_tokens_that_are_left_out_are_as_if_they_were_not_there(tokenizer: TableTokenizer) -> None:
    """Hidden states of some tokens do not depend on the codes of the others; with all of them nothing is new."""
    model = new_model(_small(), tokenizer.rqvae, 0)
    codes, text = torch.randint(0, 512, (2, 192, DEPTH)), torch.zeros(2, 32, dtype=torch.long)
    whole, _, _ = hidden_states(model, text, codes)
    assert torch.equal(whole, hidden_states(model, text, codes, kept=torch.arange(192).expand(2, -1))[0])
    kept = torch.tensor([[0, 3, 4, 70, 130, 131], [0, 1, 2, 3, 190, 191]])
    some, _, _ = hidden_states(model, text, codes, kept=kept)
    assert some.shape == (2, 6, whole.shape[-1])
    fed = torch.zeros(2, 192, dtype=torch.bool).scatter(1, kept[:, 1:] - 1, True)
    others = torch.where(fed[..., None], codes, torch.randint(0, 512, codes.shape))
    assert torch.equal(some, hidden_states(model, text, others, kept=kept)[0])
    assert torch.allclose(some[1, :4], whole[1, :4], atol=1e-5)


def test_places_around_things_are_kept_first() -> None:
    busy = torch.zeros(3, 64, dtype=torch.bool)
    busy[0, 20] = busy[2, 21] = True
    near = {r * 8 + c for r in (1, 2, 3) for c in (3, 4, 5, 6)}
    for room in (5, 13, 30, 64):
        kept = around_things(busy.flatten(), room, (8, 8), random.Random(room)).view(3, room)
        places = set(kept[0].tolist())
        assert torch.equal(kept, kept[:1] + torch.tensor([[0], [64], [128]]))
        assert len(places) == room and {0, 20, 21} <= places
        assert (near <= places) if room >= 13 else (places <= near | {0})


def test_a_hidden_state_that_holds_a_latent_is_answered_with_its_codes() -> None:
    """The depth transformer begins by looking up the nearest codes, whatever the decoder has learned so far."""
    torch.manual_seed(3)
    made = TableTokenizer()
    for scale, book in zip((8.0, 4.8, 2.8, 1.7, 1.0), made.rqvae.quantizer.codebooks, strict=True):
        axes = torch.linalg.qr(torch.randn(64, 16))[0].T
        torch.nn.init.zeros_(book.weight)
        book.weight.data[:2048] = scale / 4 * torch.randn(2048, 16) @ axes
    codebooks = made.codebooks().detach()
    model = new_model(TABLE, made.rqvae, 0)
    look_up_nearest(model.depth, codebooks)
    codes = torch.randint(0, 2048, (200, DEPTH))
    vectors = model.rqvae.quantizer.vectors(codes)
    codes = quantize(vectors.sum(1), codebooks)
    vectors = model.rqvae.quantizer.vectors(codes)
    with torch.no_grad():
        logits = model.depth(
            vectors.sum(1) @ model.depth.in_mlp_2.weight[DEPTH : DEPTH + 64], vectors.cumsum(-2)[:, :-1]
        )
    better = (logits > logits.gather(-1, codes[..., None])).sum(-1).float()
    assert (better.median(0).values <= 100).all(), "of 2,048 codes, few are thought nearer than the nearest"


def test_before_training_the_aligned_token_is_predicted(tokenizer: TableTokenizer) -> None:
    model = new_model(TABLE, tokenizer.rqvae, 0)
    look_up_nearest(model.depth, tokenizer.codebooks())
    batch, _ = Clips(tokenizer).draw(4, 3, random.Random(2))
    predict_aligned(model, batch)
    with torch.no_grad():
        hidden, _, _ = hidden_states(model, batch.text, batch.codes, begins=batch.begins)
    predicted = (hidden @ model.depth.in_mlp_2.weight[DEPTH : DEPTH + 64].T)[:, 64:]
    aligned = model.rqvae.quantizer.vectors(batch.codes).sum(-2)[:, :-64]
    similar = torch.nn.functional.cosine_similarity(predicted.detach(), aligned.detach(), dim=-1)
    assert float(similar.mean()) > 0.5


def test_before_training_a_head_looks_at_the_words_from_anywhere(tokenizer: TableTokenizer) -> None:
    model = new_model(TABLE, tokenizer.rqvae, 0)
    words = range(len(SPECIALS), len(VOCABULARY))
    heed_words(model, words)
    text = torch.zeros(1, 32, dtype=torch.long)
    text[0, 20:31] = torch.tensor(words[5:16])
    codes = torch.randint(0, 512, (1, 1023, DEPTH))
    with torch.no_grad():
        seen = model.feedback_latent(model.rqvae.quantizer.vectors(codes).sum(-2))
        x = torch.cat([model.llm.embed_tokens(text), seen], 1)
        block = model.llm.blocks[0]
        q, k, _ = block.self_attn.project(block.input_layernorm(x))
        cos, sin = (a[:, None] for a in model.llm.rotary(torch.arange(x.shape[1])[None], torch.float32))
        q, k = rotate(q, cos, sin)[0, -1], rotate(k, cos, sin)[0, -1]
    for at in (40, 300, 1054):
        share = (q[at] @ k[: at + 1].T / q.shape[-1] ** 0.5).softmax(-1)[20:31].sum()
        assert float(share) > 0.4


def _small() -> ModelSpec:
    return replace(
        TABLE,
        decoder=replace(TABLE.decoder, layers=2, mlp_width=64),
        depth=replace(TABLE.depth, width=96),
    )


def test_frequencies_repeat_with_the_frame_and_distinguish_positions() -> None:
    model = new_model(_small(), TableTokenizer().rqvae, 0)
    cos, sin = model.llm.rotary(torch.tensor([5, 5 + 64]), torch.float32)
    assert torch.allclose(cos[0, :5], cos[1, :5], atol=1e-4) and torch.allclose(sin[0, :5], sin[1, :5], atol=1e-4)
    similar = torch.cos(torch.arange(1, 1056)[:, None] * model.llm.rotary.inv_freq).mean(-1)
    assert float(similar.max()) < 0.6


def test_periods_must_be_one_for_each_pair() -> None:
    with pytest.raises(ValueError, match="rope_periods has 3 values, but a head needs 16"):
        new_model(
            replace(TABLE, decoder=replace(TABLE.decoder, rope_periods=(2.0, 4.0, 8.0))), TableTokenizer().rqvae, 0
        )


@pytest.mark.slow
@pytest.mark.parametrize("stage", [pytest.param("codes", marks=pytest.mark.slow), "pixels"])
def test_stopped_tokenizer_training_resumes_to_the_same_weights(
    stage: str, tokenizer: TableTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_tokenizer, "evaluate", lambda *_, **__: {})
    settings = TokenizerSettings(4, patches=128, pool=2, free=1, warmup=2, means_of=2048, evaluate_every=100)
    results = []
    for name, stops in (("whole", ()), ("parts", (2, 1))):
        out = tmp_path / name
        out.mkdir()
        tokenizer.save(out / "codes.safetensors")
        for stop in stops:
            clock = count()
            monkeypatch.setattr(steps, "time", SimpleNamespace(monotonic=lambda clock=clock: next(clock)))
            with pytest.raises(OutOfTime):
                train_tokenizer.train(out, stage, settings, watch=Watch(lambda _: None, float(stop)))
        results.append(train_tokenizer.train(out, stage, settings, watch=Watch(lambda _: None)).state_dict())
    for key, value in results[0].items():
        assert torch.allclose(value, results[1][key], atol=1e-5), key


@pytest.mark.slow
def test_a_trained_folder_loads_and_has_no_place_tables(
    tokenizer: TableTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, training = replace(_small(), name="table"), worlds.world("table").training
    file = tmp_path / "tokenizer.safetensors"
    tokenizer.save(file)
    settings = TableSettings(2, batch=2, clip=2, whole=0.0, map_steps=2, bfloat16=False)
    monkeypatch.setattr(train_decoder, "validate", lambda *_: {})
    train_decoder.train(tmp_path / "base", file, settings, spec=spec, watch=Watch(lambda _: None))
    training.export(spec, tmp_path / "table", tmp_path / "base" / "checkpoint.pt", file)
    model = load(str(tmp_path / "table"))
    assert model.network.spec == spec and model.network.places is None
    codes = torch.randint(0, 512, (1, 64, DEPTH))
    mine = tokenizer.decode(codes)
    assert (model.network.rqvae.frame(codes).round().int() - mine.int()).abs().max() <= 6
    assert quantize(torch.zeros(1, 64), tokenizer.codebooks()).shape == (1, DEPTH)


def test_the_replay_stage_trains_with_the_rule_in_the_pass(tokenizer: TableTokenizer) -> None:
    model = new_model(_small(), tokenizer.rqvae, 0)
    settings = TableSettings(2, batch=1, bfloat16=False).replay_stage()
    batch, _ = Clips(tokenizer).draw(1, 3, random.Random(0))
    step = train_decoder.material(batch, settings, model.spec, model.map, [-float("inf")])
    loss, values = train_decoder.loss_of(model, step, settings)
    assert values["replayed"] == 1.0 and values["align"] > 0
    loss.backward()
    assert model.llm.blocks[0].mlp.up_proj.weight.grad is not None


@pytest.mark.parametrize("step", [0, 1, 9])
def test_padded_material_has_the_loss_and_gradients_of_the_plain_one(tokenizer: TableTokenizer, step: int) -> None:
    model = new_model(_small(), tokenizer.rqvae, 0)
    settings = TableSettings(10, batch=2, bfloat16=False)
    count, frames, places = settings.shape_of(step)
    batch, _ = Clips(tokenizer).draw(count, frames, random.Random(step), late=0.0, places=places)
    plain = train_decoder.material(batch, settings, model.spec, model.map)
    found = []
    for material in (plain, plain.padded()):
        model.zero_grad()
        loss, values = train_decoder.loss_of(model, material, settings)
        loss.backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        found.append([loss.detach(), *values.values(), *gradients])
    assert len(plain.chosen) < len(plain.padded().chosen) == batch.kept.numel()
    for ours, theirs in zip(*found, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("workers", [0, 2])
def test_worker_processes_draw_what_the_process_itself_draws(workers: int) -> None:
    ahead = Ahead(lambda step, rng: (step, rng.random(), torch.rand(2)), seed=3, steps=5, workers=workers)
    for step in range(2, 5):
        rng, own = rng_of(3, step), rng_of(3, step)
        number, first, second = ahead(step, rng)
        assert (number, first) == (step, own.random())
        after = torch.rand(1)
        rng_of(3, step)
        assert torch.equal(second, torch.rand(2)) and torch.equal(after, torch.rand(1))
        assert rng.random() == own.random()


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon to compare with")
@pytest.mark.parametrize("shape", [(8, 24), (24, 8)])
def test_muon_is_torchs_in_the_precision_that_torch_has(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    ours, theirs = (torch.nn.Parameter(torch.ones(shape)) for _ in range(2))
    pair = (Muon([ours], lr=0.1, dtype=torch.bfloat16), torch.optim.Muon([theirs], lr=0.1, weight_decay=0.0))
    for _ in range(3):
        gradient = torch.randn(shape)
        for p, optimizer in zip((ours, theirs), pair, strict=True):
            p.grad = gradient.clone()
            optimizer.step()
    assert torch.allclose(ours, theirs, atol=5e-3)
    assert not torch.allclose(ours, torch.ones(shape), atol=0.1)


@given(st.integers(0, 999), st.booleans())
def test_a_step_draws_about_as_many_tokens_as_another_and_first_frames_whole(step: int, replay: bool) -> None:
    settings = TableSettings(1000)
    settings = settings.replay_stage() if replay else settings
    videos, frames, places = settings.shape_of(step)
    tokens = videos * (PROMPT_LENGTH + frames * (places or 64))
    assert 0.75 <= tokens / (settings.batch * (PROMPT_LENGTH + settings.clip * settings.places)) <= 1.25
    assert frames > 1 or places is None
    assert (frames == 1) == (step % 2 == 1)
    assert frames in (1, FRAMES) or step < 800
    assert places is None or not replay


@pytest.mark.parametrize("places", [None, 28])
def test_a_first_frame_counts_where_its_video_begins_with_it(tokenizer: TableTokenizer, places: int | None) -> None:
    settings = TableSettings(10)
    batch, _ = Clips(tokenizer).draw(4, 2, random.Random(0), late=0.5, places=places)
    weights, wanted = train_decoder.token_weights(batch, settings, 64), 1 + settings.changed_weight * batch.busy
    begins = batch.begins == 0
    assert 0 < begins.sum() < 4
    assert torch.equal(weights[:, 64:], wanted[:, 64:])
    assert torch.equal(weights[begins], wanted[begins].float())
    assert not weights[~begins, :64].any()


def test_noise_changes_what_is_fed_back_and_nothing_before_it(tokenizer: TableTokenizer) -> None:
    model = new_model(TABLE, tokenizer.rqvae, 0)
    batch, _ = Clips(tokenizer).draw(1, 1, random.Random(0))
    noise = torch.zeros(1, 63, TABLE.rqvae.code_width)
    with torch.no_grad():
        plain = hidden_states(model, batch.text, batch.codes)[0]
        assert torch.equal(hidden_states(model, batch.text, batch.codes, noise=noise)[0], plain)
        noise[0, 20] = 1.0
        noisy = hidden_states(model, batch.text, batch.codes, noise=noise)[0]
    differs = (noisy != plain).any(-1)[0]
    assert not differs[:21].any() and bool(differs[21])


def test_bfloat16_attention_of_short_sequences_is_that_of_torch() -> None:
    """Written out under autocast it differs from float32 by what rounding to bfloat16 costs."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 40, 32) for _ in range(3))
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    with torch.autocast("cpu", torch.bfloat16):
        got = causal_attention(q, k, v)
    assert got.dtype == torch.bfloat16
    assert (got - wanted).norm() / wanted.norm() < 1e-2
