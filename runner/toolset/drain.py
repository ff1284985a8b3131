"""Drain of a stopping server: no new calls, some time for the others, and a notice to their clients.

A call that waits for its place was accepted, and is drained like a running one.
"""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from runner.contract.error_messages import stopped, stopping

__all__ = ["Drain", "Tell"]

log = logging.getLogger(__name__)

Tell = Callable[[str], Awaitable[None]]
"""Sends the client of a call a notice."""

_LATER_S = 5


@dataclass(slots=True, eq=False)
class Drain:
    """Count of the calls of one server, and their end when it stops.

    Attributes:
        running: Timeouts of the calls in flight, with the notice of each.
        ends_at: The end of all calls, by the clock of the loop, once the server stops.
        empty: Set when no call is in flight.
        begins: Called when the drain begins.
    """

    running: "dict[asyncio.Timeout, Tell]" = field(init=False, default_factory=dict)
    ends_at: float | None = field(init=False, default=None)
    empty: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    begins: list[Callable[[], None]] = field(init=False, default_factory=list)
    _telling: "set[asyncio.Task[None]]" = field(init=False, default_factory=set)
    _is_leaving: bool = field(init=False, default=False)

    @property
    def fault(self) -> str | None:
        """Return the reason for clients to use another server, or None unless this one stops."""
        if self.ends_at is None and not self._is_leaving:
            return None
        takes = "takes no" if self.ends_at is not None else "soon takes no"
        return f"the server is being stopped and {takes} new calls"

    def leave(self) -> None:
        """Fail readiness from now on, and accept calls until their senders have noticed."""
        self._is_leaving = True

    @asynccontextmanager
    async def call(self, tell: Tell, *, of_tool: bool = True) -> AsyncIterator[None]:
        """Run a call in the block.

        Args:
            tell: Sends its client a notice.
            of_tool: Whether it calls a tool. Other requests are accepted to the end: they are short and
                belong to calls. For example, some clients list the tools to check a result.

        Raises:
            CallError: `E_BUSY`, the server is being stopped; `E_CANCELLED`, the call was ended for it.
        """
        if self.ends_at is not None and of_tool:
            raise stopping(_LATER_S)
        limit = asyncio.timeout_at(self.ends_at)
        self.running[limit] = tell
        try:
            async with limit:
                yield
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise stopped() from error
        finally:
            del self.running[limit]
            if not self.running:
                self.empty.set()

    def begin(self, left_s: float) -> None:
        """Accept no further calls, and end running ones after `left_s`; a repeated call may shorten that."""
        now = asyncio.get_running_loop().time()
        first, self.ends_at = self.ends_at is None, min(now + left_s, self.ends_at or math.inf)
        log.info("server is being stopped", extra={"calls": len(self.running), "drain_s": left_s})
        for act in self.begins:
            act()
        for limit, tell in self.running.items():
            # An expired timeout belongs to a call that is still cleaning up.
            if not limit.expired():
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


async def _notify(tell: Tell, left_s: float) -> None:
    seconds = f"{left_s:g} second" + ("" if left_s == 1 else "s")
    await tell(f"The server is being stopped. The tool will be ended in {seconds} if it has not answered.")
