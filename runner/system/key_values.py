"""The half of FastMCP's key-value protocol that works with several keys, in terms of the half that takes one.

Source: `AsyncKeyValue` of the package py-key-value-aio.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, SupportsFloat

__all__ = ["KeyByKey"]


class KeyByKey(ABC):
    """A store of values that does with several keys what it does with each, one after the other."""

    @abstractmethod
    async def get(self, key: str, *, collection: str | None = None) -> dict[str, Any] | None:
        """Return a value, or None."""

    @abstractmethod
    async def ttl(
        self, key: str, *, collection: str | None = None
    ) -> tuple[dict[str, Any] | None, float | None]:
        """Return a value and how long it still holds, in seconds; None for what has no end."""

    @abstractmethod
    async def put(
        self,
        key: str,
        value: Mapping[str, Any],
        *,
        collection: str | None = None,
        ttl: SupportsFloat | None = None,
    ) -> None:
        """Keep a value, for `ttl` seconds if given."""

    @abstractmethod
    async def delete(self, key: str, *, collection: str | None = None) -> bool:
        """Forget a value; say whether there was one."""

    async def get_many(
        self, keys: Sequence[str], *, collection: str | None = None
    ) -> list[dict[str, Any] | None]:
        """Return several values."""
        return [await self.get(key, collection=collection) for key in keys]

    async def ttl_many(
        self, keys: Sequence[str], *, collection: str | None = None
    ) -> list[tuple[dict[str, Any] | None, float | None]]:
        """Return several values and how long each still holds, in seconds."""
        return [await self.ttl(key, collection=collection) for key in keys]

    async def put_many(
        self,
        keys: Sequence[str],
        values: Sequence[Mapping[str, Any]],
        *,
        collection: str | None = None,
        ttl: SupportsFloat | None = None,
    ) -> None:
        """Keep several values."""
        for key, value in zip(keys, values, strict=True):
            await self.put(key, value, collection=collection, ttl=ttl)

    async def delete_many(self, keys: Sequence[str], *, collection: str | None = None) -> int:
        """Forget several values; return how many there were."""
        return sum([await self.delete(key, collection=collection) for key in keys])
