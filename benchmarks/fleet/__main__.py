"""Works out what a fleet needs, simulates it, writes the tables and draws the pictures of `docs/scale.md`.

usage: scripts/scale [--quick] [--markdown FILE] [--plots FOLDER]

Nothing is measured here, so a run says on any machine what it says on another.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from benchmarks.curves.plot import draw
from benchmarks.fleet import runs, sizes
from benchmarks.report import filled
from benchmarks.rounds import progress

__all__ = ["main"]


def main() -> None:
    """Write every table, and every picture where a folder is named."""
    options = _options()
    if options.plots:
        options.plots.mkdir(parents=True, exist_ok=True)
    parts: Mapping[str, Callable[[], str]] = {
        "scale_figures": sizes.figures_table,
        "scale_sizes": sizes.shopping_table,
        "scale_bottlenecks": sizes.bottlenecks_table,
        "scale_million": sizes.million_table,
        "scale_sensitivity": partial(sizes.sensitivity_table, sizes.SIZES[-1]),
        "scale_agreement": partial(runs.agreement_table, 0.2 if options.quick else 1.0),
        "scale_loss": partial(runs.loss_table, options.plots),
        "scale_placing": runs.placing_table,
        "scale_waiting": runs.waiting_table,
        "scale_flood": runs.flood_table,
    }
    written: dict[str, str] = {}
    for key, make in parts.items():
        begun = time.process_time()
        written[key] = make()
        progress(f"{key}: {time.process_time() - begun:.1f} s of a processor")
        sys.stdout.write(f"{key}\n\n{written[key]}\n\n")
        sys.stdout.flush()
    if options.plots:
        for curve in (sizes.busy_curve(), sizes.needs_curve()):
            draw(curve, options.plots)
    if options.markdown:
        before = options.markdown.read_text(encoding="utf-8")
        options.markdown.write_text(filled(before, written), encoding="utf-8")


def _options() -> argparse.Namespace:
    about = "Work out and simulate what a fleet needs."
    parser = argparse.ArgumentParser(prog="scripts/scale", description=about)
    parser.add_argument(
        "--quick", action="store_true", help="a fifth of the simulated time, where it is long"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="fill the tables into this document")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw pictures there")
    return parser.parse_args()


if __name__ == "__main__":
    main()
