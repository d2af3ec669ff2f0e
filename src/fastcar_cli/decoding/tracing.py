"""What the engine computes on given codes, for comparing implementations.

`trace` forces codes instead of sampling them and keeps what a comparison needs. It drives the very
engine that generates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fastcar_cli.config import choices
from fastcar_cli.config.tau import Tau
from fastcar_cli.decoding.backend import MLPBackend
from fastcar_cli.decoding.engine import begin
from fastcar_cli.decoding.replay.replay import ReplayRule
from fastcar_cli.decoding.settings import DecodeSettings
from fastcar_cli.errors import RequestError
from fastcar_cli.inputs.prompt import Clip, Prompt, clips_of
from fastcar_cli.models.decoder import Decoder
from fastcar_cli.models.sampling import SamplingSettings

if TYPE_CHECKING:
    from fastcar_cli.models.checkpoint import LoadedModel


@dataclass(frozen=True)
class Trace:
    """A teacher-forced run. Rows: conditional ones first, then unconditional; all tensors on the CPU.

    Attributes:
        input_ids: token ids of each row's prompt, without padding.
        position_ids: rotary positions of the prompts, padded on the left (padding has 1), int64 [rows, longest].
        steps: indices of predicted tokens for which logits and hidden states are kept.
        logits: after guidance, before top-k, float32 [len(steps), depth, P, codes].
        hidden: after the final norm, float32 [len(steps), rows, width].
        tas: by input token, float32 [layers, rows, T*N - 1]; NaN where none was computed.
        replayed: by input token, bool [layers, rows, T*N - 1].
        mlp: MLP outputs used at `mlp_tokens`, float32 [layers, len(mlp_tokens), rows, width].
        block_out: residual stream after each block at `steps`, float32 [len(steps), layers, rows, width];
            of the prompt's last token for step 0.
        frames: pixels, float32 [P, pictures, H, W, 3] in 0..255, not rounded; those that prompts hold come first.
        replay_ratio: replayed MLPs / (layers * rows * (T*N - 1)).

    """

    input_ids: list[list[int]]
    position_ids: Tensor
    steps: list[int]
    logits: Tensor
    hidden: Tensor
    tas: Tensor
    replayed: Tensor
    mlp: Tensor
    block_out: Tensor
    frames: Tensor
    replay_ratio: float


class _Keep:
    """A watcher that keeps MLP outputs and block outputs at some tokens."""

    def __init__(self, layers: int, steps: Sequence[int], tokens: Sequence[int], rows: int, width: int) -> None:
        self._steps = {s - 1: i for i, s in enumerate(steps)}
        self._tokens = {t: i for i, t in enumerate(tokens)}
        self.mlp = torch.zeros(layers, len(tokens), rows, width)
        self.out = torch.zeros(len(steps), layers, rows, width)

    def layer(self, layer: int, t: int, mlp: Tensor, out: Tensor) -> None:
        if t in self._tokens:
            self.mlp[layer, self._tokens[t]] = mlp.float().cpu()
        if t in self._steps:
            self.out[self._steps[t], layer] = out.float().cpu()


def _checked(model: LoadedModel, videos: int, codes: Tensor) -> Tensor:
    """The codes, [P, T*N, depth]. Raises RequestError for codes that do not fit prompts and model."""
    spec = model.network.spec
    n, depth, size = spec.tokens_per_frame, spec.code_depth, spec.codes
    if depth == 1 and codes.dim() == 2:
        codes = codes[..., None]
    shape = list(codes.shape)
    fits = len(shape) == 3 and shape[0] == videos > 0 and shape[2] == depth
    if not fits or not shape[1] or shape[1] % n:
        raise RequestError(f"codes have shape {shape}, needed: [{videos}, T * {n}, {depth}]")
    if codes.is_floating_point() or bool((codes < 0).any()) or bool((codes >= size).any()):
        raise RequestError(f"codes must be integers from 0 to {size - 1}")
    return codes.to(model.network.device, torch.int64)


def _prompts(texts: Sequence[Prompt] | None, inputs: Any, actions: Any) -> list[Prompt]:
    """What videos begin with. Raises RequestError for both or neither of texts and frames."""
    if (texts is None) == (inputs is None):
        raise RequestError("prompts and inputs: one of them is needed, not both")
    if inputs is None and actions is not None:
        raise RequestError("actions: they go with inputs, not with prompts")
    return list(texts or ()) if inputs is None else list(clips_of(inputs, actions))


def _codes_of(model: LoadedModel, prompts: Sequence[Prompt]) -> Tensor:
    """The codes of frames behind a clip's context. Raises RequestError where there are none."""
    read_all = getattr(model.tokenizer, "read_all", None)
    if read_all is None:
        raise RequestError("codes are needed: the model reads no frames")
    ids = [read_all(prompt) for prompt in prompts if isinstance(prompt, Clip)]
    if not ids or not ids[0]:
        raise RequestError("codes are needed: the inputs have no frames behind the model's context")
    return torch.tensor(ids)


def trace(
    model: LoadedModel,
    prompts: Sequence[Prompt] | None = None,
    codes: Tensor | None = None,
    *,
    tau: float | Sequence[float | None] | None,
    inputs: Any = None,
    actions: Any = None,
    cfg: float | None = None,
    tas: str = "released",
    steps: Sequence[int] | None = None,
    mlp_tokens: Sequence[int] = (),
    gate: str = "row",
    executor: str = "torch",
    kv_dtype: str = "auto",
    backend: Callable[[Decoder, int], MLPBackend] | None = None,
    eligible: str = "codes",
    seeds: Sequence[int] | None = None,
) -> Trace:
    """Decode with the given codes instead of sampled ones and keep what the engine computed.

    Args:
        model: what `fastcar_cli.models.load` returns.
        prompts: P texts or clips, or None with `inputs`.
        codes: integers [P, T*N, depth], or [P, T*N] where the depth is 1; of a model that takes frames ids from the
            first delimiter on. None takes those of the inputs' frames behind the context.
        tau: threshold of all layers, None for dense, or one number or None a layer. Layers with None have no scores;
            with infinity they have, and never replay.
        inputs: frames uint8 [P, S, H, W, 3] instead of prompts, or the context frames alone.
        actions: float32 [P, S, A] of a model that takes actions.
        cfg: guidance scale; with 1 there are no unconditional rows. Default: 3, or 1 of a model without guidance.
        tas: definition of the score, `attention` or `released`.
        steps: predicted tokens for which logits and hidden states are kept; None keeps all.
        mlp_tokens: input tokens for which MLP outputs are kept.
        gate: who decides on a replay, `row` or `pair`.
        executor: `torch`, or `native`, which keeps neither MLP nor block outputs.
        kv_dtype: what keys and values are kept in: `auto` (as the model) or `int8`.
        backend: makes the executor of the MLPs from the decoder and the number of rows; None for the model's own.
        eligible: tokens that may replay; `codes`: frame tokens only; `all`: frame delimiters too.
        seeds: one a prompt, by which what it leaves open is drawn as `generate --seed` draws it; None: stays open.

    Raises:
        RequestError: a prompt the model can't take, codes, thresholds or indices that do not fit.

    """
    network = model.network
    spec = network.spec
    given_prompts = _prompts(prompts, inputs, actions)
    videos = len(given_prompts)
    if seeds is not None and len(seeds) != videos:
        raise RequestError(f"seeds has {len(seeds)} numbers for {videos} prompts")
    codes = _checked(model, videos, _codes_of(model, given_prompts) if codes is None else codes)
    tokens = codes.shape[1]
    frames = tokens // spec.tokens_per_frame
    cfg = (3.0 if spec.layout.guided else 1.0) if cfg is None else cfg
    for name, word, allowed in (
        ("tas", tas, choices.values(choices.TasDefinition)),
        ("gate", gate, choices.values(choices.Gate)),
        ("eligible", eligible, choices.values(choices.Eligible)),
        ("kv_dtype", kv_dtype, choices.values(choices.KVDtype)),
        ("executor", executor, ("torch", "native")),
    ):
        if word not in allowed:
            raise RequestError(f"{name} is {word!r}, allowed: {', '.join(map(repr, allowed))}")
    if executor == "native" and mlp_tokens:
        raise RequestError("mlp_tokens: native kernels keep no MLP outputs", allowed="executor='torch'")
    layers = spec.decoder.layers
    given = list(tau) if isinstance(tau, Sequence) else [tau]
    given *= layers if len(given) == 1 else 1
    try:
        rule = ReplayRule(
            Tau.read(given), tas, pairs=gate == "pair" and cfg != 1.0, replay_delimiters=eligible == "all"
        )
        rule.tau.by_layer(layers)
    except ValueError as e:
        raise RequestError(f"tau is {tau!r}: {e}") from None
    kept = list(range(tokens)) if steps is None else [int(s) for s in steps]
    for name, indices, end in (("steps", kept, tokens), ("mlp_tokens", mlp_tokens, tokens - 1)):
        for index in indices:
            if not 0 <= index < end:
                raise RequestError(f"{name} holds {index}, allowed: 0 to {end - 1}")
    settings = DecodeSettings(
        frames=frames,
        sampling=SamplingSettings(cfg=cfg),
        rule=rule,
        keep_tas=True,
        executor=executor,
        kv_dtype=kv_dtype,
    )
    decode, _ = begin(model, given_prompts, seeds, settings, backend)
    watcher = _Keep(layers, kept if executor == "torch" else [], mlp_tokens, decode.rows, spec.decoder.width)
    if executor == "torch":
        decode.observers.watch = watcher
    kept_at = {s: i for i, s in enumerate(kept)}
    logits = torch.zeros(len(kept), spec.code_depth, videos, spec.codes)
    hidden = torch.zeros(len(kept), decode.rows, spec.decoder.width)
    for step in decode.steps(codes, keep_logits=True):
        at = kept_at.get(step.index)
        if at is not None:
            assert step.logits is not None
            logits[at], hidden[at] = step.logits[:, :, 0].float().cpu(), step.hidden[:, 0].float().cpu()
    context = decode.context_frames()
    shown = [] if context is None else [context.cpu()]
    for f in range(frames):
        pixels = decode.decode_frame(f).cpu()
        shown.append(pixels if pixels.dim() == 5 else pixels[:, None])
    images = torch.cat(shown, 1)
    replay = decode.replay
    assert replay is not None and replay.tas is not None
    scores = replay.tas.cpu()
    scores[[v is None for v in given]] = float("nan")
    return Trace(
        input_ids=decode.prompts.unpadded(),
        position_ids=decode.prompts.positions().cpu(),
        steps=kept,
        logits=logits,
        hidden=hidden,
        tas=scores,
        replayed=replay.replayed.cpu(),
        mlp=watcher.mlp,
        block_out=watcher.out,
        frames=images,
        replay_ratio=replay.stats(decode.passed).ratio,
    )
