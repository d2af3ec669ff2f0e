"""What a search looks for: `replay=0.8`, `ssim>=0.9`, `fidelity-drop<=0.02`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from fastcar_cli.analysis.sweep.metrics import KEYS
from fastcar_cli.analysis.sweep.session import Request
from fastcar_cli.decoding.tau import Tau
from fastcar_cli.errors import RequestError, RunError

TARGETS = {
    "replay": ("=", "replay_ratio"),
    "eligible": ("=", "eligible_ratio"),
    "psnr": (">=", "psnr_db"),
    "ssim": (">=", "ssim"),
    "ms-ssim": (">=", "ms_ssim"),
    "temporal": ("<=", "temporal"),
    "lpips": ("<=", "lpips"),
    "fidelity-drop": ("<=", "fidelity_drop"),
}
"""Names of a target, how they are compared, and their key in a summary line."""

TOLERANCE = 0.005
"""A ratio this near its target is taken."""
HELD_OUT = 0.03
"""Farthest that a ratio may be from its target on held-out videos, and on the ones searched."""


@dataclass(frozen=True)
class Target:
    """A parsed `--find`. `sign` is =, >= or <=; `key` that of a summary line."""

    text: str
    name: str
    sign: str
    key: str
    wanted: float

    def value(self, line: dict[str, Any]) -> float:
        """What a summary line says of it; identical videos have an infinite PSNR, and a dense line is ideal."""
        found = line[self.key]
        if found is not None:
            return float(found)
        return self.ideal

    @property
    def ideal(self) -> float:
        """The value of a dense run."""
        return {"psnr_db": math.inf, "ssim": 1.0, "ms_ssim": 1.0}.get(self.key, 0.0)

    def meets(self, line: dict[str, Any]) -> bool:
        """Whether a line satisfies it."""
        value = self.value(line)
        if self.sign == "=":
            return abs(value - self.wanted) <= HELD_OUT
        return value >= self.wanted if self.sign == ">=" else value <= self.wanted

    def verdict(self, found: dict[str, Any]) -> None:
        """End as the search ended. Raises RunError where the target is out of reach, or missed on held-out videos."""
        best = found["best"]
        if not found["reached"]:
            if best is None:
                raise RunError(f"`find` {self.text}: can't be reached: no threshold replays anything")
            value = "identical" if best["value"] is None else f"{best['value']:.4g}"
            raise RunError(
                f"`find` {self.text}: can't be reached; the best found is {self.name} {value} at tau "
                f"{Tau.read(best['tau'])}, with {best['replay_ratio']:.1%} replayed",
                hint="results.json has every threshold that was tried",
            )
        check = found["validation"]
        if self.sign == "=" and not check["met"]:
            raise RunError(
                f"`find` {self.text}: tau {Tau.read(best['tau'])} gives {best['value']:.4g} on the videos searched but "
                f"{check['value']:.4g} on {check['videos']} held-out ones, more than {HELD_OUT} away",
                hint="search with more prompts, or let `fastcar generate --replay-ratio` keep the ratio of each video",
            )


def parse_target(text: str, request: Request) -> Target:
    """A target that this request can be searched for. Raises RequestError."""
    told = ", ".join(f"{name}{sign}X" for name, (sign, _) in TARGETS.items())
    match = re.fullmatch(r"\s*([a-z-]+)\s*(<=|>=|=)\s*(-?[0-9.]+(?:e-?\d+)?)\s*", text)
    try:
        name, sign, wanted = (match[1], match[2], float(match[3])) if match else ("", "", 0.0)
    except ValueError:
        name, sign, wanted = "", "", 0.0
    if name not in TARGETS or TARGETS[name][0] != sign:
        raise RequestError(f"`find` {text}: is no target", hint=f"allowed: {told}")
    if sign == "=" and not 0 < wanted < 1:
        raise RequestError(f"`find` {text}: a ratio lies between 0 and 1", hint="allowed: replay=0.8")
    metric = "fidelity" if name == "fidelity-drop" else name
    if metric in (*KEYS, "fidelity") and metric not in request.metrics:
        hint = "`lpips_weights` PATH" if metric == "lpips" else f"`metrics` with {metric}"
        raise RequestError(f"`find` {text}: {metric} is not among the metrics", hint=hint)
    for option, axis in (("window", request.windows), ("gate", request.gates), ("backend", request.backends)):
        if axis is not None and len(axis) > 1:
            raise RequestError(
                f"`find` {text}: searches one setting, `{option}` names {len(axis)}", hint=f"name one `{option}`"
            )
    if request.shard is not None:
        raise RequestError("`find` and `shard` exclude each other", hint="`engine` ray searches on many machines")
    return Target(text, name, sign, TARGETS[name][1], wanted)
