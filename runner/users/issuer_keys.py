"""The published keys of an issuer: fetched within bounds, and held in FastMCP's verifier of tokens.

A task of the server fetches them; requests only wait for it. So no request that is cancelled, or whose client
disconnects, ends a fetch. A fetched set replaces the last one whole: a key that is no longer in it is
refused. A response that is not a key set, or is too large, is a failed fetch.

The last set stays in use while a fetch runs or fails, for an hour at most, so that a short outage of the
issuer locks nobody out. It is fetched again after a while even if all keys are known, so that a withdrawn key
stops working. A token with an unknown key also triggers a fetch, but no more often than the operator allows:
a stranger can name any number of keys.

Source: RFC 7517, section 5; RFC 9700, 4.
"""

import asyncio
import base64
import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import anyio
import httpx2
from fastmcp.server.auth.providers.jwt import JWTVerifier

__all__ = ["KEPT_S", "MAX_AGE_S", "MOST_BYTES", "RETRY_S", "IssuerKeys"]

log = logging.getLogger(__name__)

KEPT_S = 3600.0
"""Lifetime of keys that could not be fetched again, in seconds."""

MAX_AGE_S = 300.0
"""Age at which keys are fetched again, in seconds. A withdrawn key is accepted no longer."""

RETRY_S = 30.0
"""Shortest time between two fetches for tokens without a known key, in seconds."""

MOST_BYTES = 256 * 1024
"""Largest key set that is read, in bytes."""

_FETCH_S = 10.0
# How long a token with a known key waits for a fetch of newer keys, in seconds.
_PATIENCE_S = 1.0
# A token with an empty header. FastMCP's verifier reads its keys for any token.
_UNSIGNED = "e30.."


class IssuerKeys:
    """The keys of one issuer.

    Args:
        address: Where the issuer publishes them.
        options: Options of FastMCP's verifier, with that address.
        clock: Monotonic clock, in seconds.
    """

    def __init__(
        self, address: str, options: Mapping[str, Any], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._address = address
        self._options = options
        self._clock = clock
        self._verifier: JWTVerifier | None = None
        self._ids: frozenset[str | None] = frozenset()
        self._fetched_at = self._tried_at = -math.inf
        self._fetching: asyncio.Task[None] | None = None
        self._problem = ""

    async def verifier_of(self, token: str) -> JWTVerifier | None:
        """Return the verifier with the keys to check a token with; None if there are none."""
        if self._current() is None or _key_id(token) not in self._ids:
            await self._renewed(every_s=RETRY_S, wait_s=math.inf)
        elif self._clock() - self._fetched_at > MAX_AGE_S:
            await self._renewed(every_s=MAX_AGE_S, wait_s=_PATIENCE_S)
        return self._current()

    async def fault(self) -> str | None:
        """Return a clause on why no token can be checked now, or None if keys exist or can be fetched."""
        if self._current() is None:
            await self._renewed(every_s=0, wait_s=math.inf)
        return self._problem if self._current() is None else None

    def _current(self) -> JWTVerifier | None:
        return self._verifier if self._clock() - self._fetched_at <= KEPT_S else None

    async def _renewed(self, *, every_s: float, wait_s: float) -> None:
        """Wait for a fetch, up to `wait_s` after its start. Begin one if the last is `every_s` old."""
        if self._fetching is None or self._fetching.done():
            if self._clock() - self._tried_at < every_s:
                return
            self._tried_at = self._clock()
            self._fetching = asyncio.create_task(self._fetch())
        left_s = self._tried_at + wait_s - self._clock()
        # Neither a timeout nor the end of the waiting request cancels the task.
        await asyncio.wait({self._fetching}, timeout=None if math.isinf(left_s) else max(0, left_s))

    async def _fetch(self) -> None:
        try:
            keys = await _fetched(self._address)
        except (httpx2.HTTPError, OSError, ValueError, TimeoutError) as error:
            self._problem = str(error) or type(error).__name__
            consequence = "the earlier keys stay in use" if self._current() else "tokens are refused"
            facts = {"reason": self._problem, "consequence": consequence}
            log.warning("issuer keys not fetched", extra=facts)
            return
        client = httpx2.AsyncClient(transport=_Fetched(keys))
        verifier = JWTVerifier(**self._options, http_client=client)
        # Here: a request that is cancelled would leave the verifier without keys for half a minute.
        await verifier.load_access_token(_UNSIGNED)
        ids = [key.get("kid") for key in keys["keys"] if isinstance(key, dict)]
        # None: a token without a key id is verified with the only key.
        self._ids = frozenset([None, *(each for each in ids if isinstance(each, str))])
        self._verifier, self._fetched_at = verifier, self._clock()


class _Fetched(httpx2.AsyncBaseTransport):
    """A transport that answers every request with one key set."""

    def __init__(self, keys: Mapping[str, Any]) -> None:
        self._keys = keys

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Return the key set."""
        return httpx2.Response(200, json=self._keys, request=request)


def _key_id(token: str) -> str | None:
    """Return the id of the key that a token names, unverified."""
    header = token.partition(".")[0]
    try:
        key_id = json.loads(base64.urlsafe_b64decode(header + "=" * (-len(header) % 4))).get("kid")
    except (ValueError, AttributeError, RecursionError):
        return None
    return key_id if isinstance(key_id, str) else None


async def _fetched(address: str) -> dict[str, Any]:
    """Return the set of keys at an address.

    Raises:
        httpx2.HTTPError: There is no answer, or none with status 200. A redirection is not followed.
        ValueError: The answer is not a set of keys.
        TimeoutError: There is no response in time.
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
    return document
