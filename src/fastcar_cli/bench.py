"""Does replay save the time it should? Dense and fully replayed decoding, interleaved in one run.

`python -m fastcar_cli.bench [--repeats 5] [--json]` decodes the same video dense and with tau at
minus infinity, one after the other, and compares the speed-up with what Amdahl's law allows from
the measured share of the MLPs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from collections.abc import Sequence
from typing import Any

import torch

from fastcar_cli.config import load_config
from fastcar_cli.pipeline import TextToVideo

PROMPT = "a red ball rolling to the right on the grass"


def _decode(pipe: TextToVideo, prompts: Sequence[str]) -> dict[str, Any]:
    for _ in pipe.stream(prompts, list(range(len(prompts)))):
        pass
    return pipe.report(0)


def measure(model: str, repeats: int, overrides: Sequence[str] = (), videos: int = 1) -> dict[str, Any]:
    """Medians over `repeats` interleaved runs of decode seconds (dense, tau -inf) and the Amdahl ceiling.

    The ceiling is 1 / (1 - m r) with m the MLPs' share of dense decode time and r the share of MLPs
    that replay.
    """
    config = load_config(None, [*overrides, "replay.tau=-.inf"], {"model": model})
    replayed = TextToVideo.from_config(config)
    dense = replayed.with_settings(taus=None)
    prompts = [PROMPT] * videos
    for pipe in (dense, replayed):
        _decode(pipe, prompts)
    rows: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for _ in range(repeats):
        rows.append((_decode(dense, prompts), _decode(replayed, prompts)))
    seconds = [[r["timing"]["decode_s"] for r in column] for column in zip(*rows, strict=True)]
    share = statistics.median(d["timing"]["mlp_share"] for d, _ in rows)
    ratio = rows[0][1]["replay"]["ratio"]
    speedups = [d / r for d, r in zip(*seconds, strict=True)]
    ceiling = 1 / (1 - share * ratio)
    return {
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "cpus": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        },
        "model": model,
        "videos": videos,
        "repeats": repeats,
        "dense_s": statistics.median(seconds[0]),
        "replayed_s": statistics.median(seconds[1]),
        "spread_s": [[min(s), max(s)] for s in seconds],
        "dense_tokens_per_s": statistics.median(d["timing"]["tokens_per_s"] for d, _ in rows),
        "replayed_tokens_per_s": statistics.median(r["timing"]["tokens_per_s"] for _, r in rows),
        "mlp_share": share,
        "replay_ratio": ratio,
        "speedup": statistics.median(speedups),
        "amdahl_ceiling": ceiling,
        "of_ceiling": statistics.median(speedups) / ceiling,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m fastcar_cli.bench", description=__doc__)
    parser.add_argument("--model", default="mini")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--videos", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    result = measure(options.model, options.repeats, options.overrides, options.videos)
    if options.json:
        print(json.dumps(result))
        return
    for key, value in result.items():
        print(f"{key:>22}  {value:.4g}" if isinstance(value, float) else f"{key:>22}  {value}")


if __name__ == "__main__":
    main()
