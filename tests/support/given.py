"""A tiny model with given ids between the codes of frames, as models have whose actions are tokens.

`before`: three action ids before a frame's codes, after a prefix (RLVR-World, multi-step). `bos`: the same with another
given id after them, prompts of two frames, and no prefix (single-step). `after`: three at a frame's end (MineWorld's
shape: 336 codes, then 11 ids of the action), which prompts hold too.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from fastcar_cli.inputs.prompt import OnProgress
from fastcar_cli.models.decoder import DecoderSpec
from fastcar_cli.models.network import FramesNetwork, FrameSpec, Layout, Spec
from fastcar_cli.system.plain_data import WHOLE

CODES, ACTIONS, LEVELS, BOS = 6, 3, 12, 18
"""Codes and action ids a frame, number of codes, and the id after those of actions."""
KINDS = ("before", "bos", "after")
LAYOUTS = {
    "before": Layout(9, (0, 1, 2), prefix=20, context=1, prompt_frames=1, held=6, opening=3, guided=False),
    "bos": Layout(10, (0, 1, 2, 3), prefix=0, context=2, prompt_frames=2, held=15, opening=4, guided=False),
    "after": Layout(9, (6, 7, 8), prefix=0, context=2, prompt_frames=2, guided=False),
}


@dataclass(frozen=True, config=WHOLE)
class GivenSpec(Spec):
    """One of `KINDS`."""

    kind: Literal["before", "bos", "after"] = "before"

    @property
    def layout(self) -> Layout:
        return LAYOUTS[self.kind]

    @property
    def conditions(self) -> int:
        return ACTIONS

    @property
    def frame_spec(self) -> FrameSpec:
        return FrameSpec(1, BOS + 1, self.decoder.width, (2, 3), (2, 3), channels=1)

    def network(self) -> GivenNetwork:
        return GivenNetwork(self)


class GivenNetwork(FramesNetwork):
    """An action's numbers 0, 1 and 2 are ids after the codes."""

    spec: GivenSpec

    def __init__(self, spec: GivenSpec) -> None:
        super().__init__(spec)
        self.tokenizer = torch.nn.Identity()

    def given(self, tokens: int, conditions: Tensor | None, begin: int = 0) -> Tensor:
        layout, rows = self.spec.layout, []
        conditions = torch.zeros(1, 0, ACTIONS) if conditions is None else conditions
        for t in range(begin, begin + tokens):
            frame, place = divmod(t, layout.stride)
            if place not in layout.delimiters:
                rows.append(torch.full((len(conditions),), -1))
                continue
            # What leads to a frame, or in `after` what it leads on with.
            at, d = frame + layout.context - (self.spec.kind != "after"), place % CODES
            known = at < conditions.shape[1] and d < ACTIONS
            ids = LEVELS + 2 * d + conditions[:, at, d].long() if known else torch.full((len(conditions),), LEVELS)
            rows.append(torch.full_like(ids, BOS) if d == ACTIONS else ids)
        return torch.stack(rows, 1)

    def rolled(self, seen: Tensor) -> Tensor:
        if self.spec.kind != "bos":
            return super().rolled(seen)
        prompt = self.spec.layout.prompt_tokens
        later = seen[:, prompt:].unflatten(1, (-1, 10))
        kept = torch.cat([later[..., :3], later[..., 4:].clamp(max=LEVELS - 1)], 2).flatten(1)
        return torch.cat([seen[:, :prompt], kept], 1)[:, -prompt:]

    def encode(self, frames: Tensor, on_progress: OnProgress | None = None, actions: Tensor | None = None) -> Tensor:
        raise NotImplementedError

    def frame_decoder(self, prompts: Tensor) -> GivenFrames:
        return GivenFrames(self.spec.layout)


class GivenFrames:
    def __init__(self, layout: Layout) -> None:
        self._codes = [place for place in range(layout.stride) if place not in layout.delimiters]

    def context(self) -> None:
        return None

    def frame(self, codes: Tensor) -> Tensor:
        return codes[:, self._codes].float().unflatten(1, (2, 3)).expand(-1, -1, -1, 3)


def given_network(kind: str) -> GivenNetwork:
    """Random weights, scaled so that scores and logits are of order one."""
    torch.manual_seed(3)
    decoder = DecoderSpec(width=32, layers=3, heads=2, kv_heads=2, mlp_width=48, vocab=BOS + 1, max_positions=512)
    network = GivenSpec("given", 4, 4, decoder, kind).network()  # type: ignore[arg-type]
    for weights in network.parameters():
        if weights.dim() > 1:
            torch.nn.init.normal_(weights, 0.0, 1.5 * weights.shape[-1] ** -0.5)
    return network.eval().requires_grad_(False)


def given_prompts(kind: str, videos: int) -> Tensor:
    """Prompts of random codes and actions, int64 [videos, L]."""
    layout = LAYOUTS[kind]
    ids = torch.randint(LEVELS, (videos, layout.prompt or 0), generator=torch.Generator().manual_seed(7))
    if kind == "after":
        ids.unflatten(1, (2, 9))[:, :, 6:] = LEVELS
    elif kind == "bos":
        ids[:, 6:9] = LEVELS
    return ids


def rolled_by_hand(kind: str, prompts: Tensor, codes: Tensor) -> Tensor:
    """The prompts after these codes [P, T*N], written frame by frame."""
    frames = [
        [row[i : i + LAYOUTS[kind].stride] for i in range(0, len(row), LAYOUTS[kind].stride)] for row in codes.tolist()
    ]
    rows = []
    for prompt, later in zip(prompts.tolist(), frames, strict=True):
        if kind == "before":
            rows.append(prompt[:20] + later[-1][3:])
        elif kind == "after":
            last, newest = [prompt[:9], prompt[9:], *later][-2:]
            rows.append(last + newest)
        else:
            codes_of = [prompt[:6], prompt[9:], *([min(i, LEVELS - 1) for i in frame[4:]] for frame in later)]
            actions = [prompt[6:9], *(frame[:3] for frame in later)]
            rows.append(codes_of[-2] + actions[-1] + codes_of[-1])
    return torch.tensor(rows)
