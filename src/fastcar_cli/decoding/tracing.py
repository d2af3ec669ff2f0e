"""The engine's intermediate results for given codes, for comparing implementations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fastcar_cli.config import choices
from fastcar_cli.config.tau import Tau
from fastcar_cli.decoding.batch import DecodeSettings, MLPBackend
from fastcar_cli.decoding.engine import Decode, begin
from fastcar_cli.decoding.replay.replay import ReplayRule
from fastcar_cli.errors import RequestError
from fastcar_cli.inputs.prompt import Prompt, clips_of
from fastcar_cli.models.decoder import Decoder
from fastcar_cli.models.sampling import SamplingSettings

if TYPE_CHECKING:
    from fastcar_cli.models.checkpoint import LoadedModel


@dataclass(frozen=True)
class Trace:
    """A teacher-forced run. Rows: conditional ones first, then unconditional; all tensors on the CPU."""

    input_ids: list[list[int]]  # token ids of each row's prompt, without padding
    position_ids: Tensor  # rotary positions of the prompts, padded on the left (padding has 1), int64 [rows, longest]
    steps: list[int]  # predicted tokens to which logits and hidden states belong
    logits: Tensor  # after guidance, before top-k, float32 [len(steps), depth, P, codes]
    hidden: Tensor  # after the final norm, float32 [len(steps), rows, width]
    tas: Tensor  # by input token, float32 [layers, rows, T*N - 1]; NaN where none was computed
    replayed: Tensor  # by input token, bool [layers, rows, T*N - 1]
    mlp: Tensor  # MLP outputs used at `mlp_tokens`, float32 [layers, len(mlp_tokens), rows, width]
    block_out: Tensor  # after each block at `steps`, float32 [len(steps), layers, rows, width]; step 0: prompt's last
    frames: Tensor  # pixels, float32 [P, frames, H, W, 3] in 0..255, not rounded, context frames first
    replay_ratio: float  # replayed MLPs / (layers * rows * (T*N - 1))


class _Outputs:
    """A watcher that copies MLP outputs at some input tokens and block outputs before some positions."""

    def __init__(self, decode: Decode, steps: Sequence[int], tokens: Sequence[int]) -> None:
        spec = decode.model.spec.decoder
        self._steps, self._tokens = list(steps), list(tokens)
        self.mlp = torch.zeros(spec.layers, len(tokens), decode.rows, spec.width)
        self.out = torch.zeros(len(steps), spec.layers, decode.rows, spec.width)

    def __call__(self, layer: int, t: int, mlp: Tensor, out: Tensor) -> None:
        if t in self._tokens:
            self.mlp[layer, self._tokens.index(t)] = mlp.float().cpu()
        if t + 1 in self._steps:
            self.out[self._steps.index(t + 1), layer] = out.float().cpu()


def _checked(model: LoadedModel, prompts: Sequence[Prompt], codes: Tensor | None) -> Tensor:
    """Check codes [P, T*N, depth]; None: those of the frames after a clip's context. Raises RequestError if wrong."""
    spec, videos = model.network.spec, len(prompts)
    n, depth, size = spec.tokens_per_frame, spec.frame_spec.depth, spec.codes
    if codes is None:
        read_all = getattr(model.tokenizer, "read_all", None)
        ids = [read_all(prompt) for prompt in prompts] if read_all is not None else []
        if not ids or not ids[0]:
            raise RequestError("codes is required, because the inputs have no frames after the model's context")
        codes = torch.tensor(ids)
    codes = codes[..., None] if depth == 1 and codes.dim() == 2 else codes
    shape = list(codes.shape)
    fits = len(shape) == 3 and shape[0] == videos > 0 and shape[2] == depth
    if not fits or not shape[1] or shape[1] % n:
        raise RequestError(f"codes have shape {shape}, expected [{videos}, T * {n}, {depth}] for T frames")
    if codes.is_floating_point() or bool((codes < 0).any()) or bool((codes >= size).any()):
        raise RequestError(f"codes must be integers from 0 to {size - 1}")
    return codes.to(model.network.device, torch.int64)


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
    gate: str = "row",
    steps: Sequence[int] | None = None,
    mlp_tokens: Sequence[int] = (),
    executor: str = "torch",
    kv_dtype: str = "auto",
    backend: Callable[[Decoder, int], MLPBackend] | None = None,
    eligible: str = "codes",
    seeds: Sequence[int] | None = None,
) -> Trace:
    """Decode with the given codes instead of sampled ones; returns what the engine computed.

    model: what `fastcar_cli.models.load` returns.
    prompts, inputs, actions: P texts or clips; or frames uint8 [P, S, H, W, 3], with actions float32 [P, S, A] if the
        model takes them.
    codes: integers [P, T*N, depth], or [P, T*N] if the depth is 1; with delimiters from the first one on. None: those
        of the inputs' frames after the context.
    tau: one threshold for all layers or one per layer, None for dense. Layers with None have no scores; layers with
        infinity have scores and never replay.
    cfg: guidance scale; with 1 there are no unconditional rows. Default: 3, or 1 for a model without guidance.
    tas: definition of the score, `attention` or `released`. gate: the unit that replays, `row` or `pair`.
    steps: predicted tokens whose logits and hidden states are returned; None: all.
    mlp_tokens: input tokens whose MLP outputs are returned.
    executor: `torch`, or `native`, which returns neither MLP nor block outputs.
    kv_dtype: format of keys and values: `auto` (the model's) or `int8`.
    backend: makes the MLP backend from the decoder and the number of rows; None: the executor runs the MLPs.
    eligible: tokens that may replay; `codes`: frame tokens only; `all`: also frame delimiters.
    seeds: one per prompt, for what it leaves open, like `generate --seed`; None: it stays open.

    Raises RequestError for a prompt that the model can't take, and for codes, thresholds or indices that do not fit.
    """
    if (prompts is None) == (inputs is None):
        raise RequestError("give either prompts or inputs")
    given = list(prompts or ()) if inputs is None else list(clips_of(inputs, actions))
    if seeds is not None and len(seeds) != len(given):
        raise RequestError(f"seeds has {len(seeds)} numbers, expected {len(given)}, one per prompt")
    codes, spec = _checked(model, given, codes), model.network.spec
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
        raise RequestError("mlp_tokens: native kernels return no MLP outputs", allowed="executor='torch'")
    taus = list(tau) if isinstance(tau, Sequence) else [tau]
    taus *= spec.decoder.layers if len(taus) == 1 else 1
    tokens, scale = codes.shape[1], (3.0 if spec.layout.guided else 1.0) if cfg is None else cfg
    try:
        pairs = gate == "pair" and scale != 1.0
        rule = ReplayRule(Tau.read(taus), tas, pairs=pairs, replay_delimiters=eligible == "all")
        rule.tau.by_layer(spec.decoder.layers)
    except ValueError as e:
        raise RequestError(f"tau is {tau!r}: {e}") from None
    shown, watched = list(range(tokens) if steps is None else steps), list(mlp_tokens)
    for name, indices, end in (("steps", shown, tokens), ("mlp_tokens", watched, tokens - 1)):
        if outside := [index for index in indices if not 0 <= index < end]:
            raise RequestError(f"{name} holds {outside[0]}, allowed: 0 to {end - 1}")
    frames, sampling = tokens // spec.tokens_per_frame, SamplingSettings(cfg=scale)
    settings = DecodeSettings(frames, sampling, rule, keep_tas=True, executor=executor, kv_dtype=kv_dtype)
    decode, _ = begin(model, given, seeds, settings, backend)
    outputs = _Outputs(decode, shown if executor == "torch" else [], watched)
    decode.observers.watch = outputs if executor == "torch" else None
    found = _run(decode, codes, shown, outputs)
    found.tas[[v is None for v in taus]] = float("nan")
    return found


def _run(decode: Decode, codes: Tensor, shown: list[int], outputs: _Outputs) -> Trace:
    """The trace of a decode with these codes."""
    spec, videos = decode.model.spec, decode.prompts.videos
    logits = torch.zeros(len(shown), spec.frame_spec.depth, videos, spec.codes)
    hidden = torch.zeros(len(shown), decode.rows, spec.decoder.width)
    for step in decode.steps(codes, keep_logits=True):
        assert step.logits is not None
        for i in range(step.inputs.count):
            if (index := step.index + i) in shown:
                at = shown.index(index)
                logits[at], hidden[at] = step.logits[:, :, i].float().cpu(), step.hidden[:, i].float().cpu()
    pixels = [decode.decode_frame(frame).cpu() for frame in range(codes.shape[1] // spec.tokens_per_frame)]
    frames = [part if part.dim() == 5 else part[:, None] for part in pixels]
    context, replay = decode.context_frames(), decode.replay
    assert replay is not None and replay.tas is not None
    return Trace(
        input_ids=decode.prompts.unpadded(),
        position_ids=decode.prompts.positions().cpu(),
        steps=shown,
        logits=logits,
        hidden=hidden,
        tas=replay.tas.cpu(),
        replayed=replay.replayed.cpu(),
        mlp=outputs.mlp,
        block_out=outputs.out,
        frames=torch.cat(frames if context is None else [context.cpu(), *frames], 1),
        replay_ratio=replay.stats(decode.passed).ratio,
    )
