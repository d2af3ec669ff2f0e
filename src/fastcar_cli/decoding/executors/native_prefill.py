"""Prompts by the native kernels: a layer at a time, and of each a few hundred tokens per pass.

The caches receive what a layer makes of all prompts before the next one runs, so only one layer has temporary keys
and values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastcar_cli.decoding.batch import Batch
from fastcar_cli.decoding.cache.kv_cache import prompt_mask
from fastcar_cli.kernels import native

TOKENS = 256
"""Tokens of all rows that a pass takes: their products are bound by arithmetic, and more would need more memory."""


def prefill(batch: Batch, x: Tensor, blocks: list[native.BlockWeights], threads: int) -> Tensor:
    """Run prompts without padding from the first block's inputs x [rows, padded, width] on; fills the caches.

    Returns the last hidden states before the final norm, float32 [rows, width].
    """
    model, prompts, settings = batch.model, batch.prompts, batch.settings
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
    heads = torch.empty(2, 1, rows, spec.kv_heads, padded, spec.head_dim, dtype=model.dtype)
    outputs = torch.empty(1, rows, padded, spec.width, dtype=model.dtype)
    most = TOKENS // rows
    for layer, block in enumerate(blocks):
        run = native.DecoderPass(
            [block],
            None,
            spec.rms_eps,
            heads=spec.heads,
            kv_heads=spec.kv_heads,
            keys=heads[0],
            values=heads[1],
            aligned=heads[0],
            outputs=outputs,
            table=torch.stack([index, index + 1, none, index, none, none - 1], 1),
            cos=cos,
            sin=sin,
            start=none[:rows].clone(),
            most=most,
            threads=threads,
        )
        for first in range(0, padded, most):
            part = x[:, first : first + most].contiguous()
            last = first + part.shape[1]
            at, mask = index[first:last].expand(rows, -1), None
            if settings.window is not None:
                mask = torch.zeros(rows, last - first, padded, dtype=torch.bool)
                seen = prompt_mask(prompts.lengths[:1], padded, settings.window, settings.sinks, first, last)
                mask[:, :, :last] = seen[:, 0]
                mask = mask.flatten(0, 1)
            added = None if model.llm.absolute is None else model.llm.absolute(at.flatten(), torch.float32)
            run(part, [first] * rows, places=added, mask=mask)
            x[:, first:last] = part
            batch.observers.prefilled(layer * padded + last, len(blocks) * padded)
        batch.fill(layer, heads[0, 0][back], heads[1, 0][back], outputs[0][back])
    return x[back, -1]
