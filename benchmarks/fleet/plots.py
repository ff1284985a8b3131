"""Draws answers beside a node that dies; other pictures are curves, which `benchmarks.curves.plot` draws."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from benchmarks.fleet.simulation import Call

__all__ = ["draw_loss"]


def draw_loss(calls: Sequence[Call], path: Path, *, begin_s: float, died_s: float, seconds: float) -> Path:
    """Write the picture of a lost node into a file; return where it is.

    Args:
        calls: All calls that ended.
        path: Where to write.
        begin_s: The moment that is shown as 0.
        died_s: When the node died.
        seconds: How much is shown.
    """
    with mpl.rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "none", "font.size": 8}):
        figure = Figure(figsize=(8.4, 3.0), layout="constrained")
        FigureCanvasSVG(figure)
        above, below = figure.subplots(1, 2)
        per_second = [0] * int(seconds)
        for call in calls:
            if 0 <= (at := int(call.ended_s - begin_s)) < seconds and call.outcome == "answered":
                per_second[at] += 1
        above.plot(range(int(seconds)), per_second, linewidth=1, drawstyle="steps-post")
        above.set(xlabel="seconds", ylabel="answers a second", ylim=(0, None))
        kinds = {"answered": [c for c in calls if c.outcome == "answered" and c.took_s > 1]}
        kinds["may have run, told so"] = [c for c in calls if c.outcome == "lost"]
        for (name, those), marker in zip(kinds.items(), "ox", strict=True):
            below.plot(
                [call.began_s - begin_s for call in those],
                [call.took_s for call in those],
                linestyle="", marker=marker, markersize=3, label=name,
            )  # fmt: skip
        below.set(xlabel="call began, seconds", ylabel="seconds until its end, above 1", ylim=(0, None))
        below.set_xlim(0, seconds)
        below.legend(fontsize=7)
        for axis in (above, below):
            axis.axvline(died_s - begin_s, linewidth=0.8, linestyle="--", color="black")
            axis.grid(visible=True, linewidth=0.3)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    return path
