"""Bearer tokens that are looked up at their issuer, one request each (token introspection).

FastMCP's verifier sends the requests, but reports an invalid token and an unreachable issuer alike. So the
responses are also recorded here: they show when no token can be checked.

Source: RFC 7662, 2.1 and 2.2 (of a token that does not exist the answer is `"active": false`, with 200).
"""

import secrets
import time
from collections.abc import Callable
from typing import Any

import httpx2
from fastmcp.server.auth.providers.introspection import IntrospectionTokenVerifier

__all__ = ["HEARD_S", "AskingVerifier"]

HEARD_S = 10.0
"""Seconds for which a response proves that the issuer is reachable; no probe is sent meanwhile."""

_ASK_S = 10.0


class AskingVerifier(IntrospectionTokenVerifier):
    """FastMCP's verifier, which also records whether its issuer responds.

    Args:
        clock: Monotonic clock, in seconds.
        options: Options of FastMCP's verifier.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, **options: Any) -> None:
        # No keep-alive: on a connection that the issuer has closed, a valid token would be refused.
        client = httpx2.AsyncClient(
            timeout=_ASK_S,
            limits=httpx2.Limits(max_keepalive_connections=0),
            event_hooks={"response": [self._hear]},
        )
        super().__init__(http_client=client, **options)
        self._clock = clock
        self._fault: str | None = None
        self._answered_at = float("-inf")

    async def fault(self) -> str | None:
        """Return the reason why no token can be checked now; None if one can.

        Looks up a token that does not exist, unless the issuer has responded in the last `HEARD_S`.
        """
        if self._clock() - self._answered_at > HEARD_S:
            self._fault = "it does not answer"
            await self.verify_token(f"readiness-{secrets.token_urlsafe(24)}")
        where = "the introspection_endpoint of auth.issuer"
        return self._fault and f"tokens cannot be looked up at {where}: {self._fault}"

    async def _hear(self, answer: httpx2.Response) -> None:
        self._fault = await _fault_in(answer)
        if self._fault is None:
            self._answered_at = self._clock()


async def _fault_in(answer: httpx2.Response) -> str | None:
    if answer.status_code == httpx2.codes.UNAUTHORIZED:
        return "it refuses auth.client_id with its secret (status 401)"
    if answer.status_code != httpx2.codes.OK:
        return f"status {answer.status_code}"
    await answer.aread()
    try:
        answer_body = answer.json()
    except ValueError:
        answer_body = None
    return (
        None
        if isinstance(answer_body, dict) and "active" in answer_body
        else "its answer is not about a token"
    )
