"""Draws a curve as a small SVG file, the same for the same figures: no date in it, no random names."""

from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullLocator

from benchmarks.curves.curve import Curve, Panel

__all__ = ["draw"]

_WIDTH_IN, _HEIGHT_IN = 4.2, 3.0
_MARKERS = "osD^v"
# Nearer ticks would print their numbers over each other.
_APART = 1.3


def draw(curve: Curve, folder: Path) -> Path:
    """Write the picture of a curve into a folder; return where it is."""
    path = folder / f"{curve.key}.svg"
    with mpl.rc_context({"svg.hashsalt": curve.key, "svg.fonttype": "none", "font.size": 8}):
        figure = Figure(figsize=(_WIDTH_IN * len(curve.panels), _HEIGHT_IN), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots(1, len(curve.panels), squeeze=False)[0]
        for panel, axis in zip(curve.panels, axes, strict=True):
            _fill(axis, panel)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    return path


def _fill(axis: Axes, panel: Panel) -> None:
    for (name, points), marker in zip(panel.lines.items(), _MARKERS, strict=False):
        over, values = zip(*points, strict=True)
        axis.plot(over, values, marker=marker, markersize=3, linewidth=1, label=name)
    sizes = sorted({size for points in panel.lines.values() for size, _ in points})
    axis.set(xscale="log", yscale="log", xlabel=panel.over, ylabel=panel.shows)
    ticks = [size for size, before in zip(sizes, [0.0, *sizes], strict=False) if size > _APART * before]
    axis.set_xticks(ticks, [f"{size:g}" for size in ticks])
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    for each in (axis.xaxis, axis.yaxis):
        each.set_minor_locator(NullLocator())
    axis.grid(visible=True, linewidth=0.3)
    axis.legend(fontsize=7)
