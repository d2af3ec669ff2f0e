"""Claim 11: what loss buys: drafts that are nearly right, replay, and both, at equal quality."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from fastcar_cli.decoding.engine import begin
from fastcar_cli.media.metrics import SSIM_WINDOW, ssim
from fastcar_cli.pipeline.report import Run
from fastcar_cli.system.files import make_folder, write_whole
from fastcar_lab.claims.accelerator import PRESETS, per_token
from fastcar_lab.claims.finding import FAILS, HOLDS, PART, Finding
from fastcar_lab.claims.stats import by_prompt, estimate
from fastcar_lab.claims.study import Job, Study
from fastcar_lab.couplings import LOSSY, Rule, contest
from fastcar_lab.worlds import world_of

NUMBER, TITLE = 11, "What loss buys: relaxed drafts against replay"
CLAIM = (
    "None of the paper's: at equal quality, drafts that stay where they are nearly right make decoding faster than "
    "exact drafts with replay do."
)
FOLDER, WINDOW, OFF, EXACT, CPU = "relaxed", 16, "off", "exact", "CPU"
MACHINES = (CPU, *PRESETS)
LOSSES = (0.005, 0.02)
"""Most of SSIM that a setting may lose."""


class Setting(NamedTuple):
    """A threshold of replay, and drafts: off, exact, or a lossy rule."""

    tau: float | None
    draft: str

    @property
    def family(self) -> str:
        """Exact or relaxed drafts, replay, both or neither."""
        drafts = {OFF: "", EXACT: "exact drafts"}.get(self.draft, "relaxed drafts")
        return " and ".join(part for part in (drafts, "replay" * (self.tau is not None)) if part) or "dense"

    @property
    def text(self) -> str:
        """For people."""
        return self.draft if self.tau is None else f"tau {self.tau:g}, {self.draft}"


DENSE = Setting(None, OFF)
SETTINGS = (
    DENSE, Setting(None, EXACT), Setting(-2.0, OFF), Setting(-2.0, EXACT), Setting(-8.0, OFF), Setting(-8.0, EXACT),
    Setting(None, "relaxed:0.5"), Setting(None, "relaxed:0.1"), Setting(None, "coarse:0.5"),
    Setting(-2.0, "relaxed:0.5"),
)  # fmt: skip
"""Each after those that it is compared with: the dense one, and the exact drafts of its threshold."""
Cell = dict[str, Any]


def needs(study: Study) -> list[Job]:
    """None: a sweep has no lossy drafts."""
    return []


def _decoded(study: Study, prompt: str, seed: int, setting: Setting, done: dict[str, Cell], dense: Any) -> Any:
    """Decode a video into its cell in `done`; returns its frames uint8 [T, H, W, 3]."""
    rule = Rule.parse(setting.draft) if setting.draft.split(":")[0] in LOSSY else None
    keys = {"replay.ratio": None, "replay.tau": OFF if setting.tau is None else setting.tau}
    keys |= {} if setting.draft == OFF else {"draft.kind": "jacobi", "draft.window": min(WINDOW, study.frame)}
    pipe = study.pipe.with_config(study.base.changed({"draft.kind": OFF} | keys))
    decode, readings = begin(pipe.model, [prompt], [seed], pipe.settings)
    decode = decode if rule is None else contest(decode, rule, seed)
    began = time.process_time()
    decode.run()
    seconds, network = time.process_time() - began, study.pipe.model.network
    frames = torch.cat([network.to_bytes(decode.decode_frame(frame)) for frame in range(pipe.frames)]).cpu().numpy()
    run = Run(decode, study.model, pipe.fps, [prompt], [seed], readings, 0.0)
    decided, passes = run.decisions(), len(decode.drafter.passes)
    if rule is not None:
        # Those of exact drafts do the same work, and draw by native kernels.
        exact = done[setting._replace(draft=EXACT).text]
        seconds = exact["cost"][CPU] / exact["passes"] * passes
    kind = "replay" if setting.draft == OFF else "both"
    cost = {CPU: seconds} | {preset: costs[kind]["cycles"] for preset, costs in per_token(study, decided).items()}
    world = world_of(pipe.model.tokenizer, pipe.height, pipe.width)
    alike = [np.nan] if min(pipe.height, pipe.width) < SSIM_WINDOW else ssim(frames, frames if dense is None else dense)
    digest = zlib.crc32(frames.tobytes())
    right = next((cell["right"] for cell in done.values() if cell["digest"] == digest), None)
    if right is None and world is not None:
        right = world.judge(frames, readings[0].tokens)["all_right"]
    done[setting.text] = {
        "prompt": prompt, "seed": seed, "cost": cost, "passes": passes, "tokens_per_pass": decode.done / passes,
        "ratio": float(decided.replayed.mean()), "quality": float(np.mean([x for x in alike if x is not None])),
        "moved": float(np.abs(np.diff(frames.astype(float), axis=0)).mean()), "right": right, "digest": digest,
    }  # fmt: skip
    return frames


def measured(study: Study) -> list[dict[str, Cell]]:
    """Cells of each video by setting; what is on disk is not decoded again."""
    videos = []
    make_folder(study.folder / FOLDER)
    for seed in study.seeds:
        for number, prompt in enumerate(study.prompts):
            path = study.folder / FOLDER / f"{number}-{seed}.json"
            done: dict[str, Cell] = json.loads(path.read_text()) if path.exists() else {}
            if list(done) != [s.text for s in SETTINGS] or done[DENSE.text]["prompt"] != prompt:
                done, dense = {}, None
                for setting in SETTINGS:
                    frames = _decoded(study, prompt, seed, setting, done, dense)
                    dense = frames if dense is None else dense
                write_whole(path, json.dumps(done))
            videos.append(done)
    return videos


def _row(kind: str, videos: Sequence[dict[str, Cell]], setting: Setting) -> dict[str, Any]:
    """A row of the table: means over some videos, with their intervals."""
    cells, dense = ([video[s.text] for video in videos] for s in (setting, DENSE))
    row: dict[str, Any] = {"scene": kind, "family": setting.family, "setting": setting.text, "videos": len(cells)}
    numbers = {m: [d["cost"][m] / c["cost"][m] for c, d in zip(cells, dense, strict=True)] for m in MACHINES}
    numbers |= {key: [float(c[key]) for c in cells] for key in ("tokens_per_pass", "ratio", "quality")}
    numbers["motion"] = [c["moved"] / d["moved"] if d["moved"] else np.nan for c, d in zip(cells, dense, strict=True)]
    numbers["right"] = [np.nan if c["right"] is None else float(c["right"]) for c in cells]
    for key, values in numbers.items():
        row |= estimate(by_prompt(zip([c["prompt"] for c in cells], values, strict=True))).row(key)
    return row


def judge(study: Study) -> Finding:
    """The fastest setting of each family that loses at most so much of SSIM, by machine and kind of scene."""
    videos = measured(study)
    kinds: dict[str, list[dict[str, Cell]]] = {"all": videos}
    for video in videos:
        kinds.setdefault(study.kinds[video[DENSE.text]["prompt"]], []).append(video)
    rows = [_row(kind, some, setting) for kind, some in kinds.items() for setting in SETTINGS]
    best: dict[str, dict[str, dict[str, float]]] = {}
    for machine in MACHINES:
        for loss in LOSSES:
            here: dict[str, float] = {}
            for r in rows:
                if r["scene"] == "all" and r["family"] != "dense" and r["quality"] >= 1 - loss:
                    here[r["family"]] = max(here.get(r["family"], 0.0), r[machine])
            best.setdefault(machine, {})[f"{loss:g}"] = here
    cases = [here for by_loss in best.values() for here in by_loss.values()]
    wins = ["relaxed" in max(here, key=lambda family: here[family], default="") for here in cases]
    said = "; ".join(
        f"{machine}, at most {loss} of SSIM lost: " + ", ".join(f"{family} {x:.2f} x" for family, x in here.items())
        for machine, by_loss in best.items()
        for loss, here in by_loss.items()
    )
    notes = [
        f"W = {min(WINDOW, study.frame)}. relaxed:E keeps a draft's code where it has at least E of the likeliest "
        "code's probability and the coarser codes agree; coarse:E keeps all finer codes where the coarsest stays.",
        "CPU: processor time of the decode, one thread. Relaxed drafts: their passes times the time of a pass of exact "
        "drafts with the same replay. Accelerators: decisions and passes at the 7B model's size, one video at a time.",
        "Motion: mean change between frames over that of the dense video. SSIM does not see a video that stands still.",
    ]
    return Finding(
        NUMBER, TITLE, CLAIM, study.model, HOLDS if all(wins) else PART if any(wins) else FAILS, f"Speedup: {said}.",
        len(videos), len({v[DENSE.text]["prompt"] for v in videos}), rows, {"best": best}, notes,
    )  # fmt: skip
