"""Measures how cost grows, prints tables, and draws them.

usage: scripts/bench --curves [NAME...] [--minutes N] [--plots FOLDER] [--json FILE] [--markdown FILE]
"""

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.calm import Calm
from benchmarks.curves import clients, results, tools, users, zygotes
from benchmarks.curves.curve import Curve
from benchmarks.curves.plot import draw
from benchmarks.report import Report, Section, load_average, machine
from benchmarks.rounds import progress
from benchmarks.servers import add_reuse

CURVES: dict[str, Callable[[Path, float], Curve]] = {
    "clients": clients.measure,
    "users": users.measure,
    "tools": tools.measure,
    "results": results.measure,
    "zygotes": zygotes.measure,
}


def main() -> None:
    """Measure the curves that were asked for, each in its part of the time."""
    options = _options()
    # Ended from outside, it ends its servers as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    names = options.names or [*CURVES]
    report = Report(machine=machine(), where="curves_machine")
    progress(f"load average at the start: {load_average()}")
    with tempfile.TemporaryDirectory(prefix="toolcell-bench-") as top:
        for name in names:
            own = Path(top, name)
            own.mkdir()
            calm = Calm(0)
            curve = calm.measure(partial(CURVES[name], own, 60 * options.minutes / len(names)))
            text = f"{curve.text()}\n\nMeanwhile {calm.mean}."
            if options.plots:
                options.plots.mkdir(parents=True, exist_ok=True)
                picture = draw(curve, options.plots)
                text += f"\n\n![{curve.title}]({options.plots.name}/{picture.name})"
            section = Section(key=curve.key, title=curve.title, text=text, facts=curve.facts)
            report.sections.append(section)
            sys.stdout.write(f"{curve.title}\n\n{text}\n\n")
            sys.stdout.flush()
    progress(f"load average at the end: {load_average()}")
    if options.json:
        options.json.write_text(report.json(), encoding="utf-8")
    if options.markdown:
        report.write(options.markdown)


def _options() -> argparse.Namespace:
    about = "Measure how cost grows, and draw it."
    parser = argparse.ArgumentParser(prog="scripts/bench --curves", description=about)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CURVES)}; all of them")
    parser.add_argument("--minutes", type=float, default=12.0, help="after which no round begins (12)")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw into it, such as docs/plots")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")
    parser.add_argument(
        "--markdown",
        type=Path,
        metavar="FILE",
        help="write the tables, or fill them in where FILE has places for them",
    )
    add_reuse(parser)
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in CURVES]
    if unknown:
        parser.error(f"there is no curve {unknown[0]!r}; there are {', '.join(CURVES)}")
    return options


if __name__ == "__main__":
    main()
