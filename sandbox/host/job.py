"""Background job in a worker between two calls: received, watched and bounded.

Such a worker is not stopped, so it is watched as in a call: its processes and its home are measured, and its
frames and its exit are handled at once. Processor time is limited between two calls, memory over its whole
life. Its output belongs to no call and is dropped.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from sandbox.host.call_watch import CallWatch, behind_death
from sandbox.host.home_usage import HomeDisk
from sandbox.host.output import read_some
from sandbox.host.readers import Readers
from sandbox.host.worker import Worker
from sandbox.outcome import Reached
from sandbox.policy import Limits

__all__ = ["Job"]

# Output is drained often enough that an honest job does not block on a full pipe, and no more often.
_OUTPUT_EVERY_S = 0.05
# An exiting process closes its connection shortly before it can be reaped.
_ENDS_S = 0.1
_REAP_S = 20.0


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Job:
    """Background work of one worker, from the end of one call to the beginning of the next.

    Attributes:
        worker: The worker.
        zygote_pid: Process id of its zygote.
        limits: The limits of its calls, which hold between them too.
        home_fd: Descriptor of the home that it may write, if there is one. The job keeps its own.
        end: Ends the worker, for a reason.
        reaped: Waits until the worker has been reaped, and returns its wait status in words.
        over: Set once the worker gets its next call, or ends.
    """

    worker: Worker
    zygote_pid: int
    limits: Limits
    home_fd: int | None
    end: Callable[[Worker, str], None]
    reaped: Callable[[int, float], Awaitable[str | None]]
    over: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _readers: Readers | None = field(init=False, default=None)
    _watch: CallWatch = field(init=False)
    _has_died: bool = field(init=False, default=False)
    _tasks: "list[asyncio.Task[None]]" = field(init=False, default_factory=list)

    def begin(self) -> None:
        """Start receiving and watching.

        Raises:
            OSError: The host has too many descriptors open.
        """
        home_fd = None if self.home_fd is None else os.dup(self.home_fd)
        try:
            disk = None if home_fd is None else HomeDisk(home_fd)
            self._readers = readers = Readers(self.worker.connection.share)
        except OSError:
            if home_fd is not None:
                os.close(home_fd)
            raise
        self._watch = CallWatch(
            worker=self.worker.pid,
            origin=self.zygote_pid,
            disk=disk,
            limits=self.limits,
            is_between_calls=True,
        )
        readers.add(self.worker.connection.fileno(), self._spoken)
        readers.add(self.worker.pidfd, self._died)
        watching = asyncio.create_task(self._look_after())
        if home_fd is not None:
            # In a callback: a task that is cancelled before it starts cannot close the descriptor itself.
            watching.add_done_callback(lambda _: os.close(home_fd))
        self._tasks += [watching, asyncio.create_task(self._drop_output())]

    def stop(self) -> None:
        """Stop receiving and watching: a call takes over, or the worker has ended."""
        self.over.set()
        if self._readers is not None:
            self._readers.close()
        for task in self._tasks:
            task.cancel()

    def finish(self, reason: str) -> None:
        """End the worker, unless a call has taken it meanwhile."""
        if not self.over.is_set():
            self.end(self.worker, reason)

    def exceeds(self, reached: Reached) -> None:
        """End the worker for a limit that another check found exceeded."""
        self.finish(reached.limit)

    def _spoken(self) -> None:
        """End a worker that sends a frame, closes its connection, or exits."""
        if self._readers is not None:
            self._readers.remove(self.worker.connection.fileno())
        self._tasks.append(asyncio.create_task(self._unless_ending()))

    async def _unless_ending(self) -> None:
        await asyncio.sleep(_ENDS_S)
        if not self._has_died:
            self.finish("spoke")

    def _died(self) -> None:
        self._has_died = True
        if self._readers is not None:
            self._readers.remove(self.worker.pidfd)
        self._tasks.append(asyncio.create_task(self._explain_death()))

    async def _explain_death(self) -> None:
        """Kill what an exited worker left running; give the kernel limit that ended it as the reason."""
        status = await self.reaped(self.worker.pid, _REAP_S)
        reached = behind_death(status, self._watch.last, self.limits, oom_killed=False)
        self.finish("ended" if reached is None else reached.limit)

    async def _look_after(self) -> None:
        reached = await self._watch.run()
        self.finish(reached.limit)

    async def _drop_output(self) -> None:
        while True:
            await asyncio.sleep(_OUTPUT_EVERY_S)
            read_some(self.worker.output, self.worker.connection.share)
