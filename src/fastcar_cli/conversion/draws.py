"""Codes that a model draws for prompts, to run models on."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fastcar_cli.decoding.engine import begin
from fastcar_cli.decoding.settings import DecodeSettings
from fastcar_cli.models.loading.checkpoint import LoadedModel


def drawn_codes(model: LoadedModel, prompts: Sequence[str], seeds: Sequence[int], frames: int) -> Tensor:
    """Codes int64 [P, T*N, depth] that a model draws for prompts with its own guidance and sampling."""
    decode, _ = begin(model, prompts, seeds, DecodeSettings(frames, model.defaults.sampling))
    return decode.run().codes
