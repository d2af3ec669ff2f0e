"""What the seed draws of a prompt for the model `table`: looks, surroundings, and where things begin."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastcar_cli.errors import RequestError
from fastcar_cli.inputs.worlds.placement_text import PlacementTokenizer, phrase_tokenizer
from fastcar_lab.worlds.table.captions import caption
from fastcar_lab.worlds.table.lexicon import PHRASES, PROMPT_LENGTH, VOCABULARY, table_tokenizer
from fastcar_lab.worlds.table.placement import LOOKS, TOKENS, looks_of, of_scene
from fastcar_lab.worlds.table.placements import draw_placements
from fastcar_lab.worlds.table.scene import GROUNDS, LIGHTS, SHAPES, SIZES, Scene, Thing
from fastcar_lab.worlds.table.stories import draw_scene, happens

WORDS = table_tokenizer()
SENTENCE = "a red metal ball rolls to the right and hits a blue cube"


def _number(tokens: list[str], name: str) -> int:
    return next((int(t.rpartition(" ")[2]) for t in tokens if t.startswith(f"{name} ")), 0)


def _things(tokens: tuple[str, ...]) -> tuple[Thing, ...]:
    """The things that completed tokens name."""
    found: list[list[str]] = []
    looks: list[str] = []
    for token in tokens:
        if token in SHAPES:
            found.append([*looks, token])
            looks = []
        elif any(token in values for values in LOOKS.values()):
            looks.append(token)
        elif found:
            found[-1].append(token)
    return tuple(
        Thing(
            shape=t[3], size=t[0], color=t[1], material=t[2],
            x=16 * _number(t, "column") + 2 * _number(t, "right by"),
            y=16 * _number(t, "row") + 2 * _number(t, "down by"),
            vx=_number(t, "across"), vy=_number(t, "along"), hop=_number(t, "hop"), spin=_number(t, "spin"),
            turn=2 * ("turned" in t),
        )
        for t in found
    )  # fmt: skip


@given(st.integers(0, 10**6))
@settings(max_examples=60)
def test_training_gives_all_of_a_scene_and_nothing_else(number: int) -> None:
    scene = draw_scene(random.Random(number))
    tokens = WORDS.read(caption(scene, random.Random(number), drop=0.3)).tokens
    around = {"ground": scene.ground, "light": scene.light}
    completed = WORDS.completed(tokens, [looks_of(t) for t in scene.things], around, of_scene(scene))
    assert _things(tuple(completed)) == scene.things
    assert {scene.ground, scene.light} <= set(completed)
    assert (_number(completed, "pan"), 2 * _number(completed, "ground")) == (scene.pan, scene.offset)
    assert len(WORDS.ids_of(completed)) == PROMPT_LENGTH


@given(st.integers(0, 10**6))
def test_a_prompt_keeps_its_words_and_the_seed_decides_the_rest(seed: int) -> None:
    reading = WORDS.read(SENTENCE)
    complete = WORDS.complete(reading, seed)
    left, right = _things(complete.tokens)
    assert (left.color, left.material, left.shape, right.color, right.shape) == ("red", "metal", "ball", "blue", "cube")
    assert left.size in SIZES and right.material in ("metal", "rubber")
    assert sorted(complete.tokens) == sorted((*reading.tokens, *complete.drawn))
    assert sum(t in GROUNDS for t in complete.tokens) == sum(t in LIGHTS for t in complete.tokens) == 1
    assert complete == WORDS.complete(reading, seed)
    # What was said happens from there, with these sizes.
    assert happens(Scene((left, right), "grey", "day", "hit"))


def test_daylight_goes_without_saying() -> None:
    drawn = {seed: WORDS.complete(WORDS.read("a red ball"), seed).drawn for seed in range(12)}
    assert all("day" in tokens and "dusk" not in tokens for tokens in drawn.values())
    assert "day" not in WORDS.complete(WORDS.read("a red ball at dusk"), 0).tokens


def test_another_seed_begins_elsewhere() -> None:
    places = {_things(WORDS.complete(WORDS.read(SENTENCE), seed).tokens)[0].x for seed in range(12)}
    assert len(places) > 2


@pytest.mark.parametrize(
    "prompt",
    ["a ball", "a red ball and a cube", "a ball hits a cube", "a green cylinder slides behind a yellow ball",
     "a cube spins on the grass", "a ball bounces and a ring stands still", "the camera pans left a ball rests"],
)  # fmt: skip
def test_places_are_known_for_what_people_write(prompt: str) -> None:
    assert WORDS.notices(prompt, "table") == []
    assert any(t.startswith("column") for t in WORDS.complete(WORDS.read(prompt), 0).tokens)


@pytest.mark.parametrize(
    ("prompt", "nearest"),
    [
        ("a red ball and a blue cube hit each other", "red ball hits blue cube"),
        ("two red balls collide", "red ball hits red ball"),
        ("two red spheres collide", "red ball hits red ball"),
        ("a cylinder enters from the left and hits a ball", "cylinder hits ball"),
        ("on the grass a ball rolls away and a cube", "ball moves back cube still grass"),
    ],
)
def test_a_scene_without_a_plan_is_the_nearest_one_that_has_one(prompt: str, nearest: str) -> None:
    [note] = WORDS.notices(prompt, "table")
    assert f"and draws {nearest!r} instead" in note
    complete = WORDS.complete(WORDS.read(prompt), 11)
    assert any(t.startswith("column") for t in complete.tokens)
    things = [t for t in complete.tokens if t in WORDS.things]
    assert things == [t for t in nearest.split() if t in WORDS.things]


@pytest.mark.parametrize(
    ("prompt", "tokens", "unknown"),
    [
        ("three small cubes", ("small", "cube") * 3, ()),
        ("three red boxes", ("red", "cube") * 3, ()),
        ("marbles and doughnuts", ("ball", "ring"), ()),
        ("a pair of balls that are red", ("red", "ball") * 2, ()),
        ("pan left over a ring", ("pan_left", "ring"), ()),
        ("a camera panning to the right, a ring", ("pan_right", "ring"), ()),
        ("a ball that does not roll", ("ball", "still"), ()),
        ("a ball isn't moving", ("ball", "still"), ()),
        ("a gray cube", ("cube",), ("gray",)),
        ("a gray metal ball on the gray floor", ("metal", "ball", "grey"), ("gray",)),
        ("on grass red ball rolls", ("grass", "red", "ball", "moves"), ()),
        ("a wooden ring", ("ring",), ("wooden",)),
        ("a cube without a ball", ("cube", "ball"), ("without",)),
        ("a cube spins on marble", ("cube", "turns"), ("marble",)),
        ("two balls pass each other", ("ball", "ball", "moves"), ()),
        ("two balls roll towards each other", ("ball", "ball", "moves"), ("each", "other")),
        ("four rings", ("ring",), ("four",)),
    ],
)
def test_counts_pans_denials_and_grounds_as_colours(
    prompt: str, tokens: tuple[str, ...], unknown: tuple[str, ...]
) -> None:
    reading = WORDS.read(prompt)
    assert (reading.tokens, reading.unknown) == (tokens, unknown)
    notes = " ".join(WORDS.notices(prompt, "table"))
    assert all(f"{word!r}" in notes for word in unknown)


def test_a_note_never_proposes_the_word_itself() -> None:
    [note] = WORDS.notices("a gray cube", "table")
    assert note == "the model 'table' does not understand 'gray' here and ignores it"


def test_looks_that_belong_to_no_thing_are_said() -> None:
    assert "ignores red, blue" in WORDS.notices("two balls, one red and one blue", "table")[-1]


@pytest.mark.parametrize("prompt", ["a ball and a ball and a ball and a ball hit a cube", "grass at dusk"])
def test_a_scene_of_no_thing_or_too_many_is_refused(prompt: str) -> None:
    with pytest.raises(RequestError, match="draws 1 to 3"):
        WORDS.notices(prompt, "table")


def test_a_prompt_too_long_to_complete_stays_as_it_is() -> None:
    reading = WORDS.read("a ball " * 30)
    assert WORDS.complete(reading, 0) == reading
    with pytest.raises(RequestError, match="too long"):
        WORDS.read("a ball " * 60)


def test_every_kept_layout_is_in_the_vocabulary_and_has_a_part_for_each_thing() -> None:
    for signature, rows in WORDS.layouts.items():
        for row in rows:
            assert len(row) == signature.split().count("thing") + 1
            assert all(VOCABULARY[i] in TOKENS for part in row for i in part)


def test_layouts_are_drawn_anew_alike_and_hold_for_any_size() -> None:
    made = draw_placements(120, seed=3)
    assert made == draw_placements(120, seed=3) != draw_placements(120, seed=4)
    rows = made["thing still"]
    assert rows and "thing" in made
    for row in rows:
        (place, camera), look = [[VOCABULARY[i] for i in part] for part in row], ("large", "red", "metal", "ball")
        (thing,) = _things((*look, *place, "still"))
        assert camera == []
        assert all(happens(Scene((replace(thing, size=s),), "grey", "day", "alone")) for s in SIZES)


def test_no_layout_token_is_a_word() -> None:
    assert not set(TOKENS) & set(PHRASES)
    assert WORDS.read("column 3 row 2 pan 4").tokens == ()


def test_it_is_plain_data() -> None:
    again = phrase_tokenizer(WORDS.to_dict())
    assert isinstance(again, PlacementTokenizer)
    assert again.complete(again.read(SENTENCE), 5) == WORDS.complete(WORDS.read(SENTENCE), 5)
    with pytest.raises(RequestError, match=r"key 'text\.things' is missing"):
        phrase_tokenizer({k: v for k, v in WORDS.to_dict().items() if k != "things"})
