"""Parity with the released Cosmos tokenizer on recorded data (not part of the project: skipped where absent)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.causal_video import loaded
from support.paths import GOLDEN_LATENTS as GOLDEN
from torch import Tensor

from fastcar_cli.models.cosmos.tokenizer import CausalVideoTokenizer
from fastcar_cli.models.cosmos.tokenizer_blocks import Past, patched
from fastcar_cli.models.fsq import bounded, codes_of, ids_of
from fastcar_cli.weights.tensors import Component, StoredShapes, Weights

pytestmark = pytest.mark.skipif(not GOLDEN.is_dir(), reason="no recorded data")

MODELS = ("base", "yarn", "text")
REAL_LEVELS = (8, 8, 8, 5, 5, 5)


@cache
def record() -> dict[str, Any]:
    return json.loads((GOLDEN / "golden.json").read_text())


@cache
def tensors() -> dict[str, Tensor]:
    return load_file(GOLDEN / "golden.safetensors")


@cache
def tokenizer() -> CausalVideoTokenizer:
    return loaded(next((GOLDEN / "checkpoint").glob("Cosmos-Token*")))


def ids_for(model: str) -> Tensor:
    about = record()["models"][model]
    return tensors()[f"{model}/ids"][about["lead"] :].long().view(1, *about["latent_shape"])


@contextmanager
def watched(maps: dict[str, str]) -> Iterator[Callable[[str], Tensor]]:
    """What modules give, put together over the pieces of a video: [P, T, H, W, C] by the names in `maps`."""
    seen: dict[str, list[Tensor]] = {name: [] for name in maps}
    modules = dict(tokenizer().named_modules())
    hooks = [
        modules[path].register_forward_hook(lambda _m, _a, out, name=name: seen[name].append(out.clone()))
        for name, path in maps.items()
    ]
    try:
        yield lambda name: torch.cat(seen[name], 1)
    finally:
        for hook in hooks:
            hook.remove()


def thinned(maps: Tensor) -> Tensor:
    """As recorded: channels 0 .. 7, every second row and column, [C, T, H, W]."""
    return maps[0].permute(3, 0, 1, 2)[:8, :, ::2, ::2]


def assert_near(given: Tensor, name: str, most: float) -> None:
    wanted = tensors()[name].float()
    assert given.shape == wanted.shape
    assert (given - wanted).abs().max() <= most


@pytest.mark.parametrize("model", MODELS)
def test_latents_and_ids_are_those_recorded(model: str) -> None:
    clip = tensors()[f"{model}/clip"][None]
    latents = tokenizer().latents(clip, Past())
    assert_near(latents[0].permute(3, 0, 1, 2), f"{model}/encode/latent", 1e-3)
    assert torch.equal(ids_of(latents, tokenizer().spec.levels), ids_for(model))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("latents", [1, 2, 5])
def test_ids_of_the_first_frames_are_those_recorded_for_all(model: str, latents: int) -> None:
    clip = tensors()[f"{model}/clip"][None, : tokenizer().spec.frames(latents)]
    assert torch.equal(tokenizer().encode(clip), ids_for(model)[:, :latents])


@pytest.mark.parametrize("model", MODELS)
def test_maps_of_the_encoder_are_those_recorded(model: str) -> None:
    names = {
        "conv_in": "encoder.conv_in",
        "down0": "encoder.down.0.downsample",
        "down1": "encoder.down.1.downsample",
        "mid_attn": "encoder.mid.attn_1.1",
    }
    frames = tensors()[f"{model}/clip"][None, :9]
    with watched(names) as seen:
        tokenizer().encode(frames)
    for name in names:
        assert_near(thinned(seen(name)), f"{model}/encode/{name}", 1e-3)
    pixels = frames[:, [0, 0, 0, *range(9)]] / 255 * 2 - 1
    assert_near(thinned(patched(pixels, 2)), f"{model}/encode/patched", 1e-3)


@pytest.mark.parametrize("model", MODELS)
def test_maps_and_frames_of_the_decoder_are_those_recorded(model: str) -> None:
    names = {
        "post_quant": "post_quant_conv",
        "conv_in": "decoder.conv_in",
        "mid": "decoder.mid.block_2",
        "up2": "decoder.up.2.upsample.conv3",
        "up1": "decoder.up.1.upsample.conv3",
        "conv_out": "decoder.conv_out",
    }
    past = Past()
    with watched(names) as seen:
        frames = torch.cat([tokenizer().decode(latent, past) for latent in ids_for(model).unbind(1)], 1)
    for name in names:
        assert_near(thinned(seen(name)), f"{model}/decode/{name}", 1e-3)
    indices = record()["models"][model]["frame_indices"]
    recorded = tensors()[f"{model}/decode/frames"].float().clamp(0, 1)
    assert (frames[0, indices] / 255 - recorded).abs().max() <= 2e-3
    off = (frames[0, indices].to(torch.uint8).int() - tensors()[f"{model}/decode/frames_u8"].int()).abs()
    assert off.max() <= 1
    assert (off > 0).float().mean() <= 0.002


@pytest.mark.parametrize("model", MODELS)
def test_one_latent_at_a_time_gives_what_all_at_once_give(model: str) -> None:
    past, ids = Past(), ids_for(model)
    frames = torch.cat([tokenizer().decode(latent, past) for latent in ids.unbind(1)], 1)
    whole = tokenizer().pixels(ids, Past()).div(2).add(0.5).clamp(0, 1)
    assert (frames / 255 - whole).abs().max() <= 3e-6


def test_quantiser_is_the_released_one_at_the_real_levels() -> None:
    g = tensors()
    z = g["fsq/z"].permute(0, 2, 3, 4, 1)
    assert (bounded(z, REAL_LEVELS) - g["fsq/bound"].permute(0, 2, 3, 4, 1)).abs().max() <= 1e-6
    assert torch.equal(ids_of(z, REAL_LEVELS), g["fsq/ids"].long().view(z.shape[:-1]))
    assert torch.equal(codes_of(ids_of(z, REAL_LEVELS), REAL_LEVELS), g["fsq/codes"].permute(0, 2, 3, 4, 1))
    assert torch.equal(codes_of(g["fsq/edge_ids"].long(), REAL_LEVELS), g["fsq/edge_codes"])


def test_half_precision_and_other_strides_are_read_as_recorded() -> None:
    file = GOLDEN / "checkpoint" / "odd" / "encoder.jit"
    keys = record()["odd_encoder"]
    assert {k: list(s) for k, s in StoredShapes(file).items()} == {k: about["shape"] for k, about in keys.items()}
    floats = {k: k for k, about in keys.items() if not about["dtype"].startswith("int")}
    like = {k: torch.empty(keys[k]["shape"], device="meta") for k in floats}
    weights = Weights([Component(file.parent, floats, lambda key: True, (file,))], like)
    for key in floats:
        tensor = weights.read(key)
        assert str(tensor.dtype).removeprefix("torch.") == keys[key]["dtype"]
        flat = tensor.double().flatten()
        places = torch.arange(1, len(flat) + 1, dtype=torch.float64) / len(flat)
        assert flat.sum().item() == pytest.approx(keys[key]["sum"], abs=1e-6)
        assert (flat * places).sum().item() == pytest.approx(keys[key]["weighted"], abs=1e-6)
