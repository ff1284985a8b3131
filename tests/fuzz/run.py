"""Run the properties of one target over and over, each time with other values; say how often.

An example that fails is made as small as it gets and told with its traceback. An example that takes more
than a bounded time of the processor, or memory that does not come back, fails too.

usage: python tests/fuzz/run.py TARGET [--minutes N]
"""

import argparse
import functools
import importlib
import logging
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings

TARGETS = ("frames", "paths", "policies", "artifacts")

BATCH = 500
EXAMPLE_CPU_S = 5.0
GROWTH_KIB = 512 * 1024

Property = Callable[[], None]


@dataclass
class Count:
    """Number of examples of a property, and duration of the longest one."""

    examples: int = 0
    longest_s: float = 0.0


def main(arguments: Sequence[str]) -> int:
    """Run one target for its time; return 1 if a property was broken."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long; 30 by default")
    options = parser.parse_args(arguments)
    # Repaired results and dropped notices are logged, by the thousand.
    logging.disable()
    folder = Path(__file__).parent
    sys.path[:0] = [str(folder), str(folder.parent)]
    properties: Sequence[Property] = importlib.import_module(f"test_fuzz_{options.target}").PROPERTIES
    return fuzz(options.target, properties, minutes=options.minutes)


def fuzz(target: str, properties: Sequence[Property], *, minutes: float) -> int:
    """Run all properties in turns until the time is over, or one is broken."""
    started = time.monotonic()
    counts = {prepared: _bounded(prepared) for prepared in properties}
    before_kib = 0
    while time.monotonic() - started < minutes * 60:
        for prepared in properties:
            prepared()
        used_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        # What the first turn takes is the libraries' and Hypothesis's own.
        before_kib = before_kib or used_kib
        if used_kib - before_kib > GROWTH_KIB:
            print(f"{target}: memory grew from {before_kib} to {used_kib} KiB")
            return 1
    spent = (time.monotonic() - started) / 60
    for prepared, count in counts.items():
        name = getattr(prepared, "__name__", "")
        print(
            f"{target}: {spent:.1f} min, {count.examples} examples, longest {count.longest_s:.2f} s: {name}"
        )
    return 0


def _bounded(prepared: Property) -> Count:
    """Make a property ready for a long run; return what counts its examples."""
    hypothesis = prepared.hypothesis  # type: ignore[attr-defined]
    tested, count = hypothesis.inner_test, Count()

    @functools.wraps(tested)
    def bounded(*args: object, **kwargs: object) -> None:
        started = time.process_time()
        count.examples += 1
        tested(*args, **kwargs)
        taken = time.process_time() - started
        count.longest_s = max(count.longest_s, taken)
        assert taken < EXAMPLE_CPU_S, f"one example took {taken:.1f} s of the processor"

    hypothesis.inner_test = bounded
    settings(
        max_examples=BATCH,
        deadline=None,
        database=None,
        derandomize=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )(prepared)
    return count


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
