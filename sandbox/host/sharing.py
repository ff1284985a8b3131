"""One worker that serves several calls of its user at once, as seen from the host.

Each call has its own lease, connection, ladder and denials. The process itself, its output and its limits are
shared: the end of the process ends all of its calls, each with the same reason.

A call that is cancelled or silent for too long is cancelled in the process first. If it does not end, and
others run beside it, the process takes no further call and is killed when the last of them has ended. A
process that does not even receive the cancellation is killed at once: nothing in it makes progress.
"""

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Protocol

from sandbox.host.output import read_some
from sandbox.host.readers import Readers
from sandbox.host.stopping import resume_process
from sandbox.host.worker import Worker

__all__ = ["Sharer", "Sharing"]


class Sharer(Protocol):
    """A call in a shared worker."""

    def printed(self, part: bytes) -> None:
        """Store the worker's output during the call."""

    def died(self) -> None:
        """Take note that the worker has ended."""

    def resumed(self) -> None:
        """Note that the worker was resumed, after outputs of another call were read."""


@dataclass(slots=True, kw_only=True, eq=False)
class Sharing:
    """The calls of one worker.

    Attributes:
        worker: The worker.
        is_drained: Whether it takes no further call.
        is_killed: Whether it has been killed.
        is_dead: Whether it has ended, killed or not.
        why: Why it was killed, for the calls that ended with it.
        served: How many calls it served when it ended.
        status: Its wait status in words, once it has been reaped.
        reaping: Waits until it has been reaped.
        stopping: Waits until it has stopped, for all calls whose outputs are to be read.
        leased: The calls for which the worker is reserved, from their lease to its release.
        running: The calls that run.
    """

    worker: Worker
    is_drained: bool = False
    is_killed: bool = False
    is_dead: bool = False
    why: str | None = None
    served: int = 0
    status: str | None = None
    reaping: "asyncio.Task[None] | None" = None
    stopping: "asyncio.Task[None] | None" = None
    # Calls from their lease to its release, those among them that run, and those whose outputs are read.
    leased: set[Sharer] = field(init=False, default_factory=set)
    running: dict[Sharer, None] = field(init=False, default_factory=dict)
    _resting: set[Sharer] = field(init=False, default_factory=set)
    _readers: Readers | None = field(init=False, default=None)
    _is_reaped: bool = field(init=False, default=False)

    @property
    def is_resting(self) -> bool:
        """True if the worker is stopped, since outputs of a call are read."""
        return bool(self._resting)

    def is_alone(self, call: Sharer) -> bool:
        """Return whether no other call has the worker."""
        return not self.leased - {call}

    def begin(self, call: Sharer) -> None:
        """Register a running call; it receives the output, and the end of the worker."""
        if self._readers is None:
            self._readers = Readers()
            self._readers.add(self.worker.output, self.read)
            self._readers.add(self.worker.pidfd, self._died)
        self.running[call] = None
        # Stopped for outputs of a call that was released before this one began.
        self._go_on()

    def end(self, call: Sharer) -> None:
        """Take note that a call runs no more."""
        self.running.pop(call, None)
        if not self.running and self._readers is not None:
            self._readers.close()
            self._readers = None

    def release(self, call: Sharer) -> bool:
        """Give up the reservation of a call; return whether it was the last one."""
        self.end(call)
        # The worker goes on for the calls that run, once no outputs are read any more.
        if call in self._resting:
            self._resting.discard(call)
            if not self._resting:
                if self.stopping is not None:
                    self.stopping.cancel()
                    self.stopping = None
                self._go_on()
        had = call in self.leased
        self.leased.discard(call)
        self._close()
        return had and not self.leased

    def rest(self, call: Sharer) -> None:
        """Take note that outputs of a call are about to be read."""
        self._resting.add(call)

    def kill(self, why: str | None) -> bool:
        """End the worker, and with it every call that it serves; return whether it was not ended before.

        Args:
            why: The reason, for the calls beside the one that caused it.
        """
        if self.is_killed:
            return False
        self.is_killed = self.is_dead = True
        self.why = why
        # With the call that ends it, which does not run any more.
        self.served = self.served or len(self.running) + 1
        self.worker.kill()
        for call in tuple(self.running):
            call.died()
        return True

    def reaped(self, status: str | None) -> None:
        """Take note that the worker has ended, with all of its group."""
        self.status, self._is_reaped = status, True
        self._close()

    def read(self) -> None:
        """Pass output to every running call, since a pipe does not identify its writer."""
        part = read_some(self.worker.output)
        if part == b"" and self._readers is not None:
            self._readers.remove(self.worker.output)
        for call in self.running if part else ():
            call.printed(part or b"")

    def _go_on(self) -> None:
        """Let a worker go on that was stopped, if a call runs and no outputs are read."""
        if self._resting or self.is_dead or not (self.running and self.worker.stop_sent):
            return
        with contextlib.suppress(OSError):
            resume_process(self.worker.pidfd)
            self.worker.stop_sent = False
        for one in tuple(self.running):
            one.resumed()

    def _close(self) -> None:
        """Close the worker's descriptors once it has ended and no call has it: their numbers are reused."""
        if self._is_reaped and not self.leased:
            self._is_reaped = False
            if self._readers is not None:
                self._readers.close()
                self._readers = None
            self.worker.close()

    def _died(self) -> None:
        self.is_dead = True
        if self._readers is not None:
            self._readers.remove(self.worker.pidfd)
        self.served = self.served or len(self.running)
        for call in tuple(self.running):
            call.died()
