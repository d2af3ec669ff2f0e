"""How the prompts of `table` are read."""

from __future__ import annotations

import json

import pytest

from fastcar_cli.checkpoints.open import open_model
from fastcar_lab.worlds.table.lexicon import PHRASES, table_tokenizer

READINGS = {
    "a large blue metal cylinder slides in front of a large yellow rubber ball":
        "large blue metal cylinder moves in_front_of large yellow rubber ball",
    "a ball rolls in the grass": "ball moves grass",
    "a ball rolls in the evening": "ball moves dusk",
    "a ball slides in daylight": "ball moves day",
    "a ball rolls in": "ball enters",
    "a ball comes in slowly from the left": "ball enters slow from_left",
    "a ball rolls in and hits a cube": "ball enters hits cube",
    "a ball that is red rolls to the left": "red ball moves left",
    "a ball that is red hits a cube which is dark blue and small": "red ball hits blue small cube",
    "the cube is red and a ball is still": "red cube ball still",
}  # fmt: skip


@pytest.mark.parametrize("prompt", READINGS)
def test_a_prompt_is_read_as_people_mean_it(prompt: str) -> None:
    reading = table_tokenizer().read(prompt)
    assert " ".join(reading.tokens) == READINGS[prompt] and not reading.unknown


def test_a_prompt_without_a_word_has_none_unknown() -> None:
    assert table_tokenizer().read(" ,").unknown == ()


@pytest.mark.parametrize("verb", ["rolls", "slides", "moves", "goes", "comes", "passes"])
@pytest.mark.parametrize("token", ["in_front_of", "behind", "grass", "wood", "checker", "dusk", "day"])
def test_every_verb_goes_before_every_place(verb: str, token: str) -> None:
    between = "" if token in ("in_front_of", "behind") else "in the "
    for phrase in PHRASES[token]:
        if not between or not phrase.startswith(("in ", "by ")):
            assert table_tokenizer().read(f"a ball {verb} {between}{phrase}").tokens == ("ball", "moves", token), phrase


@pytest.mark.parametrize(("prompt", "word"), [("four red balls roll", "four"), ("a cube is hit by a ball", "by")])
def test_what_can_not_be_read_is_reported(prompt: str, word: str) -> None:
    assert word in table_tokenizer().read(prompt).unknown


@pytest.mark.parametrize("model", ["table", "table-dense"])
def test_bundled_models_read_as_their_world_does(model: str) -> None:
    assert open_model(model).text == json.loads(json.dumps(table_tokenizer().to_dict()))
