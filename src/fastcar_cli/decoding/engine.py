"""The step loop: prefill, then one visual position a step for all rows.

The one loop of the project. With tau off it runs without a replay cache; forced codes, other
backends and windows stand behind its parts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from fastcar_cli.backends import MLPBackend, TorchBackend
from fastcar_cli.decoding.compiled import CompiledPass
from fastcar_cli.decoding.compiled_depth import CompiledDepth
from fastcar_cli.decoding.controller import Controller, Target
from fastcar_cli.decoding.kv_cache import FullCache, KVCache, WindowCache, prompt_mask
from fastcar_cli.decoding.paths import Path, choose_path
from fastcar_cli.decoding.replay import ReplayCache, temporal_attention_score
from fastcar_cli.decoding.sampling import SamplingSettings, guide, sample
from fastcar_cli.errors import RequestError
from fastcar_cli.models.decoder import rotate
from fastcar_cli.models.video_model import VideoModel


@dataclass(frozen=True)
class DecodeSettings:
    """How to decode.

    `taus` holds a threshold a layer (None: that layer is dense), None switches replay off. `tas` is
    the score's definition: `attention` (q and k rotated) or `released` (q before rotation, as the
    published code does). `pairs` gates the two rows of a video together. `target`, instead of `taus`,
    names a replay ratio that a controller keeps. `kernels` is `torch` or `numba` (compiled, CPU only;
    without watcher, marks and other backends).
    """

    frames: int
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    taus: tuple[float | None, ...] | None = None
    tas: str = "attention"
    pairs: bool = False
    max_age: int | None = None
    window: int | None = None
    sinks: int = 4
    keep_tas: bool = False
    target: Target | None = None
    kernels: str = "torch"


@dataclass(frozen=True)
class Step:
    """One decoded position.

    index: of the token in the video; codes [P, depth]; hidden [rows, width] after the final norm;
    logits [depth, P, codes], guided, before top-k; None unless asked for.
    """

    index: int
    codes: Tensor
    hidden: Tensor
    logits: Tensor | None


class Watcher(Protocol):
    """Looks on while a decode runs; see `Decode.watch`."""

    def layer(self, layer: int, t: int, mlp: Tensor, out: Tensor) -> None:
        """A block is done with input token t (-1: the prompt's last token).

        mlp [rows, width] is what the MLP branch added, computed or replayed; out [rows, width] the
        residual stream after it. Both are only valid during the call.
        """
        ...


@dataclass
class Clock:
    """Wall seconds of the phases of a decode; `mlp` is the part of `decode` spent in MLP branches.

    `capture` is what building the CUDA graph took, compiling its kernels included. With a graph
    `decode` grows by whole frames and `mlp` stays 0.
    """

    prefill: float = 0.0
    capture: float = 0.0
    decode: float = 0.0
    mlp: float = 0.0


def left_pad(prompts: Sequence[Sequence[int]], pad: int = 0) -> tuple[Tensor, Tensor]:
    """Token ids of rows of unequal length as ([rows, longest], lengths [rows]), padded on the left."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[pad] * (longest - len(p)) + list(p) for p in prompts])
    return ids, torch.tensor([len(p) for p in prompts])


class Decode:
    """One batch of videos being decoded. Rows: conditional ones first, then unconditional.

    `watch`, where set, sees every block's output; `mark` is called with a name at the end of each part of
    a pass, for profiling.

    Args:
        model: the network, in evaluation mode.
        prompts: token ids, one list a row; 2 P rows with guidance, P without (cfg 1).
        settings: what to do.
        uniforms: [P, T*N, depth] numbers in [0, 1) that fix the draws.
        backend: executes the MLPs; torch by default.
        graph: whether a step is one CUDA graph: `auto` where the rules of `decoding/paths.py` allow it,
            `on` to raise RequestError where they do not, `off` for the eager loop. `path` tells what
            was chosen once decoding has begun; set before, it decides.

    """

    def __init__(
        self,
        model: VideoModel,
        prompts: Sequence[Sequence[int]],
        settings: DecodeSettings,
        uniforms: Tensor,
        backend: MLPBackend | None = None,
        graph: Literal["auto", "on", "off"] = "auto",
    ) -> None:
        spec, device = model.spec, model.device
        self.model, self.settings = model, settings
        self.blocks = model.llm.blocks
        self.books = model.rqvae.quantizer.books
        self.backend = backend or TorchBackend(model.llm)
        self.guided = settings.sampling.cfg != 1.0
        self.videos = len(prompts) // 2 if self.guided else len(prompts)
        self.rows = len(prompts)
        self.frame = spec.tokens_per_frame
        self.tokens = settings.frames * self.frame
        self.uniforms = uniforms.to(device)
        self.codes = torch.zeros(self.videos, self.tokens, spec.depth.depth, dtype=torch.int64, device=device)
        ids, lengths = left_pad(prompts)
        self.ids, self.lengths = ids.to(device), lengths.to(device)
        self.padded = ids.shape[1]
        self.cache: KVCache
        if settings.window is None:
            self.cache = FullCache(spec.decoder, self.lengths, self.padded, self.tokens - 1, self.frame, model.dtype)
        else:
            self.cache = WindowCache(
                spec.decoder,
                self.lengths,
                self.padded,
                settings.window,
                settings.sinks,
                self.frame,
                model.dtype,
            )
        self.replay: ReplayCache | None = None
        taus, controller = settings.taus, None
        if settings.target is not None:
            # The numbers stand for "every layer may replay"; the controller sets the thresholds.
            taus = (0.0,) * spec.decoder.layers
            controller = Controller(
                settings.target,
                layers=spec.decoder.layers,
                rows=self.rows,
                videos=self.videos,
                tokens_per_frame=self.frame,
                tokens=self.tokens,
                max_age=settings.max_age,
                device=device,
            )
        if taus is not None:
            self.replay = ReplayCache(
                taus,
                rows=self.rows,
                tokens_per_frame=self.frame,
                tokens=self.tokens,
                width=spec.decoder.width,
                dtype=model.dtype,
                device=device,
                pairs=settings.pairs and self.guided,
                max_age=settings.max_age,
                keep_tas=settings.keep_tas,
                controller=controller,
            )
        self.graph = graph
        self.path: Path | None = None
        self.clock = Clock()
        self.passes = 0
        self.watch: Watcher | None = None
        self.mark: Callable[[str], None] | None = None
        self.places: Tensor | None = None
        self._latent: Tensor | None = None
        self._compiled: CompiledPass | None = None
        self._compiled_depth: CompiledDepth | None = None

    @torch.inference_mode()
    def steps(self, forced: Tensor | None = None, keep_logits: bool = False, first: int = 0) -> Iterator[Step]:
        """Decode every position in turn. `forced` codes [P, T*N, depth] are taken instead of drawn ones.

        With `first` above 0 the positions before it are not decoded but made up, see `fast_forward`.
        """
        self.path = choose_path(self, forced, keep_logits)
        began = time.perf_counter()
        hidden = self.start()
        self.clock.prefill = time.perf_counter() - began
        if first:
            self.fast_forward(first - 1)
        if self.path.name != "eager":
            from fastcar_cli.decoding.graph import static_steps

            yield from static_steps(self, hidden, self.path, first)
            return
        for index in range(first, self.tokens):
            began = time.perf_counter()
            if index:
                hidden = self.token_pass(index - 1, self._latent)
            codes, logits = self._codes(hidden, index, forced, keep_logits)
            self.codes[:, index] = codes
            self.clock.decode += time.perf_counter() - began
            yield Step(index, codes, hidden, logits)

    def positions(self) -> Tensor:
        """Rotary positions of the padded prompt, [rows, padded]; padding has 1."""
        i = torch.arange(self.padded, device=self.ids.device)[None] - (self.padded - self.lengths)[:, None]
        return torch.where(i >= 0, i, torch.ones_like(i))

    @torch.inference_mode()
    def start(self) -> Tensor:
        """Run the prompts; returns the final-normed hidden state of the last position, [rows, width]."""
        llm = self.model.llm
        settings = self.settings
        x = llm.embed_tokens(self.ids)
        cos, sin = (a[:, None] for a in llm.rotary(self.positions(), x.dtype))
        mask = prompt_mask(self.lengths, self.padded, settings.window, settings.sinks)
        groups = llm.spec.heads // llm.spec.kv_heads
        for i, block in enumerate(self.blocks):
            q, k, v = block.self_attn.project(block.input_layernorm(x))
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            self.cache.prefill(i, k, v)
            k, v = (a.repeat_interleave(groups, 1) for a in (k, v)) if groups > 1 else (k, v)
            x = x + block.self_attn.merge(F.scaled_dot_product_attention(q, k, v, attn_mask=mask))
            h = block.post_attention_layernorm(x).flatten(0, 1)
            added = block.mlp(h).view_as(x)
            x = x + added
            if self.watch is not None:
                self.watch.layer(i, -1, added[:, -1], x[:, -1])
        # Rotations of every later position at once: [tokens, rows or 1, 1, 1, head_dim].
        lengths = self.lengths if bool((self.lengths != self.lengths[0]).any()) else self.lengths[:1]
        later = lengths[None] + torch.arange(self.tokens, device=x.device)[:, None]
        cos, sin = llm.rotary(later, x.dtype)
        self._cos, self._sin = cos[:, :, None, None], sin[:, :, None, None]
        places = self.model.places
        self.places = None if places is None else places(torch.arange(self.tokens, device=x.device))
        if self.settings.kernels == "numba":
            if self.watch is not None or self.mark is not None or self.backend.name != "torch":
                raise RequestError(
                    "--kernels numba: compiled kernels can't be watched, profiled or combined with another backend",
                    hint="allowed: --kernels torch",
                )
            self._compiled = CompiledPass(self, cos, sin)
            self._compiled_depth = CompiledDepth(self.model.depth, self.rows)
        return llm.norm(x[:, -1])

    def token_pass(self, t: int, latent: Tensor | None = None) -> Tensor:
        """One decode pass with visual token t as input; returns the hidden states [rows, width].

        `latent` [P, code_width] is the sum of the token's code vectors, looked up where it is not given.
        """
        latent = self.model.rqvae.embed(self.codes[:, t]) if latent is None else latent
        if self._compiled is not None:
            hidden = self._compiled(latent, t)
            self.cache.advance()
            self.passes = t + 1
            return hidden
        llm, cache, replay = self.model.llm, self.cache, self.replay
        spec = llm.spec
        rows = self.rows
        x = self.model.feedback_latent(latent)
        x = x if self.places is None else x + self.places[t]
        x = torch.cat([x, x]) if self.guided else x
        mark = self.mark
        if mark is not None:
            mark("embedding")
        cos, sin = self._cos[t], self._sin[t]
        mask = None
        for i, block in enumerate(self.blocks):
            q, k, v = block.self_attn.project(block.input_layernorm(x)[:, None])
            if mark is not None:
                mark("attention.projections")
            rotated, k = rotate(q, cos, sin), rotate(k, cos, sin)
            if mark is not None:
                mark("attention.rotary")
            keys, values = cache.step(i, k, v)
            if i == 0:
                mask = cache.mask()
            # One query a head: the query heads of a group stand in the place of query positions.
            grouped = rotated.view(rows, spec.kv_heads, -1, spec.head_dim)
            out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
            if mark is not None:
                mark("attention.core")
            x = x + block.self_attn.merge(out.view(rows, spec.heads, 1, spec.head_dim))[:, 0]
            if mark is not None:
                mark("attention.output")
            scores = None
            if replay is not None and replay.wants(i, t):
                scored = rotated if self.settings.tas == "attention" else q
                scores = temporal_attention_score(scored[:, :, 0], cache.aligned(i))
                if mark is not None:
                    mark("tas")
            began = time.perf_counter()
            compute = self._branch(i)
            added = compute(x, None) if replay is None else replay.apply(i, t, x, scores, compute)
            self.clock.mlp += time.perf_counter() - began
            x = x + added
            if mark is not None:
                mark("mlp.rest")
            if self.watch is not None:
                self.watch.layer(i, t, added, x)
        cache.advance()
        self.passes = t + 1
        x = llm.norm(x)
        if mark is not None:
            mark("heads")
        return x

    def fast_forward(self, t: int, seed: int = 0) -> None:
        """Stand where t visual tokens have been decoded, with random codes, keys, values and MLP outputs.

        For measuring a step at a context length without decoding up to it; what is decoded then means
        nothing.
        """
        generator = torch.Generator(self.codes.device).manual_seed(seed)
        self.codes.random_(self.model.spec.depth.codes, generator=generator)
        self.cache.fill(t, generator)
        if self.replay is not None:
            self.replay.outputs.normal_(0.0, 0.1, generator=generator)

    def _branch(self, layer: int) -> Callable[[Tensor, Sequence[int] | None], Tensor]:
        norm = self.blocks[layer].post_attention_layernorm

        def compute(x: Tensor, rows: Sequence[int] | None) -> Tensor:
            return self.backend.mlp(layer, norm(x), rows)

        return compute

    def _codes(
        self, hidden: Tensor, index: int, forced: Tensor | None, keep_logits: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The codes of one position [P, depth], drawn one depth after another, and guided logits if kept."""
        depth, books = self.model.depth, self.books
        sampling = self.settings.sampling
        x, past, total = hidden, None, None
        codes, kept = [], []
        for d in range(depth.spec.depth):
            if self._compiled_depth is not None:
                raw = self._compiled_depth(x, d)
            else:
                raw, past = depth.step(x, d, past)
            if self.mark is not None:
                self.mark("depth_transformer")
            logits = guide(raw, sampling.cfg)
            if keep_logits:
                kept.append(logits.clone())
            if forced is not None:
                code = forced[:, index, d].to(logits.device)
            else:
                code = sample(logits, self.uniforms[:, index, d], sampling, index // self.frame)
            codes.append(code)
            vector = books[d](code)
            total = vector if total is None else total + vector
            x = torch.cat([total, total]) if self.guided else total
            if self.mark is not None:
                self.mark("sampling")
        self._latent = total
        return torch.stack(codes, -1), torch.stack(kept) if kept else None

    def draw(self, hidden: Tensor, index: int) -> Tensor:
        """Codes [P, depth] of position `index`, drawn from hidden states [rows, width]."""
        return self._codes(hidden, index, None, False)[0]

    def rows_of(self, video: int) -> list[int]:
        """The batch rows of a video."""
        return [video, video + self.videos] if self.guided else [video]

    @torch.inference_mode()
    def decode_frame(self, frame: int) -> Tensor:
        """Pixels of a finished frame of every video, float32 [P, H, W, 3] in 0..255."""
        return self.model.rqvae.decode(self.codes[:, frame * self.frame : (frame + 1) * self.frame])
