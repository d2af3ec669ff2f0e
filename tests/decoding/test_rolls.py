"""Contexts that roll: a video after a roll is that of a new decode of the last frames, whatever decodes it, and how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import cosmos, ivideogpt
from support import given as given_ids
from support.tiny import tiny_in
from torch import Tensor

from fastcar_cli.config.tau import Tau
from fastcar_cli.decoding.batch import DecodeSettings
from fastcar_cli.decoding.drafts.drafts import DraftSettings
from fastcar_cli.decoding.engine import Decode, overlap
from fastcar_cli.decoding.replay.controller import Target
from fastcar_cli.decoding.replay.replay import ReplayRule
from fastcar_cli.decoding.sampling import uniforms
from fastcar_cli.kernels import native
from fastcar_cli.models import load
from fastcar_cli.models.network import Network
from fastcar_cli.models.sampling import SamplingSettings

INF = float("inf")
EXECUTORS = ("torch", "native") if native.unavailable() is None else ("torch",)
TAU = ReplayRule(Tau((-0.2,)))
SETTINGS: dict[str, dict[str, Any]] = {
    "dense": {},
    "tau": {"rule": TAU, "keep_tas": True},
    "all": {"rule": ReplayRule(Tau((-INF,)))},
    "ages": {"rule": ReplayRule(Tau((-INF,)), max_age=1)},
    "window": {"rule": TAU, "window": 14, "sinks": 2},
    "int8": {"rule": TAU, "kv_dtype": "int8"},
    "int8, window": {"rule": TAU, "kv_dtype": "int8", "window": 20, "sinks": 2},
}


@dataclass(frozen=True)
class Toy:
    """Videos of a tiny model: their prompts, and the conditions of each."""

    network: Network
    rows: tuple[tuple[int, ...], ...]
    conditions: Tensor | None = None
    blank: tuple[int, ...] = ()
    kind: str = ""

    def rolled(self, prompts: Tensor, codes: Tensor) -> Tensor:
        """The prompts of the context after these codes [P, T*N], where prompts hold frames."""
        if self.kind in given_ids.KINDS:
            return given_ids.rolled_by_hand(self.kind, prompts, codes)
        layout = self.network.spec.layout
        seen = torch.cat([prompts, codes], 1)
        return torch.cat([prompts[:, : layout.prefix], seen[:, -layout.prompt_frames * layout.stride :]], 1)

    def decode(
        self, asked: DecodeSettings, videos: list[int], cfg: float = 1.0, ids: Tensor | None = None, begin: int = 0
    ) -> Decode:
        """A decode of some of the videos, from other prompts and later random numbers and conditions if asked."""
        size, depth = self.network.spec.tokens_per_frame, self.network.spec.frame_spec.depth
        rows = [list(self.rows[v]) for v in videos] if ids is None else ids.tolist()
        rows += [list(self.blank) for _ in videos if cfg != 1.0]
        numbers = torch.stack([uniforms(v, begin + asked.frames * size, depth)[begin:] for v in videos])
        sampling = SamplingSettings(cfg=cfg, temperature=0.6, top_k=3)
        conditions = None
        if self.conditions is not None:
            conditions = self.conditions[videos]
            conditions = conditions[:, begin // size :] if self.network.spec.conditions else conditions
        return Decode.of(self.network, rows, replace(asked, sampling=sampling), numbers, conditions=conditions)


@cache
def _toy(kind: str, folder: Path) -> Toy:
    generator = torch.Generator().manual_seed(0)
    if kind == "text":
        return Toy(tiny_in("float32"), ((1, 4, 5, 2), (1, 6, 7, 8, 2), (1, 2)), blank=(1, 2))
    if kind == "actions":
        network = load(ivideogpt.write_model(folder / kind, 1, ivideogpt.ACTIONS)).network
        frames = torch.from_numpy(np.stack([ivideogpt.moving_clip(3)[i : i + 1] for i in range(3)]))
        ids = network.encode(frames)[:, : network.spec.layout.prompt]
        return Toy(network, tuple(map(tuple, ids.tolist())), torch.randn(3, 60, ivideogpt.ACTIONS, generator=generator))
    if kind in given_ids.KINDS:
        rows = given_ids.given_prompts(kind, 3).tolist()
        actions = torch.randint(2, (3, 60, given_ids.ACTIONS), generator=generator).float()
        return Toy(given_ids.given_network(kind), tuple(map(tuple, rows)), actions, kind=kind)
    source = 64 if "vectors" in kind else 0
    name = "Cosmos-Predict1-5B-Video2World" if source else "Cosmos-Predict1-4B"
    (folder / kind).mkdir()
    network = load(cosmos.write_model(folder / kind, name, source), "float32", size=(48, 64)).network
    prefix = [network.spec.codes] * bool(source)
    rows = [(*prefix, *torch.randint(48, (24,), generator=generator).tolist()) for _ in range(3)]
    return Toy(network, tuple(rows), torch.randn(3, 20, source, generator=generator) if source else None)


@pytest.fixture(scope="session")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Toy]:
    folder = tmp_path_factory.mktemp("rolls")
    return lambda kind: _toy(kind, folder)


KINDS = ("text", "actions", "latents", "latents and vectors", *given_ids.KINDS)


def assert_as_new(toy: Toy, rolled: Decode, videos: list[int], cfg: float) -> None:
    """That each context of a decode, after the roll, is a new decode from the last frames, or with their codes."""
    asked, layout, size = rolled.settings, toy.network.spec.layout, rolled.frame
    assert asked.segment is not None
    end, tokens, rolls = asked.segment * size, rolled.draws.tokens, 0
    first = Decode.run(toy.decode(replace(asked, frames=asked.segment, segment=None), videos, cfg))
    assert torch.equal(first.codes, rolled.codes[:, :end])
    prompts = torch.tensor([toy.rows[v] for v in videos]) if layout.prompt_frames else torch.empty(0)
    while end < tokens:
        begin = end if layout.prompt_frames else end - overlap(asked) * size
        stop = min(tokens, begin + asked.segment * size)
        ids = None
        if layout.prompt_frames:
            ids = toy.rolled(prompts, rolled.codes[:, :begin, 0])
        new = toy.decode(replace(asked, frames=(stop - begin) // size, segment=None), videos, cfg, ids, begin)
        if begin < end:
            new.draws.give(rolled.codes[:, begin:end])
        new.run()
        assert torch.equal(new.codes, rolled.codes[:, begin:stop])
        if new.replay is not None and rolled.replay is not None:
            after = slice(max(begin, end - 1), stop - 1)
            own = slice(after.start - begin, after.stop - begin)
            assert torch.equal(new.replay.replayed[..., own], rolled.replay.replayed[..., after])
            if new.replay.tas is not None and rolled.replay.tas is not None:
                assert torch.equal(new.replay.tas[..., own].nan_to_num(7), rolled.replay.tas[..., after].nan_to_num(7))
        end, rolls = stop, rolls + 1
    assert rolled.rolls == rolls > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_roll_is_a_new_decode(toys: Callable[[str], Toy], kind: str, executor: str, name: str) -> None:
    toy = toys(kind)
    for videos, cfg in (([0], 1.0), ([2, 0, 1], 2.0 if toy.network.spec.layout.guided else 1.0)):
        segment = 2 if toy.network.spec.layout.prompt_frames else 5
        asked = DecodeSettings(3 * segment + 1, segment=segment, executor=executor, **SETTINGS[name])
        assert_as_new(toy, toy.decode(asked, videos, cfg).run(), videos, cfg)


@pytest.mark.slow
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None)
@given(
    name=st.sampled_from(sorted(SETTINGS)),
    segment=st.integers(1, 6),
    frames=st.integers(1, 14),
    draft=st.sampled_from(["frame", "jacobi", "auto"]),
    window=st.integers(2, 4),
    videos=st.sampled_from([[0], [0, 1], [2, 1, 0]]),
    cfg=st.sampled_from([1.0, 2.0]),
    ratio=st.sampled_from([None, None, 0.2]),
)
def test_drafts_and_neighbours_change_no_code(
    toys: Callable[[str], Toy], kind: str, executor: str, name: str, segment: int, frames: int, draft: str,
    window: int, videos: list[int], cfg: float, ratio: float | None,
) -> None:  # fmt: skip
    toy = toys(kind)
    layout = toy.network.spec.layout
    segment, cfg = segment + (not layout.prompt_frames), cfg if layout.guided else 1.0
    asked = DecodeSettings(frames, segment=segment, executor=executor, **SETTINGS[name])
    if ratio is not None and frames > 3:
        asked = replace(asked, rule=ReplayRule(target=Target(ratio)))
    drafted = toy.decode(replace(asked, draft=DraftSettings(draft, window)), videos, cfg).run()
    plain = toy.decode(asked, videos, cfg).run()
    assert torch.equal(drafted.codes, plain.codes) and drafted.rolls == plain.rolls
    accepted = [p.accepted[0] for p in drafted.drafter.passes]
    assert sum(accepted) == frames * drafted.frame
    if plain.replay is not None and drafted.replay is not None:
        assert torch.equal(drafted.replay.replayed, plain.replay.replayed)
    if executor == "native":
        for i, video in enumerate(videos):
            assert torch.equal(toy.decode(asked, [video], cfg).run().codes[0], plain.codes[i])


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
@pytest.mark.parametrize("kind", KINDS)
def test_memory_of_many_contexts_is_that_of_one(toys: Callable[[str], Toy], kind: str, kv_dtype: str) -> None:
    asked = DecodeSettings(3, segment=3, kv_dtype=kv_dtype, draft=DraftSettings("jacobi", 4), rule=TAU)
    one, ten = (toys(kind).decode(replace(asked, frames=frames), [0]) for frames in (3, 30))
    assert one.cache.nbytes == ten.run().cache.nbytes and ten.rolls > 8
    assert one.replay is not None and ten.replay is not None and one.replay.nbytes == ten.replay.nbytes


@pytest.mark.parametrize("kind", KINDS)
def test_progress_and_pictures(toys: Callable[[str], Toy], kind: str) -> None:
    """Positions come once, in their order; pictures are those of the codes, beginning with the video's own prompt."""
    toy = toys(kind)
    asked = DecodeSettings(7, segment=2, executor="torch")
    decode, seen = toy.decode(asked, [0]), list[int]()
    prompts: list[int] = []
    decode.observers.on_prefill = lambda done, total: prompts.append(done)
    for step in decode.steps():
        assert decode.done == step.index + 1
        seen.append(step.index)
    assert seen == list(range(7 * decode.frame)) and decode.rolls
    assert prompts == list(range(1, len(toy.network.llm.blocks) + 1))
    shown = toy.network.frame_decoder(torch.tensor([toy.rows[0]]))
    with torch.inference_mode():
        for found, wanted in ((decode.context_frames(), shown.context()),):
            assert found is wanted is None or torch.equal(found, wanted)  # type: ignore[arg-type]
        for frame in range(7):
            codes = decode.codes[:, frame * decode.frame : (frame + 1) * decode.frame]
            assert torch.equal(decode.decode_frame(frame), shown.frame(codes))
