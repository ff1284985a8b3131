"""Supervision of the forkserver: when it exits or hangs, its whole tree is killed and another is started.

Requests for a zygote wait for the new one. If it exits repeatedly or cannot be started, restarts back off,
and callers get an error at once instead of waiting.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sandbox.errors import ForkserverDied, NoProcess, SandboxError
from sandbox.host.forkserver import Forkserver
from sandbox.host.launch import Launched
from sandbox.host.retirement import Reuse
from sandbox.host.zygote import Zygote
from sandbox.policy import Policy

__all__ = ["ForkserverSupervisor", "pause_s"]

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 10.0
# A forkserver that lived so long did not end for the same reason as its predecessor.
_STEADY_S = 30.0
# After so many exits in a row, a new call does not wait for the next try.
_TOO_MANY = 3
_PROBE_S = 1.5
_TRIES = 3


def pause_s(ends: int) -> float:
    """Return the back-off before a start, in seconds, after `ends` exits in a row."""
    # Not 2 ** ends, which grows without end.
    return min(_FIRST_PAUSE_S * 2 ** min(ends - 1, 10), _LONGEST_PAUSE_S) if ends > 0 else 0.0


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ForkserverSupervisor:
    """Keeps one forkserver running. Make one with `start`.

    Attributes:
        program: Name of the program's module.
        environment: The whole environment of the forkserver and all below it.
        lasting: Whether it is for many calls.
        renewed: Called after each restart of the forkserver.
        retired: How many workers were retired since the start, by reason.
    """

    program: str
    environment: Mapping[str, str]
    lasting: bool = True
    renewed: Callable[[], None] = lambda: None
    retired: Counter[str] = field(default_factory=Counter)
    _current: Forkserver = field(init=False)
    _renewing: "asyncio.Task[None] | None" = field(init=False, default=None)
    _probe: "asyncio.Task[None] | None" = field(init=False, default=None)
    _change: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _fault: SandboxError | None = field(init=False, default=None)
    _since: float = field(init=False, default_factory=time.monotonic)
    _ends: int = field(init=False, default=0)
    _closed: bool = field(init=False, default=False)

    @classmethod
    async def start(
        cls,
        program: str,
        *,
        environment: Mapping[str, str],
        lasting: bool = True,
        launched: Launched | None = None,
    ) -> "ForkserverSupervisor":
        """Start the first forkserver; see `Forkserver.start`.

        Raises:
            NoProcess: The kernel refused to start a process.
        """
        supervisor = cls(program=program, environment=environment, lasting=lasting)
        supervisor._take(
            await Forkserver.start(program, environment=environment, lasting=lasting, launched=launched)
        )
        return supervisor

    @property
    def alive(self) -> bool:
        """True if zygotes can be started, perhaps after a restart in progress."""
        return not self._closed

    async def zygote(
        self,
        policy: Policy,
        config: Mapping[str, object],
        *,
        home_fd: int | None,
        once: bool = False,
        reuse: Reuse | None = None,
    ) -> Zygote:
        """Fork a zygote; see `Forkserver.zygote`. Waits for the next forkserver, if there is none.

        Raises:
            ForkserverDied: It ended meanwhile, or its restart is backing off after repeated exits.
            NoProcess: The kernel refused to start a process.
        """
        for _ in range(_TRIES - 1):
            with contextlib.suppress(ForkserverDied):
                forkserver = await self._running()
                return await forkserver.zygote(policy, config, home_fd=home_fd, once=once, reuse=reuse)
            # An order that was not carried out can be repeated. The second try raises the actual reason.
        forkserver = await self._running()
        return await forkserver.zygote(policy, config, home_fd=home_fd, once=once, reuse=reuse)

    async def _running(self) -> Forkserver:
        """Return the forkserver, or the next one if it is being started.

        Raises:
            ForkserverDied: It has ended too often in a row.
            NoProcess: The kernel refused to start a process.
        """
        while not self._current.alive:
            if self._closed:
                raise ForkserverDied("the forkserver was closed")
            if self._fault is not None:
                raise self._fault
            await self._change.wait()
        return self._current

    async def fault(self) -> str | None:
        """Return a sentence on why no zygote can be started now; None if one can."""
        if self._fault is not None:
            return str(self._fault)
        if not self._current.alive:
            return "the forkserver has ended and is being started again"
        if self._probe is None or self._probe.done():
            # The probe outlives this check, so that a forkserver that does not answer is replaced.
            self._probe = asyncio.create_task(self._current.answers())
            self._probe.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait({self._probe}, timeout=_PROBE_S)
        if not self._probe.done():
            return f"the forkserver has not answered for {_PROBE_S:g} seconds"
        error = None if self._probe.cancelled() else self._probe.exception()
        return None if error is None else str(error)

    async def close(self) -> None:
        """End the forkserver and everything below it, and wait until it is gone."""
        self._closed = True
        for task in (self._renewing, self._probe):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
        await self._current.close()
        self._change.set()

    def _take(self, forkserver: Forkserver) -> None:
        forkserver.lost = self._lost
        forkserver.retired = self.retired
        self._current, self._since = forkserver, time.monotonic()
        if not forkserver.alive:
            self._lost()

    def _lost(self) -> None:
        if self._closed or (self._renewing is not None and not self._renewing.done()):
            return
        if time.monotonic() - self._since > _STEADY_S:
            self._ends = 0
        self._change.clear()
        self._renewing = asyncio.create_task(self._renew())

    async def _renew(self) -> None:
        """Start forkservers until one is up. No process of the previous one is left by then."""
        while not self._current.alive:
            await self._current.close()
            self._ends += 1
            if self._ends > _TOO_MANY:
                self._refuse(ForkserverDied(self._too_often()))
            await asyncio.sleep(pause_s(self._ends))
            try:
                forkserver = await Forkserver.start(
                    self.program, environment=self.environment, lasting=self.lasting
                )
            except NoProcess as error:
                self._refuse(error)
                continue
            self._current, self._since = forkserver, time.monotonic()
            with contextlib.suppress(ForkserverDied):
                await forkserver.up()
        # From here on, its exit triggers another restart.
        self._fault = None
        log.warning("forkserver started again", extra={"pid": self._current.process.pid, "ends": self._ends})
        self._current.lost = self._lost
        self._change.set()
        self.renewed()

    def _too_often(self) -> str:
        return (
            f"the process that starts all others of the tools (the forkserver) has ended {self._ends} times "
            f"in a row; the next try is in {pause_s(self._ends):g} seconds. Last: {self._current.loss}"
        )

    def _refuse(self, fault: SandboxError) -> None:
        """Fail all callers that wait for the next attempt."""
        self._fault = fault
        self._change.set()
