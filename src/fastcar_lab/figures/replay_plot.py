"""What training for replay buys: fidelity and PSNR over the replay ratio, of two evaluations.

`fastcar lab replay-plot before.json after.json -o plot.png`, where both files are what `fastcar lab evaluate --tau
"off;..."` printed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastcar_lab.common import pyplot

IDENTICAL = 80.0
"""Height in dB at which videos without any difference are drawn."""


def draw_plot(file: Path, before: dict[str, Any], after: dict[str, Any]) -> None:
    """Draw both curves, a point a threshold."""
    plt = pyplot("a plot")

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for document, label, color in ((before, "before", "#ee6677"), (after, "after the replay stage", "#4477aa")):
        rows = sorted(document["fidelity"], key=lambda r: r["replay"]["eligible_ratio"])
        ratio = [100 * r["replay"]["eligible_ratio"] for r in rows]
        left.plot(ratio, [100 * r["right"]["all"] for r in rows], marker="o", color=color, label=label)
        replayed = [(x, r.get("psnr_db")) for x, r in zip(ratio, rows, strict=True) if r["tau"] != "off"]
        right.plot(
            [x for x, _ in replayed],
            [IDENTICAL if db is None else db for _, db in replayed],
            marker="o",
            color=color,
            label=label,
        )
        for i, (x, r) in enumerate(zip(ratio, rows, strict=True)):
            # Neighbours may lie close together: their labels take turns above and below.
            offset = (-3, 6) if i % 2 else (-3, -14)
            left.annotate(r["tau"], (x, 100 * r["right"]["all"]), textcoords="offset points", xytext=offset, fontsize=8)
    left.set(xlabel="eligible MLPs replayed (%)", ylabel="videos all right (%)", ylim=(0, 108))
    right.set(xlabel="eligible MLPs replayed (%)", ylabel="PSNR against the dense video (dB)", xlim=left.get_xlim())
    ticks = [20, 30, 40, 50, 60, 70, IDENTICAL]
    right.set_yticks(ticks, [*map(str, ticks[:-1]), "identical"])
    left.legend(frameon=False, loc="lower left")
    figure.suptitle("Fidelity and similarity to the dense video over replay; labels: tau")
    figure.savefig(file, dpi=120)
    plt.close(figure)
