"""The world and its analyser: judged on rendered truth and on videos that are wrong on purpose."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastcar_cli.inputs.worlds.phrases import PhraseTokenizer
from fastcar_lab.training.tokenizer import quantize, to_patches
from fastcar_lab.worlds import shares
from fastcar_lab.worlds.mini.analyser import analyse, judge, wanted_of
from fastcar_lab.worlds.mini.captions import caption
from fastcar_lab.worlds.mini.hyperparameters import mini_tokenizer
from fastcar_lab.worlds.mini.patches import build_dictionary
from fastcar_lab.worlds.mini.render import background, coverage, image, place, render, template
from fastcar_lab.worlds.mini.scene import (
    ATTRIBUTES,
    COLORS,
    MOTIONS,
    Pose,
    Scene,
    combinations,
    poses,
    scenes_of,
    split_combinations,
)

EVERY = list(combinations())
Video = np.ndarray


def _scenes(count: int, seed: int) -> list[Scene]:
    rng = random.Random(seed)
    return [rng.choice(scenes_of(rng.choice(EVERY))) for _ in range(count)]


def test_the_world_is_as_large_as_it_says() -> None:
    assert [len(v) for v in ATTRIBUTES.values()] == [2, 7, 6, 8, 6]
    assert "car" in ATTRIBUTES["shape"]


def test_objects_stay_inside_and_on_the_grid() -> None:
    for motion in MOTIONS:
        for size in ATTRIBUTES["size"]:
            for scene in scenes_of((size, "red", "box", motion, "sky")):
                for pose in poses(scene):
                    assert pose.half <= min(pose.x, pose.y) <= max(pose.x, pose.y) <= 64 - pose.half
                    assert pose.x % 4 == 0
                    assert pose.y % 4 == 0


def test_edges_are_antialiased() -> None:
    alpha = template("ball", 12).alpha
    assert ((alpha > 0.05) & (alpha < 0.95)).sum() > 20


def test_backgrounds_repeat_with_the_patch() -> None:
    for name in ATTRIBUTES["background"]:
        b = background(name)
        assert np.array_equal(b[:8, :8], b[40:48, 16:24])


def test_split_is_disjoint_complete_and_stable() -> None:
    trained, held_out = split_combinations()
    assert sorted(trained + held_out) == sorted(EVERY)
    assert split_combinations() == (trained, held_out)
    for part in (trained, held_out):
        for i, values in enumerate(ATTRIBUTES.values()):
            assert {c[i] for c in part} == set(values)


def test_coverage_is_what_render_covers() -> None:
    scene = scenes_of(("big", "red", "star", "left", "sky"))[0]
    pose = poses(scene)[2]
    changed = np.abs(image(scene, pose) - background("sky")).max(-1) > 1e-3
    assert np.array_equal(changed, coverage(scene, pose) > 1e-3)


@pytest.mark.slow
def test_dictionary_codes_are_the_nearest_codes() -> None:
    dictionary = build_dictionary(640, 64)
    codebooks = np.where(dictionary.used[..., None], dictionary.vectors, 1e3)
    import torch

    scene = scenes_of(("small", "blue", "car", "left", "road"))[0]
    codes = dictionary.codes(scene, poses(scene)[3]).astype(np.int64)
    latents = torch.from_numpy(codebooks[0][codes[:, 0]] + codebooks[1][codes[:, 1]])
    assert np.array_equal(quantize(latents, torch.from_numpy(codebooks)).numpy(), codes)


@pytest.mark.slow
def test_a_patch_that_stays_keeps_its_codes() -> None:
    dictionary = build_dictionary(640, 64)
    scene = scenes_of(("big", "green", "boat", "right", "sea"))[1]
    import torch

    a, b = (image(scene, p) for p in poses(scene)[:2])
    same = np.all(to_patches(torch.from_numpy(a)).numpy() == to_patches(torch.from_numpy(b)).numpy(), -1)
    codes = [dictionary.codes(scene, p) for p in poses(scene)[:2]]
    assert np.array_equal(same, (codes[0] == codes[1]).all(-1))


@pytest.mark.slow
def test_analyser_is_right_on_rendered_truth() -> None:
    right = shares(judge(analyse(render(s)), wanted_of(s)) for s in _scenes(60, 11))
    assert min(right.values()) >= 0.99, right


@pytest.mark.long
@pytest.mark.slow
def test_analyser_is_right_on_every_combination() -> None:
    rng = random.Random(0)
    scenes = [rng.choice(scenes_of(c)) for c in EVERY]
    right = shares(judge(analyse(render(s)), wanted_of(s)) for s in scenes)
    assert min(right.values()) >= 0.99, right


def test_analyser_takes_bytes_and_larger_frames() -> None:
    scene = _scenes(1, 3)[0]
    video = (render(scene) * 255).round().astype(np.uint8)
    large = video.repeat(4, 1).repeat(4, 2)
    assert analyse(video) == analyse(large)
    assert judge(analyse(video), wanted_of(scene))["all"]


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("attribute", list(ATTRIBUTES))
def test_each_wrong_attribute_is_caught_and_named(attribute: str, count: int) -> None:
    rng = random.Random(4)
    for scene in _scenes(count, 5):
        for value in ATTRIBUTES[attribute]:
            if value == getattr(scene, attribute):
                continue
            changed: dict[str, Any] = {attribute: value}
            other = replace(scene, **changed)
            other = replace(other, start=rng.choice(scenes_of(other.combination)).start)
            right = judge(analyse(render(other)), wanted_of(scene))
            assert not right["all"]
            assert [k for k, ok in right.items() if not ok] == [attribute, "all"]


def _moving(seed: int) -> Scene:
    rng = random.Random(seed)
    return rng.choice(
        scenes_of((rng.choice(["small", "big"]), "blue", rng.choice(["ball", "car", "star"]), "right", "sand"))
    )


def _halves(video: Video, other: Video) -> Video:
    return np.concatenate([video[:4], other[4:]])


WRONG: dict[str, tuple[Callable[[Scene], Video], str]] = {
    "empty scene": (lambda s: np.stack([background(s.background)] * 8), "persists"),
    "object gone in some frames": (
        lambda s: np.stack([background(s.background) if t in (3, 5) else f for t, f in enumerate(render(s))]),
        "persists",
    ),
    "two objects": (
        lambda s: np.stack([place(f, "ball", COLORS["red"], Pose(54, 56, 6)) for f in render(s)]),
        "persists",
    ),
    "colour changes": (lambda s: _halves(render(s), render(replace(s, color="red"))), "persists"),
    "shape changes": (lambda s: _halves(render(s), render(replace(s, shape="triangle"))), "persists"),
    "frozen": (lambda s: np.stack([render(s)[0]] * 8), "motion"),
    "reversed": (lambda s: render(s)[::-1], "motion"),
    "frames shuffled": (lambda s: render(s)[[0, 5, 2, 7, 1, 6, 3, 4]], "motion"),
    "noise": (lambda s: np.random.default_rng(0).random((8, 64, 64, 3)), "background"),
    "one colour": (lambda s: np.full((8, 64, 64, 3), 0.4), "background"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", WRONG)
def test_each_kind_of_wrong_video_is_caught(kind: str) -> None:
    make, broken = WRONG[kind]
    for seed in range(4):
        scene = replace(_moving(seed), start=(16, 24))
        verdict = analyse(make(scene))
        right = judge(verdict, wanted_of(scene))
        assert not right[broken], verdict
        assert not right["all"]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_every_caption_names_its_scene_and_nothing_else(seed: int) -> None:
    rng = random.Random(seed)
    scene = rng.choice(scenes_of(rng.choice(EVERY)))
    reading = mini_tokenizer().read(caption(scene, rng))
    assert reading.unknown == ()
    assert set(reading.tokens) == set(scene.combination)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=80))
def test_any_text_is_read(text: str) -> None:
    from fastcar_cli.errors import RequestError

    tokenizer: PhraseTokenizer = mini_tokenizer()
    try:
        reading = tokenizer.read(text)
    except RequestError:
        return
    assert len(reading.ids) == tokenizer.length


def test_ordinary_wording() -> None:
    read = mini_tokenizer().read
    assert read("a small blue car drives left across the grass").tokens == ("small", "blue", "car", "left", "grass")
    assert read("A big RED ball, bouncing up and down on the beach!").tokens == (
        "big",
        "red",
        "ball",
        "bouncing",
        "sand",
    )
    assert read("the tiny yacht sails down the road").tokens == ("small", "boat", "road")
    assert read("a purple elefant").unknown == ("elefant",)


def test_contradictions_are_found() -> None:
    tokenizer = mini_tokenizer()
    assert [n.rpartition("; ")[2] for n in tokenizer.notices("a red ball and a blue box", "mini")] == [
        "the prompt names red, blue",
        "the prompt names ball, box",
    ]
    assert tokenizer.notices("a small red ball on the grass", "mini") == []


def test_what_a_prompt_leaves_open_is_drawn_from_the_seed() -> None:
    tokenizer = mini_tokenizer()
    reading = tokenizer.read("a red ball rolling to the right")
    done = tokenizer.complete(reading, 5)
    assert done == tokenizer.complete(reading, 5)
    assert len({tokenizer.complete(reading, s).drawn for s in range(40)}) > 6
    assert (done.tokens[1:4], len(done.drawn)) == (("red", "ball", "right"), 2)
    assert done.tokens[0] in ATTRIBUTES["size"]
    assert done.tokens[4] in ATTRIBUTES["background"]
    assert len(done.ids) == tokenizer.length
    whole = tokenizer.read("a small red ball rolling to the right on the grass")
    assert tokenizer.complete(whole, 5) == whole


def test_unknown_words_have_near_ones() -> None:
    assert "similar known words: triangle" in mini_tokenizer().notices("a red triange", "mini")[0]
    [duck, thing] = mini_tokenizer().notices("a yellow duck on the sea", "mini")
    assert duck.endswith("does not know 'duck' and ignores it")
    assert thing == "the prompt names none of ball, box, triangle, star, car, boat; the seed chooses what 'mini' draws"
    assert not mini_tokenizer().notices("yellow, on the sea", "mini")
    assert mini_tokenizer().read("big purple triangles at night").tokens == ("big", "purple", "triangle", "night")
