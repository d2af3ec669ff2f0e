"""Puts a sweep's results, as JSON, and its videos, as base64, into one page that needs nothing else.

All text reaches the page through `textContent`, and JSON is written without `<`, so no prompt can become markup.
"""

from __future__ import annotations

import base64
import html
import json
import math
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from fastcar_cli.errors import RequestError
from fastcar_cli.sweep.results import SETTING
from fastcar_cli.system.files import write_whole
from fastcar_cli.system.plain_data import read_json

SCRIPTS = ("core.js", "chart.js", "player.js", "main.js")
VIDEO_LIMIT = 32 * 2**20  # maximum bytes of embedded MP4 files; base64 makes four bytes of three


def write_report(folder: Path, video_limit: int = VIDEO_LIMIT) -> Path:
    """Write `report.html` beside a folder's `results.json`; returns its path.

    Videos are embedded in the order of `_by_interest` up to `video_limit` bytes, the others linked. Raises RequestError
    for missing or damaged results, RunError if the page can't be written.
    """
    results = read_results(folder / "results.json")
    videos, missing = _videos(folder, results, video_limit)
    results["report"] = {
        "embedded": len(videos),
        "embedded_bytes": sum(map(len, videos.values())),
        "limit_bytes": video_limit,
        "missing": missing,
    }
    path, title = folder / "report.html", f"fastcar sweep: {results['model'].get('name', 'model')}"
    write_whole(path, page(title, asset("page.html"), [asset(s) for s in SCRIPTS], results, videos))
    return path


def read_results(file: Path) -> dict[str, Any]:
    """Read results.json of a sweep. Raises RequestError if it is missing, damaged, or another document."""
    data = read_json(file, hint=f"rerun fastcar sweep with -o {file.parent}; it reuses finished cells")
    needed = ("cells", "summary", "plan", "model", "config", "machine")
    if not isinstance(data, dict) or not all(key in data for key in needed):
        raise RequestError(f"{file} is not the result of a sweep", hint=f"expected keys: {', '.join(needed)}")
    for i, cell in enumerate(data["cells"]):
        if not isinstance(cell, dict) or not {"id", "prompt", "seed", "tau", "replay"} <= cell.keys():
            raise RequestError(f"{file} is damaged: cell {i} lacks one of id, prompt, seed, tau, replay")
    return data


def _by_interest(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Cells in the order of embedding: by seed, then prompt; for each prompt first the dense video, then knees."""
    seeds, prompts = ({v: i for i, v in enumerate(results["plan"].get(axis, []))} for axis in ("seeds", "prompts"))

    def setting(of: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(of.get(key) for key in SETTING)

    knees = {setting(k) for k in results.get("knee") or []}

    def key(cell: dict[str, Any]) -> tuple[int, int, int]:
        dense = cell.get("tau") is None and cell.get("ratio") is None and cell.get("draft", "off") == "off"
        rank = 0 if dense else 1 if setting(cell) in knees else 2
        return seeds.get(cell["seed"], len(seeds)), prompts.get(cell["prompt"], len(prompts)), rank

    return sorted(results["cells"], key=key)


def _videos(folder: Path, results: dict[str, Any], limit: int) -> tuple[dict[str, bytes], list[str]]:
    """MP4 files by cell id, as many as fit, and the names of files that can't be read."""
    videos: dict[str, bytes] = {}
    missing: list[str] = []
    for cell in _by_interest(results):
        if not (name := cell.get("video")):
            continue
        file = folder / name
        try:
            if not file.resolve().is_relative_to(folder.resolve()):
                raise OSError(f"{name} is outside {folder}")
            if file.stat().st_size <= limit:
                videos[cell["id"]] = file.read_bytes()
                limit -= len(videos[cell["id"]])
        except OSError:
            missing.append(name)
    return videos, missing


def page(
    title: str, body: str, scripts: list[str], data: Any, videos: Mapping[str, bytes], more_policy: str = ""
) -> str:
    """A page with results and videos by name; `more_policy` extends its content security policy."""
    parts = {
        "head": head(title, f"; media-src data:; script-src 'unsafe-inline'{more_policy}"),
        "script": "\n".join(scripts),
        "data": _json(data),
        "videos": _json({name: base64.b64encode(video).decode("ascii") for name, video in videos.items()}),
    }
    return filled(body + asset("tail.html"), parts)


def _json(data: Any) -> str:
    """JSON for a script element: no `<`, no number that browsers refuse."""
    text = json.dumps(_finite(data), ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def _finite(data: Any) -> Any:
    """The same data with None for NaN and infinities, and floats rounded to six digits."""
    if isinstance(data, float):
        return float(f"{data:.6g}") if math.isfinite(data) else None
    if isinstance(data, dict):
        return {str(k): _finite(v) for k, v in data.items()}
    return [_finite(v) for v in data] if isinstance(data, (list, tuple)) else data


def asset(name: str, package: str = "fastcar_cli.sweep.report") -> str:
    """A file of a package: style, script or page."""
    return (resources.files(package) / name).read_text(encoding="utf-8")


def head(title: str, allowed: str = "") -> str:
    """The head of every page; `allowed`: what its content security policy allows besides images and styles."""
    return filled(asset("head.html"), {"title": html.escape(title), "allowed": allowed, "style": asset("style.css")})


def filled(template: str, parts: Mapping[str, str]) -> str:
    """Replace each `{{ name }}` in a template by the part of this name; parts themselves are not expanded."""
    return re.sub(r"\{\{ (\w+) \}\}", lambda match: parts[match[1]], template)
