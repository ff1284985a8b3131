"""Work started before the framework is imported, because other processes run it meanwhile.

A server is ready when the tool files are loaded, by the forkserver and a zygote, and when this process has
imported what speaks MCP. Neither needs the other; so this module imports nothing of what takes long.
"""

import asyncio
import sys
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Generic, Literal, TypeVar

from runner.settings.parts import ServerSettings
from runner.users.identity import IdentityError, User, resolve

__all__ = ["Ahead", "first_user", "transport_of"]

T = TypeVar("T")


class Ahead(Generic[T]):
    """A context that is entered at once, for a user that comes later or never."""

    def __init__(self, context: AbstractAsyncContextManager[T]) -> None:
        self._context = context
        self._entering = asyncio.ensure_future(context.__aenter__())
        self._taken = False

    async def __aenter__(self) -> T:
        self._taken = True
        return await self._entering

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._context.__aexit__(kind, error, trace)

    async def discard(self) -> None:
        """Leave the context if nobody came to enter it."""
        if self._taken:
            return
        self._entering.cancel()
        await asyncio.wait({self._entering})
        if not self._entering.cancelled() and self._entering.exception() is None:
            await self._context.__aexit__(None, None, None)


def transport_of(settings: ServerSettings) -> Literal["stdio", "http"]:
    """Return the transport, `auto` decided by the kind of standard input."""
    if settings.transport != "auto":
        return settings.transport
    return "http" if sys.stdin is not None and sys.stdin.isatty() else "stdio"


def first_user(settings: ServerSettings, transport: Literal["stdio", "http"]) -> User | None:
    """Return the user whose workers to make ready before the first call, if one can be named."""
    if settings.user is not None:
        return User(settings.user)
    try:
        return resolve(settings, transport=transport, claims=None, host=settings.host)
    except IdentityError:
        return None
