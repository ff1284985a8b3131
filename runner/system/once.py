"""A value that is made on first use and cached; made again after a failure."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

__all__ = ["Once"]

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Once(Generic[T]):
    """One thing for many who ask at once.

    Attributes:
        make: Makes it.
    """

    make: Callable[[], Coroutine[Any, Any, T]]
    _making: "asyncio.Task[T] | None" = field(default=None, repr=False)

    async def get(self) -> T:
        """Return it; who asks while it is being made hears of the failure, and who asks later tries again.

        Raises:
            Exception: What `make` raised.
        """
        if self._making is None or _has_failed(self._making):
            self._making = asyncio.create_task(self.make())
        # Shielded: who goes away must not take it from the others.
        return await asyncio.shield(self._making)

    async def end(self, end: Callable[[T], Awaitable[None]]) -> None:
        """End it, if it was made or is about to be."""
        making, self._making = self._making, None
        if making is None:
            return
        await asyncio.wait({making})
        if not _has_failed(making):
            await end(making.result())


def _has_failed(making: "asyncio.Task[Any]") -> bool:
    return making.done() and (making.cancelled() or making.exception() is not None)
