"""One server kept running: started, started again after a pause when it dies, ended when somebody asks."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runner.errors import UsageError
from runner.system.backoff import doubled_s
from runner.up.bounds import kill_group, memory_of, prepared, remove_groups
from runner.up.folders import Folders
from runner.up.listeners import Listeners
from runner.up.plan import Server
from runner.up.processes import Life, last_line, start, trim
from runner.up.readiness import fault_of, holder_of
from runner.up.record import ServerRecord, process_of
from sandbox.probe.machine import unreadable

__all__ = ["Keeping", "pause_s", "shown"]

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_STEADY_S = 60.0
_FAILURES_WAITED_FOR = 1
_LOOK_S = 0.2
_START_S = 90.0
_TRIM_EVERY_S = 30.0


def pause_s(failures: int) -> float:
    """Return how long to wait before a server is started again that has failed so often in a row."""
    return doubled_s(failures, first_s=_FIRST_PAUSE_S, most_s=_LONGEST_PAUSE_S)


@dataclass(slots=True, eq=False)
class Keeping:
    """One user's server and the task that keeps it.

    Attributes:
        entry: What is recorded of it.
        folders: Where its folder and its log are.
        record: Writes all entries to disk, after this one has changed.
        server: What it is to be; None for one that was only found, and is to end.
        listeners: Hold the socket that it listens on, also while it does not run.
    """

    entry: ServerRecord
    folders: Folders
    record: Callable[[], None]
    server: Server | None
    listeners: Listeners
    _life: Life | None = None
    _failures: int = 0
    _next_at: float | None = None
    _tried: asyncio.Event = field(default_factory=asyncio.Event)
    _now: asyncio.Event = field(default_factory=asyncio.Event)
    _ending: bool = False
    _is_refused: bool = False
    _task: "asyncio.Task[None] | None" = None

    def begin(self) -> None:
        """Keep it from now on; one that runs is taken over as it is."""
        process = process_of(self.entry)
        self._life = None if process is None else Life.found(process)
        if self._life is not None:
            log.info("server taken over", extra={"user": self.entry.name, "pid": self.entry.pid})
        self._task = asyncio.create_task(self._keep())

    def hurry(self) -> None:
        """Start it now, if it waits after a failure."""
        if self._next_at is not None:
            self._tried.clear()
            self._now.set()

    def refuse(self) -> None:
        """Keep nobody waiting at its address: it is about to end for good, or to move."""
        self._is_refused = True
        self.listeners.close(self.entry.address)

    async def end(self) -> None:
        """Ask it to end, let its calls go on for as long as it may, and end what is left."""
        self._ending = True
        self._now.set()
        if self._life is not None:
            self._life.ask()
        if self._task is None:
            return
        done, _ = await asyncio.wait({self._task}, timeout=self.entry.stop_s)
        if not done and self._life is not None:
            log.warning("server killed: it did not end", extra=self._facts(after_s=self.entry.stop_s))
            await asyncio.to_thread(self._life.kill, self._groups)
            await asyncio.wait({self._task}, timeout=self.entry.stop_s)

    async def settled(self) -> None:
        """Wait until it takes calls, or has failed to start, for a minute and a half at most."""
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and not self._tried.is_set():
            if self._life is not None and await fault_of(self.entry) is None:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._tried.wait(), _LOOK_S)

    async def shown(self) -> dict[str, Any]:
        """Return what there is to say of it, JSON-serialisable."""
        return await shown(self.entry, self.folders, next_at=self._next_at)

    @property
    def _groups(self) -> tuple[Path, ...]:
        return tuple(map(Path, self.entry.groups))

    async def _keep(self) -> None:
        while not self._over():
            problem = await self._live()
            await asyncio.to_thread(self._clear)
            self.entry = self.entry.without_process()
            if not self._over():
                await self._pause(problem)
        if self._is_refused:
            # A start that was under way has listened there again.
            self.listeners.close(self.entry.address)
        self._written()

    def _over(self) -> bool:
        # Asked anew each time: it changes while the server lives.
        return self._ending

    async def _live(self) -> str:
        """Start it, unless it runs, and wait for its end; say how that was."""
        # Whoever asks from now on asks of this life, and not of the one that failed.
        self._tried.clear()
        if self._life is None:
            try:
                self._life = await asyncio.to_thread(self._start)
            except OSError as error:
                return f"it cannot be started: {error.strerror or error}"
            except UsageError as error:
                return f"it cannot be started: {error}" + await self._holder()
        if self._over():
            # Nobody could be asked to end while it was being started.
            self._life.ask()
        began = time.monotonic()
        trimming = asyncio.create_task(self._trim())
        try:
            problem = await self._life.ended()
        finally:
            trimming.cancel()
            self._life.close()
            self._life = None
        if time.monotonic() - began > _STEADY_S:
            self._failures = 0
        last = last_line(self.folders.log(self.entry.segment))
        return problem + await self._holder() + (f"; it said last: {last}" if last else "")

    async def _holder(self) -> str:
        holder = await asyncio.to_thread(holder_of, self.entry)
        return f"; port {self.entry.port} is taken by {holder}" if holder else ""

    def _start(self) -> Life:
        """Start it. It is on record before it does anything: whoever comes after us finds it.

        Raises:
            OSError: Something that it needs cannot be had.
            UsageError: Its address cannot be listened on.
        """
        server = self.server
        if server is None:
            raise OSError("nobody says what it is to be")
        if server.uid is not None and (closed := unreadable(server.reads, uid=server.uid)):
            raise OSError(closed)
        self.folders.make_user(server.segment, server.uid)
        listener = self.listeners.of(self.entry.address)
        held = prepared(server, self.folders.mark)
        life = start(server, held, self.folders.log(server.segment), listener)
        try:
            self.entry = replace(
                self.entry,
                pid=life.process.pid,
                began=life.process.create_time(),
                groups=tuple(map(str, held.groups)),
                said=held.said,
            )
            self.record()
        except BaseException:
            life.kill(held.groups)
            life.close()
            raise
        life.release()
        log.info("server started", extra=self._facts(port=server.port, pid=life.process.pid))
        return life

    async def _pause(self, problem: str) -> None:
        self._failures += 1
        if self._failures > _FAILURES_WAITED_FOR:
            # Who connects would wait for what may never come.
            self.listeners.close(self.entry.address)
        wait_s = pause_s(self._failures)
        self.entry = replace(self.entry, problem=problem, restarts=self.entry.restarts + 1)
        self._written()
        log.warning("server ended", extra=self._facts(problem=problem, again_in_s=wait_s))
        self._next_at = time.time() + wait_s
        self._tried.set()
        self._now.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._now.wait(), wait_s)
        self._next_at = None

    def _clear(self) -> None:
        """Leave nothing of a life behind: a process that outlived it would hold its port or its home."""
        from_group = self._groups
        if from_group:
            kill_group(from_group)
            remove_groups(from_group)

    async def _trim(self) -> None:
        while True:
            await asyncio.sleep(_TRIM_EVERY_S)
            await asyncio.to_thread(trim, self.folders.log(self.entry.segment))

    def _written(self) -> None:
        try:
            self.record()
        except OSError as error:
            log.error("what runs cannot be recorded", extra=self._facts(problem=error.strerror))  # noqa: TRY400

    def _facts(self, **more: object) -> Mapping[str, object]:
        return {"user": self.entry.name, **more}


async def shown(entry: ServerRecord, folders: Folders, *, next_at: float | None = None) -> dict[str, Any]:
    """Return what there is to say of a server, JSON-serialisable.

    Args:
        entry: What is recorded of it.
        folders: Where its log is.
        next_at: When it is started again, in seconds since 1970, if it waits for that.
    """
    process = process_of(entry)
    fault = None if process is None else await fault_of(entry)
    if process is None:
        state = "ended" if next_at is None else "waiting"
    else:
        state = "ready" if fault is None else "not ready"
    return {
        "user": entry.name,
        "state": state,
        "problem": fault or ("" if state == "ready" else entry.problem),
        "url": f"http://{entry.host}:{entry.port}/mcp",
        "port": entry.port,
        "pid": None if process is None else entry.pid,
        "uid": entry.uid,
        "began": entry.began or None,
        "restarts": entry.restarts,
        "again_in_s": None if next_at is None else round(max(0.0, next_at - time.time()), 1),
        "memory_bytes": memory_of(tuple(map(Path, entry.groups))),
        "bounded_by": dict(entry.said),
        "log": str(folders.log(entry.segment)),
    }
