"""The executor for CPUs: one call of the native kernels runs a pass, another one samples the codes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn

from fastcar_cli.decoding.batch import Batch, Step
from fastcar_cli.decoding.executors.executor import HostExecutor, Passed
from fastcar_cli.decoding.inputs import Inputs, Restore
from fastcar_cli.decoding.kv_cache import prompt_mask
from fastcar_cli.decoding.sampling import not_finite
from fastcar_cli.kernels import native
from fastcar_cli.models.decoder import KV, Block
from fastcar_cli.models.depth import DepthTransformer
from fastcar_cli.models.network import Network
from fastcar_cli.weights.formats import QuantisedLinear, multiplied_by

# Below this many bytes of weights one thread finishes before a second one could help.
SMALL = 128 * 1024
# Prompt tokens of all rows per pass: their products are bound by arithmetic, and more would take more memory.
PREFILL_PASS = 256


def obstacle(model: Network) -> str | None:
    """Why the native kernels can't run this model here; None if they can."""
    if model.device.type != "cpu":
        return f"native kernels run on the CPU, but the model is on {model.device}"
    if model.dtype not in (torch.float32, torch.bfloat16):
        return f"native kernels do not support dtype {str(model.dtype).removeprefix('torch.')}"
    return native.unavailable()


def _linear(module: nn.Linear | QuantisedLinear) -> native.Linear:
    bias = None if module.bias is None else module.bias.float()
    if isinstance(module, QuantisedLinear):
        return native.Linear(module.weight, module.scale, bias, module.form)
    return native.Linear(module.weight, None, bias)


def block_weights(block: Block, cross_kv: KV | None = None) -> native.BlockWeights:
    """A decoder block's weights for the kernels, with its cross-attention KV; matrices are not copied."""
    norms = {"norm1": block.input_layernorm, "norm2": block.post_attention_layernorm}
    norms |= {f"{part}_norm": norm for part in "qk" if (norm := getattr(block.self_attn, f"{part}_norm")) is not None}
    linears = {part: getattr(block.self_attn, f"{part}_proj") for part in "qkvo"}
    linears |= {part: getattr(block.mlp, f"{part}_proj") for part in ("gate", "up", "down")}
    parts: dict[str, Any] = {part: norm.weight.float() for part, norm in norms.items()}
    parts |= {part: _linear(linear) for part, linear in linears.items()}
    if block.cross_attn is not None and cross_kv is not None:
        cross = block.cross_attn
        parts |= {"cross_norm": block.cross_layernorm.weight.float()}
        parts |= {"cross_q": _linear(cross.q_proj), "cross_o": _linear(cross.o_proj)}
        parts["cross_q_norm"] = None if cross.q_norm is None else cross.q_norm.weight.float()
        parts["memory_keys"], parts["memory_values"] = (part.contiguous() for part in cross_kv)
    return native.BlockWeights(**parts)


def _norms(**modules: nn.LayerNorm) -> dict[str, Any]:
    """Weights and biases in float32, as fields of the kernels' structs."""
    weights = {name: module.weight.float() for name, module in modules.items()}
    return weights | {f"{name}_bias": module.bias.float() for name, module in modules.items()}


def _transformer(depth: DepthTransformer) -> native.DepthWeights:
    blocks = []
    for block in depth.blocks:
        attn, parts = block.attn, _norms(norm1=block.ln1, norm2=block.ln2)
        parts |= {"q": _linear(attn.query), "k": _linear(attn.key), "v": _linear(attn.value), "o": _linear(attn.proj)}
        parts |= {name: _linear(cast(nn.Linear, block.mlp[i])) for name, i in (("up", 0), ("down", 2))}
        blocks.append(native.DepthBlockWeights(**parts))
    return native.DepthWeights(
        blocks,
        first=_linear(depth.in_mlp_2),
        later=_linear(depth.in_mlp_1),
        depth_embeddings=depth.pos_emb_d[0].float().contiguous(),
        heads=depth.spec.heads,
        **_norms(norm=depth.classifier_mlp.layer_norm),
    )


@contextmanager
def _alone() -> Iterator[None]:
    """Make torch use only this thread: its idle helpers would take cores from the native products."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class NativeExecutor(HostExecutor):
    """Passes the tensors of a batch to the native kernels, which know only the thresholds of the replay rule."""

    name = "native"

    def __init__(self, batch: Batch, most_inputs: int = 1) -> None:
        super().__init__(batch)
        self.most_inputs = most_inputs = min(most_inputs, batch.cache.most_inputs)
        model, spec, replay, cache = batch.model, batch.model.spec.decoder, batch.replay, batch.cache
        self._dtype, threads = model.dtype, batch.settings.threads or torch.get_num_threads()
        self._threads, self._sizes = threads, dict[str, Any](heads=spec.heads, kv_heads=spec.kv_heads, eps=spec.rms_eps)
        names = ("older_keys", "older_values", "older_key_scales", "older_value_scales", "key_means", "value_means")
        self._blocks = [block_weights(b, *batch.places.cross_kv[i : i + 1]) for i, b in enumerate(model.llm.blocks)]
        self._pass = native.DecoderPass(
            self._blocks,
            model.llm.norm.weight.float(),
            **self._sizes | dict(zip(names, cache.older, strict=False)),
            keys=cache.k,
            values=cache.v,
            aligned=cache.aligned,
            outputs=None if replay is None else replay.outputs,
            table=cache.table,
            cos=batch.places.cos[: len(cache.table)].float(),
            sin=batch.places.sin[: len(cache.table)].float(),
            start=cache.pad if cache.window is None else torch.zeros_like(cache.pad),
            most=most_inputs,
            released=replay is not None and replay.rule.tas_definition == "released",
            pairs=replay is not None and replay.rule.pairs,
            threads=threads,
        )
        maps = [m for m in model.projector.modules() if isinstance(m, (nn.Linear, QuantisedLinear))]
        self._maps = [(_linear(m), 1 if m.weight.nbytes < SMALL else threads) for m in maps]
        self._products: dict[int, list[native.Product]] = {}
        self._absolute = model.llm.absolute
        # Added vectors include the last map's bias, so that sums have one order for any number of videos and tokens.
        self._bias, added = None, batch.places.added
        if added is not None and maps:
            last, last_threads = self._maps[-1]
            self._bias, self._maps[-1] = last.bias, (replace(last, bias=None), last_threads)
        self._added = None if added is None else self._with_bias(added)
        # Without a depth transformer no code vectors are summed, and the table may be as large as a vocabulary.
        self._codebooks = [torch.empty(model.spec.codes, 0)]
        if model.depth is not None:
            # One table per depth, without the last row of a model's codebook.
            tables = {book: book.weight[: model.spec.codes].float().contiguous() for book in model.codebooks}
            self._codebooks = [tables[book] for book in model.codebooks]
        sampling = batch.settings.sampling
        classifier = model.lm_head if model.depth is None else model.depth.classifier_mlp.linear
        self._draw = native.CodeDraw(
            None if model.depth is None else _transformer(model.depth),
            classifier=_linear(cast(nn.Linear, classifier)),
            codebooks=self._codebooks,
            uniforms=batch.draws.uniforms,
            codes=batch.draws.buffer,
            guidance=sampling.cfg,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            strict=sampling.top_p_strict,
            most=most_inputs,
            threads=threads,
        )
        self._top_p = [sampling.top_p_of(index // batch.frame) for index in range(batch.draws.buffer.shape[1])]
        # Outputs of a pass with one token per row: scores and flags [layers, rows, 1], and views for the kernels.
        scores = torch.full((spec.layers, batch.rows, 1), torch.nan)
        flags = torch.zeros_like(scores, dtype=torch.bool)
        self._one = flags, scores, flags[:, :, 0], scores[:, :, 0]

    def _with_bias(self, added: Tensor) -> Tensor:
        return added.float() if self._bias is None else added.float() + self._bias

    def refresh(self, tokens: slice) -> None:
        """See `Executor.refresh`."""
        added = self._batch.places.added
        if self._added is not None and added is not None:
            self._added[tokens] = self._with_bias(added[tokens])

    def prefill(self) -> Tensor:
        """See `Executor.prefill`; packed weights are multiplied without unpacking."""
        batch = self._batch
        if not any(isinstance(m, QuantisedLinear) for block in batch.model.llm.blocks for m in block.modules()):
            return super().prefill()
        # In this prefill the native kernels do not support padding.
        if batch.prompts.aligned and batch.rows <= PREFILL_PASS and not bool(batch.cache.pad.any()):
            return batch.model.llm.norm(self._run_prompts(self._prompt_inputs()).to(self._dtype))
        with _alone(), multiplied_by(self._packed_product):
            return super().prefill()

    def _run_prompts(self, x: Tensor) -> Tensor:
        """Run prompts from the first block's inputs [rows, padded, width] on, a layer at a time; fills the caches.
        Returns the last hidden states before the final norm, float32 [rows, width].
        """
        batch, model, prompts, settings = self._batch, self._batch.model, self._batch.prompts, self._batch.settings
        # Videos with the same prompt share its run.
        chosen, back = list[int](), [0] * batch.rows
        for videos, _ in prompts.apart():
            for i, own in enumerate(zip(*videos, strict=True), len(chosen)):
                for row in own:
                    back[row] = i
            chosen += videos[0]
        spec, rows, padded = model.spec.decoder, len(chosen), prompts.padded
        x, index, none = x[chosen].float(), torch.arange(padded), torch.zeros(padded, dtype=torch.int64)
        cos, sin = (angles.float() for angles in model.llm.rotary(index[:, None], model.dtype))
        # Results of one layer for all prompts: the caches receive them before the next layer runs.
        heads = torch.empty(2, 1, rows, spec.kv_heads, padded, spec.head_dim, dtype=model.dtype)
        outputs = torch.empty(1, rows, padded, spec.width, dtype=model.dtype)
        most = PREFILL_PASS // rows
        # Of the last block only keys and values are needed, and the MLP outputs that `fill` stores.
        stored = batch.replay is not None or batch.observers.on_prompt is not None
        results = max(prompts.reused, padded - max(1, min(prompts.aligned, batch.frame) if stored else 1))
        for layer, block in enumerate(self._blocks):
            run = native.DecoderPass(
                [block],
                None,
                **self._sizes,
                keys=heads[0],
                values=heads[1],
                aligned=heads[0],
                outputs=outputs,
                table=torch.stack([index, index + 1, none, index, none, none - 1], 1),
                cos=cos,
                sin=sin,
                start=none[:rows].clone(),
                most=most,
                threads=self._threads,
            )
            if prompts.reused:
                heads[:, 0, ..., : prompts.reused, :] = torch.stack(
                    [cached[layer][chosen][:, :, : prompts.reused] for cached in (batch.cache.k, batch.cache.v)]
                )
            needed = results if block is self._blocks[-1] else prompts.reused
            begins = [*range(prompts.reused, needed, most), *range(needed, padded, most), padded]
            for first, last in pairwise(begins):
                part, places, mask = x[:, first:last].contiguous(), None, None
                if settings.window is not None:
                    mask = torch.zeros(rows, last - first, padded, dtype=torch.bool)
                    seen = prompt_mask(prompts.lengths[:1], padded, settings.window, settings.sinks, first, last)
                    mask[:, :, :last] = seen[:, 0]
                    mask = mask.flatten(0, 1)
                if self._absolute is not None:
                    places = self._absolute(index[first:last].repeat(rows), torch.float32)
                run(part, [first] * rows, places=places, mask=mask, keys_only=first < needed)
                x[:, first:last] = part
                batch.observers.prefilled(layer * padded + last, len(self._blocks) * padded)
            batch.fill(layer, heads[0, 0][back], heads[1, 0][back], outputs[0][back])
        return x[back, -1]

    def _packed_product(self, module: QuantisedLinear, x: Tensor) -> Tensor:
        pieces, weight = x.flatten(0, -2).float().split(native.MOST_ROWS), _linear(module)
        products = torch.cat([native.linear(piece, weight, self._threads) for piece in pieces])
        return products.view(*x.shape[:-1], -1).to(x.dtype)

    def advance(self, inputs: Inputs, accepted: tuple[int, ...], record: bool = True) -> None:
        """See `Executor.advance`. One thread restores what drafts overwrote: torch's others would wait for cores."""
        if not self._passed.restores:
            return super().advance(inputs, accepted, record)
        with _alone():
            super().advance(inputs, accepted, record)

    def run(self, inputs: Inputs, latent: Tensor) -> Tensor:
        """See `HostExecutor.run`. Activations are float32 throughout; the result has the model's dtype."""
        batch, replay, count = self._batch, self._batch.replay, inputs.count
        x = batch.prompts.doubled(self._input(inputs, latent.float().contiguous())).contiguous()
        rule: dict[str, Any] = {}
        flags = scores = None
        if replay is not None and (count > 1 or replay.reached(inputs)):
            flags, scores, flat_flags, flat_scores = self._one
            thresholds = replay.thresholds(inputs)
            if count > 1:
                flat_scores = torch.full((len(flags), batch.rows * count), torch.nan)
                flat_flags = torch.zeros(flat_scores.shape, dtype=torch.bool)
                flags, scores = (flat.view(len(flags), batch.rows, count) for flat in (flat_flags, flat_scores))
            limits = (thresholds[0] if count == 1 else thresholds.permute(1, 2, 0).flatten(1)).contiguous()
            rule = {"thresholds": limits, "scored": replay.scored, "scores": flat_scores, "replayed": flat_flags}
        restores: Sequence[Restore] = ()
        if count > 1:
            with _alone():
                restores = self._overwrites(inputs)
        first = list(inputs.first * (batch.rows // len(inputs.first)))
        places = mask = None
        if self._absolute is not None:
            index = batch.places.index(inputs.tokens(batch.rows, self._rows.device))
            places = self._absolute(index.T.flatten(), torch.float32)
        if batch.cache.window is not None:
            mask = batch.cache.mask(inputs.tokens(batch.rows, self._rows.device)).transpose(0, 1).flatten(0, 1)
        batch.clock.mlp += self._pass(x, first, places=places, mask=mask, **rule)
        self._passed = Passed(flags, scores, restores, count)
        return x if self._dtype is torch.float32 else x.to(self._dtype)

    def _embed(self, codes: Tensor) -> Tensor:
        """See `Executor`: the kernels add the vectors in float32."""
        if self._batch.model.depth is None:
            return super()._embed(codes)
        vectors = (book[codes[..., depth]] for depth, book in enumerate(self._codebooks))
        return reduce(torch.add, vectors)

    def _input(self, inputs: Inputs, latent: Tensor) -> Tensor:
        """The decoder's inputs from float32 [P, count, code_width]: float32 [P, count, width]."""
        x, rows = latent, len(inputs.first) * inputs.count
        if rows not in self._products:
            self._products[rows] = [native.Product(linear, rows, threads) for linear, threads in self._maps]
        products = self._products[rows]
        for product in products[:-1]:
            x = nn.functional.gelu(product(x))
        if products:
            x = products[-1](x)
        return x if self._added is None else x + inputs.of(self._added).transpose(0, 1)

    def draw(self, hidden: Tensor, inputs: Inputs) -> Step:
        """See `Executor.draw`."""
        draws = self._batch.draws
        first = [t + 1 for t in inputs.first]
        top_p = [p for t in first for p in self._top_p[t : t + inputs.count]]
        try:
            draws.latent, logits = self._draw(
                hidden.float().contiguous(), first, top_p, given=draws.given, keep_logits=draws.keep_logits
            )
        except ArithmeticError:
            raise not_finite() from None
        if self._batch.model.depth is None:
            draws.latent = None
        return Step(inputs, draws, hidden, logits)
