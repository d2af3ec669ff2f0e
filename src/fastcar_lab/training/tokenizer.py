"""Tokenizers of `mini` and `table`: a patch encoder and the RQ-VAE that it feeds, in one file or a model's folder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fastcar_cli.checkpoints.open import folder_of, load
from fastcar_cli.errors import RequestError
from fastcar_cli.models.bundled.checkpoint import BundledCheckpoint
from fastcar_cli.models.vila_u.network import VideoModel
from fastcar_cli.models.vila_u.rqvae import RQVAE, RQVAESpec
from fastcar_cli.weights.tensors import Component, Weights

if TYPE_CHECKING:
    from typing_extensions import Self

_FAR = 1e3


class TrainedTokenizer(nn.Module, ABC):
    """The tokenizer of a world."""

    def save(self, path: Path) -> None:
        """Write every weight to one safetensors file."""
        save_file({k: v.contiguous() for k, v in self.state_dict().items()}, path)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote."""
        made = cls()
        made.load_state_dict(load_file(path))
        return made.eval()

    @classmethod
    @abstractmethod
    def of_model(cls, model: str) -> Self:
        """The tokenizer of a model by name or folder. Raises RequestError where it is not of this world."""


class WorldTokenizer(TrainedTokenizer):
    """Patch encoder and RQ-VAE together; a world says `spec` and what its encoder is."""

    spec: RQVAESpec
    encoder: nn.Module

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.rqvae = RQVAE(self.spec)

    def codebooks(self) -> Tensor:
        """[depth, codes, code_width]; unused entries, which are zero, are pushed out of reach."""
        rows = torch.stack([book.weight[: self.spec.codes] for book in self.rqvae.quantizer.codebooks])
        return torch.where((rows == 0).all(-1, keepdim=True), torch.full_like(rows, _FAR), rows)

    def save_encoder(self, folder: Path) -> None:
        """Write the encoder as float16 to a model folder, whose other weights hold the RQ-VAE."""
        file = folder / "encoder.safetensors"
        save_file({k: v.half().contiguous() for k, v in self.encoder.state_dict().items()}, str(file))
        file.chmod(0o644)

    @classmethod
    def of_model(cls, model: str) -> Self:
        """See `TrainedTokenizer`."""
        network = load(model).network
        checkpoint = BundledCheckpoint(folder_of(model))
        files = tuple(file for file in checkpoint.files("encoder.safetensors") if file.is_file())
        if not isinstance(network, VideoModel) or network.spec.rqvae != cls.spec or not files:
            raise RequestError("not a model of this world, or it has no encoder.safetensors", key="model", value=model)
        made = cls()  # type: ignore[call-arg]
        wanted = made.encoder.state_dict()
        part = Component(files[0].parent, {name: name for name in wanted}, lambda key: False, files[:1])
        made.encoder.load_state_dict(Weights([part], wanted).read_all(lambda name: torch.float32))
        made.rqvae.load_state_dict(network.rqvae.state_dict())
        return made.eval()


def to_patches(frames: Tensor, side: int = 8) -> Tensor:
    """Frames [..., H, W, C] to row-major patches [..., (H / side) * (W / side), side * side * C]."""
    *lead, h, w, c = frames.shape
    x = frames.reshape(*lead, h // side, side, w // side, side, c).transpose(-4, -3)
    return x.reshape(*lead, (h // side) * (w // side), side * side * c)


def nearest(residual: Tensor, book: Tensor) -> Tensor:
    """Index [count] of the row of `book` [codes, width] nearest to each row of `residual` [count, width]."""
    return (book.square().sum(-1) - 2 * residual @ book.T).argmin(-1)


def quantize(latents: Tensor, codebooks: Tensor) -> Tensor:
    """Residual quantisation: the nearest code of each depth to what the depths before left over. latents [..., width],
    codebooks [depth, codes, width] -> codes [..., depth] (int64).
    """
    residual = latents.reshape(-1, latents.shape[-1])
    codes = []
    for book in codebooks:
        codes.append(nearest(residual, book))
        residual = residual - book[codes[-1]]
    return torch.stack(codes, -1).reshape(*latents.shape[:-1], len(codebooks))
