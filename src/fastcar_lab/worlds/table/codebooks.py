"""Codebooks that follow the latents: moving averages of what each code stands for."""

from __future__ import annotations

import torch
from torch import Tensor

from fastcar_lab.worlds.table.tokenizer import TableTokenizer

_DEAD = 0.02
"""A code that stands for less than this share of the latents of an average code begins anew at one of the batch."""


def nearest(residual: Tensor, book: Tensor) -> Tensor:
    """Index [count] of the row of `book` [codes, width] nearest to each row of `residual` [count, width]."""
    return (book.square().sum(-1) - 2 * residual @ book.T).argmin(-1)


class Averages:
    """Learns the codebooks of a tokenizer; `count` [depth, codes] and `sum` [depth, codes, width] are its memory."""

    def __init__(self, model: TableTokenizer, decay: float) -> None:
        self.codebooks = [b.weight for b in model.rqvae.quantizer.codebooks]
        for book in self.codebooks:
            book.requires_grad_(False)
        self.codes, self.decay = model.spec.codes, decay
        self.count = torch.ones(len(self.codebooks), self.codes)
        self.sum = model.codebooks().detach().clone()

    @torch.no_grad()
    def begin(self, latents: Tensor, rounds: int = 8) -> None:
        """Set the codes to means (k-means) of latents [count, width] and of what each depth leaves over."""
        residual = latents
        for d, weight in enumerate(self.codebooks):
            book = residual[torch.randperm(len(residual))[: self.codes]].clone()
            for _ in range(rounds):
                index = nearest(residual, book)
                seen = torch.bincount(index, minlength=self.codes).float()[:, None]
                total = torch.zeros_like(book).index_add_(0, index, residual)
                book = torch.where(seen > 0, total / seen.clamp(min=1), book)
            weight[: self.codes] = book
            self.sum[d], self.count[d] = book, 1.0
            residual = residual - book[nearest(residual, book)]

    @torch.no_grad()
    def quantise(self, latents: Tensor) -> Tensor:
        """Sums of code vectors after each depth, [depth, count, width], of latents [count, width]; learns from them."""
        residual, total = latents, torch.zeros_like(latents)
        sums = []
        for d, weight in enumerate(self.codebooks):
            index = nearest(residual, weight[: self.codes])
            picked = weight[index]
            self._learn(d, index, residual)
            residual, total = residual - picked, total + picked
            sums.append(total)
        return torch.stack(sums)

    def _learn(self, d: int, index: Tensor, residual: Tensor) -> None:
        seen = torch.bincount(index, minlength=self.codes).float()
        total = torch.zeros_like(self.sum[d]).index_add_(0, index, residual)
        self.count[d].mul_(self.decay).add_(seen, alpha=1 - self.decay)
        self.sum[d].mul_(self.decay).add_(total, alpha=1 - self.decay)
        dead = torch.nonzero(self.count[d] < _DEAD * len(residual) / self.codes)[:, 0]
        share = 0.5 * len(residual) / self.codes
        self.sum[d, dead] = share * residual[torch.randint(len(residual), (len(dead),))]
        self.count[d, dead] = share
        self.codebooks[d][: self.codes] = self.sum[d] / self.count[d][:, None]
