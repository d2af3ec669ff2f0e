"""Training of the layout map of `table`, alone and with the decoder."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fastcar_cli.inputs.worlds.physics import read_scenery, simulate
from fastcar_cli.models.vila_u.network import VideoModel
from fastcar_lab.training.decoder import TABLES, hidden_states, optimizers
from fastcar_lab.training.loop import Watch
from fastcar_lab.training.start import start_map
from fastcar_lab.training.tokenizer import to_patches
from fastcar_lab.worlds.table import train_map
from fastcar_lab.worlds.table.hyperparameters import TABLE, TABLE_MAP
from fastcar_lab.worlds.table.lexicon import table_tokenizer
from fastcar_lab.worlds.table.render import render
from fastcar_lab.worlds.table.samples import Clips
from fastcar_lab.worlds.table.scene import Scene, Thing
from fastcar_lab.worlds.table.tokenizer import TableTokenizer
from fastcar_lab.worlds.table.train_decoder import TableSettings

SCENE = Scene((Thing("ring", "cyan", "metal", "large", 60, 70, vx=4, vy=-2),), "wood", "dusk", "alone", 2, 6)


@pytest.fixture(scope="module")
def tokenizer() -> TableTokenizer:
    torch.manual_seed(0)
    return TableTokenizer().eval()


def small() -> VideoModel:
    torch.manual_seed(0)
    model = VideoModel(replace(TABLE, decoder=replace(TABLE.decoder, layers=1, mlp_width=32)))
    assert model.map is not None
    start_map(model.map)
    for table in (model.llm.embed_tokens, *model.codebooks):
        torch.nn.init.normal_(table.weight, 0, 0.3)
    return model


def test_latents_are_those_of_the_frames_that_are_given(
    tokenizer: TableTokenizer,
) -> None:
    ids, tokens, latents, busy = train_map.Looks(tokenizer, lambda _: SCENE).draw(2, random.Random(0))
    scenery = read_scenery(ids[0].tolist(), TABLE_MAP)
    assert simulate(scenery.things, scenery.pan, 16) == SCENE.paths()
    patches = to_patches(torch.from_numpy(render(SCENE)), 16).flatten(0, 1).float() / 255
    with torch.no_grad():
        wanted = tokenizer.encoder(patches)
    known = ~latents.isnan().any(-1)
    assert bool((known | ~busy).all()) and 0 < float(busy.float().mean()) < 0.5
    assert torch.allclose(latents[known], wanted[tokens[known]], atol=1e-4)


@pytest.mark.slow
def test_the_map_learns_looks_and_nothing_else_changes(tokenizer: TableTokenizer, tmp_path: Path) -> None:
    model = small()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    said: list[str] = []
    settings = TableSettings(5, bfloat16=False)
    train_map.train(tmp_path, model, tokenizer, settings, steps=20, watch=Watch(said.append))
    errors = [float(line.split("held_out_things ")[1].split()[0]) for line in said]
    assert errors[-1] < 0.8 * errors[0]
    changed = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
    assert changed == {k for k in before if k.startswith("map.")}


def test_a_map_has_a_rate_of_its_own() -> None:
    model = small()
    groups = [g for o in optimizers(model, TableSettings(5, bfloat16=False)) for g in o.param_groups]
    rate = {id(p): g["full"] for g in groups for p in g["params"]}
    assert model.map is not None
    assert {rate[id(p)] for p in model.map.parameters()} == {TABLES * TableSettings(5).lr}
    assert rate[id(model.projector.layers.weight)] == TableSettings(5).lr
    assert len(rate) == sum(1 for _ in model.parameters())


def test_a_clip_without_words_gets_its_layout_all_the_same(tokenizer: TableTokenizer) -> None:
    batch, _ = Clips(tokenizer, drop_words=1.0, drop_placement=0.0, drop_caption=0.0).draw(2, 1, random.Random(0))
    blank = torch.tensor(table_tokenizer().blank())
    assert (batch.text == blank).all() and not (batch.placed == blank).all(1).any()
    model = small().requires_grad_(False)
    assert model.map is not None
    near = model.map.near(batch.placed, batch.kept[:, 1:])
    seeing, _, _ = hidden_states(model, batch.text, batch.codes, near=near)
    blind, _, _ = hidden_states(model, batch.text, batch.codes)
    assert not torch.allclose(seeing, blind)
