"""The watch over a call's usage that no kernel limit bounds: sums over processes, and the disk.

A short call is never checked. Later checks follow every 50 ms while the call works, less often while it
idles, and take a small part of a processor at most. Processes and homes are measured separately, in threads
of their own: neither a home that is slow to measure nor a host that copies files delays the check of
processes. `exceeded` and `overfull` judge each measurement; they use neither clock nor kernel.

Source: sandbox notes, "Limits"; docs/isolation.md.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from sandbox.host.home_usage import HomeDisk, HomeUsage, measure
from sandbox.host.usage import Process, memory_of, processes_of, read_process
from sandbox.outcome import Reached
from sandbox.policy import Limits

__all__ = [
    "FIRST_LOOK_S",
    "CallWatch",
    "Look",
    "LookPace",
    "behind_death",
    "exceeded",
    "overfull",
    "too_many_tasks",
]

log = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_LOOK_S = 0.05
"""Seconds from the start of a call to its first measurement."""

_SLOWEST_S = 0.2
_SLOWEST_BETWEEN_CALLS_S = 1.0
_CPU_GRACE_S = 2
# A check may use 1/_LOOK_SHARE of a processor for processes, and 1/_HOME_SHARE for a large home. Checks of
# processes may use 1/_WAIT_SHARE of wall time: a host starved of processor time must still see overuse.
_LOOK_SHARE = 20
_WAIT_SHARE = 4
_HOME_SHARE = 50
# Applies once the disk has lost as much space as the home could still use.
_HURRIED_SHARE = 5
_PROCESS_LOOKS = ThreadPoolExecutor(2, thread_name_prefix="look-at-processes")
_HOME_LOOKS = ThreadPoolExecutor(4, thread_name_prefix="look-at-home")


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Findings of one check.

    Attributes:
        tasks: Processes and threads of the call.
        memory_bytes: Their memory; above the limit it is exact.
        cpu_s: Processor seconds of the process that has used most of them in this call.
        all_cpu_s: Processor seconds of all living processes.
    """

    tasks: int
    memory_bytes: int
    cpu_s: float
    all_cpu_s: float


def exceeded(look: Look, limits: Limits) -> Reached | None:
    """Return the first limit that a look finds exceeded."""
    used = {"call_processes": look.tasks, "call_memory_bytes": look.memory_bytes}
    if look.cpu_s > limits.cpu_s + _CPU_GRACE_S:
        # The kernel kills a process that has not raised its own limit, after a signal.
        return Reached(limit="cpu_s", value=limits.cpu_s, used=int(look.cpu_s))
    return _first_exceeded(used, limits)


def overfull(usage: HomeUsage, limits: Limits, *, lost_bytes: int = 0) -> Reached | None:
    """Return the first limit that a home exceeds.

    Args:
        usage: Measured content of the home.
        limits: The limits.
        lost_bytes: Disk space lost since the call began, to any process; includes hidden files.
    """
    held = max(usage.bytes, lost_bytes) if usage.hides else usage.bytes
    return _first_exceeded({"home_bytes": held, "home_entries": usage.entries}, limits)


def _first_exceeded(used: dict[str, int], limits: Limits) -> Reached | None:
    for name, amount in used.items():
        limit: int = getattr(limits, name)
        if amount > limit:
            return Reached(limit=name, value=limit, used=amount)
    return None


def too_many_tasks(worker: int, zygote: int, limits: Limits) -> Reached | None:
    """Count the processes and threads of a call now; return the limit if it is exceeded."""
    tasks = sum(process.tasks for process in _processes(worker, zygote, most_tasks=limits.call_processes))
    return _first_exceeded({"call_processes": tasks}, limits)


def _processes(worker: int, zygote: int, *, most_tasks: int) -> list[Process]:
    """Return the processes of a call; stop early once there are too many."""
    found, tasks = [], 0
    for pid in processes_of(worker, zygote):
        process = read_process(pid)
        if process is not None:
            found.append(process)
            tasks += process.tasks
        if tasks > most_tasks:
            break
    return found


def behind_death(
    status: str | None, last: Look | None, limits: Limits, *, oom_killed: bool
) -> Reached | None:
    """Return the limit for which the kernel has killed a worker, if any.

    Args:
        status: Its wait status in words.
        last: The last look at it.
        limits: The limits of the call.
        oom_killed: Whether the OOM killer has run in its control group.
    """
    burnt = 0 if last is None else int(last.cpu_s)
    if status == "signal SIGXFSZ":
        return Reached(limit="file_bytes", value=limits.file_bytes)
    if status == "signal SIGXCPU" or (status == "signal SIGKILL" and burnt >= limits.cpu_s):
        # The first signal comes at the limit, the second a second later, if the first is ignored.
        return Reached(limit="cpu_s", value=limits.cpu_s, used=max(burnt, limits.cpu_s))
    if status == "signal SIGKILL" and oom_killed:
        return Reached(limit="total_memory_bytes", value=limits.total_memory_bytes)
    return None


@dataclass(slots=True)
class LookPace:
    """Schedule of the next check. A call that used no processor time since the last one counts as idle."""

    slowest_s: float = _SLOWEST_S
    _delay_s: float = FIRST_LOOK_S
    _all_cpu_s: float = 0.0

    def next(self, look: Look, *, cpu_s: float, elapsed_s: float) -> float:
        """Return the seconds until the next look.

        Args:
            look: The latest look.
            cpu_s: Processor seconds spent on it.
            elapsed_s: Wall-clock seconds spent on it.
        """
        idle = look.all_cpu_s == self._all_cpu_s
        self._all_cpu_s = look.all_cpu_s
        self._delay_s = min(2 * self._delay_s, self.slowest_s) if idle else FIRST_LOOK_S
        return max(self._delay_s, _LOOK_SHARE * cpu_s, _WAIT_SHARE * elapsed_s)


@dataclass(slots=True, kw_only=True)
class CallWatch:
    """Looks at one call until it is over a limit.

    Attributes:
        worker: Process id of its worker.
        origin: Process id of the process that it was forked from, whose memory and mappings do not count.
        disk: Disk of the folder that it may fill, such as its home, as it was when the call began.
        limits: The limits of the call.
        cpu_before_s: Processor seconds that the worker had used before this call.
        is_between_calls: Whether it watches background work after a call. Then the processor seconds of all
            processes are summed from the first look on, and an idle worker is checked less often.
        last: The last look, if there was one.
        peak_bytes: Peak memory seen; shared pages may be counted once per process.
    """

    worker: int
    origin: int
    disk: HomeDisk | None
    limits: Limits
    cpu_before_s: float = 0.0
    is_between_calls: bool = False
    last: Look | None = None
    peak_bytes: int = 0
    _look_cpu_s: float = field(init=False, default=0.0)
    _look_s: float = field(init=False, default=0.0)
    _delay_s: float = field(init=False, default=FIRST_LOOK_S)
    _all_before_s: float | None = field(init=False, default=None)
    _before_s: dict[int, float] = field(init=False, default_factory=dict)

    async def run(self) -> Reached:
        """Return the first limit that the call exceeds; runs until it is cancelled otherwise."""
        looking = [asyncio.create_task(_despite_errors(self._look_at_processes))]
        if self.disk is not None:
            looking.append(asyncio.create_task(_despite_errors(partial(self._look_at_home, self.disk))))
        try:
            done, _others = await asyncio.wait(looking, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for task in looking:
                task.cancel()
            await asyncio.wait(looking)

    async def _look_at_processes(self) -> Reached:
        pace = LookPace(slowest_s=_SLOWEST_BETWEEN_CALLS_S if self.is_between_calls else _SLOWEST_S)
        while True:
            look = await _in_thread(_PROCESS_LOOKS, self._look)
            reached = exceeded(look, self.limits)
            if reached is not None:
                return reached
            self._delay_s = pace.next(look, cpu_s=self._look_cpu_s, elapsed_s=self._look_s)
            await asyncio.sleep(self._delay_s)

    async def _look_at_home(self, disk: HomeDisk) -> Reached:
        while True:
            started = time.monotonic()
            usage = await _in_thread(_HOME_LOOKS, lambda: self._measure(disk))
            reached = overfull(usage, self.limits, lost_bytes=disk.lost_bytes)
            if reached is not None:
                return reached
            await self._home_is_due(disk, usage, cost_s=time.monotonic() - started)

    async def _home_is_due(self, disk: HomeDisk, usage: HomeUsage, *, cost_s: float) -> None:
        """Wait until it is time to measure a home again: sooner where the disk has lost much meanwhile."""
        ended = time.monotonic()
        least_bytes = disk.free_bytes - (self.limits.home_bytes - usage.bytes)
        least_entries = disk.free_entries - (self.limits.home_entries - usage.entries)
        while True:
            await asyncio.sleep(self._delay_s)
            waited = time.monotonic() - ended
            disk.ask()
            is_urgent = disk.free_bytes < least_bytes or disk.free_entries < least_entries
            if waited >= (_HURRIED_SHARE if is_urgent else _HOME_SHARE) * cost_s:
                return

    def _look(self) -> Look:
        started, cpu_before_s = time.monotonic(), time.thread_time()
        processes = _processes(self.worker, self.origin, most_tasks=self.limits.call_processes)
        # Processes may share pages, so the sum of their sizes can be too high.
        most = self.limits.call_memory_bytes
        memory = memory_of(processes, interesting_bytes=most, zygote=self.origin) if processes else 0
        self._look_cpu_s, self._look_s = time.thread_time() - cpu_before_s, time.monotonic() - started
        look = Look(
            tasks=sum(process.tasks for process in processes),
            memory_bytes=memory,
            cpu_s=self._cpu_s(processes),
            all_cpu_s=sum(process.cpu_s for process in processes),
        )
        self.last, self.peak_bytes = look, max(self.peak_bytes, memory)
        return look

    def _cpu_s(self, processes: Sequence[Process]) -> float:
        if not self.is_between_calls:
            if not self._before_s:
                # Processes of earlier calls may still run; only their use from now on counts.
                self._before_s = {process.pid: process.cpu_s for process in processes}
                self._before_s[self.worker] = self.cpu_before_s
            # A child of a reused worker may raise its soft limit up to the hard limit, which is not set.
            return max(
                (process.cpu_s - self._before_s.get(process.pid, 0.0) for process in processes), default=0.0
            )
        # The usage of a reaped child counts with its parent.
        used_s = sum(process.cpu_s + process.waited_cpu_s for process in processes)
        if self._all_before_s is None:
            self._all_before_s = used_s
        return used_s - self._all_before_s

    def _measure(self, disk: HomeDisk) -> HomeUsage:
        pids = list(processes_of(self.worker, self.origin))
        usage = measure(
            disk.folder, most_entries=self.limits.home_entries, processes=pids, origin=self.origin
        )
        disk.ask()
        return usage


async def _despite_errors(look: Callable[[], Awaitable[Reached]]) -> Reached:
    """Return the first limit exceeded; begin to look again after an error of the host."""
    while True:
        try:
            return await look()
        except OSError as error:
            # The host may lack descriptors or memory for now. The kernel's limits hold meanwhile.
            log.warning("call watch failed", extra={"fault": str(error)})
            await asyncio.sleep(_SLOWEST_BETWEEN_CALLS_S)


async def _in_thread(threads: ThreadPoolExecutor, act: Callable[[], T]) -> T:
    """Run `act` in one of the threads; a cancellation takes effect only after `act` has ended."""
    looking = asyncio.get_running_loop().run_in_executor(threads, act)
    try:
        return await asyncio.shield(looking)
    except asyncio.CancelledError:
        # `act` may read a home whose descriptor is closed when this ends, or earlier at a second cancel.
        looking.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait({looking})
        raise
