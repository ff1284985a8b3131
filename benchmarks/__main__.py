"""The benchmark: one run, everything side by side, in turns.

A block beside which other work took the processors is measured again while patience lasts, whatever it
showed: what counts is the machine, never the figure. A part whose time is over ends with fewer rounds.
A missed target is no failure; a call that fails is, and with --check a ratio that got worse.
"""

import argparse
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import contract, endurance, imports, perprocess, regression, served, starts
from benchmarks.report import Report, Section, load_average, machine
from benchmarks.rounds import progress
from benchmarks.servers import Transport, add_reuse

# How much of the whole time each part may take before it begins no further round.
_SHARES = {"http": 0.3, "stdio": 0.25, "perprocess": 0.2, "starts": 0.15}


def main() -> None:
    """Run the benchmark and print its report; exit status 1 says that a call failed or a ratio got worse."""
    options = _options()
    # Ended from outside, it ends its servers as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.contract:
        contract.report(_say, patience_s=options.patience)
        return
    committed = _committed(options) if options.check else {}
    report = Report(machine=machine())
    progress(f"load average at the start: {load_average()}")
    with tempfile.TemporaryDirectory(prefix="toolcell-bench-") as name:
        for number, section in enumerate(_sections(options, Path(name))):
            report.sections.append(section)
            _say(f"{number + 1}. {section.title}\n\n{section.text}")
            _write(options, report)
    progress(f"load average at the end: {load_average()}")
    _say("\n".join(str(target) for target in report.targets))
    if options.keep:
        kept = regression.document(report.targets, report.machine)
        options.figures.write_text(kept, encoding="utf-8")
    if options.check:
        sys.exit(_checked(report, committed, options.tolerance))


def _options() -> argparse.Namespace:
    about = "Compare runner serve with plain FastMCP and with one process for each call."
    parser = argparse.ArgumentParser(prog="scripts/bench", description=about)
    parser.add_argument("--quick", action="store_true", help="few calls: to see that it works")
    parser.add_argument("--contract", action="store_true", help="only what the contract costs")
    parser.add_argument("--only", choices=[*_SHARES, "imports", "endurance"], help="one part")
    parser.add_argument("--calls", type=int, default=60, help="calls in a block (60)")
    parser.add_argument("--rounds", type=int, default=5, help="blocks of each (5)")
    parser.add_argument("--endurance", type=int, default=2000, metavar="N", help="calls of that part (2000)")
    parser.add_argument("--minutes", type=float, default=12.0, help="after which no round begins (12)")
    parser.add_argument(
        "--patience", type=float, default=60.0, metavar="SECONDS", help="to wait for calm, a part (60)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")
    parser.add_argument(
        "--markdown",
        type=Path,
        metavar="FILE",
        help="write the tables, or fill them in where FILE has places for them",
    )
    parser.add_argument(
        "--check", action="store_true", help="fail if a ratio is worse than the committed one"
    )
    parser.add_argument("--figures", type=Path, default=regression.FIGURES, help="the committed ratios")
    parser.add_argument("--tolerance", type=float, default=regression.TOLERANCE, help="of --check (0.25)")
    parser.add_argument("--keep", action="store_true", help="write the ratios of this run into --figures")
    add_reuse(parser)
    options = parser.parse_args()
    if options.only and (options.check or options.keep):
        parser.error("--check and --keep need all parts; leave --only out")
    if options.quick:
        options.calls, options.rounds, options.patience, options.minutes = 20, 1, 0.0, 1.0
        options.endurance = min(options.endurance, 400)
    return options


def _committed(options: argparse.Namespace) -> dict[str, float]:
    try:
        return regression.read(options.figures)
    except ValueError as error:
        sys.stderr.write(f"scripts/bench: {error}\n")
        sys.exit(2)


def _sections(options: argparse.Namespace, folder: Path) -> Iterator[Section]:
    """Measure one part after another; of those, the one that was asked for."""
    spent = {part: 60 * options.minutes * share for part, share in _SHARES.items()}
    most, patience_s = options.rounds, options.patience
    transports: tuple[Transport, ...] = ("http", "stdio")
    for transport in transports:
        if options.only in (None, transport):
            yield served.compare(
                transport,
                _made(folder, transport),
                calls=options.calls,
                most=most,
                seconds=spent[transport],
                patience_s=patience_s,
            )
    if options.only in (None, "perprocess"):
        own = _made(folder, "perprocess")
        yield perprocess.compare(own, most=most, seconds=spent["perprocess"], patience_s=patience_s)
    if options.only in (None, "starts"):
        own = _made(folder, "starts")
        yield starts.compare(own, most=most, seconds=spent["starts"], patience_s=patience_s)
    if options.only in (None, "imports"):
        yield imports.measure(_made(folder, "imports"))
    if options.only in (None, "endurance"):
        yield endurance.measure(_made(folder, "endurance"), calls=options.endurance)


def _made(folder: Path, name: str) -> Path:
    own = folder / name
    own.mkdir()
    return own


def _write(options: argparse.Namespace, report: Report) -> None:
    """Write what there is so far: a run that is stopped has not been for nothing."""
    if options.json:
        options.json.write_text(report.json(), encoding="utf-8")
    if options.markdown:
        report.write(options.markdown)


def _checked(report: Report, committed: dict[str, float], tolerance: float) -> int:
    """Say which ratios got worse; return the exit status."""
    faults = regression.worse(report.targets, committed, tolerance=tolerance)
    for fault in faults:
        _say(f"WORSE by more than {tolerance:.0%}: {fault}")
    if not faults:
        _say(f"none of {len(committed)} ratios is worse than the committed one by more than {tolerance:.0%}")
    return 1 if faults else 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
