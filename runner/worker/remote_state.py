"""Session state as a worker's server sees it: FastMCP's key-value protocol, answered by the host."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, SupportsFloat

from runner.system.key_values import KeyByKey
from runner.worker.call_scope import current
from runner.worker.wire import VISIBILITY_SUFFIX, full_key

__all__ = ["RemoteState"]

Ask = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]


class RemoteState(KeyByKey):
    """Session state that outlives the worker: FastMCP's key-value protocol, kept by the host.

    FastMCP reads a key that ends in `VISIBILITY_SUFFIX` in every request, nearly always to find nothing. Such
    values come with the call, so that they cost no round trip.
    """

    def __init__(self, request: Ask) -> None:
        self._request = request

    async def get(self, key: str, *, collection: str | None = None) -> dict[str, Any] | None:
        """Return a value, or None."""
        if key.endswith(VISIBILITY_SUFFIX):
            return _known().get(full_key(collection, key))
        return (await self.ttl(key, collection=collection))[0]

    async def ttl(
        self, key: str, *, collection: str | None = None
    ) -> tuple[dict[str, Any] | None, float | None]:
        """Return a value and how long it still holds, in seconds."""
        reply = await self._request("state/get", {"key": key, "collection": collection})
        return reply["value"], reply["ttl"]

    async def put(
        self,
        key: str,
        value: Mapping[str, Any],
        *,
        collection: str | None = None,
        ttl: SupportsFloat | None = None,
    ) -> None:
        """Keep a value, for `ttl` seconds if given."""
        seconds = None if ttl is None else float(ttl)
        facts = {"key": key, "collection": collection, "value": dict(value), "ttl": seconds}
        await self._request("state/put", facts)
        if key.endswith(VISIBILITY_SUFFIX):
            _known()[full_key(collection, key)] = dict(value)

    async def delete(self, key: str, *, collection: str | None = None) -> bool:
        """Forget a value; say whether there was one."""
        reply = await self._request("state/delete", {"key": key, "collection": collection})
        return bool(reply["deleted"])


def _known() -> dict[str, dict[str, Any]]:
    scope = current()
    return {} if scope is None else scope.known
