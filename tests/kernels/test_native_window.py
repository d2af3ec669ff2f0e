"""Passes of several tokens of a row: each token is computed as in a pass of its own, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.native_toys import FORMATS, Toy, random
from torch import Tensor

from fastcar_cli.decoding.kv_cache import packed
from fastcar_cli.kernels import native
from fastcar_cli.kernels.native import DecoderPass

pytestmark = pytest.mark.skipif(native.unavailable() is not None, reason=str(native.unavailable()))

FRAME, FIRST = 20, 45


def tables(tokens: int, ring: int, older: int) -> tuple[Tensor, int]:
    """Where tokens lie, see `DecoderPass`, and how many slots there are: a ring of slots, or all in their order (0).

    older: tokens that have left the ring before the first one; 0: what leaves it is let go.
    """
    i, none = torch.arange(FIRST, FIRST + tokens), torch.zeros(tokens, dtype=torch.int64)
    if ring:
        to = i - FIRST + older if older else none - 1
        columns = [i % ring, none + ring, (i - FRAME) % ring, i % ring, to + 1, to]
    else:
        columns = [i, i + 1, i - FRAME, i, none, none - 1]
    return torch.stack(columns, 1), ring or FIRST + tokens


def random_older(toy: Toy, slots: int) -> dict[str, Tensor]:
    """Tokens in int8, see `DecoderPass`."""
    shape, found = (toy.layers, toy.rows, toy.kv_heads), {}
    for n, part in enumerate(("key", "value")):
        wide = random(*shape, slots, toy.d, seed=200 + n)
        found[f"older_{part}s"], found[f"older_{part}_scales"] = packed(wide)
        found[f"{part}_means"] = random(*shape, toy.d, seed=210 + n)
    return found


def run(toy: Toy, table: Tensor, x: Tensor, window: int, threads: int, masked: bool) -> dict[str, Tensor]:
    """All tokens of x [rows, tokens, width], `window` a pass; everything that passes write."""
    toy.reset()
    rows, tokens = toy.rows, len(table)
    angle = random(tokens, rows, toy.d // 2, seed=5).repeat(1, 1, 2)
    options: dict[str, Any] = {"heads": toy.heads, "kv_heads": toy.kv_heads, "most": window, "threads": threads}
    options |= {"keys": toy.keys, "values": toy.values, "aligned": toy.keys, "outputs": toy.outputs}
    options |= {"table": table, "start": toy.start, "cos": angle.cos(), "sin": angle.sin()}
    older = random_older(toy, int(table[-1, -2])) if table[-1, -2] else {}
    options |= older
    slots = toy.slots + int(table[-1, -2])
    mask = torch.rand(rows, tokens, slots, generator=torch.Generator().manual_seed(7)) < (0.6 if masked else 1)
    mask[:, :, :FRAME] = True
    decoder = DecoderPass(toy.blocks, toy.norm, 1e-6, **options)
    found: dict[str, list[Tensor]] = {"x": [], "scores": [], "replayed": []}
    for first in range(0, tokens, window):
        part = x[:, first : first + window].clone(memory_format=torch.contiguous_format)
        count = part.shape[1]
        shape = (toy.layers, rows * count)
        scores, replayed = torch.zeros(shape), torch.zeros(shape, dtype=torch.bool)
        seen = mask[:, first : first + count].flatten(0, 1).contiguous() if masked else None
        limits = torch.full(shape, 0.1)
        decoder(part, [first] * rows, mask=seen, thresholds=limits, scores=scores, replayed=replayed)
        found["x"].append(part)
        found["scores"].append(scores.view(toy.layers, rows, count))
        found["replayed"].append(replayed.view(toy.layers, rows, count))
    together = {name: torch.cat(parts, -2 if name == "x" else -1) for name, parts in found.items()}
    return together | {"keys": toy.keys, "values": toy.values, "outputs": toy.outputs} | older


@pytest.mark.parametrize("kind", FORMATS)
@settings(max_examples=25, deadline=None)
@given(
    instructions=st.sampled_from(native.instruction_sets() or ["none"]),
    rows=st.integers(1, 3),
    heads=st.sampled_from([(1, 1), (4, 2), (6, 1)]),
    d=st.sampled_from([2, 16, 34, 64]),
    window=st.integers(2, 18),
    ring=st.sampled_from([0, 0, 40, 70]),
    older=st.sampled_from([0, 60, 150]),
    masked=st.booleans(),
    half=st.booleans(),
    threads=st.sampled_from([1, 2]),
)
def test_tokens_of_one_pass_equal_passes_of_one_token(
    kind: str,
    instructions: str,
    rows: int,
    heads: tuple[int, int],
    d: int,
    window: int,
    ring: int,
    older: int,
    masked: bool,
    half: bool,
    threads: int,
) -> None:
    table, slots = tables(2 * window + 3, ring, older)
    cache = torch.bfloat16 if half else torch.float32
    toy = Toy(kind, rows, d=d, heads=heads[0], kv_heads=heads[1], slots=slots, positions=FRAME, cache=cache)
    x = random(rows, len(table), toy.width, seed=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FASTCAR_KERNELS_ISA", instructions)
        alone = {name: part.clone() for name, part in run(toy, table, x, 1, 1, masked).items()}
        together = run(toy, table, x, window, threads, masked)
    assert alone["replayed"].any()
    for name, part in together.items():
        assert torch.equal(part, alone[name]), name


@pytest.mark.parametrize("kind", FORMATS)
@settings(max_examples=6, deadline=None)
@given(
    instructions=st.sampled_from(native.instruction_sets() or ["none"]),
    heads=st.sampled_from([(1, 1), (4, 2)]),
    tokens=st.sampled_from([1, 5, 40, 71]),
    threads=st.sampled_from([1, 2]),
)
def test_keys_and_values_alone_are_those_of_a_whole_pass(
    kind: str, instructions: str, heads: tuple[int, int], tokens: int, threads: int
) -> None:
    table, slots = tables(tokens, 0, 0)
    toy = Toy(kind, 1, d=16, heads=heads[0], kv_heads=heads[1], slots=slots, positions=FRAME)
    angle = random(tokens, 1, toy.d // 2, seed=5).repeat(1, 1, 2)
    options: dict[str, Any] = {"heads": toy.heads, "kv_heads": toy.kv_heads, "most": tokens, "threads": threads}
    options |= {"table": table, "start": toy.start, "cos": angle.cos(), "sin": angle.sin()}
    x, results = random(1, tokens, toy.width, seed=4), list[list[Tensor]]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FASTCAR_KERNELS_ISA", instructions)
        # Alone, in passes of one token; then whole, all tokens in one.
        for keys_only, count in ((True, 1), (False, tokens)):
            toy.reset()
            caches = {name: getattr(toy, name)[:1].contiguous() for name in ("keys", "values", "outputs")}
            decoder = DecoderPass(toy.blocks[:1], None, 1e-6, aligned=caches["keys"], **options, **caches)
            for first in range(0, tokens, count):
                part = x[:, first : first + count].clone()
                decoder(part, [first], keys_only=keys_only)
                assert torch.equal(part, x[:, first : first + count]) == keys_only
            results.append([caches["keys"], caches["values"]])
    for alone, whole in zip(*results, strict=True):
        assert torch.equal(alone, whole)


def test_keys_and_values_alone_need_a_single_block() -> None:
    (table, slots), angle = tables(1, 0, 0), random(1, 1, 16)
    toy = Toy(rows=1, d=16, slots=slots)
    options: dict[str, Any] = {"heads": toy.heads, "kv_heads": toy.kv_heads, "cos": angle.cos(), "sin": angle.sin()}
    options |= {"keys": toy.keys, "values": toy.values, "aligned": toy.keys, "table": table, "start": toy.start}
    decoder = DecoderPass(toy.blocks, None, 1e-6, **options)
    with pytest.raises(ValueError, match="keys_only: the pass has 2 blocks, expected one"):
        decoder(random(1, 1, toy.width), [0], keys_only=True)
