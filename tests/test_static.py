"""The static step, which a GPU replays as one CUDA graph: on a CPU it has to be the engine, step for step."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path as File

import pytest
import torch
from conftest import Run, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fastcar_cli.config import RunConfig, load_config
from fastcar_cli.decoding.engine import Decode, DecodeSettings
from fastcar_cli.decoding.graph import StaticStep
from fastcar_cli.decoding.paths import Path, choose_path
from fastcar_cli.decoding.sampling import SamplingSettings, uniforms
from fastcar_cli.decoding.static_ops import TorchOps
from fastcar_cli.decoding.static_state import StaticState
from fastcar_cli.errors import RequestError
from fastcar_cli.models.checkpoint import empty_network
from fastcar_cli.models.dummy import full_spec
from fastcar_cli.models.plan import parameter_bytes
from fastcar_cli.models.video_model import VideoModel
from fastcar_cli.pipeline import TextToVideo

PROMPTS = [[1, 4, 5, 2], [1, 6, 7, 8, 2], [1, 2], [1, 2]]
EAGER, STATIC = Path("eager"), Path("static", "torch")
CHOSEN = SamplingSettings(cfg=2.0, top_p=0.9, top_k=6, first_frame_top_p=1.0)


def _decode(model: VideoModel, sampling: SamplingSettings = CHOSEN, **changes: object) -> Decode:
    prompts = PROMPTS if sampling.cfg != 1.0 else PROMPTS[:2]
    noise = torch.stack([uniforms(s, 16, 3) for s in (5, 6)])
    return Decode(model, prompts, DecodeSettings(4, sampling, keep_tas=True, **changes), noise)  # type: ignore[arg-type]


def _run(decode: Decode, path: Path) -> Tensor:
    decode.path = path
    return torch.stack([s.hidden.clone() for s in decode.steps()])


def _same(a: Decode, b: Decode) -> None:
    assert torch.equal(a.codes, b.codes)
    assert a.passes == b.passes
    if a.replay is not None and b.replay is not None:
        assert torch.equal(a.replay.replayed, b.replay.replayed)
        torch.testing.assert_close(a.replay.tas, b.replay.tas, atol=1e-5, rtol=1e-5, equal_nan=True)
        torch.testing.assert_close(a.replay.outputs, b.replay.outputs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"sampling": SamplingSettings(cfg=1.0, top_p=0.8)},
        {"sampling": SamplingSettings(cfg=3.0, temperature=0.0)},
        {"taus": (0.0, -0.3, 0.2)},
        {"taus": (-0.3, None, 0.2), "sampling": SamplingSettings(cfg=1.0, top_k=4)},
        {"taus": (0.0, 0.0, 0.0), "tas": "released"},
        {"taus": (0.0, 0.0, 0.0), "pairs": True},
        {"taus": (float("-inf"),) * 3, "max_age": 1},
        {"taus": (-0.2, 0.1, 0.0), "pairs": True, "max_age": 2},
        {"window": 3, "sinks": 1},
        {"window": 6, "sinks": 2, "taus": (0.0, 0.0, 0.0)},
        {"window": 1, "sinks": 0, "taus": (0.0, 0.0, 0.0), "tas": "released"},
        {"window": 50, "sinks": 2},
    ],
)
def test_static_step_equals_engine(kv_heads: int, changes: dict) -> None:
    model = tiny_model(kv_heads=kv_heads)
    eager, static = _decode(model, **changes), _decode(model, **changes)
    want, got = _run(eager, EAGER), _run(static, STATIC)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    _same(eager, static)
    if changes.get("taus"):
        assert static.replay is not None and bool(static.replay.replayed.any())


@settings(max_examples=25, deadline=None)
@given(
    tau=st.floats(-2, 2),
    window=st.one_of(st.none(), st.integers(1, 12)),
    sinks=st.integers(0, 2),
    pairs=st.booleans(),
    max_age=st.one_of(st.none(), st.integers(1, 3)),
    cfg=st.sampled_from([1.0, 2.0]),
    top_p=st.sampled_from([0.3, 0.9, 1.0]),
    seed=st.integers(0, 50),
)
def test_any_setting_equals_engine(tau, window, sinks, pairs, max_age, cfg, top_p, seed) -> None:  # type: ignore[no-untyped-def]
    model = tiny_model(seed)
    sampling = SamplingSettings(cfg=cfg, top_p=top_p, first_frame_top_p=0.7)
    changes = {"taus": (tau,) * 3, "window": window, "sinks": sinks, "pairs": pairs, "max_age": max_age}
    eager, static = (_decode(model, sampling, **changes) for _ in range(2))
    torch.testing.assert_close(_run(static, STATIC), _run(eager, EAGER), atol=1e-5, rtol=1e-5)
    _same(eager, static)


@pytest.mark.parametrize("tau", [None, -2.0])
def test_bundled_model_draws_the_same_video(tau: float | None) -> None:
    pipe = TextToVideo.from_config(RunConfig.from_dict({"replay": {"tau": "off" if tau is None else tau}}))
    codes = []
    for path in (EAGER, STATIC):
        other = pipe.with_settings(frames=3)
        frames = other.stream(["a red ball rolling to the right on the grass"], [3])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fastcar_cli.decoding.engine.choose_path", lambda *_, chosen=path: chosen)
            assert len(list(frames)) == 3
        codes.append((other.codes, other.report(0)["replay"]["ratio"]))
    assert (codes[0][0] == codes[1][0]).all()
    assert codes[0][1] == codes[1][1]
    assert (codes[0][1] > 0) == (tau is not None)


def _meta(value: object) -> object:
    if isinstance(value, Tensor):
        return value.to("meta")
    return value


@pytest.mark.parametrize(
    "changes", [{"taus": (0.0, -0.3, 0.2), "pairs": True, "max_age": 2}, {"window": 6, "sinks": 1}]
)
def test_step_never_looks_at_data(changes: dict) -> None:
    """On the meta device there is no data: any branch, index or wait of the host on it would raise."""
    model = tiny_model()
    decode = _decode(model, **changes)
    state = StaticState(decode)
    state.cache = replace(state.cache, **{f.name: _meta(getattr(state.cache, f.name)) for f in fields(state.cache)})
    for name, value in vars(state).items():
        setattr(state, name, _meta(value))
    decode.model = copy.deepcopy(model).to("meta")
    decode.books = decode.model.rqvae.quantizer.books
    step = StaticStep(decode, state, TorchOps(decode.model, state))
    with torch.inference_mode():
        step()
    assert state.codes.device.type == "meta"
    with pytest.raises((RuntimeError, NotImplementedError)):
        int(state.t)


class _FakeGraph:
    """Stands in for a CUDA graph: recording a step does nothing, replaying runs it."""

    def __init__(self) -> None:
        self.step: StaticStep | None = None
        self.replays = 0

    def replay(self) -> None:
        assert self.step is not None
        self.step()
        self.replays += 1


def _fake_cuda(patch: pytest.MonkeyPatch) -> list[_FakeGraph]:
    """Let capture run without a GPU. What is recorded must leave no trace, so the state is put back."""
    graphs: list[_FakeGraph] = []
    steps: list[StaticStep] = []

    class Stream:
        def __init__(self, *_: object) -> None: ...

        def wait_stream(self, other: object) -> None: ...

    def make() -> _FakeGraph:
        graphs.append(_FakeGraph())
        return graphs[-1]

    @contextmanager
    def record(graph: _FakeGraph) -> Iterator[None]:
        state = steps[-1].state
        kept = {k: v.clone() for k, v in vars(state).items() if isinstance(v, Tensor)}
        yield
        for name, value in kept.items():
            getattr(state, name).copy_(value)
        graph.step = steps[-1]

    @contextmanager
    def nothing(_: object) -> Iterator[None]:
        yield

    real = StaticStep.__init__

    def init(self: StaticStep, *arguments: object) -> None:
        real(self, *arguments)  # type: ignore[arg-type]
        steps.append(self)

    patch.setattr(StaticStep, "__init__", init)
    patch.setattr(torch.cuda, "Stream", Stream)
    patch.setattr(torch.cuda, "current_stream", lambda *_: Stream())
    patch.setattr(torch.cuda, "stream", nothing)
    patch.setattr(torch.cuda, "device", nothing)
    patch.setattr(torch.cuda, "CUDAGraph", make)
    patch.setattr(torch.cuda, "graph", record)
    patch.setattr(torch.cuda, "synchronize", lambda *_: None)
    return graphs


@pytest.mark.parametrize("first", [0, 9])
def test_one_capture_serves_every_step(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    model = tiny_model()
    changes = {"taus": (-0.2, 0.1, 0.0), "max_age": 2}
    eager, graph = _decode(model, **changes), _decode(model, **changes)
    graphs = _fake_cuda(monkeypatch)
    eager.path, graph.path = EAGER, Path("graph", "torch")
    want = [s.index for s in eager.steps(first=first)]
    got = [s.index for s in graph.steps(first=first)]
    assert got == want
    _same(eager, graph)
    assert [g.replays for g in graphs] == [16 - max(first, 1)]
    assert graph.clock.capture > 0


def test_forced_decisions_are_taken() -> None:
    model = tiny_model()
    decisions = torch.rand(3, 4, 15, generator=torch.Generator().manual_seed(2)) < 0.5
    runs = []
    for path in (EAGER, STATIC):
        decode = _decode(model, taus=(float("-inf"),) * 3)
        assert decode.replay is not None
        decode.replay.forced = decisions
        _run(decode, path)
        assert torch.equal(decode.replay.replayed[:, :, 4:], decisions[:, :, 4:])
        assert not bool(decode.replay.replayed[:, :, :4].any())
        runs.append(decode)
    _same(*runs)


def test_rules_of_the_path() -> None:
    model = tiny_model()
    decode = _decode(model)
    auto = choose_path(decode, None, False)
    assert auto.name == "eager" and "cpu" in auto.why
    decode.graph = "off"
    assert choose_path(decode, None, False) == Path("eager", why="runtime.graph is off")
    decode.graph = "on"
    with pytest.raises(RequestError, match="runtime.graph is on, but the device is cpu"):
        next(decode.steps())


def _pretend(decode: Decode) -> Decode:
    class Network:
        device = torch.device("cuda")

    decode.model = Network()  # type: ignore[assignment]
    return decode


def test_rules_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastcar_cli.decoding.paths.installed", lambda: True)
    model = tiny_model()
    decode = _pretend(_decode(model))
    assert choose_path(decode, None, False).name == "graph"
    assert choose_path(decode, None, True).why == "logits are kept"
    assert choose_path(decode, torch.zeros(2, 16, 3), False).why == "codes are given instead of drawn"
    decode.settings = replace(decode.settings, kernels="numba")
    assert choose_path(decode, None, False).why == "the kernels are numba"
    decode.settings = replace(decode.settings, kernels="torch")
    decode.mark = lambda _: None
    assert choose_path(decode, None, False).why == "parts of a pass are timed"
    monkeypatch.setattr("fastcar_cli.decoding.paths.installed", lambda: False)
    assert choose_path(_pretend(_decode(model)), None, False).why == "triton is not installed"


@pytest.mark.parametrize(("text", "value"), [("on", "on"), ("off", "off"), ("auto", "auto")])
def test_graph_option(text: str, value: str) -> None:
    assert load_config(None, [f"runtime.graph={text}"]).runtime.graph == value


def test_a_graph_on_a_cpu_is_refused(run: Run, tmp_path: File) -> None:
    done = run("generate", "a red ball", "--set", "runtime.graph=on", "--device", "cpu", "-o", "x.mp4")
    assert done.returncode == 2
    assert "runtime.graph" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "x.mp4").exists()


def test_computed_limits_on_the_gpu_page() -> None:
    """The page's bytes and ceilings follow from the shapes."""
    spec = full_spec()
    net = empty_network(spec)

    def gigabytes(part: str) -> float:
        return parameter_bytes(net, 2, part) / 1e9

    decoder = spec.decoder
    mlp = sum(gigabytes(f".mlp.{name}_proj") for name in ("gate", "up", "down"))
    depth = 4 * (gigabytes("depth.head_transformer.") + gigabytes("depth.classifier_mlp."))
    depth += gigabytes("depth.in_mlp_2.") + 3 * gigabytes("depth.in_mlp_1.")
    seen = 60 + 1024
    read = {
        "MLPs of the decoder": mlp,
        "attention weights and norms": gigabytes("llm.layers.") - mlp,
        "depth transformer, 4 depths": depth,
        "projector": gigabytes("projector."),
        "keys and values, mean": 2 * 2 * decoder.layers * decoder.kv_heads * decoder.head_dim * 2 * seen / 1e9,
    }
    together = sum(read.values())
    page = (File(__file__).parents[1] / "docs" / "gpu.md").read_text(encoding="utf-8")
    for name, size in {**read, "together": together}.items():
        assert f"| {name} | {size:.2f} |" in page
    for ratio, name in ((0.0, "0"), (0.5, "0.5"), (0.8, "0.8"), (0.875, "0.875 (all but the first frame)")):
        left = together - ratio * mlp
        assert f"| {name} | {left:.2f} | {left / 3.35:.2f} | {together / left:.2f} |" in page
