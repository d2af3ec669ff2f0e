"""VBench's total score from the result files that `vbench` writes, without vbench.

Ranges and weights are those of VBench (Huang et al., CVPR 2024, arXiv 2311.17982) as published in
`scripts/constant.py` and `scripts/cal_final_score.py` of its repository: every dimension is scaled to
its range, not clipped; quality is the weighted mean of seven dimensions, semantics that of nine, and
the total weighs them 4 : 1. Unlike that script, a missing dimension is never counted as 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastcar_cli.errors import RequestError
from fastcar_cli.system.files import file_text
from fastcar_cli.system.plain_data import parse_json


@dataclass(frozen=True)
class Dimension:
    """Scores from `low` to `high` are mapped to 0..1; `weight` counts within the dimension's part."""

    part: str
    low: float = 0.0
    high: float = 1.0
    weight: float = 1.0


DIMENSIONS = {
    "subject_consistency": Dimension("quality", 0.1462),
    "background_consistency": Dimension("quality", 0.2615),
    "temporal_flickering": Dimension("quality", 0.6293),
    "motion_smoothness": Dimension("quality", 0.706, 0.9975),
    "dynamic_degree": Dimension("quality", weight=0.5),
    "aesthetic_quality": Dimension("quality"),
    "imaging_quality": Dimension("quality"),
    "object_class": Dimension("semantic"),
    "multiple_objects": Dimension("semantic"),
    "human_action": Dimension("semantic"),
    "color": Dimension("semantic"),
    "spatial_relationship": Dimension("semantic"),
    "scene": Dimension("semantic", 0.0, 0.8222),
    "appearance_style": Dimension("semantic", 0.0009, 0.2855),
    "temporal_style": Dimension("semantic", 0.0, 0.364),
    "overall_consistency": Dimension("semantic", 0.0, 0.364),
}
WEIGHTS = {"quality": 4.0, "semantic": 1.0}
PATTERN = "*_eval_results.json"


def score(folder: Path) -> dict[str, Any]:
    """The scores of the `*_eval_results.json` in a folder and the folders in it.

    Returns:
        `total`, `quality`, `semantic`: 0..1 (a little outside if a dimension is outside its range); None where a
        dimension that counts is missing. `dimensions`: by name `score` (as in the file), `normalised`, `weight`,
        `part`, `videos` (None where the file does not list them) and `file`. `missing`: dimensions without a score.
        `unknown`: names in the files that are no dimension of VBench; they do not count.

    Raises RequestError for no such folder, no result in it, a damaged file, a score outside 0..1, or two files that
    differ on a dimension.
    """
    if not folder.is_dir():
        raise RequestError(f"{folder}: there is no such folder")
    files = sorted(p for p in folder.rglob(PATTERN) if p.is_file())
    if not files:
        raise RequestError(
            f"{folder}: no {PATTERN} in it", hint="run `vbench evaluate --output_path` into this folder first"
        )
    scores: dict[str, dict[str, Any]] = {}
    unknown: list[str] = []
    for file in files:
        for key, entry in _read(file).items():
            name = key.strip().replace(" ", "_")
            if name not in DIMENSIONS:
                unknown.append(key)
                continue
            value = _number(entry, file, key)
            if name in scores and scores[name]["score"] != value:
                raise RequestError(
                    f"{name} is {scores[name]['score']} in {scores[name]['file']} and {value} in {file}",
                    hint="keep the results of one evaluation in the folder",
                )
            kind = DIMENSIONS[name]
            scores[name] = {
                "score": value,
                "normalised": (value - kind.low) / (kind.high - kind.low),
                "weight": kind.weight,
                "part": kind.part,
                "videos": len(entry[1]) if len(entry) > 1 and isinstance(entry[1], list) else None,
                "file": str(file),
            }
    if not scores:
        raise RequestError(f"{folder}: none of its {PATTERN} holds a dimension of VBench")
    parts = {part: _mean(scores, part) for part in WEIGHTS}
    whole = [(WEIGHTS[part], value) for part, value in parts.items() if value is not None]
    total = sum(w * v for w, v in whole) / sum(WEIGHTS.values()) if len(whole) == len(WEIGHTS) else None
    return {
        "total": total,
        **parts,
        "dimensions": {name: scores[name] for name in DIMENSIONS if name in scores},
        "missing": [name for name in DIMENSIONS if name not in scores],
        "unknown": sorted(set(unknown)),
    }


def _mean(scores: dict[str, dict[str, Any]], part: str) -> float | None:
    """The weighted mean of a part; None where one of its dimensions is missing."""
    names = [name for name, kind in DIMENSIONS.items() if kind.part == part]
    if not all(name in scores for name in names):
        return None
    weights = [DIMENSIONS[name].weight for name in names]
    values = (scores[name]["normalised"] for name in names)
    return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)


def _read(file: Path) -> dict[str, Any]:
    try:
        data = parse_json(file_text(file))
    except (OSError, ValueError) as e:
        raise RequestError(f"{file} is damaged: {e}", hint="evaluate its dimensions again") from None
    if not isinstance(data, dict):
        raise RequestError(f"{file} is damaged: the top level is a {type(data).__name__}, needed: a mapping")
    return data


def _number(entry: Any, file: Path, key: str) -> float:
    """The score of `[score, [each video]]`."""
    value = entry[0] if isinstance(entry, list) and entry else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise RequestError(f"{file}: {key} has no score; needed: [score, [each video]]", hint="evaluate it again")
    if not 0 <= value <= 1:
        raise RequestError(f"{file}: {key} is {value}; allowed: 0 to 1, as vbench writes it")
    return float(value)
