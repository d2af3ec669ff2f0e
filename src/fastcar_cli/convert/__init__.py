"""From a model in floats to a folder whose weights are mapped and run as they lie there: `fastcar convert`."""

from __future__ import annotations

from fastcar_cli.convert.calibrate import Calibration
from fastcar_cli.convert.convert import Conversion, Result
from fastcar_cli.convert.source import Source, open_source

__all__ = ["Calibration", "Conversion", "Result", "Source", "open_source"]
