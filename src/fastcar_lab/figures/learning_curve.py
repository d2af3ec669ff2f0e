"""What more training would bring: losses and fidelity over steps, and where they lead if nothing changes.

`fastcar lab learning-curve FILE.csv -o plot.png`, a row a checkpoint with the columns
`steps, loss_first, loss_later` (nats a code of held-out scenes, tokens with objects in the first frame and later)
and `right_one, right_two` (% of held-out captions with one and two objects all right, empty where not measured).
"""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.errors import RequestError
from fastcar_cli.extras import pyplot
from fastcar_cli.files import write_whole

COLUMNS = ("steps", "loss_first", "loss_later", "right_one", "right_two")
WANTED = {"right_one": 85.0, "right_two": 60.0}
"""What is to be reached, %."""
CEILING = {"right_one": 90.0, "right_two": 78.0}
"""What the tokenizer alone keeps right, % (docs/table-training.md)."""
_SETTLED = 1000
"""Steps from which losses fall on a line over the logarithm of steps."""
Table = dict[str, NDArray[np.float64]]


def read(file: Path) -> Table:
    """Columns of a file; NaN where a cell is empty. Raises RequestError for another file."""
    try:
        rows = list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))
        table = {name: np.array([float(row[name] or "nan") for row in rows]) for name in COLUMNS}
    except OSError as e:
        raise RequestError(f"{file}: {e.strerror}") from None
    except (KeyError, ValueError, TypeError):
        raise RequestError(f"{file} is no learning curve", hint=f"columns of numbers: {', '.join(COLUMNS)}") from None
    late = np.isfinite(table["loss_later"]) & (table["steps"] >= _SETTLED)
    for name in ("loss_later", *WANTED):
        if len(np.unique(table["loss_later"][late & np.isfinite(table[name])])) < 2:
            raise RequestError(f"{file}: two rows from {_SETTLED} steps on must have `loss_later` and `{name}`")
    return table


@dataclass(frozen=True)
class Lines:
    """Straight lines by least squares: the loss over the logarithm of steps, and % right over the loss, by column."""

    fall: float
    at_one: float
    right: dict[str, tuple[float, float]]

    @classmethod
    def through(cls, table: Table) -> Lines:
        """Raises RequestError for a curve that leads nowhere: a loss that does not fall, a % that does not rise."""
        late = table["steps"] >= _SETTLED
        fall, at_one = _line(np.log(table["steps"][late]), table["loss_later"][late])
        right = {name: _line(table["loss_later"], table[name]) for name in WANTED}
        # Equal numbers make a slope that is rounding alone.
        if fall > -1e-6 or any(gain > -1e-6 for gain, _ in right.values()):
            raise RequestError("the curve leads nowhere: losses must fall and what is right must rise")
        return cls(fall, at_one, right)

    def loss(self, steps: NDArray[np.float64]) -> NDArray[np.float64]:
        """The loss after so many steps."""
        return self.fall * np.log(steps) + self.at_one

    def predict(self) -> dict[str, dict[str, float]]:
        """For one and two objects: the loss at which the wanted % is reached, and the steps to that loss.

        It is a guess beyond what was measured: lines do not know of ceilings.
        """
        found = {}
        for name, (gain, none) in self.right.items():
            loss = (WANTED[name] - none) / gain
            found[name] = {"wanted": WANTED[name], "loss": loss, "steps": math.exp((loss - self.at_one) / self.fall)}
        return found


def _line(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    """Slope and intercept of the least-squares line through points that are known."""
    known = np.isfinite(x) & np.isfinite(y)
    slope, intercept = np.polyfit(x[known], y[known], 1)
    return float(slope), float(intercept)


def draw(file: Path, table: Table, lines: Lines) -> None:
    """Losses, and % right, over steps; dashed the lines. Raises RequestError without matplotlib, RunError where the
    file can't be written.
    """
    plt = pyplot("a plot")
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    found = lines.predict()
    ahead = np.geomspace(_SETTLED, max(f["steps"] for f in found.values()), 50)
    losses = lines.loss(ahead)
    left.plot(table["steps"], table["loss_first"], marker="o", color="#ee6677", label="objects, first frame")
    left.plot(table["steps"], table["loss_later"], marker="o", color="#4477aa", label="objects, later frames")
    left.plot(ahead, losses, "--", color="#4477aa", label="a line over log steps")
    left.set(xscale="log", xlabel="steps", ylabel="held-out loss (nats a code)", ylim=(0, None))
    left.legend(frameon=False)
    for name, color, label in (("right_one", "#228833", "one object"), ("right_two", "#aa3377", "two objects")):
        gain, none = lines.right[name]
        right.plot(table["steps"], table[name], "o", color=color, label=label)
        right.plot(ahead, np.minimum(gain * losses + none, CEILING[name]), "--", color=color)
        right.axhline(CEILING[name], linewidth=0.8, linestyle=":", color=color)
        right.plot([found[name]["steps"]], [WANTED[name]], "x", color=color)
    right.set(xscale="log", xlabel="steps", ylabel="videos all right (%)", ylim=(0, 100))
    right.legend(frameon=False, loc="upper left")
    figure.suptitle("Losses and fidelity over steps; dotted: what the tokenizer keeps right, x: what is wanted")
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=120)
    plt.close(figure)
    write_whole(file, out.getvalue())
