"""The benchmark: one run, everything side by side, in turns.

A block that ran beside other load is measured again while patience lasts, whatever its figure. A missed
target is not a failure; a call that fails is, and with --check a ratio that got worse.
"""

import argparse
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from benchmarks import peers, regression, served
from benchmarks.report import Report, Section, machine
from benchmarks.servers import Transport

__all__ = ["main"]

_PARTS: tuple[Transport | Literal["peers"], ...] = ("http", "stdio", "peers")


def main() -> None:
    """Run the benchmark and print its report; exit status 1 says that a call failed or a ratio got worse."""
    options = _options()
    # A signal that ends it ends its servers as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    committed: dict[str, float] = {}
    if options.check:
        try:
            committed = regression.read(options.figures)
        except ValueError as error:
            sys.stderr.write(f"scripts/bench: {error}\n")
            sys.exit(2)
    report = Report(machine=machine())
    with tempfile.TemporaryDirectory(prefix="toolcell-bench-") as name:
        for number, section in enumerate(_sections(options, Path(name))):
            report.sections.append(section)
            _say(f"{number + 1}. {section.title}\n\n{section.text}")
            if options.json:
                # Written after each part, so that a run that is stopped has its figures.
                options.json.write_text(report.json(), encoding="utf-8")
    _say("\n".join(str(target) for target in report.targets))
    if options.keep:
        options.figures.write_text(regression.document(report.targets, report.machine), encoding="utf-8")
    if options.check:
        faults = regression.worse(report.targets, committed, tolerance=options.tolerance)
        for fault in faults:
            _say(f"WORSE by more than {options.tolerance:.0%}: {fault}")
        if not faults:
            _say(f"none of {len(committed)} ratios is worse by more than {options.tolerance:.0%}")
        sys.exit(1 if faults else 0)


def _options() -> argparse.Namespace:
    about = "Compare runner serve with plain FastMCP and with one process for each call."
    parser = argparse.ArgumentParser(prog="scripts/bench", description=about)
    parser.add_argument("--quick", action="store_true", help="few calls: to see that it works")
    parser.add_argument("--only", choices=_PARTS, help="one part")
    parser.add_argument("--calls", type=int, default=60, help="calls in a block (60)")
    parser.add_argument("--rounds", type=int, default=5, help="blocks of each (5)")
    parser.add_argument(
        "--patience",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="to wait for a quiet machine, a part (60)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")
    parser.add_argument(
        "--check", action="store_true", help="fail if a ratio is worse than the committed one"
    )
    parser.add_argument("--figures", type=Path, default=regression.FIGURES, help="the committed ratios")
    parser.add_argument("--tolerance", type=float, default=regression.TOLERANCE, help="of --check (0.25)")
    parser.add_argument("--keep", action="store_true", help="write the ratios of this run into --figures")
    options = parser.parse_args()
    if options.only and (options.check or options.keep):
        parser.error("--check and --keep need all parts; leave --only out")
    if options.quick:
        options.calls, options.rounds, options.patience = 20, 1, 0.0
    return options


def _sections(options: argparse.Namespace, folder: Path) -> Iterator[Section]:
    """Measure one part after another, or the one of --only."""
    for part in _PARTS:
        if options.only not in (None, part):
            continue
        own = folder / part
        own.mkdir()
        if part == "peers":
            yield peers.compare(own, rounds=options.rounds, patience_s=options.patience)
        else:
            yield served.compare(
                part, own, calls=options.calls, rounds=options.rounds, patience_s=options.patience
            )


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
