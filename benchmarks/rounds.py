"""Rounds of a measurement, as many as wanted or as there is time for, and word of how far it is."""

import sys
import time
from collections.abc import Iterator

__all__ = ["progress", "rounds"]


def rounds(what: str, most: int, seconds: float) -> Iterator[int]:
    """Yield the numbers from 0 on: `most` of them, fewer if `seconds` are over, but at least one."""
    ends = time.monotonic() + seconds
    for number in range(most):
        if number and time.monotonic() >= ends:
            progress(f"{what}: time is up after {number} of {most} rounds")
            return
        progress(f"{what}: round {number + 1} of {most}")
        yield number


def progress(text: str) -> None:
    """Tell whoever waits what is done now, on standard error."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')}  {text}\n")
    sys.stderr.flush()
