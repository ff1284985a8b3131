"""The keys that an issuer publishes: fetched within bounds, and used for a while where they cannot be.

FastMCP's verifier asks for them. A response that is not a key set, or too large, counts as not fetched: then
what was fetched last counts on, for an hour at most, so that an issuer that is away for a moment locks nobody
out. A set that was fetched counts as it is: a key that is no longer in it is refused.

Source: RFC 7517, section 5; RFC 9700, 4.
"""

import json
import logging
import time
from collections.abc import Callable
from typing import Any

import anyio
import httpx2

__all__ = ["KEPT_S", "MOST_BYTES", "IssuerKeys"]

log = logging.getLogger(__name__)

KEPT_S = 3600.0
"""Lifetime of keys that could not be fetched again, in seconds."""

MOST_BYTES = 256 * 1024
"""Size of the largest set of keys that is read."""

_FETCH_S = 10.0


class IssuerKeys(httpx2.AsyncBaseTransport):
    """HTTP transport that fetches the keys of an issuer, and returns earlier ones while it cannot.

    Args:
        clock: Says the time in seconds, from any moment on.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: tuple[bytes, float] | None = None

    async def fault(self, address: str) -> str | None:
        """Return a clause on why no token can be checked now, or None if keys exist or can be fetched.

        Args:
            address: Where the issuer publishes them.
        """
        if self._counts():
            return None
        try:
            self._last = await _fetched(address), self._clock()
        except (httpx2.HTTPError, OSError, ValueError, TimeoutError) as error:
            return str(error) or type(error).__name__
        return None

    def _counts(self) -> bool:
        return self._last is not None and self._clock() - self._last[1] <= KEPT_S

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Return the keys that the issuer has, or had a while ago.

        Raises:
            httpx2.ConnectError: There are neither.
        """
        try:
            content = await _fetched(str(request.url))
        except (httpx2.HTTPError, OSError, ValueError, TimeoutError) as error:
            return self._cached(request, error)
        self._last = content, self._clock()
        return httpx2.Response(200, content=content, request=request)

    def _cached(self, request: httpx2.Request, error: Exception) -> httpx2.Response:
        reason = str(error) or type(error).__name__
        counts = self._counts()
        consequence = "the earlier keys stay in use" if counts else "tokens are refused"
        log.warning("issuer keys not fetched", extra={"reason": reason, "consequence": consequence})
        if self._last is None or not counts:
            raise httpx2.ConnectError(reason, request=request) from error
        return httpx2.Response(200, content=self._last[0], request=request)


async def _fetched(address: str) -> bytes:
    """Return the set of keys at an address.

    Raises:
        httpx2.HTTPError: There is no answer, or none with status 200. A redirection is not followed.
        ValueError: The answer is not a set of keys.
        TimeoutError: It does not come.
    """
    content = bytearray()
    with anyio.fail_after(_FETCH_S):
        async with (
            httpx2.AsyncClient(timeout=_FETCH_S, follow_redirects=False) as client,
            client.stream("GET", address) as answer,
        ):
            if answer.status_code != 200:
                raise ValueError(f"status {answer.status_code}")
            async for piece in answer.aiter_bytes():
                content += piece
                if len(content) > MOST_BYTES:
                    raise ValueError(f"more than {MOST_BYTES} bytes")
    document: Any = json.loads(content)
    if not isinstance(document, dict) or not isinstance(document.get("keys"), list):
        raise ValueError("no JSON Web Key Set")  # noqa: TRY004 - of a text, not a type
    return bytes(content)
