"""What a search looks for: `replay=0.8`, `ssim>=0.9`, `fidelity-drop<=0.02`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from fastcar_cli.config.tau import Tau
from fastcar_cli.errors import Key, RequestError, RunError
from fastcar_cli.sweep.metrics import KEYS
from fastcar_cli.sweep.session import Request

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
        """Its value in a summary line; identical videos have an infinite PSNR, and a dense line is ideal."""
        value = line[self.key]
        return self.ideal if value is None else float(value)

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

    def verdict(self, search: dict[str, Any]) -> None:
        """End as the search ended. Raises RunError where the target is out of reach, or missed on held-out videos."""
        best = search["best"]
        if not search["reached"]:
            if best is None:
                raise RunError("can't be reached: no threshold replays anything", key="find", value=self.text)
            value = "identical" if best["value"] is None else f"{best['value']:.4g}"
            raise RunError(
                f"can't be reached; the best found is {self.name} {value} at tau "
                f"{Tau.read(best['tau'])}, with {best['replay_ratio']:.1%} replayed",
                key="find",
                value=self.text,
                hint="results.json has every threshold that was tried",
            )
        check = search["validation"]
        if self.sign == "=" and not check["met"]:
            raise RunError(
                f"tau {Tau.read(best['tau'])} gives {best['value']:.4g} on the videos searched but "
                f"{check['value']:.4g} on {check['videos']} held-out ones, more than {HELD_OUT} away",
                key="find",
                value=self.text,
                hint="search with more prompts, or let `fastcar generate --replay-ratio` keep the ratio of each video",
            )


def parse_target(text: str, request: Request) -> Target:
    """A target that this request can be searched for. Raises RequestError."""
    targets = ", ".join(f"{name}{sign}X" for name, (sign, _) in TARGETS.items())
    match = re.fullmatch(r"\s*([a-z-]+)\s*(<=|>=|=)\s*(-?[0-9.]+(?:e-?\d+)?)\s*", text)
    try:
        name, sign, wanted = (match[1], match[2], float(match[3])) if match else ("", "", 0.0)
    except ValueError:
        name, sign, wanted = "", "", 0.0
    if name not in TARGETS or TARGETS[name][0] != sign:
        raise RequestError("is no target", key="find", value=text, allowed=targets)
    if sign == "=" and not 0 < wanted < 1:
        raise RequestError("a ratio lies between 0 and 1", key="find", value=text, allowed="replay=0.8")
    metric = "fidelity" if name == "fidelity-drop" else name
    if metric in (*KEYS, "fidelity") and metric not in request.metrics:
        hint = (Key("lpips_weights"), " PATH") if metric == "lpips" else (Key("metrics"), f" with {metric}")
        raise RequestError(f"{metric} is not among the metrics", key="find", value=text, hint=hint)
    for option, axis in (("window", request.windows), ("gate", request.gates), ("backend", request.backends)):
        if axis is not None and len(axis) > 1:
            raise RequestError(
                ("searches one setting, ", Key(option), f" names {len(axis)}"),
                key="find",
                value=text,
                hint=("name one ", Key(option)),
            )
    if request.shard is not None:
        raise RequestError(
            (Key("find"), " and ", Key("shard"), " exclude each other"),
            hint=(Key("engine"), " ray searches on many machines"),
        )
    return Target(text, name, sign, TARGETS[name][1], wanted)
