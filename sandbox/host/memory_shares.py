"""Proportional set sizes of many processes, sampled while a server runs.

Only the proportional set size (private pages, and shared pages divided among their users) can be added up:
workers are forked, and share most pages with their zygote and the forkserver. The kernel takes a millisecond
to compute it, and a server has thousands of processes. So a process is sampled once, and again when its time
or memory has changed, or after minutes: most are stopped. A round takes a bounded time and begins with the
oldest sample.

Source: proc_pid_smaps(5) on smaps_rollup.
"""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from sandbox.host.process_stat import ProcessStat
from sandbox.host.usage import Process, processes_below, read_process, share_of

__all__ = ["LOOK_S", "MemoryShares"]

_KEPT_S = 300.0

LOOK_S = 0.25
"""Most seconds of sampling for each query."""


@dataclass(frozen=True, slots=True)
class _Share:
    """Memory of a process at a check; valid while its state is unchanged."""

    size: int
    state: tuple[float, int]
    looked_at: float


@dataclass(slots=True)
class MemoryShares:
    """Memory of processes, as last read. Thread-safe.

    Attributes:
        look_s: Most seconds of sampling for each query.
        clock: Monotonic clock, in seconds.
    """

    look_s: float = LOOK_S
    clock: Callable[[], float] = time.monotonic
    _known: dict[int, _Share] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def by_owner(self, roots: Iterable[tuple[str, int]]) -> Mapping[str, int]:
        """Return the memory of each owner's processes, in bytes.

        Args:
            roots: Pairs of an owner and a root process, whose descendants count too.
        """
        with self._lock:
            owners = {pid: owner for owner, root in roots for pid in processes_below(root)}
            there = {pid: process for pid in owners if (process := read_process(pid)) is not None}
            self._known = {pid: share for pid, share in self._known.items() if pid in there}
            self._look(there)
            found: Counter[str] = Counter()
            for pid, process in there.items():
                share = self._known.get(pid)
                found[owners[pid]] += _own_bytes(process, there) if share is None else share.size
            return found

    def _look(self, there: Mapping[int, Process]) -> None:
        """Sample changed processes within the time budget."""
        now = self.clock()
        changed = [process for process in there.values() if self._has_changed(process, now)]
        for process in sorted(changed, key=self._looked_at):
            if self.clock() >= now + self.look_s:
                return
            with contextlib.suppress(PermissionError):
                size = share_of(process.pid) + process.table_bytes
                self._known[process.pid] = _Share(size, _state(process), self.clock())

    def _has_changed(self, process: Process, now: float) -> bool:
        share = self._known.get(process.pid)
        # The share of an unchanged process grows as other users of its pages end.
        return share is None or share.state != _state(process) or now - share.looked_at > _KEPT_S

    def _looked_at(self, process: Process) -> float:
        share = self._known.get(process.pid)
        return float("-inf") if share is None else share.looked_at


def _state(process: Process) -> tuple[float, int]:
    """Return a key that changes once a process has run, or its pid belongs to another process."""
    return process.cpu_s, process.resident_bytes


def _own_bytes(process: Process, there: Mapping[int, Process]) -> int:
    """Estimate the memory of an unreadable process beyond its parent's."""
    try:
        parent = ProcessStat.of(process.pid).parent
    except (FileNotFoundError, ProcessLookupError):
        return 0
    origin = there.get(parent) or read_process(parent)
    return max(0, process.private_bytes - (0 if origin is None else origin.private_bytes))
