"""Measurements beside other load: its share of the processors, and a repetition if that was too much."""

import contextlib
import time
from collections.abc import Callable
from typing import TypeVar

import psutil

__all__ = ["Calm"]

_BUSY_SHARE = 0.1
_LOOK_S = 0.5

T = TypeVar("T")


class Calm:
    """Takes measurements while other processes leave the processors alone, as long as patience lasts."""

    def __init__(self, patience_s: float) -> None:
        self._ends = time.monotonic() + patience_s
        self._shares: list[float] = []

    def measure(self, take: Callable[[], T]) -> T:
        """Return what `take` measured; repeated while others took too much and patience lasts."""
        while True:
            self._wait()
            before = _Seconds()
            taken = take()
            share = _Seconds().others_since(before)
            if share <= _BUSY_SHARE or time.monotonic() >= self._ends:
                self._shares.append(share)
                return taken

    def __str__(self) -> str:
        mean = sum(self._shares) / len(self._shares)
        busy = sum(share > _BUSY_SHARE for share in self._shares)
        return (
            f"other processes took {mean:.0%} of the processors "
            f"(more than {_BUSY_SHARE:.0%} in {busy} of {len(self._shares)} measurements)"
        )

    def _wait(self) -> None:
        while time.monotonic() < self._ends:
            before = _Seconds()
            time.sleep(_LOOK_S)
            if _Seconds().others_since(before) <= _BUSY_SHARE:
                return


class _Seconds:
    """Processor seconds so far: of the machine, and of this process with all below it."""

    def __init__(self) -> None:
        times = psutil.cpu_times()
        self._total = sum(times) - times.guest - times.guest_nice
        self._busy = self._total - times.idle - times.iowait
        self._ours = 0.0
        me = psutil.Process()
        for process in (me, *me.children(recursive=True)):
            # A worker that has been reaped counts among its zygote's children.
            with contextlib.suppress(psutil.NoSuchProcess):
                own = process.cpu_times()
                self._ours += own.user + own.system + own.children_user + own.children_system

    def others_since(self, before: "_Seconds") -> float:
        """Return the share of the processors, 0 to 1, that went to none of our processes."""
        total = self._total - before._total
        others = (self._busy - before._busy) - (self._ours - before._ours)
        return max(0.0, others) / total if total else 0.0
