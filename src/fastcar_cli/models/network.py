"""The engine's view of a model: decoder, layout of tokens, sampling of codes, decoding of frames.
What differs between architectures is data, so that the engine never asks for a model's name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import torch
from pydantic.dataclasses import dataclass as checked_dataclass
from torch import Tensor, nn

from fastcar_cli.errors import RequestError
from fastcar_cli.inputs.prompt import ActionPart, OnProgress
from fastcar_cli.models.decoder import Decoder, DecoderSpec, summed
from fastcar_cli.models.depth import DepthTransformer
from fastcar_cli.system.plain_data import WHOLE, Size
from fastcar_cli.weights.formats import QuantisedLinear

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class Layout:
    """The order of a video's tokens in the sequence."""

    stride: int  # N, tokens per frame; token 0 is the first after the prompt, t - N is aligned with t
    delimiters: tuple[int, ...] = ()  # positions in a frame (t % N) of tokens that separate frames and are not codes
    delimiter: int | None = None  # their id; None if there are none, or several ids (`Network.given`)
    delimiters_sampled: bool = False  # whether they are sampled like codes; token 0 never is
    prefix: int | None = None  # tokens of a prompt before its frames; None: a prompt holds no frames
    context: int = 0  # frames of the video that a prompt holds; they are shown, not decoded
    prompt_frames: int = 0  # how many of these lie in the prompt as tokens, after the prefix
    held: int | None = None  # the number of these tokens; None: N per frame
    opening: int = 0  # number of first tokens of a frame that have no aligned token in a prompt
    rolls: bool = False  # whether longer videos roll the context by default, after `Spec.frames` at the latest
    repeats: bool = False  # whether an input of one image serves as all context frames
    guided: bool = True  # whether a video may have an unconditional row besides its conditional one

    @property
    def prompt(self) -> int | None:
        """Tokens of a prompt; None if they differ between prompts."""
        return None if self.prefix is None else self.prefix + self.prompt_tokens

    @property
    def prompt_tokens(self) -> int:
        """Tokens of a prompt after its prefix."""
        return self.prompt_frames * self.stride if self.held is None else self.held

    @property
    def together(self) -> int:
        """Number of given tokens between the codes of two frames, which one pass takes together."""
        return 0 if self.delimiter is not None else len(self.delimiters)

    def aligned(self, prompt: int) -> int:
        """Tokens at the end of a prompt of this length that have the layout of frames."""
        return 0 if self.prefix is None else prompt - self.prefix

    def fixed(self, tokens: int) -> list[int | None]:
        """The given id of each token; None for sampled tokens."""
        given = (t % self.stride in self.delimiters and not (self.delimiters_sampled and t) for t in range(tokens))
        return [self.delimiter if is_given else None for is_given in given]


class Steering(NamedTuple):
    """How a video is steered: the action at rest, what its numbers mean (empty: unknown), and the keys of a player: the
    number that each sets, and to which value; `words` describe the keys.
    """

    rest: tuple[float, ...]
    parts: tuple[ActionPart, ...] = ()
    keys: Mapping[str, tuple[int, float]] = MappingProxyType({})
    words: str = ""


@dataclass(frozen=True)
class SamplingWeights:
    """Numbers of weights read to sample the codes of a position."""

    transformer: int  # read by the layers before the heads
    heads: int  # read by the layers that give logits, for all depths together
    stored: int  # all of them, each counted once
    projector: int = 0  # between code vectors and the decoder's input


@dataclass(frozen=True)
class FrameSpec:
    """The codes and sizes of frames."""

    depth: int  # codes per position
    codes: int  # number of different codes
    code_width: int  # width of their vectors
    grid: tuple[int, int]  # rows and columns of positions, without delimiters
    size: tuple[int, int]  # (height, width) in pixels
    channels: int  # of the widest feature map of full size in the pixel decoder
    per_latent: int = 1  # frames per latent frame; the first latent frame is one frame


@checked_dataclass(frozen=True, config=WHOLE)
class Spec(ABC):
    """Everything that fixes the shapes of a model; `frames`: frames of a training video, context included."""

    name: str
    frames: Size
    fps: Size
    decoder: DecoderSpec

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """See `Layout`."""

    @property
    def tokens_per_frame(self) -> int:
        """N, positions per frame, delimiters included."""
        return self.layout.stride

    @property
    def conditions(self) -> int:
        """Numbers per frame that condition a video besides its prompt, such as actions; 0: none."""
        return 0

    @property
    def steering(self) -> Steering:
        """See `Steering`."""
        return Steering((0.0,) * self.conditions)

    @property
    def contexts(self) -> tuple[int, ...]:
        """Allowed numbers of context frames, the last ones of an input; empty: its first `Layout.context` frames."""
        return ()

    @property
    @abstractmethod
    def frame_spec(self) -> FrameSpec:
        """See `FrameSpec`."""

    @property
    def code_depth(self) -> int:
        """See `FrameSpec.depth`."""
        return self.frame_spec.depth

    @property
    def frame_size(self) -> tuple[int, int]:
        """See `FrameSpec.size`."""
        return self.frame_spec.size

    @property
    def codes(self) -> int:
        """See `FrameSpec`."""
        return self.frame_spec.codes

    @property
    def grid(self) -> tuple[int, int]:
        """See `FrameSpec`."""
        return self.frame_spec.grid

    @property
    def pixel_bytes(self) -> int:
        """Bytes that a video's pixel decoder holds between and during frames; 0 if that is only a few frames."""
        return 0

    @property
    def sampling_weights(self) -> SamplingWeights:
        """Weights for sampling codes; here those of a linear layer from hidden states to logits."""
        head = self.codes * self.decoder.width
        return SamplingWeights(transformer=0, heads=head, stored=head)

    def frames_of(self, latents: int) -> int:
        """Frames in a video's first `latents` latent frames."""
        return latents and 1 + (latents - 1) * self.frame_spec.per_latent

    def continuing(self, frames: int | None) -> Self:
        """The same model with this number of context frames; None: its own. Raises RequestError."""
        own = self.frames_of(self.layout.context)
        if frames in (None, own):
            return self
        said = f"the model {self.name!r} takes {own or 'no'} context frame{'s' * (own != 1)}"
        raise RequestError(said, key="context", value=frames, allowed=f"{own}")

    def sized(self, size: tuple[int, int] | None) -> Self:
        """The same model with frames of (height, width) pixels; None: its own size. Raises RequestError."""
        if size in (None, self.frame_spec.size):
            return self
        height, width = self.frame_spec.size
        said = f"the model {self.name!r} makes frames of one size"
        raise RequestError(said, key="size", value="{1}x{0}".format(*size), allowed=f"{width}x{height}")

    @property
    def longest(self) -> int:
        """Maximum number of frames that the model's positions allow, context included."""
        layout = self.layout
        if layout.rolls:
            return self.frames
        return layout.context + (self.decoder.max_positions + 1 - (layout.prompt or 2)) // layout.stride

    @abstractmethod
    def network(self) -> Network:
        """Its modules, without weights."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for config.json."""
        return asdict(self)


class Projector(nn.Module):
    """Code width to decoder width: linear layers with GELU (erf) between them; without any, the identity."""

    def __init__(self, code_width: int, width: int, count: int) -> None:
        super().__init__()
        parts: list[nn.Module] = [nn.Linear(code_width, width) if count else nn.Identity()]
        for _ in range(count - 1):
            parts += [nn.GELU(), nn.Linear(width, width)]
        self.layers = nn.Sequential(*parts) if count > 1 else parts[0]

    def forward(self, x: Tensor) -> Tensor:
        """[..., code_width] -> [..., width]."""
        return self.layers(x)


class FrameDecoder(Protocol):
    """Decodes the frames of some videos from their codes."""

    def context(self) -> Tensor | None:
        """The frames that prompts hold, float32 [P, C, H, W, 3] in 0..255, not rounded; None if they hold none."""

    def frame(self, codes: Tensor) -> Tensor:
        """A frame of every video from its codes int64 [P, N, depth], float32 [P, H, W, 3] in 0..255, not rounded.
        If a latent frame stands for several frames, [P, frames, H, W, 3]; latent frames must come in order.
        """


class Network(nn.Module, ABC):
    """The networks of a model, which the engine calls part by part.
    `depth` samples the codes of a position one after another; without it a position has one code, from `lm_head`.
    """

    spec: Spec
    llm: Decoder
    projector: Projector
    depth: DepthTransformer | None
    lm_head: nn.Module | None

    @property
    @abstractmethod
    def codebooks(self) -> Sequence[nn.Embedding]:
        """Tables of the code vectors, one per depth; a table may have more rows than there are codes."""

    def embed(self, codes: Tensor) -> Tensor:
        """Sum of the vectors of codes [..., depth]: [..., code_width]."""
        return summed(self.codebooks, codes)

    def feedback_latent(self, latent: Tensor) -> Tensor:
        """Decoder input [..., width] from summed code vectors [..., code_width]."""
        return self.projector(latent)

    def added(self, tokens: int, prompts: Tensor, conditions: Tensor | None, begin: int = 0) -> Tensor | None:
        """Vectors added to the inputs of `tokens` tokens from `begin` on, [tokens, 1 or P, width]; None: nothing.
        `prompts`: ids [P, L]; `conditions`: what videos get besides their prompts, such as actions. Learned vectors of
        positions count from `begin`, the first position of a rolled context.
        """
        return None

    def given(self, tokens: int, conditions: Tensor | None, begin: int = 0) -> Tensor:
        """Given ids of `tokens` tokens from `begin` on, int64 [1 or P, tokens]; -1 for tokens that are sampled."""
        fixed = self.spec.layout.fixed(begin + tokens)[begin:]
        return torch.tensor([[-1 if code is None else code for code in fixed]], device=self.device)

    def rolled(self, seen: Tensor) -> Tensor:
        """The prompts [P, L] of the context after one with these ids: its prefix and its last frames."""
        layout = self.spec.layout
        return torch.cat([seen[:, : layout.prefix], seen[:, -layout.prompt_tokens :]], 1)

    def logits(self, x: Tensor, d: int, past: Any) -> tuple[Tensor, Any]:
        """Logits [B, codes] of depth d, and the `past` of the next depth; x: see `DepthTransformer.step`."""
        if self.depth is not None:
            return self.depth.step(x, d, past)
        assert self.lm_head is not None
        return self.lm_head(x), None

    def shared(self) -> dict[str, str]:
        """Shared parameters: second name to first name."""
        return {}

    def parts(self) -> dict[str, nn.Module]:
        """Modules with linear layers that a `WeightFormat` can quantise, by its fields."""
        draws = self.lm_head if self.depth is None else self.depth
        assert draws is not None
        return {"blocks": self.llm.layers, "projector": self.projector, "depth": draws}

    @abstractmethod
    def pixels(self) -> Sequence[nn.Module]:
        """The pixel encoder and decoder, loaded in float32."""

    def decode_pixels_in(self, dtype: torch.dtype) -> None:
        """Decode pixels in this dtype from now on. Raises RequestError if the model can't."""
        if dtype != torch.float32:
            said, value = f"{self.spec.name!r} decodes frames only in float32", str(dtype).removeprefix("torch.")
            raise RequestError(said, key="pixel_dtype", value=value, allowed="float32")

    @abstractmethod
    def frame_decoder(self, prompts: Tensor) -> FrameDecoder:
        """The decoder of frames for videos with these prompts, ids [P, L]."""

    def play_decoder(self, prompts: Tensor) -> FrameDecoder:
        """Like `frame_decoder`, for a video that is steered while it is decoded."""
        return self.frame_decoder(prompts)

    def to_bytes(self, pixels: Tensor) -> Tensor:
        """Pixels in 0..255 as uint8, rounded as the model's authors do."""
        return pixels.round().to(torch.uint8)

    def quantised(self) -> list[QuantisedLinear]:
        """The quantised linear layers."""
        return [m for m in self.modules() if isinstance(m, QuantisedLinear)]

    def parameter_count(self) -> int:
        """Number of weights."""
        return sum(p.numel() for p in self.parameters()) + sum(m.in_features * m.out_features for m in self.quantised())

    def weights_bytes(self, *parts: str) -> int:
        """Bytes of the weights, scales included, whose names contain all `parts`."""
        packed = [(name, m.stored_bytes) for name, m in self.named_modules() if isinstance(m, QuantisedLinear)]
        sizes = [*((name, p.nbytes) for name, p in self.named_parameters()), *packed]
        return sum(size for name, size in sizes if all(part in name for part in parts))

    @property
    def weight_format(self) -> str:
        """Format of the decoder blocks' matrices: a dtype's name, int8 or int4."""
        first = self.llm.blocks[0].mlp.gate_proj
        return first.form.name if isinstance(first, QuantisedLinear) else str(first.weight.dtype).removeprefix("torch.")

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the decoder's weights."""
        return self.llm.norm.weight.dtype

    @property
    def device(self) -> torch.device:
        """Device of the decoder's weights."""
        return cast(Tensor, self.llm.norm.weight).device


class FramesNetwork(Network):
    """A network that continues frames: a position has one code, an id of the decoder's own table."""

    tokenizer: nn.Module  # frames to ids, and ids to frames

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec = spec
        self.llm = Decoder(spec.decoder)
        self.projector = Projector(spec.decoder.width, spec.decoder.width, 0)
        self.depth = None
        self.lm_head: nn.Linear = nn.Linear(spec.decoder.width, spec.codes, bias=False)

    @property
    def codebooks(self) -> Sequence[nn.Embedding]:
        """See `Network`."""
        return [self.llm.embed_tokens]

    @abstractmethod
    def encode(self, frames: Tensor, on_progress: OnProgress | None = None, actions: Tensor | None = None) -> Tensor:
        """Ids int64 [P, L] of frames [P, S, H, W, 3], uint8 or float32 in 0..1: a prompt, then later frames.
        If ids also stand for `actions`, these are float32 [P, S - 1 or more, A].
        """

    def pixels(self) -> Sequence[nn.Module]:
        """See `Network`."""
        return (self.tokenizer,)

    def to_bytes(self, pixels: Tensor) -> Tensor:
        """See `Network`: truncated, as in the released code."""
        return pixels.to(torch.uint8)
