"""A new architecture of LLaMA's kind takes no more than this: sizes, one network of shared blocks, and its pixels.

Grey frames whose ids are levels of grey, behind a prompt of one frame. The engine, its executors, replay and drafts run
it as they run every other model.
"""

from __future__ import annotations

import pytest
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from fastcar_cli.config.tau import Tau
from fastcar_cli.decoding.batch import DecodeSettings
from fastcar_cli.decoding.drafts.drafts import DraftSettings
from fastcar_cli.decoding.engine import Decode
from fastcar_cli.decoding.replay.replay import ReplayRule
from fastcar_cli.inputs.prompt import OnProgress
from fastcar_cli.models.decoder import DecoderSpec
from fastcar_cli.models.network import FramesNetwork, FrameSpec, Layout, Spec
from fastcar_cli.models.sampling import SamplingSettings
from fastcar_cli.system.plain_data import WHOLE

SIDE, LEVELS = 4, 16


@dataclass(frozen=True, config=WHOLE)
class GreySpec(Spec):
    """A frame is a square of levels of grey."""

    @property
    def layout(self) -> Layout:
        return Layout(SIDE * SIDE, prefix=0, context=1, prompt_frames=1, guided=False)

    @property
    def frame_spec(self) -> FrameSpec:
        return FrameSpec(1, LEVELS, self.decoder.width, (SIDE, SIDE), (SIDE, SIDE), channels=1)

    def network(self) -> GreyNetwork:
        return GreyNetwork(self)


class GreyNetwork(FramesNetwork):
    """Ids are drawn as they are."""

    def __init__(self, spec: GreySpec) -> None:
        super().__init__(spec)
        self.tokenizer = torch.nn.Identity()

    def encode(self, frames: Tensor, on_progress: OnProgress | None = None, actions: Tensor | None = None) -> Tensor:
        return (frames[..., 0].float() * LEVELS / 256).long().flatten(1)

    def frame_decoder(self, prompts: Tensor) -> GreyFrames:
        return GreyFrames(prompts)


class GreyFrames:
    def __init__(self, prompts: Tensor) -> None:
        self._prompts = prompts

    def context(self) -> Tensor:
        return self.frame(self._prompts[..., None])[:, None]

    def frame(self, codes: Tensor) -> Tensor:
        return (codes.float() * 255 / (LEVELS - 1)).unflatten(1, (SIDE, SIDE)).expand(-1, -1, -1, 3)


SPEC = GreySpec("grey", 4, 4, DecoderSpec(width=16, layers=2, heads=2, kv_heads=2, mlp_width=32, vocab=LEVELS))


def _decoded(executor: str, tau: float, draft: DraftSettings) -> Decode:
    torch.manual_seed(0)
    network, uniforms = SPEC.network().eval().requires_grad_(False), torch.rand(1, 3 * SIDE * SIDE, 1)
    for weights in network.parameters():
        weights.normal_(1.0 if weights.dim() == 1 else 0.0, 0.3)
    prompt = torch.randint(LEVELS, (SIDE * SIDE,)).tolist()
    rule, sampling = ReplayRule(Tau((tau,))), SamplingSettings(cfg=1.0)
    settings = DecodeSettings(3, sampling, rule=rule, draft=draft, executor=executor)
    return Decode.of(network, [prompt], settings, uniforms).run()


@pytest.mark.parametrize("tau", [float("inf"), 0.0, -float("inf")])
def test_every_executor_and_drafts_decode_it_alike(tau: float) -> None:
    plain = _decoded("torch", tau, DraftSettings())
    for draft in (DraftSettings(), DraftSettings("jacobi", 8)):
        native = _decoded("native", tau, draft)
        assert torch.equal(native.codes, plain.codes)
    frames = [plain.context_frames(), *(plain.decode_frame(i)[:, None] for i in range(3))]
    assert torch.cat([f for f in frames if f is not None], 1).shape == (1, 4, SIDE, SIDE, 3)
