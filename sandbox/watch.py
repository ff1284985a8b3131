"""The watch over what one call uses, for what no limit of the kernel bounds: sums, and the disk.

A call that is over soon is never looked at. Afterwards a look comes every 50 ms while the call works,
less often while it idles, and never so often that looking takes more than a small part of a processor.
What a look finds is weighed by `exceeded`, which knows no clock and no kernel.

Source: sandbox notes, "Limits"; docs/limits.md.
"""

import asyncio
import time
from dataclasses import dataclass, field

from sandbox.home_usage import HomeUsage, measure
from sandbox.outcome import Reached
from sandbox.policy import Limits
from sandbox.usage import memory_of, processes_of, read_process

__all__ = ["FIRST_LOOK_S", "Look", "Pace", "Watch", "behind_death", "exceeded"]

FIRST_LOOK_S = 0.05
"""How long a call runs before it is looked at."""

_SLOWEST_S = 0.2
# Looking may take one part in so many of a processor: at processes, and at a home that is large.
_LOOK_SHARE = 20
_HOME_SHARE = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one look has found.

    Attributes:
        tasks: Processes and threads of the call.
        memory_bytes: Their memory; above the limit it is exact.
        cpu_s: Processor seconds of the worker itself.
        all_cpu_s: Processor seconds of every process that lives.
        home: What the home holds, if it was measured.
    """

    tasks: int
    memory_bytes: int
    cpu_s: float
    all_cpu_s: float
    home: HomeUsage | None = None


def exceeded(look: Look, limits: Limits) -> Reached | None:
    """Return the first limit that a look finds exceeded."""
    used = {"call_processes": look.tasks, "call_memory_bytes": look.memory_bytes}
    if look.home is not None:
        used |= {"home_bytes": look.home.bytes, "home_entries": look.home.entries}
    for name, amount in used.items():
        limit: int = getattr(limits, name)
        if amount > limit:
            return Reached(limit=name, value=limit, used=amount)
    return None


def behind_death(
    status: str | None, last: Look | None, limits: Limits, *, oom_killed: bool
) -> Reached | None:
    """Return the limit for which the kernel has ended a worker, if that is how it ended.

    Args:
        status: Its wait status in words.
        last: The last look at it.
        limits: The limits of the call.
        oom_killed: Whether the kernel has killed in its control group for want of memory.
    """
    burnt = 0 if last is None else int(last.cpu_s)
    if status == "signal SIGXFSZ":
        return Reached(limit="file_bytes", value=limits.file_bytes)
    if status == "signal SIGXCPU" or (status == "signal SIGKILL" and burnt >= limits.cpu_s):
        # The first comes at the limit, the second a second later, to whoever ignores the first.
        return Reached(limit="cpu_s", value=limits.cpu_s, used=max(burnt, limits.cpu_s))
    if status == "signal SIGKILL" and oom_killed:
        return Reached(limit="total_memory_bytes", value=limits.total_memory_bytes)
    return None


@dataclass(slots=True)
class Pace:
    """When to look again. Whoever used no processor since the last look has taken nothing either."""

    _delay_s: float = FIRST_LOOK_S
    _all_cpu_s: float = 0.0

    def next(self, look: Look, *, cost_s: float) -> float:
        """Return the seconds until the next look.

        Args:
            look: The one just taken.
            cost_s: How long looking at the processes took.
        """
        idle = look.all_cpu_s == self._all_cpu_s
        self._all_cpu_s = look.all_cpu_s
        self._delay_s = min(2 * self._delay_s, _SLOWEST_S) if idle else FIRST_LOOK_S
        return max(self._delay_s, _LOOK_SHARE * cost_s)


@dataclass(slots=True, kw_only=True)
class Watch:
    """Looks at one call until it is over a limit.

    Attributes:
        worker: Process id of its worker.
        zygote: Process id of the worker's zygote.
        home_fd: Descriptor of the home that the call may write, if there is one.
        limits: The limits of the call.
        last: The last look, if there was one.
        peak_bytes: Most memory seen; what several processes share may count for each.
    """

    worker: int
    zygote: int
    home_fd: int | None
    limits: Limits
    last: Look | None = None
    peak_bytes: int = 0
    _cost_s: float = field(init=False, default=0.0)
    _home_due: float = field(init=False, default=0.0)

    async def run(self) -> Reached:
        """Return the first limit that the call exceeds; runs until it is cancelled otherwise."""
        loop = asyncio.get_running_loop()
        pace = Pace()
        while True:
            looking = loop.run_in_executor(None, self._look)
            try:
                look = await asyncio.shield(looking)
            except asyncio.CancelledError:
                # Its thread reads a home whose descriptor is closed once this has ended.
                await asyncio.wait({looking})
                raise
            reached = exceeded(look, self.limits)
            if reached is not None:
                return reached
            await asyncio.sleep(pace.next(look, cost_s=self._cost_s))

    def _look(self) -> Look:
        started = time.monotonic()
        processes, tasks = [], 0
        for pid in processes_of(self.worker, self.zygote):
            process = read_process(pid)
            if process is not None:
                processes.append(process)
                tasks += process.tasks
            if tasks > self.limits.call_processes:
                break
        # Two processes may share all they have, and then it is less than it seems.
        most = self.limits.call_memory_bytes
        memory = memory_of(processes, interesting_bytes=most, zygote=self.zygote) if processes else 0
        self._cost_s = time.monotonic() - started
        look = Look(
            tasks=tasks,
            memory_bytes=memory,
            cpu_s=sum(process.cpu_s for process in processes if process.pid == self.worker),
            all_cpu_s=sum(process.cpu_s for process in processes),
            home=self._measure([process.pid for process in processes]),
        )
        self.last, self.peak_bytes = look, max(self.peak_bytes, memory)
        return look

    def _measure(self, pids: list[int]) -> HomeUsage | None:
        started = time.monotonic()
        if self.home_fd is None or started < self._home_due:
            return None
        most = self.limits.home_entries
        usage = measure(self.home_fd, most_entries=most, processes=pids, origin=self.zygote)
        cost_s = time.monotonic() - started
        self._home_due = started + _HOME_SHARE * cost_s
        return usage
