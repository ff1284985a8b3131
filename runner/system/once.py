"""A value that is created on first use and cached; created again after a failure."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

__all__ = ["Once"]

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Once(Generic[T]):
    """One value for concurrent callers.

    Attributes:
        make: Creates it.
    """

    make: Callable[[], Coroutine[Any, Any, T]]
    _making: "asyncio.Task[T] | None" = field(default=None, repr=False)

    async def get(self) -> T:
        """Return the value; a failure is raised to all concurrent callers, and later callers try again.

        Raises:
            Exception: The exception of `make`.
        """
        if self._making is None or _has_failed(self._making):
            self._making = asyncio.create_task(self.make())
        # Shielded: a cancelled caller must not cancel it for the others.
        return await asyncio.shield(self._making)

    async def end(self, end: Callable[[T], Awaitable[None]]) -> None:
        """End the value, if it was created or is being created."""
        making, self._making = self._making, None
        if making is None:
            return
        await asyncio.wait({making})
        if not _has_failed(making):
            await end(making.result())


def _has_failed(making: "asyncio.Task[Any]") -> bool:
    return making.done() and (making.cancelled() or making.exception() is not None)
