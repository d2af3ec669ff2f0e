"""Who is timed: our decode pass in its variants, transformers' LlamaModel, and a compute-then-select loop.

All of them run the same decoder blocks with the same weights on one token of every row at the same
context length. A contestant is a function that makes a number of passes and starts over.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fastcar_cli.config.tau import OFF, Tau
from fastcar_cli.decoding.batch import Batch
from fastcar_cli.decoding.executors.executor import HostExecutor
from fastcar_cli.decoding.executors.native import NativeExecutor
from fastcar_cli.decoding.executors.plain import PlainExecutor
from fastcar_cli.decoding.inputs import Inputs
from fastcar_cli.decoding.replay.replay import ReplayRule
from fastcar_cli.models.network import Network
from fastcar_cli.profile.profiler import decode_of
from fastcar_lab.bench.cases import PROMPT_TOKENS

Passes = Callable[[int], float | None]
"""Makes a number of passes; returns seconds that count instead of all that it took, or None."""


class ComputeThenSelect(PlainExecutor):
    """What the released FastCar code does: every MLP is computed, then rows are selected."""

    def _mlp(self, layer: int, t: Tensor, flags: Tensor, x: Tensor) -> Tensor:
        """As the plain executor has it; the result is the same, the saving is not."""
        replay = self._batch.replay
        assert replay is not None
        slot = replay.outputs[layer, :, int(t[0]) % replay.frame]
        y = self._batch.model.llm.blocks[layer].mlp_branch(x)
        slot.copy_(torch.where(flags[:, None], slot, y))
        return slot


def pattern(ratio: float, layers: int, rows: int, passes: int, joint: bool) -> Tensor:
    """Forced decisions, bool [layers, rows, passes]: exactly this share of them, rounded, spread at random. Jointly all
    rows of a (layer, pass) replay or none; else each row has a draw of its own.
    """
    generator = torch.Generator().manual_seed(0)
    lines = []
    for _ in range(1 if joint else rows):
        flags = torch.zeros(layers * passes, dtype=torch.bool)
        flags[torch.randperm(len(flags), generator=generator)[: round(ratio * len(flags))]] = True
        lines.append(flags.view(layers, passes))
    return torch.stack(lines * rows if joint else lines, 1)


def engine(
    model: Network,
    *,
    rows: int,
    context: int,
    passes: int,
    executor: str,
    ratio: float | None = None,
    joint: bool = True,
    select: bool = False,
    mlp: bool = False,
) -> Passes:
    """Our decode pass at a context length; with a ratio the decisions are forced and TAS is still computed.

    mlp: what counts are the seconds of its MLP branches.
    """
    n, layers = model.spec.tokens_per_frame, model.spec.decoder.layers
    first = context - PROMPT_TOKENS
    frames = -(-(first + passes + 1) // n)
    rule = ReplayRule(OFF if ratio is None else Tau((float("-inf"),)))
    decode = decode_of(model, rows, PROMPT_TOKENS, frames, rule=rule, executor=executor)
    if decode.replay is not None:
        assert ratio is not None
        forced = torch.zeros_like(decode.replay.replayed)
        forced[:, :, first : first + passes] = pattern(ratio, layers, rows, passes, joint)
        decode.replay.force(forced)
    kinds: dict[str, Callable[[Batch], HostExecutor]] = {
        "torch": ComputeThenSelect if select else PlainExecutor,
        "native": NativeExecutor,
    }
    runner = kinds[executor](decode)
    # transformers is given embeddings, so ours need not look up codes either.
    identity = isinstance(model.projector.layers, nn.Identity)
    width = model.spec.decoder.width if identity else model.spec.frame_spec.code_width
    latent = torch.zeros(decode.prompts.videos, 1, width, device=model.device, dtype=model.dtype)
    with torch.inference_mode():
        runner.prefill()
        decode.fast_forward()

    final = (1,) * decode.prompts.videos

    @torch.inference_mode()
    def run(count: int) -> float | None:
        before = decode.clock.mlp
        for t in range(first, first + count):
            inputs = Inputs((t,) * decode.prompts.videos)
            runner.run(inputs, latent)
            runner.advance(inputs, final)
        return decode.clock.mlp - before if mlp else None

    return run


@torch.inference_mode()
def mlp_only(model: Network, *, rows: int) -> Passes:
    """Only the MLP branches of all layers in torch, for their share of a pass."""
    x = torch.randn(rows, model.spec.decoder.width, generator=torch.Generator().manual_seed(0)).to(model.dtype)
    blocks = model.llm.blocks

    @torch.inference_mode()
    def run(count: int) -> None:
        for _ in range(count):
            for block in blocks:
                block.mlp_branch(x)

    return run


def twin_of(kind: Any, model: Network, weights: Mapping[str, Tensor], positions: int) -> Any:
    """A LLaMA class of transformers with a network's sizes and these weights of it, for so many positions at least."""
    import transformers

    spec = model.spec.decoder
    options: dict[str, Any] = {
        "hidden_size": spec.width, "intermediate_size": spec.mlp_width, "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads, "head_dim": spec.head_dim, "num_key_value_heads": spec.kv_heads,
        "vocab_size": spec.vocab, "rms_norm_eps": spec.rms_eps, "rope_theta": spec.rope_theta,
        "max_position_embeddings": max(positions, spec.max_positions), "attn_implementation": "sdpa",
        "bos_token_id": None, "eos_token_id": None,
    }  # fmt: skip
    config = transformers.LlamaConfig(**options)
    with torch.device("meta"):
        twin = kind(config)
    twin.load_state_dict(weights, strict=False, assign=True)
    inner = getattr(twin, "model", twin)
    inner.rotary_emb = type(inner.rotary_emb)(config)
    inner.rotary_emb.inv_freq = model.llm.rotary.inv_freq.clone()
    return twin.eval().requires_grad_(False)


def llama(model: Network, *, rows: int, context: int, passes: int, compiled: bool) -> Passes:
    """Transformers' LlamaModel with a static cache: the same weights, embeddings given."""
    import transformers

    LlamaModel, StaticCache = transformers.LlamaModel, transformers.StaticCache
    spec = model.spec.decoder
    # One token more than is used, so that both attend to about as many slots.
    slots = context + passes + 1
    weights = {k: v for k, v in model.llm.state_dict().items() if "inv_freq" not in k}
    twin = twin_of(LlamaModel, model, weights, slots)
    config = twin.config
    accepted = inspect.signature(StaticCache.__init__).parameters
    sizes: dict[str, Any] = {"config": config, "max_cache_len": slots}
    if "max_batch_size" in accepted:
        sizes |= {"max_batch_size": rows, "device": model.device, "dtype": model.dtype}
    cache = StaticCache(**sizes)
    forward: Any = torch.compile(twin) if compiled else twin
    x = torch.randn(rows, 1, spec.width).to(model.device, model.dtype)
    takes_position = "cache_position" in inspect.signature(LlamaModel.forward).parameters

    def one(position: int) -> None:
        at = torch.tensor([position], device=model.device)
        more = {"cache_position": at} if takes_position else {}
        forward(inputs_embeds=x, past_key_values=cache, position_ids=at[None].expand(rows, 1), use_cache=True, **more)

    def seek(position: int) -> None:
        # transformers 5 counts in the cache, 4 is given the position.
        for layer in getattr(cache, "layers", []):
            if hasattr(layer, "cumulative_length"):
                layer.cumulative_length.fill_(position)

    with torch.inference_mode():
        twin(
            inputs_embeds=x,
            past_key_values=cache,
            position_ids=torch.zeros(rows, 1, dtype=torch.int64, device=model.device),
            use_cache=True,
        )
        for layer in getattr(cache, "layers", []):
            layer.keys.normal_()
            layer.values.normal_()

    @torch.inference_mode()
    def run(count: int) -> None:
        seek(context)
        for position in range(context, context + count):
            one(position)

    return run
