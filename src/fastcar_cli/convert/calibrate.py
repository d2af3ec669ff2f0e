"""Calibration: runs tokens of some prompts through the network, part by part, and rounds each matrix for its inputs.

The tokens are those of the prompts, blank ones for guidance, and visual ones that the model samples after plain
rounding. Each part (projector, block, depth transformer) gets the outputs of the rounded parts before it; within a
block, each linear layer gets those of the rounded layers before it.

In a matrix the next columns compensate for the error of each rounded column: GPTQ (Frantar et al. 2022, arXiv
2210.17323) in the form LDLQ (Chee et al. 2023, arXiv 2307.13304, section 3), which gives the same numbers from one
Cholesky factor. With inputs x, G = sum x x^T = L D L^T and errors E = W' - W of a row, the error of its outputs is
E G E^T = sum over columns k of D_k (E L)_k^2, and (E L)_k depends only on the columns from k on. So the columns are
rounded from the last to the first, each to the value that minimises this sum.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fastcar_cli.checkpoints.open import open_folder
from fastcar_cli.decoding.batch import DecodeSettings
from fastcar_cli.decoding.engine import begin
from fastcar_cli.errors import RequestError
from fastcar_cli.inputs.prompt import PromptReader
from fastcar_cli.models.checkpoint import LoadedModel
from fastcar_cli.models.decoder import Block, RMSNorm, Rotary, attention, rotate
from fastcar_cli.models.depth import Classifier, DepthBlock
from fastcar_cli.models.network import Projector, Spec
from fastcar_cli.models.vila_u.network import ModelSpec, PlaceTables, placement_map
from fastcar_cli.models.weight_format import NetworkFormat, scale_name
from fastcar_cli.weights.formats import GROUP, Format, inverse_of

_DAMPING = 0.01  # share of the mean of G's diagonal to add to it, so that rare inputs do not cause large numbers
_BLOCK, _ROWS = 4 * GROUP, 2048  # columns per block of compensation, and rows rounded at once


def output_error(error: Tensor, gram: Tensor) -> Tensor:
    """Sums of squared output errors, float32 [out], for errors [out, in] of a matrix and inputs with this `gram`."""
    return torch.cat([((part @ gram) * part).sum(1) for part in error.split(_ROWS)])


def calibrated(weight: Tensor, gram: Tensor, form: Format) -> tuple[Tensor, Tensor]:
    """Round a matrix float32 [out, in] to numbers and scales of a format.

    gram: sum of x x^T over the inputs, float32 [in, in]; unchanged on return. If `Format.quantise` brings the outputs
    of a row closer to the matrix's, its rounding is used for that row.
    """
    numbers, scale = form.quantise(weight)
    factor = _factor(gram)
    for rows, integers, scales in _compensated(weight, factor, form, scale):
        packed, part = form.pack(integers), weight[rows]
        plain, other = (
            output_error(form.widen(n, s, torch.float32) - part, gram)
            for n, s in ((numbers[rows], scale[rows]), (packed, scales))
        )
        better = (other < plain)[:, None]
        numbers[rows] = torch.where(better, packed, numbers[rows])
        if form.fit is not None:
            scale[rows] = torch.where(better, scales, scale[rows])
    return numbers, scale


def _factor(gram: Tensor) -> Tensor:
    """Lower triangular Cholesky factor of G with `_DAMPING` on its diagonal, or more if G is nearly singular."""
    diagonal = gram.diagonal()
    kept, mean = diagonal.clone(), float(diagonal.mean())
    damping = _DAMPING * mean if mean > 0 else 1.0
    while True:
        diagonal += damping
        factor, failed = torch.linalg.cholesky_ex(gram)
        diagonal.copy_(kept)
        if not failed:
            return factor
        damping *= 10


def _compensated(
    weight: Tensor, factor: Tensor, form: Format, plain_scale: Tensor
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield rows, their integers int8 [rows, in] and scales, which are `plain_scale`'s if the format fits none."""
    outputs, inputs = weight.shape
    width = form.group or GROUP
    pivots = factor.diagonal()
    for first in range(0, outputs, _ROWS):
        rows = slice(first, min(outputs, first + _ROWS))
        # Columns are contiguous; errors are those of the columns rounded so far.
        columns = weight[rows].T.contiguous()
        errors = torch.zeros_like(columns)
        numbers = torch.empty(columns.shape, dtype=torch.int8)
        scales = plain_scale[rows].clone()
        for end in range(inputs, 0, -_BLOCK):
            begin = max(0, end - _BLOCK)
            shares = factor[begin:, begin:end] / pivots[begin:end]
            wanted = columns[begin:end] - shares[end - begin :].T @ errors[end:]
            for stop in range(end - begin, 0, -width):
                start = max(0, stop - width)
                group = wanted[start:stop] - shares[stop : end - begin, start:stop].T @ errors[begin + stop : end]
                step = scales
                if form.fit is not None:
                    at = (begin + start) // width
                    weights = pivots[begin + start : begin + stop].square()
                    scales[:, at] = form.fit(group.T.contiguous(), weights)[:, 0].clamp_(-65504, 65504)
                    step = scales[:, at].float()
                inverse = inverse_of(step)
                for k in range(stop - 1, start - 1, -1):
                    at = begin + k
                    value = group[k - start]
                    if k + 1 < stop:
                        value = value - shares[k + 1 : stop, k] @ errors[at + 1 : begin + stop]
                    whole = (value * inverse).round_().clamp_(form.low, form.high)
                    numbers[at] = whole
                    torch.sub(whole * step, columns[at], out=errors[at])
        yield rows, numbers.T.contiguous(), scales


MOST_PROMPTS = 32
_TOKENS = 256  # minimum of visual tokens per prompt, in whole frames
_POSITIONS = 2048  # maximum of positions for rounding the depth transformer
Read = Callable[[str], Tensor]  # a parameter of the source by its name
Rounded = tuple[str, Mapping[str, Tensor]]  # the name of a matrix, and its stored tensors


@dataclass(frozen=True)
class Calibration:
    """The prompts of a calibration. Raises RequestError for too many."""

    prompts: tuple[str, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.prompts) <= MOST_PROMPTS:
            raise RequestError(f"{len(self.prompts)} prompts", key="calibrate", allowed=f"1 to {MOST_PROMPTS}")

    @property
    def description(self) -> str:
        """The entry `rounding` of config.json."""
        digest = hashlib.sha256("\n".join(self.prompts).encode()).hexdigest()
        return f"GPTQ on {len(self.prompts)} prompts (SHA-256 {digest})"

    def rows(self, tokenizer: PromptReader, guided: bool) -> list[list[int]]:
        """Token ids of the prompts, with guidance also of blank ones. Raises RequestError for an invalid prompt."""
        read = []
        for seed, prompt in enumerate(self.prompts):
            reading = tokenizer.read(prompt)
            if reading.unknown and not reading.tokens:
                raise RequestError(f"the model knows no word of the prompt {prompt!r}", key="calibrate")
            read.append(list(tokenizer.complete(reading, seed).ids))
        return read + [list(tokenizer.blank()) for _ in self.prompts if guided]

    def bytes_of_states(self, spec: Spec, rows: Sequence[Sequence[int]]) -> int:
        """Bytes on disk of the states after two shards."""
        return 2 * 4 * spec.decoder.width * sum(len(row) + _frames(spec) * spec.tokens_per_frame - 1 for row in rows)

    def draw(self, folder: Path, spec: ModelSpec, on_progress: Callable[[int, int], None]) -> Tensor:
        """Codes int64 [P, T*N, depth] that the model in `folder` samples; `on_progress(done, total)` counts videos."""
        model = open_folder(folder).load()
        frames, codes = _frames(spec), []
        for seed, prompt in enumerate(self.prompts):
            on_progress(seed, len(self.prompts))
            codes.append(drawn_codes(model, [prompt], [seed], frames))
        on_progress(len(self.prompts), len(self.prompts))
        return torch.cat(codes)


def drawn_codes(model: LoadedModel, prompts: Sequence[str], seeds: Sequence[int], frames: int) -> Tensor:
    """Codes int64 [P, T*N, depth] that a model samples for prompts with its default settings."""
    decode, _ = begin(model, prompts, seeds, DecodeSettings(frames, model.defaults.sampling))
    return decode.run().codes


def _frames(spec: Spec) -> int:
    """Frames sampled per prompt."""
    return -(-_TOKENS // spec.tokens_per_frame)


class Walk:
    """Runs the tokens of a calibration through the network.

    rows: token ids, conditional rows first. codes: int64 [P, tokens, depth]. The states of a row are float32 [tokens,
    width], without those of the last token.
    """

    def __init__(
        self,
        form: NetworkFormat,
        spec: ModelSpec,
        read: Read,
        rows: Sequence[Sequence[int]],
        codes: Tensor,
        states: Tensor | None = None,
    ) -> None:
        """`states`: those of an earlier run, one row after another."""
        self._form, self._spec, self._read, self._rows, self._codes = form, spec, read, rows, codes
        self.states = [] if states is None else list(states.split([len(row) + codes.shape[1] - 1 for row in rows]))
        self._rotary = Rotary(spec.decoder)

    @torch.no_grad()
    def round(self, names: Sequence[str]) -> Iterator[Rounded]:
        """Run the tokens through the part with these parameters, and round its matrices."""
        first = names[0]
        if first.startswith("llm.layers."):
            yield from self._block(first[: first.index(".", len("llm.layers.")) + 1])
        elif first.startswith("depth."):
            yield from self._depth()
        elif first.startswith("llm."):
            yield from self._enter()

    def _loaded(self, module: nn.Module, prefix: str) -> nn.Module:
        """The module with its parameters in float32."""
        names = list(module.state_dict())
        module.load_state_dict({name: self._read(prefix + name).float() for name in names}, assign=True)
        return module.eval().requires_grad_(False)

    def _turns(
        self,
        prefix: str,
        module: nn.Module,
        turns: Sequence[Sequence[str]],
        run: Callable[[Tensor], Tensor],
        batches: Sequence[Tensor],
    ) -> Iterator[Rounded]:
        """Round linear layers of a module; layers of one turn share inputs. `run` runs a batch through the module."""
        for turn in turns:
            maps = {f"{prefix}{path}.weight": cast(nn.Linear, module.get_submodule(path)) for path in turn}
            maps = {name: linear for name, linear in maps.items() if self._form.of(name) is not None}
            gram = _gram(next(iter(maps.values())), run, batches) if maps else torch.empty(0)
            for name, linear in maps.items():
                form = self._form.of(name)
                assert form is not None
                numbers, scale = calibrated(linear.weight, gram, form)
                linear.weight = nn.Parameter(form.widen(numbers, scale, torch.float32), requires_grad=False)
                yield name, {name: numbers, scale_name(name): scale}

    def _vectors(self) -> Tensor:
        """Sums of the code vectors up to each depth, float32 [P, tokens, depth, code width]."""
        shared = self._spec.rqvae.shared_codebook
        codebooks = [
            self._read(f"rqvae.quantizer.codebooks.{0 if shared else d}.weight") for d in range(self._codes.shape[2])
        ]
        return torch.stack([book[self._codes[..., d]].float() for d, book in enumerate(codebooks)], 2).cumsum(2)

    def _enter(self) -> Iterator[Rounded]:
        spec, fed = self._spec, self._codes.shape[1] - 1
        projector = Projector(spec.rqvae.code_width, spec.decoder.width, spec.projector_layers)
        self._loaded(projector, "projector.")
        latents = list(self._vectors()[:, :fed, -1])
        paths = [name.removesuffix(".weight") for name in projector.state_dict() if name.endswith("weight")]
        yield from self._turns("projector.", projector, [[path] for path in paths], projector, latents)
        visual = [projector(latent) for latent in latents]
        if spec.place_tables:
            positions = PlaceTables(spec.frames, spec.tokens_per_frame, spec.decoder.width)
            added = self._loaded(positions, "places.")(torch.arange(fed))
            visual = [x + added for x in visual]
        if (placements := placement_map(spec)) is not None:
            prompts = torch.tensor(self._rows[: len(visual)])
            vectors = self._loaded(placements, "map.")(prompts, torch.arange(1, fed + 1)[None])
            visual = [x + added for x, added in zip(visual, vectors, strict=True)]
        table = self._read("llm.embed_tokens.weight")
        texts = [table[torch.tensor(row)].float() for row in self._rows]
        self.states = [torch.cat([text, visual[r % len(visual)]]) for r, text in enumerate(texts)]

    def _block(self, prefix: str) -> Iterator[Rounded]:
        block = Block(self._spec.decoder)
        self._loaded(block, prefix)

        def run(x: Tensor) -> Tensor:
            cos, sin = self._rotary(torch.arange(len(x)), x.dtype)
            return block(x[None], lambda q, k, v: attention(rotate(q, cos, sin), rotate(k, cos, sin), v))[0]

        turns = [[f"self_attn.{part}_proj" for part in "qkv"], ["self_attn.o_proj"]]
        turns += [["mlp.gate_proj", "mlp.up_proj"], ["mlp.down_proj"]]
        yield from self._turns(prefix, block, turns, run, self.states)
        self.states = [run(x) for x in self.states]

    def _depth(self) -> Iterator[Rounded]:
        spec, tokens = self._spec.depth, self._codes.shape[1]
        norm = self._loaded(RMSNorm(self._spec.decoder.width, self._spec.decoder.rms_eps), "llm.norm.")
        hidden = torch.cat([norm(x[-tokens:]) for x in self.states])
        sums = self._vectors()[:, :, :-1].flatten(0, 1)
        chosen = torch.arange(0, len(hidden), -(-len(hidden) // _POSITIONS))
        hidden, sums = hidden[chosen], sums[chosen % len(sums)]

        states = self._read("depth.pos_emb_d").float().expand(len(hidden), -1, -1).clone()
        for name, inputs, at in (("in_mlp_2", hidden, slice(0, 1)), ("in_mlp_1", sums, slice(1, None))):
            into = nn.ModuleDict({name: nn.Linear(inputs.shape[-1], spec.width)})
            self._loaded(into[name], f"depth.{name}.")
            yield from self._turns("depth.", into, [[name]], into[name], [inputs])
            states[:, at] += into[name](inputs).view(len(hidden), -1, spec.width)
        batches = list(states.split(256))
        for i in range(spec.blocks):
            block, prefix = DepthBlock(spec), f"depth.head_transformer.blocks.{i}."
            self._loaded(block, prefix)
            turns = [["attn.query", "attn.key", "attn.value"], ["attn.proj"], ["mlp.0"], ["mlp.2"]]
            yield from self._turns(prefix, block, turns, lambda x, block=block: block(x)[0], batches)  # type: ignore[misc]
            batches = [block(x)[0] for x in batches]
        last = self._loaded(Classifier(spec), "depth.classifier_mlp.")
        yield from self._turns("depth.classifier_mlp.", last, [["linear"]], last, batches)


def _gram(linear: nn.Linear, run: Callable[[Tensor], Tensor], batches: Sequence[Tensor]) -> Tensor:
    """Sum of x x^T over the inputs x of a layer in all batches, float32 [in, in]."""
    width = linear.in_features
    gram = torch.zeros(width, width)

    def add(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        x = inputs[0].reshape(-1, width)
        gram.addmm_(x.T, x)
        raise StopIteration  # later layers need not run

    hook = linear.register_forward_pre_hook(add)
    try:
        for batch in batches:
            with contextlib.suppress(StopIteration):
                run(batch)
    finally:
        hook.remove()
    return gram


def saved(file: Path, name: str) -> Tensor:
    """A tensor that an earlier run of a calibration saved. Raises RequestError for a missing or damaged file."""
    try:
        return load_file(str(file))[name]
    except (OSError, SafetensorError, KeyError) as e:
        raise RequestError(f"{file}: the saved calibration can't be read: {e}", hint=f"delete {file.parent}") from None
