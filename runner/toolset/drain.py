"""The end of a server while calls run: no new ones, some time for the others, and a word to their clients.

A call that has waited for its place was taken, and ends like one that runs.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from runner.contract.error_messages import stopped, stopping

__all__ = ["Drain", "Tell"]

log = logging.getLogger(__name__)

Tell = Callable[[str], Awaitable[None]]
"""Gives the client of a call a notice."""

_LATER_S = 5


@dataclass(slots=True, eq=False)
class Drain:
    """Counts the calls of one server, and ends them when it is to end.

    Attributes:
        running: Timeouts of the calls in flight, with the notice of each.
        ends_at: The end of all calls, by the clock of the loop, once the server stops.
        empty: Set when no call is in flight.
    """

    running: "dict[asyncio.Timeout, Tell]" = field(init=False, default_factory=dict)
    ends_at: float | None = field(init=False, default=None)
    empty: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _telling: "set[asyncio.Task[None]]" = field(init=False, default_factory=set)
    _is_leaving: bool = field(init=False, default=False)

    @property
    def fault(self) -> str | None:
        """Return the reason for clients to use another server, or None while this one does not stop."""
        if self.ends_at is None and not self._is_leaving:
            return None
        takes = "takes no" if self.ends_at is not None else "soon takes no"
        return f"the server is being stopped and {takes} new calls"

    def leave(self) -> None:
        """Fail readiness from now on, and accept calls until their senders have noticed."""
        self._is_leaving = True

    def call(self, tell: Tell, *, of_tool: bool = True) -> AbstractAsyncContextManager[None]:
        """Run a call in the block.

        Args:
            tell: Gives its client a notice.
            of_tool: Whether it is a tool's. Other requests pass to the end, as they are short and belong to
                calls: some clients ask for the list of tools once they have an answer, to check it.

        Raises:
            CallError: `E_BUSY`, the server is being stopped; `E_CANCELLED`, the call was ended for it.
        """
        return _Running(self, tell, of_tool)

    def begin(self, left_s: float) -> None:
        """Take no further call, and end those that run in so many seconds; again: sooner."""
        now = asyncio.get_running_loop().time()
        first, self.ends_at = self.ends_at is None, min(now + left_s, self.ends_at or math.inf)
        log.info("server is being stopped", extra={"calls": len(self.running), "drain_s": left_s})
        for limit, tell in self.running.items():
            limit.reschedule(self.ends_at)
            if first and left_s > 0:
                task = asyncio.create_task(_notify(tell, left_s))
                self._telling.add(task)
                task.add_done_callback(self._telling.discard)

    async def done(self) -> None:
        """Wait until no call runs."""
        while self.running:
            self.empty.clear()
            await self.empty.wait()


@dataclass(slots=True, eq=False)
class _Running(AbstractAsyncContextManager[None]):
    """One call. No generator: each call takes one."""

    _drain: Drain
    _tell: Tell
    _of_tool: bool
    _limit: asyncio.Timeout = field(init=False)

    async def __aenter__(self) -> None:
        ends_at = self._drain.ends_at
        if ends_at is not None and self._of_tool:
            raise stopping(_LATER_S)
        self._limit = asyncio.timeout_at(ends_at)
        self._drain.running[self._limit] = self._tell
        await self._limit.__aenter__()

    async def __aexit__(self, *raised: Any) -> None:
        del self._drain.running[self._limit]
        if not self._drain.running:
            self._drain.empty.set()
        try:
            await self._limit.__aexit__(*raised)
        except TimeoutError as error:
            raise stopped() from error
        if isinstance(raised[1], TimeoutError) and self._limit.expired():
            raise stopped() from raised[1]


async def _notify(tell: Tell, left_s: float) -> None:
    seconds = f"{left_s:g} second" + ("" if left_s == 1 else "s")
    await tell(f"The server is being stopped. The tool will be ended in {seconds} if it has not answered.")
