"""Compiled kernels and the int8 format against the plain torch path (float32 parity: test_engine)."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st

from fastcar_cli.decoding.compiled import check_compiled
from fastcar_cli.decoding.engine import Decode, DecodeSettings
from fastcar_cli.decoding.sampling import SamplingSettings
from fastcar_cli.errors import RequestError
from fastcar_cli.models.int8 import Int8Linear, is_matrix, quantize, quantized, use_int8
from fastcar_cli.models.video_model import VideoModel

PROMPTS = [[1, 4, 5, 2], [1, 6, 7, 8, 2], [1, 2], [1, 2]]


def _int8(model: VideoModel) -> VideoModel:
    weights = {k: v for name, tensor in model.state_dict().items() for k, v in quantized(name, tensor).items()}
    use_int8(model)
    model.load_state_dict(weights, assign=True)
    return model.eval().requires_grad_(False)


def _decode(model: VideoModel, kernels: str, prompts=PROMPTS, cfg: float = 2.0, frames: int = 4, **changes):  # type: ignore[no-untyped-def]
    videos = len(prompts) // 2 if cfg != 1 else len(prompts)
    codes = torch.randint(0, 9, (videos, frames * 4, 3), generator=torch.Generator().manual_seed(3))
    options = DecodeSettings(frames, SamplingSettings(cfg=cfg), keep_tas=True, kernels=kernels, **changes)
    decode = Decode(model, prompts, options, torch.zeros(codes.shape))
    return decode, torch.stack([s.hidden.float() for s in decode.steps(codes)])


@pytest.mark.parametrize("changes", [{}, {"taus": (0.1, None, -0.3)}, {"window": 6, "sinks": 2}])
def test_int8_kernels_equal_the_widened_weights(changes: dict) -> None:
    model = _int8(tiny_model())
    plain, want = _decode(model, "torch", **changes)
    fast, got = _decode(model, "numba", **changes)
    assert float((want - got).abs().max()) < 1e-5 * float(want.abs().max())
    if changes.get("taus"):
        assert torch.equal(plain.replay.replayed, fast.replay.replayed)


def test_bfloat16_kernels_stay_as_close_to_float32_as_torch_does() -> None:
    exact = tiny_model().bfloat16().float()
    rounded = copy.deepcopy(exact).bfloat16()
    _, want = _decode(exact, "torch")
    _, plain = _decode(rounded, "torch")
    _, fast = _decode(rounded, "numba")
    scale = float(want.abs().max())
    assert float((fast - want).abs().max()) <= 0.04 * scale
    # Activations stay float32 in the kernels, so they are no worse on the whole.
    assert float((fast - want).norm()) <= 1.1 * float((plain - want).norm())


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    rows=st.integers(1, 5),
    frames=st.integers(1, 4),
    tau=st.floats(-1.5, 1.5),
    released=st.booleans(),
    max_age=st.none() | st.integers(0, 3),
)
def test_rows_ages_and_decisions_equal_the_plain_path(
    seed: int, rows: int, frames: int, tau: float, released: bool, max_age: int | None
) -> None:
    model = tiny_model(seed)
    prompts = [[1, *range(3, 3 + r), 2] for r in range(rows)]
    changes = {"taus": (tau,) * 3, "tas": "released" if released else "attention", "max_age": max_age}
    plain, want = _decode(model, "torch", prompts, 1.0, frames, **changes)
    fast, got = _decode(model, "numba", prompts, 1.0, frames, **changes)
    scores = plain.replay.tas
    if bool(((scores - tau).abs() < 1e-5).any()):
        return  # too near the threshold for two orders of summing
    assert torch.equal(plain.replay.replayed, fast.replay.replayed)
    assert torch.allclose(scores, fast.replay.tas, atol=1e-5, equal_nan=True)
    assert float((want - got).abs().max()) < 1e-5 * float(want.abs().max())


@pytest.mark.parametrize("changes", [{}, {"taus": (0.1, None, -0.3)}])
def test_more_threads_give_the_same_bits(changes: dict) -> None:
    model = tiny_model()
    _, one = _decode(model, "numba", **changes)
    try:
        torch.set_num_threads(2)
        _, two = _decode(model, "numba", **changes)
    finally:
        torch.set_num_threads(1)
    assert torch.equal(one, two)


def test_a_team_has_the_threads_that_were_asked_for() -> None:
    # In a process of its own: numba takes all threads, torch's too, when it starts them.
    code = (
        "import torch; torch.set_num_threads(1); from fastcar_cli.decoding.compiled import new_team; "
        "from fastcar_cli.kernels.team import THREADS; print(new_team()[THREADS], torch.get_num_threads())"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "NUMBA_NUM"))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "1"]


def test_a_replayed_mlp_is_not_touched() -> None:
    model = tiny_model()
    codes = torch.zeros(1, 16, 3, dtype=torch.int64)
    options = DecodeSettings(4, SamplingSettings(cfg=1.0), taus=(float("-inf"),) * 3, kernels="numba")
    decode = Decode(model, PROMPTS[:1], options, torch.zeros(codes.shape))
    for step in decode.steps(codes):
        if step.index == 4:
            # From here on every row replays: a single weight read would spread.
            for block in decode.blocks:
                for p in block.mlp.parameters():
                    p.fill_(float("nan"))
        assert bool(step.hidden.isfinite().all())


def test_quantization_error_is_at_most_half_a_level() -> None:
    weight = torch.randn(7, 33, generator=torch.Generator().manual_seed(0))
    weight[3] = 0
    numbers, scale = quantize(weight)
    assert numbers.dtype == torch.int8
    assert float(((numbers * scale[:, None] - weight).abs() / scale[:, None]).max()) <= 0.5 + 1e-4
    assert bool((numbers[3] == 0).all())


def test_int8_covers_the_block_matrices_and_nothing_else() -> None:
    model = tiny_model()
    count, parameters = model.parameter_count(), dict(model.named_parameters())
    matrices = {n for n, p in parameters.items() if "layers" in n and p.dim() == 2 and n.startswith("llm.")}
    assert {n for n in parameters if is_matrix(n)} == matrices
    before = model.weights_bytes()
    _int8(model)
    assert sum(isinstance(m, Int8Linear) for m in model.modules()) == 3 * 7
    assert model.parameter_count() == count
    numbers = sum(parameters[n].numel() for n in matrices)
    outputs = sum(len(parameters[n]) for n in matrices)
    assert model.weights_bytes() == before - 3 * numbers + 4 * outputs
    assert model.weight_format == "int8"


def test_what_kernels_cannot_do_is_refused() -> None:
    with pytest.raises(RequestError, match="float16"):
        check_compiled(tiny_model().half())


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--kernels", "numba", "--backend", "fpga-sim"), "fpga-sim"),
        (("--dtype", "int8", "--backend", "fpga-sim"), "number formats"),
        (("--kernels", "cuda"), "numba"),
    ],
)
def test_wrong_combinations_end_with_status_2(run, arguments: tuple[str, ...], word: str) -> None:  # type: ignore[no-untyped-def]
    done = run("generate", "a red ball", "--frames", "1", *arguments)
    assert done.returncode == 2
    assert word in done.stderr
    assert "Traceback" not in done.stderr


def test_int8_makes_a_video_and_says_so(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    import json

    done = run(
        "generate", "a red ball rolling to the right on the grass", "--frames", "2", "--seed", "1", "--dtype", "int8",
        "--tau", "-2", "-o", "a.mp4", "--json", timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["model"]["dtype"] == "int8"
    assert report["replay"]["ratio"] > 0
    assert (tmp_path / "a.mp4").stat().st_size > 500
