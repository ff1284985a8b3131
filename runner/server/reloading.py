"""A running server reads its configuration again: what it can take over holds from the next call on.

Everything is read first, and only then is anything changed: what is wrong with a file, a token or a secret
is said, and all stays as it was.

Source: `docs/operating.md`, "Reload the configuration".
"""

import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

from runner.errors import RunnerError
from runner.settings.live import changes, with_live
from runner.settings.settings import Settings
from runner.system.running_servers import RunningServer

__all__ = ["Prepare", "Reloaded", "Reloads", "Take"]

log = logging.getLogger(__name__)

Take = Callable[[], Sequence[str]]
"""Takes over what was read, and says what has changed beside settings."""
Prepare = Callable[[Settings], Take]
"""Reads, in a thread, what settings name, and returns what takes it over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reloaded:
    """Outcome of a reload.

    Attributes:
        changed: What holds from now on, in sentences.
        restart: What has changed and needs a restart, in sentences.
        error: Why nothing was changed, if that is so.
    """

    changed: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()
    error: str | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class Reloads:
    """Reads the configuration again, once for each request.

    Attributes:
        settings: The settings in force, as they were read.
        reread: Reads them.
        prepare: Who takes something over.
    """

    settings: Settings
    reread: Callable[[], Settings]
    prepare: list[Prepare] = field(default_factory=list)
    requested: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, server: RunningServer) -> None:
        """Reload on each request; never returns."""
        while True:
            await self.requested.wait()
            self.requested.clear()
            try:
                reloaded = await self.reload()
            except Exception as error:
                # The next one may work, and the waiter for this one has to get the error.
                log.exception("configuration reload incomplete")
                reloaded = Reloaded(error=f"{type(error).__name__}: {error}; see the log")
            server.reloaded(asdict(reloaded))

    async def reload(self) -> Reloaded:
        """Read everything again, then take over what can be."""
        try:
            then, live, takes = await asyncio.to_thread(self._read)
        except RunnerError as error:
            log.warning("configuration reload failed", extra={"problem": str(error)})
            return Reloaded(error=str(error))
        sentences = [sentence for take in takes for sentence in take()]
        changed = (*changes(self.settings, live).values(), *sentences)
        restart = tuple(changes(live, then).values())
        self.settings = live
        log.info("configuration reloaded", extra={"changed": list(changed), "needs_restart": list(restart)})
        print(f"configuration reloaded: {len(changed)} changes", file=sys.stderr, flush=True)  # noqa: T201
        return Reloaded(changed=changed, restart=restart)

    def _read(self) -> tuple[Settings, Settings, list[Take]]:
        then = self.reread()
        live = with_live(self.settings, then)
        return then, live, [prepare(live) for prepare in self.prepare]
