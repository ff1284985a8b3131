"""What the process of `runner call` imports, by package and the slowest modules, as Python itself counts."""

import re
import sys
from collections import defaultdict
from pathlib import Path

from benchmarks.figures import table
from benchmarks.report import Section
from benchmarks.rounds import progress
from benchmarks.starts import HELLO, done_in

__all__ = ["measure", "times_ms"]

_IMPORT = re.compile(r"(?m)^import time:\s+(\d+) \|\s+\d+ \| +(\S+)$")
_MOST = 12


def measure(folder: Path) -> Section:
    """Run `runner call` once with `-X importtime`, and sum up what it says."""
    progress("imports of runner call")
    command = [sys.executable, "-X", "importtime", "-m", "runner", "call", *HELLO]
    modules = times_ms(done_in(command, folder).stderr)
    packages: dict[str, float] = defaultdict(float)
    for module, ms in modules.items():
        packages[module.partition(".")[0]] += ms
    by_package, by_module = _slowest(packages), _slowest(modules)
    rows = [
        (package, f"{whole:.1f}", module, f"{own:.1f}")
        for (package, whole), (module, own) in zip(by_package, by_module, strict=False)
    ]
    whole = sum(modules.values())
    said = f"{len(modules)} modules, {whole:.0f} ms in all, which the measuring itself makes longer.\n\n"
    return Section(
        key="imports",
        title="What `runner call` imports",
        text=said + table(("package", "ms", "slowest modules", "ms"), rows),
        facts={"ms": whole, "packages_ms": dict(by_package), "modules_ms": modules},
    )


def times_ms(said: str) -> dict[str, float]:
    """Return the milliseconds of each module without what it imports, from what `-X importtime` printed."""
    return {module: int(micro) / 1000 for micro, module in _IMPORT.findall(said)}


def _slowest(times: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(times.items(), key=lambda item: -item[1])[:_MOST]
