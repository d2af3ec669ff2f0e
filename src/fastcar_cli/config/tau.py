"""The replay threshold, a float: `+inf` is never exceeded and stands for dense decoding (`off` for people, null in
JSON), `-inf` is exceeded by every finite score.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from fastcar_cli.config.lists import digits
from fastcar_cli.errors import RequestError

Plain = float | str | None
ALLOWED = "a number such as -2, 'off', or a list with one of these per layer"
"""The values that `Tau.read` accepts, for errors."""


def _number(value: Any) -> float:
    text = value.strip().lower() if isinstance(value, str) else ""
    if value is None or value is False or text == "off":
        return math.inf
    try:
        number = float("nan" if value is True else digits(text) if text else value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    # For example nan and 1e999.
    if math.isnan(number) or (math.isinf(number) and text[-1:].isdigit()):
        raise ValueError(ALLOWED)
    return number


@dataclass(frozen=True)
class Tau:
    """Thresholds of the decoder's layers: `values` has one for all layers, or one per layer."""

    values: tuple[float, ...] = (math.inf,)

    @classmethod
    def read(cls, given: Any) -> Tau:
        """Parse a threshold: a Tau; a number or its text; `off`, None or False for dense decoding; or one of these per
        layer, as a list or comma-separated text. Raises ValueError with ALLOWED for anything else.
        """
        if isinstance(given, Tau):
            return given
        if isinstance(given, str) and "," in given:
            given = given.split(",")
        if not isinstance(given, (list, tuple)):
            return cls((_number(given),))
        if not given:
            raise ValueError(ALLOWED)
        return cls(tuple(map(_number, given)))

    @property
    def off(self) -> bool:
        """Whether no layer ever replays."""
        return all(v == math.inf for v in self.values)

    def by_layer(self, layers: int) -> tuple[float, ...]:
        """One threshold per layer. Raises RequestError for a list of another length."""
        if len(self.values) == 1:
            return self.values * layers
        if len(self.values) != layers:
            said = f"{len(self.values)} values, but the model has {layers} layers"
            raise RequestError(said, key="tau", hint="give one value for all layers, or one per layer")
        return self.values

    def plain(self, off: str | None = None) -> Plain | list[Plain]:
        """For JSON and YAML, readable by `read`: a number, `off`, '-inf', or a list with one per layer."""
        each = [off if v == math.inf else "-inf" if v == -math.inf else v for v in self.values]
        return each[0] if len(set(each)) == 1 else each

    def __str__(self) -> str:
        """For people and `--tau`, readable by `read`."""
        each = ["off" if v == math.inf else s if float(s := f"{v:g}") == v else repr(v) for v in self.values]
        return each[0] if len(set(each)) == 1 else ",".join(each)


OFF = Tau()  # dense decoding
