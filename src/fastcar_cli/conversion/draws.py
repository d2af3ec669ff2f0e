"""Codes that a model draws for prompts, to run models on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fastcar_cli.decoding.engine import Decode
from fastcar_cli.decoding.sampling import SamplingSettings, uniforms
from fastcar_cli.decoding.state import DecodeSettings
from fastcar_cli.models.loading.checkpoint import LoadedModel


def drawn_codes(model: LoadedModel, prompts: Sequence[str], seeds: Sequence[int], frames: int) -> Tensor:
    """Codes int64 [P, T*N, depth] that a model draws for prompts with its own guidance and sampling."""
    own, spec, tokenizer = model.defaults, model.network.spec, model.tokenizer
    rows = [list(tokenizer.complete(tokenizer.read(p), s).ids) for p, s in zip(prompts, seeds, strict=True)]
    if own.cfg != 1.0:
        rows += [list(tokenizer.blank()) for _ in prompts]
    sampling = SamplingSettings(cfg=own.cfg, temperature=own.temperature, top_k=own.top_k, top_p=own.top_p)
    noise = torch.stack([uniforms(s, frames * spec.tokens_per_frame, spec.code_depth) for s in seeds])
    decode = Decode(model.network, rows, DecodeSettings(frames, sampling), noise)
    for _ in decode.steps():
        pass
    return decode.codes
