"""Draw time against M, N and h from the results of `benchmarks.gpu`.

    python -m benchmarks.plot_growth [docs/images/growth.svg]

Shows the device's time (a replayed graph) and the time of a call from Python, of the newest rows
in `results/gpu_growth.csv`.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from benchmarks import record

NAMES = {"channels_last": "rows, (M, L, C)", "channels_first": "planes, (M, C, L)"}
COLOURS = {"channels_last": "#1b6ca8", "channels_first": "#c8553d"}
AXES = {"M": "samples M", "N": "tokens N", "h": "features h"}


def newest() -> list[dict[str, str]]:
    """The last row of every case that has the device's time."""
    with (record.FOLDER / "gpu_growth.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["device_ms"]]
    cases = {(row["axes"], row["varied"], row["M"], row["N"], row["h"]): row for row in rows}
    return list(cases.values())


def draw(rows: list[dict[str, str]], path: Path) -> None:
    """One panel for each size that varies, with a line of slope 1 to compare with."""
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "growth", "font.size": 9})
    figure, panels = plt.subplots(1, 3, figsize=(9, 3.2), sharey=True, layout="constrained")
    for panel, (varied, label) in zip(panels, AXES.items(), strict=True):
        for axes, name in NAMES.items():
            some = [row for row in rows if row["varied"] == varied and row["axes"] == axes]
            some.sort(key=lambda row: int(row[varied]))
            sizes = [int(row[varied]) for row in some]
            device = [float(row["device_ms"]) for row in some]
            whole = [float(row["ms"]) for row in some]
            panel.plot(sizes, device, "o-", color=COLOURS[axes], label=f"{name}: device")
            panel.plot(sizes, whole, ":", color=COLOURS[axes], label=f"{name}: call from Python")
        line = [device[-1] * size / sizes[-1] for size in sizes]
        panel.plot(sizes, line, "--", color="0.6", linewidth=1, label="linear")
        panel.set(xscale="log", yscale="log", xlabel=label)
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("forward and backward, ms")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=150)


if __name__ == "__main__":
    target = sys.argv[1] if len(sys.argv) > 1 else "docs/images/growth.svg"
    draw(newest(), Path(target))
