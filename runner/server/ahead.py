"""Work that other processes do while this process imports the framework.

A server is ready when the forkserver and a zygote have loaded the tool files and this process has imported
its MCP modules. Neither depends on the other; so this module has no slow imports.
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
    """A context that is entered immediately, and used later or never."""

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
        """Leave the context unless it was used."""
        if self._taken:
            return
        self._entering.cancel()
        await asyncio.wait({self._entering})
        if not self._entering.cancelled() and self._entering.exception() is None:
            await self._context.__aexit__(None, None, None)


def transport_of(settings: ServerSettings) -> Literal["stdio", "http"]:
    """Return the transport; `auto` depends on the kind of standard input."""
    if settings.transport != "auto":
        return settings.transport
    return "http" if sys.stdin is not None and sys.stdin.isatty() else "stdio"


def first_user(settings: ServerSettings, transport: Literal["stdio", "http"]) -> User | None:
    """Return the user whose workers are made ready before the first call, if the user is known."""
    if settings.user is not None:
        return User(settings.user)
    try:
        return resolve(settings, transport=transport, claims=None, host=settings.host)
    except IdentityError:
        return None
