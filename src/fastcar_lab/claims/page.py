"""What claims came to as files: claims.json, a CSV a claim, plots as PNG and SVG, and claims.html with all of it."""

from __future__ import annotations

import base64
import html
import json
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from fastcar_cli.sweep.report.build import filled, head
from fastcar_cli.system.files import csv_of, write_whole
from fastcar_lab.claims.finding import FAILS, HOLDS, OPEN, PART, Finding
from fastcar_lab.common import drawn

_CLASS = {HOLDS: "holds", PART: "part", FAILS: "fails"}
_e = html.escape


def _plain(data: Any) -> Any:
    """For JSON: infinities and NaN are null."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {k: _plain(v) for k, v in data.items()}
    return [_plain(v) for v in data] if isinstance(data, (list, tuple)) else data


def write(
    folder: Path, findings: Sequence[Finding], made: dict[str, Any], others: Mapping[int, str] | None = None
) -> Path:
    """Write every file of some findings; the path of the page. `made` says how: command, machine, commit, versions.
    `others` are titles of claims that were not requested. Raises RunError where a file can't be written, RequestError
    where matplotlib is missing.
    """
    parts: dict[int, list[str]] = {}
    for finding in findings:
        pictures = []
        for plot in finding.plots:
            name = f"{finding.key}-{plot.name}"
            data = drawn(plot.draw, (7.2, 4.0), plot.title)
            for suffix, content in data.items():
                write_whole(folder / f"{name}.{suffix}", content)
            pictures.append((plot.title, base64.b64encode(data["png"]).decode("ascii")))
        if finding.table:
            header = list(dict.fromkeys(key for row in finding.table for key in row))
            rows = [[row.get(key) for key in header] for row in finding.table]
            write_whole(folder / f"{finding.key}.csv", csv_of(header, rows))
        parts.setdefault(finding.number, []).append(_section(finding, pictures))
    document = {**made, "claims": [_document(f) for f in findings]}
    write_whole(folder / "claims.json", json.dumps(_plain(document), indent=1, ensure_ascii=False) + "\n")
    page = folder / "claims.html"
    write_whole(page, _page(findings, parts, made, others or {}))
    return page


def _document(finding: Finding) -> dict[str, Any]:
    keys = ("number", "title", "claim", "model", "verdict", "summary", "videos", "prompts", "numbers", "notes")
    csv = f"{finding.key}.csv" if finding.table else None
    return {**{k: getattr(finding, k) for k in keys}, "csv": csv, "plots": [p.name for p in finding.plots]}


def _section(finding: Finding, pictures: Sequence[tuple[str, str]]) -> str:
    images = "".join(
        f'<div class="scroll" tabindex="0" role="region" aria-label="{_e(t)}">'
        f'<img alt="{_e(t)}" src="data:image/png;base64,{data}"></div>'
        for t, data in pictures
    )
    notes = "".join(f"<li>{_e(note)}</li>" for note in finding.notes)
    table = ""
    if finding.table:
        inner = _table(finding.table)
        table = (
            f"<details><summary>Table ({_e(finding.key)}.csv)</summary>"
            f'<div class="scroll" tabindex="0" role="region" aria-label="{_e(finding.title)}">{inner}</div></details>'
        )
    videos = f" {finding.videos} videos of {finding.prompts} prompts." if finding.videos else ""
    return (
        f'<div class="claim {_CLASS.get(finding.verdict, "open")}"><h3>{_e(finding.model)}: '
        f'<span class="verdict-word">{_e(finding.verdict)}</span></h3><p>{_e(finding.summary)}{videos}</p>'
        f"<ul>{notes}</ul>{images}{table}</div>"
    )


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _table(rows: Sequence[dict[str, Any]]) -> str:
    header = list(dict.fromkeys(key for row in rows for key in row))
    kinds = {k: ' class="text"' if any(isinstance(row.get(k), str) for row in rows) else "" for k in header}
    head = "".join(f'<th scope="col"{kind}>{_e(k)}</th>' for k, kind in kinds.items())
    cells = ([f"<td{kind}>{_e(_cell(row.get(k)))}</td>" for k, kind in kinds.items()] for row in rows)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in cells)
    return f'<table class="data"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _page(
    findings: Sequence[Finding], parts: dict[int, list[str]], made: dict[str, Any], others: Mapping[int, str]
) -> str:
    titles = {f.number: (f.title, f.claim) for f in findings}
    sections = "".join(
        f'<section aria-labelledby="claim-{n}"><h2 id="claim-{n}">{n}. {_e(titles[n][0])}</h2>'
        f'<p class="sub">The paper: {_e(titles[n][1])}</p>{"".join(paragraphs)}</section>'
        for n, paragraphs in sorted(parts.items())
    )
    models = list(dict.fromkeys(f.model for f in findings))
    verdicts: list[dict[str, Any]] = [
        {"claim": f"{n}. {titles[n][0]}"}
        | {m: next((f.verdict for f in findings if (f.number, f.model) == (n, m)), None) for m in models}
        for n in sorted(titles)
    ]
    verdicts += [{"claim": f"{n}. {title}"} | dict.fromkeys(models, OPEN) for n, title in others.items()]
    verdicts.sort(key=lambda row: int(row["claim"].partition(".")[0]))
    values = {
        "head": head(f"fastcar claims: {', '.join(models)}"),
        "lead": "FastCar (arXiv 2505.14709) shows them on one model. Here they are measured on "
        f"{_e(', '.join(models))}. Brackets are 95 % intervals, by bootstrap over prompts; what lies within them is no "
        "difference.",
        "facts": _e(" · ".join(str(made[k]) for k in ("machine", "versions", "commit", "date") if made.get(k))),
        "contents": "".join(f'<li><a href="#claim-{n}">{n}. {_e(titles[n][0])}</a></li>' for n in sorted(parts)),
        "verdicts": _table(verdicts),
        "claims": sections,
        "footer": f"Made by: {_e(made['command'])}. Every number is in claims.json and the CSV beside this file; the "
        "videos and what was seen of each token are in the folder of each model.",
    }
    page = (resources.files("fastcar_lab.claims") / "page.html").read_text(encoding="utf-8")
    return filled(page, values)
