"""A video is the same alone and beside others, bit for bit, by the kernels of CPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support import cosmos, ivideogpt
from support.tiny import tiny_in
from torch import Tensor

from fastcar_cli.config.tau import Tau
from fastcar_cli.decoding.batch import DecodeSettings
from fastcar_cli.decoding.drafts.drafts import DraftSettings
from fastcar_cli.decoding.engine import Decode, begin
from fastcar_cli.decoding.replay.replay import ReplayRule
from fastcar_cli.decoding.sampling import uniforms
from fastcar_cli.inputs.prompt import Clip, TokenisedClip
from fastcar_cli.kernels import native
from fastcar_cli.models import load
from fastcar_cli.models.sampling import SamplingSettings

pytestmark = pytest.mark.skipif(native.unavailable() is not None, reason="no native kernels")

SETTINGS = DecodeSettings(2, SamplingSettings(cfg=1.0), ReplayRule(Tau((-1.0,))), executor="native")
Made = Callable[[list[int]], Decode]


def assert_alone_as_beside(decode_of: Made, videos: int) -> None:
    """That hidden states, codes and pixels of each video are those of all together; decode_of gets their numbers."""

    def made(numbers: list[int]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        decode = decode_of(numbers)
        with torch.inference_mode():
            hidden = [step.hidden.clone() for step in decode.steps()]
        rows = [decode.prompts.rows_of(video) for video in range(len(numbers))]
        pixels = torch.stack([decode.decode_frame(frame) for frame in range(decode.settings.frames)], 1)
        return [torch.stack([h[r] for h in hidden]) for r in rows], list(decode.codes), list(pixels)

    hidden, codes, pixels = made(list(range(videos)))
    for video in range(videos):
        (own,), (own_codes,), (own_pixels,) = made([video])
        assert torch.equal(own, hidden[video])
        assert torch.equal(own_codes, codes[video]) and torch.equal(own_pixels, pixels[video])


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
@pytest.mark.parametrize("cfg", [1.0, 2.0])
@pytest.mark.parametrize("form", ["float32", "bfloat16", "int8", "int4"])
def test_texts(form: str, cfg: float, kv_dtype: str) -> None:
    """Of different lengths, two of them the same, and those without a text of guidance."""
    texts, blank = [[1, 4, 5, 2, 6], [1, 4, 5, 3, 7, 2, 8, 9, 3, 10], [1, 4, 5, 2, 6], [1, 4]], [1, 3, 3, 2, 5, 1, 8]
    model, noise = tiny_in(form), torch.stack([uniforms(seed, 8, 3) for seed in range(4)])
    settings = replace(SETTINGS, sampling=SamplingSettings(cfg=cfg), kv_dtype=kv_dtype)

    def decode_of(videos: list[int]) -> Decode:
        rows = [texts[v] for v in videos] + [blank] * (len(videos) if cfg > 1 else 0)
        return Decode.of(model, rows, settings, noise[videos])

    assert_alone_as_beside(decode_of, 4)


@pytest.mark.slow
@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("kind", ["actions", "latents", "latents and a text"])
def test_frames(tmp_path: Path, kind: str, dtype: str, kv_dtype: str) -> None:
    """And with actions or vectors of a text, which a model reads beside its tokens."""
    generator, prompts = torch.Generator().manual_seed(0), list[Clip | TokenisedClip]()
    if kind == "actions":
        model = load(ivideogpt.write_model(tmp_path, 1, ivideogpt.ACTIONS), dtype)
        clip = ivideogpt.moving_clip(6)
        prompts += [
            Clip(clip[i:], torch.randn(6 - i, ivideogpt.ACTIONS, generator=generator).numpy()) for i in (0, 2, 1)
        ]
    else:
        source = 64 if "text" in kind else 0
        name = "Cosmos-Predict1-5B-Video2World" if source else "Cosmos-Predict1-4B"
        model = load(cosmos.write_model(tmp_path, name, source), dtype, size=(48, 64))
        for _ in range(3):
            ids = [model.network.spec.codes] * bool(source) + torch.randint(48, (24,), generator=generator).tolist()
            text = torch.randn(20, source, generator=generator).numpy() if source else None
            prompts.append(TokenisedClip(tuple(ids), text=text))
    settings = replace(SETTINGS, kv_dtype=kv_dtype, draft=DraftSettings("off"))
    assert_alone_as_beside(lambda v: begin(model, [prompts[i] for i in v], [7 + i for i in v], settings)[0], 3)
