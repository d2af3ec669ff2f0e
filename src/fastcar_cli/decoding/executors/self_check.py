"""The self-check of the CUDA graph on a device: once, it decodes a few tokens with it and in plain torch, and compares.

The verdict is stored in the user's cache, by all that it depends on: device, versions, shapes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fastcar_cli._version import __version__
from fastcar_cli.config.tau import Tau
from fastcar_cli.decoding.batch import Batch
from fastcar_cli.decoding.executors import graph
from fastcar_cli.decoding.executors.executor import Executor
from fastcar_cli.decoding.executors.graph import GraphExecutor
from fastcar_cli.decoding.executors.plain import PlainExecutor
from fastcar_cli.decoding.inputs import Inputs
from fastcar_cli.decoding.replay.replay import ReplayRule
from fastcar_cli.errors import RunError
from fastcar_cli.models.network import Network
from fastcar_cli.system.device import out_of_memory
from fastcar_cli.system.files import write_whole

# Input tokens that are decoded both ways, for each setting tried.
TOKENS = 12
# Limits in float32, and if sums are rounded to 16 bits: shares that may differ, median relative distances of vectors.
# In 16 bits decoding is greedy, and correct kernels change a quarter of the codes (mini): vectors show a fault.
EXACT = {"tokens": 0.0, "replay decisions": 0.0, "hidden states": 1e-3, "logits": 1e-3}
ALLOWED = {"tokens": 0.75, "replay decisions": 0.05, "hidden states": 0.1, "logits": 0.1}


def verdict_file() -> Path:
    """The file of verdicts: `$XDG_CACHE_HOME/fastcar/graph.json`, by default under `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fastcar" / "graph.json"


def _key(batch: Batch) -> str:
    """What a verdict depends on, as readable text with the shapes and the size of the weights hashed."""
    import triton

    model, inputs = batch.model, graph.inputs_limit(batch)
    spec = json.dumps(model.spec.to_dict(), sort_keys=True) + str(model.weights_bytes())
    versions = f"torch {torch.__version__}, cuda {torch.version.cuda}, triton {triton.__version__}"
    rows = f"{batch.rows} rows" + (f" of {inputs} tokens" if inputs > 1 else "")
    shapes = hashlib.sha256(spec.encode()).hexdigest()[:12]
    own = f"fastcar {__version__}, {model.dtype}, weights {model.weight_format}, {rows}, shapes {shapes}"
    return f"{torch.cuda.get_device_name(model.device)}, {versions}, {own}"


def _read(file: Path) -> dict[str, Any]:
    try:
        verdicts = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return verdicts if isinstance(verdicts, dict) else {}


def unproven(batch: Batch) -> str | None:
    """Why the graph can't be trusted for batches like this one; None if it agrees with plain torch. The first call on a
    device takes seconds to a minute, as kernels are compiled.
    """
    file, key = verdict_file(), _key(batch)
    verdicts = _read(file)
    if key not in verdicts:
        try:
            why = difference(batch, graph.inputs_limit(batch))
        except (RunError, torch.OutOfMemoryError) as e:
            if out_of_memory(e.__cause__ or e):
                # Another program may have taken the memory, so the next run checks again.
                return f"the self-check of the CUDA graph ran out of memory: {e}"
            why = str(e)
        verdicts = _read(file) | {key: why}
        # If the cache can't be written, the check runs again next time.
        with contextlib.suppress(OSError, RunError):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, json.dumps(verdicts, indent=1) + "\n")
    why = verdicts[key]
    return None if why is None else f"the self-check of the CUDA graph failed on this device: {why} (result in {file})"


def difference(batch: Batch, inputs: int = 1, capture: bool = True, tokens: int = TOKENS) -> str | None:
    """Decode some tokens of the batch's model both ways, with a full cache and a window; says how they differ, or None.

    Passes take up to `inputs` tokens of a video, some of them wrong, which are rejected. Both ways start each pass from
    the same codes, caches and MLP outputs. Raises RunError if the kernels don't compile or the graph can't be captured.
    """
    n, exact = batch.frame, batch.model.dtype is torch.float32
    settings = replace(batch.settings, frames=2 + -(-tokens // n), rule=ReplayRule(Tau((0.0,))), keep_tas=False)
    for window in (None, max(4, n // 4)):
        runs: list[tuple[Tensor, ...]] = []
        for plain in (True, False):
            shape = batch.prompts.videos, settings.frames * n, batch.draws.codes.shape[2]
            noise = torch.full(shape, 0.5 if exact else 0.0)
            one = Batch.of(batch.model, batch.prompts.unpadded(), replace(settings, window=window), noise)
            executor = PlainExecutor(one) if plain else GraphExecutor(one, inputs, capture)
            drawn, hidden = _passes(one, executor, n, tokens, min(inputs, one.cache.most_inputs))
            assert one.replay is not None
            # Both ways compute logits of the same states.
            logits = _logits(executor, batch.model, (runs[0][2] if runs else hidden)[0, :, 0])
            runs.append((drawn, one.replay.replayed[:, :, n : n + tokens], hidden, logits))
        (codes, decisions, states, logits), (other_codes, other_decisions, other_states, other_logits) = runs
        differing = {
            "tokens": (codes != other_codes).float().mean(),
            "replay decisions": (decisions != other_decisions).float().mean(),
            "hidden states": _distance(other_states, states),
            "logits": _distance(other_logits, logits),
        }
        for what, share in differing.items():
            # NaN counts as a difference.
            if not float(share) <= (EXACT if exact else ALLOWED)[what]:
                return f"{what} differ from plain torch's by {float(share):.1%} with attention window {window or 'off'}"
    return None


def _passes(one: Batch, executor: Executor, first: int, tokens: int, most: int) -> tuple[Tensor, Tensor]:
    """Codes and hidden states of passes of `most` inputs, of which a different number is accepted each time."""
    executor.prefill()
    one.fast_forward()
    given, drawn, hidden, t = one.draws.buffer.clone(), list[Tensor](), list[Tensor](), first
    while t < first + tokens:
        # Earlier samples are discarded: both ways continue from the same tokens.
        one.draws.buffer.copy_(given)
        one.draws.latent = None
        inputs, accepted = Inputs((t,) * one.prompts.videos, most), 1 + len(drawn) % most
        one.draws.buffer[:, t + accepted : t + most] = 0
        step = executor.step(inputs)
        drawn.append(step.codes.clone())
        hidden.append(step.hidden.clone())
        executor.advance(inputs, (accepted,) * one.prompts.videos)
        t += accepted
    return torch.stack(drawn), torch.stack(hidden)


def _distance(a: Tensor, b: Tensor) -> Tensor:
    """The median of |a - b| / |b|, with norms along the last dimension."""
    return ((a.float() - b.float()).norm(dim=-1) / b.float().norm(dim=-1)).median()


@torch.inference_mode()
def _logits(executor: Executor, model: Network, hidden: Tensor) -> Tensor:
    """Logits [depth, rows, codes] of hidden states [rows, width], given code 0 at every depth."""
    first, logits = torch.zeros(len(hidden), dtype=torch.int64, device=hidden.device), []
    x, total = hidden, torch.zeros((), dtype=hidden.dtype, device=hidden.device)
    for d, book in enumerate(model.codebooks):
        logits.append(executor.logits(x, d).clone())
        x = total = total + book(first)
    return torch.stack(logits)
