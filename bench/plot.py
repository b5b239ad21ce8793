# SPDX-License-Identifier: LGPL-2.1-only
"""bench/cost.svg: time against number of VDIs, for us and for what people would use instead."""

from statistics import median
from typing import Dict

import matplotlib as mpl
from matplotlib import pyplot
from matplotlib.ticker import FuncFormatter

from bench.timing import OURS, OURS_IN_PROCESS, RENAMED, VGIMPORTCLONE, Seconds

# The plot is a card with a background of its own, so that it reads the same on a light and on a dark page.
_STYLES = {
    OURS_IN_PROCESS: ("#0072b2", "o", "-"),
    OURS: ("#0072b2", "s", "--"),
    VGIMPORTCLONE: ("#d55e00", "^", "-"),
    RENAMED: ("#cc79a7", "v", "-"),
}
_LABELS = {
    VGIMPORTCLONE: "vgimportclone (no LV ids, names, MGT, VHDs)",
    RENAMED: "vgimportclone + lvrename of each LV (no LV ids, MGT, VHDs)",
}


def draw(times: Dict[int, Seconds], path: str) -> None:
    mpl.rcParams.update({"svg.hashsalt": "relvmoiscsi", "svg.fonttype": "none", "font.family": "sans-serif"})
    figure, axes = pyplot.subplots(figsize=(8.4, 5.4), facecolor="#fafafa")
    axes.set_facecolor("#fafafa")
    for name, (colour, marker, line) in _STYLES.items():
        points = [(count, found[name]) for count, found in times.items() if name in found]
        counts = [count for count, _values in points]
        axes.plot(counts, [median(values) for _count, values in points], line, color=colour, marker=marker,
                  label=_LABELS.get(name, name + " (everything)"))  # fmt: skip
        axes.fill_between(counts, [min(v) for _c, v in points], [max(v) for _c, v in points], color=colour, alpha=0.15)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(list(times))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _position: f"{value:.0f}"))
    axes.xaxis.set_minor_formatter(FuncFormatter(lambda _value, _position: ""))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _position: _time(value)))
    axes.set_xlabel("VDIs on the LUN")
    axes.set_ylabel("time, logarithmic")
    axes.set_title("New identities for a clone: loop device, median, shaded from fastest to slowest", fontsize=10)
    axes.grid(visible=True, which="major", color="#cccccc", linewidth=0.6)
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.47, -0.16), ncol=2, frameon=False)
    figure.tight_layout()
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    pyplot.close(figure)


def _time(seconds: float) -> str:
    return f"{seconds:g} s" if seconds >= 1 else f"{round(1000 * seconds, 3):g} ms"
