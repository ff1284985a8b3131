"""Parked workers: new ones, and used ones that stay with their user.

A worker that has answered is stopped within milliseconds, checked, and given the limits of its next call. It
returns only to its own pool: the same user, policy, program and home. Anything odd retires it: it is killed,
and reaped by its zygote. The most recently used one is taken first, so that a user with one call at a time
always gets the same process.
"""

import asyncio
import select
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from sandbox.frames import FrameKind, encode
from sandbox.host.descriptors import open_in
from sandbox.host.home_usage import OpenFiles, open_files
from sandbox.host.job import Job
from sandbox.host.output import drop_output
from sandbox.host.retirement import Reuse, holds_too_many, why_over, why_unfit
from sandbox.host.stopping import STOPPED, WorkerFacts, is_stopped, look, resume_process, stop_process
from sandbox.host.usage import has_room
from sandbox.host.worker import Worker
from sandbox.layers.rlimits import renew
from sandbox.policy import Limits

__all__ = ["Parking", "same_limits"]

# A user whose next call comes at once does not pay for stopping and continuing.
_AWAKE_S = 0.008
_STOPPING_S = 0.001
# Who has not stopped by then waits for something, such as a disk.
_STOPPED_S = 0.05
# On a machine with far too much to do, a thread takes seconds to come to where it stops.
_STOPS_S = 10.0
# What a worker can take or use up in this time is small beside the least of its limits, but for descriptors.
_LOOK_S = 0.01
_TIDY_S = 30.0


@dataclass(slots=True, kw_only=True, eq=False)
class Parking:
    """The idle workers of one zygote.

    Attributes:
        reuse: How long a worker stays.
        raises_limits: Whether this process may set hard limits of a worker from outside.
        has_strays: Says whether a worker has other processes beside it.
        retire: Ends a worker, for a reason.
        device: Number of the file system that the user's home is on, if the workers have one.
        idle: The workers; the one used last stands last.
    """

    reuse: Reuse
    raises_limits: bool
    has_strays: Callable[[int], bool]
    retire: Callable[[Worker, str], None]
    device: int | None = None
    idle: deque[Worker] = field(init=False, default_factory=deque)
    _jobs: dict[Worker, Job] = field(init=False, default_factory=dict)
    _stopping: asyncio.TimerHandle | None = field(init=False, default=None)
    _all_at: float = field(init=False, default=0.0)
    _tidying: asyncio.TimerHandle | None = field(init=False, default=None)

    def add(self, worker: Worker) -> None:
        """Take in a worker that has served no call: those that have go before it."""
        self.idle.appendleft(worker)

    def park(self, worker: Worker, *, begin: Callable[[Worker], Job] | None = None) -> Job | None:
        """Take back a worker that has answered, or was not used after all.

        Args:
            worker: The worker.
            begin: Makes what watches it, where it goes on between calls.

        Returns:
            What goes on in it, if anything may.
        """
        worker.idle_since = time.monotonic()
        self.idle.append(worker)
        if begin is not None:
            self._retire_if(worker, self._let_go_on(worker, begin))
        elif worker.calls:
            self._stop_soon(_AWAKE_S)
        if worker.calls and self._tidying is None:
            self._tidying = asyncio.get_running_loop().call_later(_TIDY_S, self._tidy)
        return self._jobs.get(worker)

    def take(
        self, limits: Limits, *, fresh: bool = False, goes_on: bool = True, shared: bool = False
    ) -> Worker | None:
        """Return the worker for a call: the one used last that may serve it; None if none may.

        One that has become another than its siblings goes first: what a call left in it the next one finds.

        Args:
            limits: The limits of the call.
            fresh: Whether only one will do that has served no call.
            goes_on: Whether one will do in which something goes on between calls.
            shared: Whether it is to serve several calls at once.
        """
        # What goes on in a worker, its user's next call wants to meet; and one that a call has changed.
        # Those to use first have the greatest keys; equal ones keep their order.
        waiting = sorted(self.idle, key=attrgetter("is_apart", "goes_on"))
        for worker in reversed(waiting):
            # What was narrowed for another tool cannot be widened again.
            is_other = fresh or worker.is_shared != shared
            if worker.calls and (is_other or not same_limits(worker.limits, limits)):
                continue
            if worker.goes_on and not goes_on:
                continue
            self._leave(worker)
            if worker.calls:
                reason = why_over(worker, self.reuse, now=time.monotonic()) or self._wake(worker)
            else:
                reason = None if worker.is_running() else "ended"
            if reason is None:
                worker.limits = limits
                return worker
            self.retire(worker, reason)
        return None

    def top_up(self, worker: Worker) -> None:
        """Give a worker the processor time of a call that joins others, which have its memory together."""
        facts = look(worker.pid)
        if facts is not None and worker.limits is not None:
            self._renew(worker, facts, worker.limits, data_bytes=worker.data_bytes or worker.origin_bytes)

    def end(self, worker: Worker, reason: str) -> None:
        """End a worker that waits for a call."""
        if worker in self.idle:
            self._retire_if(worker, reason)

    def dismiss(self, count: int) -> None:
        """Let go of up to `count` workers, those first that would be taken last."""
        spare = [worker for worker in self.idle if not worker.goes_on]
        for worker in spare[: max(0, count)]:
            self._retire_if(worker, "surplus")

    def clear(self) -> list[Worker]:
        """Give up all of them; return them."""
        for timer in (self._stopping, self._tidying):
            if timer is not None:
                timer.cancel()
        workers = list(self.idle)
        for worker in workers:
            self._leave(worker)
        return workers

    def jobs(self) -> list[Job]:
        """Return the jobs of the workers."""
        return list(self._jobs.values())

    def _let_go_on(self, worker: Worker, begin: Callable[[Worker], Job]) -> str | None:
        """Let a worker go on, within the limits of a call; return why it may not, if so."""
        reason = self._inspect(worker)
        if reason is None and worker.renewal is not None:
            reason = _renewed(worker, worker.renewal)
        if reason is None:
            try:
                job = self._jobs[worker] = begin(worker)
                job.begin()
                resume_process(worker.pidfd)
            except OSError:
                return "ended"
            worker.stop_sent = worker.has_stopped = False
        return reason

    def _wake(self, worker: Worker) -> str | None:
        """Make a worker ready for its next call; return why it may not have it, if so."""
        if worker.goes_on:
            reason = self._inspect(worker)
        elif worker.has_stopped:
            facts = look(worker.pid)
            if facts is None or facts.state != STOPPED:
                return "ended" if facts is None else "continued"
            reason = "spoke" if _has_spoken(worker) else None
        else:
            reason = self._inspect(worker)
        if reason is None:
            # What was printed after the answer belongs to no call.
            drop_output(worker.output)
            if worker.stop_sent:
                worker.stop_sent = worker.has_stopped = False
                try:
                    resume_process(worker.pidfd)
                except OSError:
                    return "ended"
        return reason

    def _stop_soon(self, delay_s: float) -> None:
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().call_later(delay_s, self._stop)

    def _stop(self) -> None:
        """Stop the workers that are due, and check those that have stopped."""
        self._stopping = None
        now = time.monotonic()
        looks_at_all = now >= self._all_at
        if looks_at_all:
            self._all_at = now + _AWAKE_S / 2
        for worker in self._restless():
            if looks_at_all or _is_stopping(worker, now):
                self._retire_if(worker, self._bring_to_rest(worker, now))
        restless = self._restless()
        if restless:
            # One that has been told to stop does so at once, as a rule: it is looked at before its next call.
            stopping = any(_is_stopping(worker, now) for worker in restless)
            self._stop_soon(_STOPPING_S if stopping else max(_STOPPING_S, self._all_at - now))

    def _restless(self) -> list[Worker]:
        return [worker for worker in self.idle if worker.calls and not (worker.has_stopped or worker.goes_on)]

    def _bring_to_rest(self, worker: Worker, now: float) -> str | None:
        waited_s = now - worker.idle_since
        if not worker.stop_sent and waited_s >= _AWAKE_S / 2:
            try:
                stop_process(worker.pidfd)
            except OSError:
                return "ended"
            worker.stop_sent = True
        if worker.stop_sent and is_stopped(worker.pid):
            worker.has_stopped = True
            return self._inspect(worker) or self._why_unwelcome(worker)
        if not worker.is_running():
            return "ended"
        return "not stopped" if waited_s > _STOPS_S else None

    def _why_unwelcome(self, worker: Worker) -> str | None:
        if self.has_strays(worker.pid):
            return "left a process"
        return None if has_room() else "no room"

    def _inspect(self, worker: Worker) -> str | None:
        """Look at a worker between two calls and give it the limits of the next; return why it must go."""
        if _has_spoken(worker):
            return "spoke"
        if not worker.goes_on and worker.limits and holds_too_many(open_in(worker.pid), worker.limits):
            return "descriptors"
        was_seen = time.monotonic() - worker.looked_at < _LOOK_S
        if was_seen and not (worker.has_stopped or worker.was_long or worker.goes_on):
            # Its limits are those that it has been given then.
            return None if worker.is_running() else "ended"
        facts = look(worker.pid)
        # Looked at by its number, which is nobody else's as long as it has not been reaped.
        if facts is None or worker.limits is None or not worker.is_running():
            return "ended"
        if worker.goes_on:
            # Calls and what goes on beside them have the limits of one call together.
            return self._renew(worker, facts, worker.limits, data_bytes=worker.origin_bytes)
        # These take longest to ask: after a short call, who has the next one at once does not wait for them.
        asks = worker.has_stopped or worker.was_long
        held = open_files(worker.pid, self.device) if asks else OpenFiles()
        reason = why_unfit(
            facts,
            worker.limits,
            origin_bytes=worker.origin_bytes,
            descriptors=held.descriptors,
            unnamed_bytes=held.unnamed_bytes,
        )
        if reason is None:
            reason = self._renew(worker, facts, worker.limits, data_bytes=facts.data_bytes)
        if reason is None:
            worker.looked_at = time.monotonic()
        return reason

    def _renew(self, worker: Worker, facts: WorkerFacts, limits: Limits, *, data_bytes: int) -> str | None:
        """Give a worker the processor time and memory of its next call; return why it must go, if it must.

        Who may not set them from outside has the worker do so: what is left open to it, the watch bounds.
        """
        worker.cpu_before_s, worker.data_bytes, worker.renewal = facts.cpu_s, data_bytes, None
        if not self.raises_limits:
            worker.renewal = {"cpu_s": facts.cpu_s, "data_bytes": data_bytes}
            return None
        try:
            renew(worker.pid, limits, cpu_s=facts.cpu_s, data_bytes=data_bytes)
        except OSError:
            return "ended"
        return None

    def _tidy(self) -> None:
        """Retire expired workers."""
        self._tidying = None
        for worker in tuple(self.idle):
            if worker.calls:
                reason = why_over(worker, self.reuse, now=time.monotonic())
                self._retire_if(worker, reason or (None if has_room() else "no room"))
        if any(worker.calls for worker in self.idle):
            self._tidying = asyncio.get_running_loop().call_later(_TIDY_S, self._tidy)

    def _retire_if(self, worker: Worker, reason: str | None) -> None:
        if reason is not None:
            self._leave(worker)
            self.retire(worker, reason)

    def _leave(self, worker: Worker) -> None:
        self.idle.remove(worker)
        job = self._jobs.pop(worker, None)
        if job is not None:
            job.stop()


def _is_stopping(worker: Worker, now: float) -> bool:
    """Return whether a stop signal is so recent that it may not have taken effect yet."""
    return worker.stop_sent and now - worker.idle_since < _STOPPED_S


def _renewed(worker: Worker, used: Mapping[str, object]) -> str | None:
    """Renew the limits inside a worker; return the reason to retire it, if it does not respond."""
    try:
        left = worker.connection.send_now(encode(FrameKind.RENEW, used))
    except OSError:
        return "ended"
    return "deaf" if left else None


def same_limits(mine: Limits | None, wanted: Limits) -> bool:
    """Return whether a worker's limits of the kernel are those that a call wants."""
    return mine is not None and (
        # Usually they are those that a tool's settings give each call.
        mine is wanted or _of_kernel(mine) == _of_kernel(wanted)
    )


def _of_kernel(limits: Limits) -> tuple[int, ...]:
    return limits.memory_bytes, limits.cpu_s, limits.file_bytes, limits.open_files


def _has_spoken(worker: Worker) -> bool:
    """Return whether an idle worker sent data or closed its connection."""
    poll = select.poll()
    poll.register(worker.connection, select.POLLIN | select.POLLRDHUP)
    return bool(poll.poll(0))
