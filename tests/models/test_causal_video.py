"""The causal video tokenizer: nothing looks ahead, pieces give what the whole gives."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.causal_video import TINY, random_tokenizer
from torch import Tensor

from fastcar_cli.models.cosmos.tokenizer import CausalVideoSpec, work_of
from fastcar_cli.models.cosmos.tokenizer_blocks import Past, patched, unpatched
from fastcar_cli.models.fsq import codes_of, ids_of

H, W = 32, 48
LATENTS = 4


def clip(latents: int = LATENTS, videos: int = 1, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.randint(0, 256, (videos, TINY.frames(latents), H // 8, W // 8, 3), generator=generator)
    return blocks.repeat_interleave(8, 2).repeat_interleave(8, 3).to(torch.uint8)


def codes(videos: int = 1, seed: int = 0) -> Tensor:
    return torch.randint(0, TINY.codes, (videos, LATENTS, 2, 3), generator=torch.Generator().manual_seed(seed))


def streamed(ids: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    tokenizer = random_tokenizer()
    tokenizer.decode_pixels_in(dtype)
    past = Past()
    return torch.cat([tokenizer.decode(latent, past) for latent in ids.unbind(1)], 1)


@pytest.mark.parametrize("sizes", [(1, 8, 8, 8), (9, 16), (17, 8)])
def test_latents_of_a_clip_in_pieces_are_those_of_the_whole(sizes: tuple[int, ...]) -> None:
    tokenizer, past = random_tokenizer(), Past()
    whole = tokenizer.latents(clip(), Past())
    pieces = torch.cat([tokenizer.latents(piece, past) for piece in clip().split(sizes, 1)], 1)
    assert whole.shape == (1, LATENTS, H // TINY.space, W // TINY.space, len(TINY.levels))
    assert (whole - pieces).abs().max() <= 1e-5 * whole.abs().max()


def test_latents_do_not_see_later_frames() -> None:
    tokenizer, other = random_tokenizer(), clip()
    other[:, TINY.frames(2) :] = clip(seed=1)[:, TINY.frames(2) :]
    a, b = (tokenizer.latents(frames, Past()) for frames in (clip(), other))
    assert torch.equal(a[:, :2], b[:, :2])
    assert not torch.equal(a[:, 2], b[:, 2])


def test_ids_of_the_first_frames_are_those_in_a_longer_clip() -> None:
    tokenizer = random_tokenizer()
    ids = tokenizer.encode(clip(videos=2))
    assert len(ids.unique()) > 8
    for latents in (1, 2, 3):
        assert torch.equal(tokenizer.encode(clip(videos=2)[:, : TINY.frames(latents)]), ids[:, :latents])


def test_frames_as_floats_have_the_ids_of_their_bytes() -> None:
    tokenizer = random_tokenizer()
    assert torch.equal(tokenizer.encode(clip() / 255), tokenizer.encode(clip()))


def test_frames_of_latents_one_at_a_time_are_those_of_all_at_once() -> None:
    whole = random_tokenizer().pixels(codes(2), Past()).div(2).add(0.5).clamp(0, 1)
    frames = streamed(codes(2)) / 255
    assert frames.shape == (2, TINY.frames(LATENTS), H, W, 3)
    assert frames.std() > 0.05
    assert (frames - whole).abs().max() <= 3e-6


def test_frames_do_not_see_later_latents() -> None:
    other = codes()
    other[:, 2:] = codes(seed=1)[:, 2:]
    a, b = streamed(codes()), streamed(other)
    assert torch.equal(a[:, : TINY.frames(2)], b[:, : TINY.frames(2)])
    assert not torch.equal(a[:, TINY.frames(2) :], b[:, TINY.frames(2) :])


def test_a_video_is_the_same_alone_and_among_others() -> None:
    frames = streamed(codes(2))
    assert (frames[1:] - streamed(codes(2)[1:])).abs().max() <= 1e-3


@pytest.mark.slow
def test_the_decoder_in_bfloat16_gives_float32_frames_near_those_of_float32() -> None:
    half = streamed(codes(), torch.bfloat16)
    assert half.dtype == torch.float32
    assert (half - streamed(codes())).abs().mean() <= 4


def test_progress_ends_at_the_total_of_a_clip() -> None:
    tokenizer, seen = random_tokenizer(), list[tuple[int, int]]()
    tokenizer.encode(clip(videos=2), lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert seen[-1][0] == seen[-1][1]


def test_other_shapes_work_without_attention_and_with_other_patches() -> None:
    spec = replace(TINY, patch=2, encoder_attention=False, decoder_attention=False)
    assert (spec.space, spec.time) == (8, 4)
    tokenizer = random_tokenizer(spec)
    ids = tokenizer.encode(clip()[:, :9])
    assert ids.shape == (1, 3, H // 8, W // 8)
    past = Past()
    assert [tokenizer.decode(latent, past).shape[1] for latent in ids.unbind(1)] == [1, 4, 4]


def test_specification_survives_json() -> None:
    assert CausalVideoSpec(**json.loads(json.dumps(asdict(TINY)))) == TINY


@pytest.mark.parametrize("changes", [{"patch": 3}, {"levels": (4, 1)}, {"levels": ()}, {"down": ()}])
def test_sizes_that_no_tokenizer_has_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="patch|levels|level"):
        replace(TINY, **changes)


@given(st.lists(st.integers(2, 9), min_size=1, max_size=6), st.integers(0, 10**6))
def test_every_id_comes_back_from_the_latent_in_the_middle_of_its_place(levels: list[int], number: int) -> None:
    ids = torch.tensor([number % torch.tensor(levels).prod().item()])
    sizes = torch.tensor(levels)
    half, offset = (sizes - 1) * 1.001 / 2, (1 - sizes % 2) / 2
    middle = codes_of(ids, levels) * (sizes // 2) + offset
    z = torch.atanh(middle / half) - torch.atanh(offset / half)
    assert torch.equal(ids_of(z, levels), ids)


def test_the_first_dimension_counts_fastest() -> None:
    codes = codes_of(torch.tensor([0, 1, 4, 12]), (4, 3, 5))
    assert codes.tolist() == [[-1, -1, -1], [-0.5, -1, -1], [-1, 0, -1], [-1, -1, -0.5]]


@given(st.integers(0, 2), st.integers(1, 2), st.integers(1, 3))
def test_pixels_come_back_from_wavelets(steps: int, frames: int, rows: int) -> None:
    side = 2**steps
    x = torch.randn(2, frames * side, rows * side, 2 * side, 3)
    bands = patched(x, steps)
    assert bands.shape == (2, frames, rows, 2, 3 * side**3)
    assert (unpatched(bands, steps) - x).abs().max() <= 1e-5


@pytest.mark.parametrize("encode", [True, False])
@pytest.mark.parametrize("spec", [TINY, replace(TINY, decoder_attention=False, encoder_attention=False)])
def test_work_is_what_the_parts_count(spec: CausalVideoSpec, encode: bool) -> None:
    tokenizer, past, work = random_tokenizer(spec), Past(), work_of(spec, 2, 3, encode=encode)
    for begin, end, done in ((0, 1, work.first), (1, 9, work.first + work.later)):
        if encode:
            tokenizer.latents(clip(2)[:, begin:end], past)
        else:
            tokenizer.pixels(codes()[:, begin : begin + 1], past)
        assert past.work == done
    assert past.held == work.held


def test_a_stream_keeps_no_more_after_many_latents_but_keys_and_values() -> None:
    tokenizer, past, kept = random_tokenizer(replace(TINY, decoder_attention=False)), Past(), list[int]()
    for latent in codes().split(1, 1):
        tokenizer.pixels(latent, past)
        kept.append(past.held)
    assert set(kept) == {work_of(tokenizer.spec, 2, 3, encode=False).held}
