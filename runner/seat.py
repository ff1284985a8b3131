"""A seat: a pool of workers bound to one user's home, or to none, with what goes when the pool goes."""

import asyncio
import contextlib
import enum
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from runner.catalog import ToolSpec
from runner.homes import HomeLease
from runner.identity import User
from runner.links import DownloadLinks
from runner.rights import Rights
from sandbox.pool import Pool

__all__ = ["NOBODY", "Access", "Seat", "SeatKey"]


class Access(enum.Enum):
    """What a call may do with its user's home."""

    NONE = "none"
    READ = "read"
    WRITE = "write"

    @classmethod
    def of(cls, tool: ToolSpec | None) -> "Access":
        """Return what a tool's parameters ask for; `username` is what gives a tool a home (S1-57)."""
        if tool is None:
            return cls.NONE
        if tool.takes_username:
            return cls.WRITE
        return cls.READ if tool.takes_files else cls.NONE


class SeatKey(NamedTuple):
    """What a pool is for: no two of these share a zygote.

    Attributes:
        segment: Whose it is.
        access: What it may do with that user's home.
        links: Whether its tools can fetch download links.
        rights: What its tools may do, where that is not what all may.
    """

    segment: str
    access: Access
    links: bool = False
    rights: Rights | None = None


NOBODY = SeatKey("", Access.NONE)
"""The seat bound to no home, which lists the tools first of all."""


@dataclass(slots=True, kw_only=True, eq=False)
class Seat:
    """A pool of workers, with the home they are bound to. Shared by the calls of one user.

    Attributes:
        pool: The workers.
        home: The lease of the home, or None where the pool is bound to nobody.
        scratch: The zygote's warm-up folder.
        user: Whose home it is, or None.
        links: Makes the links that its workers can fetch, or None where they can fetch none.
    """

    pool: Pool
    home: HomeLease | None
    scratch: Path
    user: User | None = None
    links: DownloadLinks | None = None
    calls: int = 0
    retiring: "asyncio.Event | None" = None
    used_at: float = field(default_factory=time.monotonic)
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def idle_s(self, now: float) -> float:
        """Return for how long no call has used it, in seconds of the monotonic clock."""
        return 0.0 if self.calls else now - self.used_at

    async def retire(self) -> None:
        """Close as soon as no call uses it any more."""
        self.retiring = asyncio.Event()
        if self.calls:
            await self.retiring.wait()
        await self.close()

    async def close(self) -> None:
        """End the workers, let go of the home, and remove the scratch folder."""
        self.pool.close()
        await asyncio.to_thread(self._stack.close)
