"""What visual tokens learn of a layout: read from a prompt's ids, by the paths that the world is drawn by."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastcar_cli.decoding import trace
from fastcar_cli.inputs.worlds.physics import read_scenery, simulate
from fastcar_cli.models.bundled.placement_map import PlacementMap
from fastcar_cli.models.checkpoint import GenerationDefaults, LoadedModel
from fastcar_cli.models.vila_u.network import ModelSpec, VideoModel
from fastcar_lab.training.decoder import hidden_states
from fastcar_lab.training.start import start_map
from fastcar_lab.worlds.table.captions import caption
from fastcar_lab.worlds.table.hyperparameters import TABLE, TABLE_MAP
from fastcar_lab.worlds.table.lexicon import table_tokenizer
from fastcar_lab.worlds.table.placement import looks_of, of_scene
from fastcar_lab.worlds.table.scene import Scene, Thing
from fastcar_lab.worlds.table.stories import draw_scene

WORDS = table_tokenizer()
BALL = Thing("ball", "red", "metal", "small", 44, 70, vx=4)
SCENE = Scene((BALL, Thing("cube", "blue", "rubber", "large", 92, 70, turn=2)), "grass", "dusk", "hit")


def ids_of(scene: Scene, *, layout: bool = True) -> tuple[int, ...]:
    """A prompt that says all of a scene, with its layout."""
    tokens = WORDS.read(caption(scene, random.Random(0))).tokens
    looks, around = [looks_of(t) for t in scene.things], {"ground": scene.ground, "light": scene.light}
    return WORDS.ids_of(WORDS.completed(tokens, looks, around, of_scene(scene) if layout else ()))


@pytest.fixture(scope="module")
def informed() -> PlacementMap:
    """A map that adds something of everything."""
    torch.manual_seed(0)
    layout_map = PlacementMap(TABLE_MAP, (8, 8), 16, 32)
    start_map(layout_map)
    torch.nn.init.normal_(layout_map.ground.weight)
    torch.nn.init.normal_(layout_map.thing.weight)
    return layout_map.requires_grad_(False)


def at(layout_map: PlacementMap, scene: Scene, frames: int = 1) -> torch.Tensor:
    """Vectors [frames, rows, columns, width] of all tokens."""
    drawn = torch.arange(64 * frames)[None]
    return layout_map(torch.tensor([ids_of(scene)]), drawn)[0].view(frames, 8, 8, -1)


@given(st.integers(0, 10**6))
@settings(max_examples=60)
def test_the_paths_of_a_prompt_are_those_of_its_scene(number: int) -> None:
    scene = draw_scene(random.Random(number))
    found = read_scenery(ids_of(scene), TABLE_MAP)
    assert simulate(found.things, found.pan, 64) == scene.paths(64)
    assert (found.floor, found.light, 2 * found.shift) == (
        ("grey", "wood", "grass", "checker").index(scene.ground),
        ("day", "dusk").index(scene.light),
        scene.offset,
    )


def test_without_a_layout_nothing_is_added(informed: PlacementMap) -> None:
    ids = torch.tensor([ids_of(SCENE, layout=False), WORDS.blank()])
    assert not informed(ids, torch.arange(128)[None]).any()


def test_training_in_bfloat16_gets_the_same(informed: PlacementMap) -> None:
    ids, tokens = torch.tensor([ids_of(SCENE)]), torch.arange(128)[None]
    with torch.autocast("cpu", torch.bfloat16):
        found = informed(ids, tokens)
    exact = informed(ids, tokens)
    assert float((found - exact).norm() / exact.norm()) < 0.01


@given(right=st.integers(-2, 1), down=st.integers(-2, 2))
@settings(max_examples=12)
def test_a_patch_learns_where_things_are_from_its_middle(informed: PlacementMap, right: int, down: int) -> None:
    """A thing and its patch moved by two patches give the same; so does the ground, which repeats after two."""
    one = replace(SCENE, things=(replace(BALL, x=56, y=64, vx=0),), story="alone")
    other = replace(one, things=(replace(one.things[0], x=56 + 16 * right, y=64 + 16 * down),))
    a, b = at(informed, one)[0], at(informed, other)[0]
    if right % 2 == 0 and down % 2 == 0:
        assert torch.allclose(a[3:5, 2:5], b[3 + down : 5 + down, 2 + right : 5 + right], atol=1e-5)
    else:
        ground = at(informed, replace(one, things=(replace(BALL, x=148, y=64, vx=0),)))[0]
        here, there = a - ground, b - ground
        assert torch.allclose(here[3:5, 2:5], there[3 + down : 5 + down, 2 + right : 5 + right], atol=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        {"color": "green"},
        {"shape": "cube"},
        {"material": "rubber"},
        {"size": "large"},
        {"x": 46},
        {"y": 72},
        {"hop": 14},
    ],
    ids=str,
)
def test_every_word_of_a_thing_counts_near_it_and_only_there(informed: PlacementMap, change: dict[str, Any]) -> None:
    alone = replace(SCENE, things=(replace(BALL, vx=0),), story="alone")
    other = replace(alone, things=(replace(alone.things[0], **change),))
    differs = (at(informed, alone, 2) != at(informed, other, 2)).any(-1)
    assert differs[1, 3:5, 2:4].any()
    assert not differs[:, :, 6:].any() and not differs[:, :1, :2].any()


def test_a_thing_that_was_hit_is_placed_where_it_goes(informed: PlacementMap) -> None:
    stays = at(informed, replace(SCENE, things=(replace(BALL, vx=0), SCENE.things[1])), 16)
    moved = at(informed, SCENE, 16)
    paths, contacts = SCENE.paths()
    first = contacts[0].frame
    row, column = paths[1][0].y // 16, paths[1][0].x // 16
    assert torch.equal(stays[first - 4, row, column], stays[0, row, column])
    assert not torch.equal(moved[first + 2, row, column], stays[first + 2, row, column])


@pytest.fixture(scope="module")
def small() -> VideoModel:
    """A model of `table` with two narrow blocks, and a map with weights."""
    torch.manual_seed(0)
    decoder = replace(TABLE.decoder, layers=2, mlp_width=32)
    model = VideoModel(replace(TABLE, decoder=decoder)).eval().requires_grad_(False)
    assert model.map is not None
    start_map(model.map)
    for table in (model.llm.embed_tokens, *model.codebooks, model.map.ground):
        torch.nn.init.normal_(table.weight, 0, 0.3)
    torch.nn.init.normal_(model.map.thing.weight, 0, 0.1)
    return model


def test_a_decode_gets_what_training_gets(small: VideoModel) -> None:
    """Hidden states of a teacher-forced decode are those of the training pass, with the same patches."""
    codes = torch.randint(0, 2048, (1, 128, small.spec.depth.depth), generator=torch.Generator().manual_seed(1))
    model = LoadedModel("small", small, WORDS, GenerationDefaults(cfg=1.0))
    prompt = "a red metal ball rolls to the right and hits a blue cube"
    found = trace(model, [prompt], codes=codes, tau=None, cfg=1.0, seeds=[3], steps=range(128))
    reading = WORDS.complete(WORDS.read(prompt), 3)
    hidden, _, _ = hidden_states(small, torch.tensor([reading.ids]), codes)
    assert read_scenery(reading.ids, TABLE_MAP).things
    assert torch.allclose(found.hidden[:, 0], hidden[0], atol=2e-4)
    without, _, _ = hidden_states(small, torch.tensor([WORDS.read(prompt).ids]), codes)
    assert not torch.allclose(found.hidden[:, 0], without[0], atol=1e-2)


def test_a_specification_keeps_its_map_in_json() -> None:

    assert ModelSpec(**json.loads(json.dumps(TABLE.to_dict()))) == TABLE
    assert ModelSpec(**{k: v for k, v in TABLE.to_dict().items() if k != "map"}).map is None
