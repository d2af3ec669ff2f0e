"""Other rules for drafts, written from their papers: what a pass draws where our rule draws with fixed numbers.

All rules run the passes of `jacobi` or `frame`: W input tokens, drafts that begin with aligned tokens. They differ in
how the codes after the inputs are drawn; a draft is accepted where the drawn codes equal it, as in ours.

- `gumbel`: the likeliest of log p + g with Gumbel noise g of the position: our rule with other noise, which is
  drafter-invariant speculative decoding (arXiv 2408.07978).
- `sjd`: a draft x ~ q stays with probability min(1, p / q), else the code is drawn from the rest of p over q; after the
  first rejected draft codes are drawn from p anew, and are the next drafts (arXiv 2410.01699).
- `scd-maximal`, `scd-gumbel`: the same, but the next drafts are coupled with the last ones: they stay with probability
  min(1, p / q) too, or are drawn with Gumbel noise of the position (arXiv 2510.24211).
- `rejection`: the draft is the aligned token in every pass, and stays with its probability (arXiv 2211.17192).
- `relaxed:E`: our rule, but a draft's code stays where its logit says at least E of the likeliest one's probability
  and the coarser codes agree; `coarse:E`: finer codes stay wherever the coarsest does. Both are another video.

The first five draw from the model's distribution, as a test counts; none has the video of its seed. A token's codes are
drawn one depth after another, each from its distribution given the coarser ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fastcar_cli.decoding.batch import Step
from fastcar_cli.decoding.draws import Draws
from fastcar_cli.decoding.engine import Decode
from fastcar_cli.decoding.executors.native import NativeExecutor
from fastcar_cli.decoding.inputs import Inputs
from fastcar_cli.decoding.sampling import distribution
from fastcar_cli.errors import RequestError
from fastcar_cli.models.network import Network
from fastcar_cli.models.sampling import SamplingSettings

LOSSLESS = ("gumbel", "sjd", "scd-gumbel", "scd-maximal", "rejection")
LOSSY = ("relaxed", "coarse")
_FIRST = 128
"""Likeliest codes that are tried first for those within top-p: a sort of all takes longer."""
Choose = Callable[[int, Tensor], Tensor]
"""Codes int64 [n] of depth d from guided logits [n, K]."""
Forward = Callable[[Tensor], Tensor]
"""Guided logits [depth, n, K] given codes [n, depth]: those of a depth depend on the coarser codes."""


@dataclass(frozen=True)
class Rule:
    """One of `LOSSLESS`, or of `LOSSY` with its E in (0, 1]; text: what `parse` read."""

    text: str
    name: str
    least: float

    @classmethod
    def parse(cls, text: str) -> Rule:
        """Read a name, with :E for a lossy rule. Raises RequestError."""
        name, _, least = text.partition(":")
        allowed = ", ".join([*LOSSLESS, *(f"{name}:E with E above 0 and at most 1" for name in LOSSY)])
        try:
            value = float(least) if name in LOSSY else 1.0
        except ValueError:
            value = 0.0
        if name not in LOSSLESS + LOSSY or not 0 < value <= 1 or (least and name in LOSSLESS):
            raise RequestError("unknown", key="against", value=text, allowed=allowed)
        return cls(text, name, value)

    @property
    def kind(self) -> str:
        """The drafter whose passes it runs."""
        return "frame" if self.name == "rejection" else "jacobi"


class CoupledDraws(Draws):
    """Draws that depend on the drafts in the buffer, and on random numbers of a seed. `couple` draws from p and keeps a
    code from q as often as can be; a test plants a wrong one.
    """

    def __init__(self, model: Network, settings: SamplingSettings, uniforms: Tensor, slack: int, rule: Rule, seed: int):
        super().__init__(model, settings, uniforms, slack)
        self._rule = rule
        self._random = torch.Generator().manual_seed(seed)
        shape = (*self.buffer.shape, model.spec.codes)
        # What drafts were drawn from, where they were drawn: an aligned token is certain.
        self._q, self._drawn = torch.zeros(shape), torch.zeros(shape[:2], dtype=torch.bool)
        self._gumbel = -torch.empty(shape).exponential_(generator=self._random).log() if "gumbel" in rule.name else None

    def couple(self, p: Tensor, q: Tensor, code: Tensor) -> Tensor:
        """Codes [n] from p [n, K], given codes from q: equal with probability sum of min(p, q)."""
        row = torch.arange(len(code))
        stays = torch.rand(len(code), generator=self._random) * q[row, code] < p[row, code]
        rest = (p - q).clamp(min=0)
        return torch.where(stays, code, self._draw_from(torch.where(rest.sum(-1, keepdim=True) > 0, rest, p)))

    def _draw_from(self, p: Tensor, numbers: Tensor | None = None) -> Tensor:
        sums, numbers = p.cumsum(-1), torch.rand(len(p), generator=self._random) if numbers is None else numbers
        rank = torch.searchsorted(sums, numbers[:, None] * sums[:, -1:], right=True)[:, 0]
        return rank.minimum((p > 0).long().mul(torch.arange(p.shape[-1])).amax(-1))

    def _ranked(self, guided: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """What `distribution` returns, without the codes that top-p leaves out where the first ones hold it."""
        settings = self._settings
        top_p = settings.top_p_of(1) if self._top_ps is None else self._top_ps[positions, None]
        if settings.temperature == 0:
            return torch.ones(len(guided), 1), guided.argmax(-1, keepdim=True)
        scaled, first = guided / settings.temperature, guided[:, :_FIRST].shape[-1]
        best, order = scaled.topk(first)
        probs = (best - scaled.logsumexp(-1, keepdim=True)).exp()
        if settings.top_k or bool((probs.sum(-1, keepdim=True) < top_p).any()):
            return distribution(guided, settings.temperature, settings.top_k, top_p, settings.top_p_strict)
        before = probs.cumsum(-1) - probs
        probs = probs.masked_fill(before > top_p if settings.top_p_strict else before >= top_p, 0.0)
        return probs / probs.sum(-1, keepdim=True), order

    def _probabilities(self, guided: Tensor, positions: Tensor) -> Tensor:
        """Probabilities [n, K] after temperature, top-k and top-p, by code."""
        probs, order = self._ranked(guided, positions)
        return torch.zeros_like(guided).scatter(-1, order, probs)

    def _codes(self, positions: Tensor, given: Tensor, guess: Tensor, forward: Forward, choose: Choose) -> Tensor:
        """Codes [n, depth], one depth after another; those of `given` that are not negative are taken. Logits are
        computed again only where a code is not the guessed one.
        """
        codes, logits = torch.where(given < 0, guess, given), None
        for d in range(codes.shape[1]):
            logits = forward(codes) if logits is None else logits
            guided = logits[d].float()
            code = torch.where(given[:, d] < 0, choose(d, guided), given[:, d])
            if bool((code != codes[:, d]).any()):
                codes[:, d], logits = code, None
        return codes

    def settle(self, positions: Tensor, forward: Forward) -> None:
        """Draw positions int64 [P n], those of a video side by side, into the buffer, where their drafts lie."""
        count, rule = len(positions) // self.videos, self._rule
        video, inner = torch.arange(len(positions)) // count, torch.arange(len(positions)) % count
        drafts = self.buffer[video, positions].clone()
        held = self._drawn[video, positions, None] & (rule.name != "rejection")
        given = torch.full_like(drafts, -1) if self.given is None else self.given[video, positions]
        agree, carried = inner < count - 1, self._q[video, positions]

        def exact(d: int, guided: Tensor) -> Tensor:
            probs, order = self._ranked(guided, positions)
            return order.gather(-1, self._draw_from(probs, self.uniforms[video, positions, d])[:, None])[:, 0]

        def noisy(d: int, guided: Tensor) -> Tensor:
            assert self._gumbel is not None
            self._q[video, positions, d] = p = self._probabilities(guided, positions)
            return (p.log() + self._gumbel[video, positions, d]).argmax(-1)

        def fresh(d: int, guided: Tensor) -> Tensor:
            self._q[video, positions, d] = p = self._probabilities(guided, positions)
            return self._draw_from(p)

        def coupled(d: int, guided: Tensor) -> Tensor:
            nonlocal agree
            new = fresh(d, guided)
            p = self._q[video, positions, d]
            q = torch.where(held, carried[:, d], F.one_hot(drafts[:, d], p.shape[-1]).float())
            code = torch.where(agree, self.couple(p, q, drafts[:, d]), new)
            agree = agree & (code == drafts[:, d])
            return code

        def relaxed(d: int, guided: Tensor) -> Tensor:
            nonlocal agree
            share = (guided.gather(-1, drafts[:, d, None])[:, 0] - guided.amax(-1)).exp()
            stays = agree & ((share >= rule.least) | (d > 0 and rule.name == "coarse"))
            code = torch.where(stays, drafts[:, d], exact(d, guided))
            agree = agree & (code == drafts[:, d])
            return code

        first = noisy if rule.name == "gumbel" else relaxed if rule.name in LOSSY else coupled
        codes = self._codes(positions, given, drafts, forward, first)
        if rule.name in ("sjd", "scd-gumbel"):
            # The first rejected draft is final; those after it were not looked at.
            same = ((codes == drafts).all(-1) & (inner < count - 1)).view(-1, count)
            final = (same.cumprod(-1).sum(-1)[video] >= inner)[:, None]
            redraw = noisy if rule.name == "scd-gumbel" else fresh
            codes = self._codes(positions, torch.where(final, codes, given), codes, forward, redraw)
        self.buffer[video, positions] = codes
        self._drawn[video, positions] = True


class _Contestant(NativeExecutor):
    """The native kernels, whose logits `CoupledDraws` draws from."""

    def draw(self, hidden: Tensor, inputs: Inputs) -> Step:
        """See `Executor.draw`."""
        draws = self._batch.draws
        assert isinstance(draws, CoupledDraws)
        first, hidden = [t + 1 for t in inputs.first], hidden.float().contiguous()
        top_p, given = [1.0] * (len(first) * inputs.count), torch.full_like(draws.buffer, -1)

        def forward(codes: Tensor) -> Tensor:
            for video, at in enumerate(first):
                given[video, at : at + inputs.count] = codes.view(len(first), inputs.count, -1)[video]
            logits = self._draw(hidden, first, top_p, given=given, keep_logits=True)[1]
            assert logits is not None
            return logits.flatten(1, 2)

        draws.settle(inputs.tokens(inputs.videos, hidden.device).T.flatten() + 1, forward)
        draws.latent = None
        return Step(inputs, draws, hidden, None)


def contest(decode: Decode, rule: Rule, seed: int) -> Decode:
    """Let a decode with drafts of `rule.kind` that has not begun draw by a rule; returns it."""
    draws, slack = decode.draws, decode.settings.draft.slack
    numbers = draws.uniforms[:, : draws.tokens]
    decode.draws = CoupledDraws(decode.model, decode.settings.sampling, numbers, slack, rule, seed)
    decode.draws.given = draws.given
    decode.executor = _Contestant(decode, decode.settings.draft.window)
    return decode
