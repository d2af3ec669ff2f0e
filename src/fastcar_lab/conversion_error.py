"""What a format costs in exactness: `fastcar lab conversion-error MODEL FOLDER... --fpga PRESET...`.

MODEL decodes a few prompts in float32; then it, every converted FOLDER, and MODEL in float32 with its MLPs in the
numbers of every accelerator PRESET, are run on these codes, step by step, by the kernels that `generate` would take.
Hidden states, guided logits and replay scores are compared with those of plain torch. No code that was drawn
differently hides an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fastcar_cli.convert.calibrate import drawn_codes
from fastcar_cli.decoding import Trace, trace
from fastcar_cli.decoding.executors.native import obstacle
from fastcar_cli.models import load
from fastcar_cli.models.decoder import Decoder
from fastcar_cli.models.network import Network
from fastcar_fpga.backend import FpgaBackend
from fastcar_fpga.preset import Preset, load_preset

PROMPTS = ("a small blue car drives left across the grass", "a big yellow star bouncing at night")


def _relative(measured: Tensor, wanted: Tensor) -> float:
    """Root of the mean squared error over that of what is wanted."""
    return float((measured - wanted).square().mean().sqrt() / wanted.square().mean().sqrt())


def errors(measured: Trace, wanted: Trace) -> dict[str, float]:
    """Relative errors of hidden states and logits, that of scores in their own unit, and decisions that differ. Logits
    are compared around the mean of each draw, which no probability depends on. `same_first`: draws whose likeliest code
    is the same. `flipped`: scores that lie on the other side of the median score of their layer.
    """
    a, b = (run.logits - run.logits.mean(-1, keepdim=True) for run in (measured, wanted))
    known = ~wanted.tas.isnan()
    # Between two scores: one that is the median itself would change sides by any error.
    median = wanted.tas.flatten(1).nanquantile(0.5, 1)[:, None, None]
    return {
        "hidden": _relative(measured.hidden, wanted.hidden),
        "logits": _relative(a, b),
        "same_first": float((a.argmax(-1) == b.argmax(-1)).float().mean()),
        "tas": float((measured.tas - wanted.tas)[known].square().mean().sqrt()),
        "flipped": float(((measured.tas > median) != (wanted.tas > median))[known].float().mean()),
    }


def _executor(network: Network) -> str:
    """The executor that `generate` would take: native kernels round inputs too where weights have few bits."""
    return "torch" if obstacle(network) else "native"


def compare(
    model: str, folders: Sequence[str], prompts: Sequence[str], frames: int, accelerators: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """One line a folder, after one for the model itself in bfloat16, and one an accelerator preset. The last are for
    keys and values alone in few bits.
    """
    presets = [load_preset(name) for name in accelerators]
    reference = load(model, "float32")
    seeds = list(range(len(prompts)))
    codes = drawn_codes(reference, prompts, seeds, frames)
    options: dict[str, Any] = {"tau": float("inf"), "cfg": reference.defaults.cfg, "tas": reference.defaults.tas}
    wanted = trace(reference, prompts, codes, **options)
    lines = []
    for name, other in [("bfloat16", (model, "bfloat16")), *((folder, (folder, "auto")) for folder in folders)]:
        loaded = load(*other)
        executor = _executor(loaded.network)
        error = errors(trace(loaded, prompts, codes, executor=executor, **options), wanted)
        lines.append({"model": name, "kernels": executor, "bytes": loaded.network.weights_bytes(), **error})
    for preset in presets:

        def backend(decoder: Decoder, rows: int, preset: Preset = preset) -> FpgaBackend:
            return FpgaBackend(decoder, preset, rows)

        error = errors(trace(reference, prompts, codes, **options, backend=backend), wanted)
        lines.append({"model": model, "fpga": preset.name, "format": preset.format.kind, **error})
    executor, size = _executor(reference.network), reference.network.weights_bytes()
    error = errors(trace(reference, prompts, codes, kv_dtype="int8", executor=executor, **options), wanted)
    lines.append({"model": "int8 keys and values", "kernels": executor, "bytes": size, **error})
    return lines
