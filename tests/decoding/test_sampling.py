from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastcar_cli.decoding.sampling import distribution, guide, sample, uniforms
from fastcar_cli.models.sampling import SamplingSettings


def _full(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    probs, order = distribution(logits, temperature, top_k, top_p)
    return torch.zeros_like(probs).scatter(-1, order, probs)


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    top_k=st.integers(0, 12),
    top_p=st.floats(0.01, 1.0),
    temperature=st.floats(0.2, 3.0),
)
def test_laws_of_the_distribution(seed: int, top_k: int, top_p: float, temperature: float) -> None:
    logits = torch.randn(3, 10, generator=torch.Generator().manual_seed(seed)) * 3
    probs = _full(logits, temperature, top_k, top_p)
    assert torch.allclose(probs.sum(-1), torch.ones(3), atol=1e-5)
    kept = probs > 0
    assert bool(kept.any(-1).all())
    if 0 < top_k < 10:
        assert int(kept.sum(-1).max()) <= top_k
    plain = (logits / temperature).softmax(-1)
    for row, keep in zip(plain, kept, strict=True):
        # Nothing that was dropped is likelier than anything that was kept.
        if bool((~keep).any()):
            assert float(row[keep].min()) >= float(row[~keep].max()) - 1e-6


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), u=st.floats(0, 1, exclude_max=True), top_p=st.floats(0.05, 1.0))
def test_a_draw_is_always_a_kept_code(seed: int, u: float, top_p: float) -> None:
    logits = torch.randn(2, 10, generator=torch.Generator().manual_seed(seed)) * 4
    code = sample(logits, torch.full((2,), u), SamplingSettings(), top_p)
    probs = _full(logits, 1.0, 0, top_p)
    assert bool((probs.gather(1, code[:, None]) > 0).all())


def test_draws_follow_the_distribution() -> None:
    logits = torch.randn(1, 6, generator=torch.Generator().manual_seed(1))
    u = torch.linspace(0, 1, 20001)[:-1]
    codes = sample(logits.expand(len(u), -1), u, SamplingSettings(), 1.0)
    shares = torch.bincount(codes, minlength=6) / len(u)
    assert torch.allclose(shares, logits.softmax(-1)[0], atol=1e-3)


def test_greedy_and_first_frame() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0]])
    assert int(sample(logits, torch.tensor([0.99]), SamplingSettings(temperature=0), 1.0)) == 1
    narrow = SamplingSettings(top_p=0.01, first_frame_top_p=1.0)
    assert int(sample(logits, torch.tensor([0.999]), narrow, narrow.top_p_of(0))) == 0
    assert int(sample(logits, torch.tensor([0.999]), narrow, narrow.top_p_of(1))) == 1


def test_guidance() -> None:
    c, u = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.5, 3.0]])
    assert torch.equal(guide(torch.cat([c, u]), 3.0), u + 3 * (c - u))
    assert torch.equal(guide(c, 1.0), c)


def test_uniforms_belong_to_the_seed() -> None:
    assert torch.equal(uniforms(3, 8, 2), uniforms(3, 8, 2))
    assert not torch.equal(uniforms(3, 8, 2), uniforms(4, 8, 2))
