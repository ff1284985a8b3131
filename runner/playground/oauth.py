"""The steps of an OAuth login, made for a page that shows each of them: what a browser may not ask by itself.

A page can neither read answers of other origins nor send what it likes to them. So this server asks, only
what `playground_connect` lets pages reach, and only in the forms that a login takes: no cookies, no redirect
is followed, an answer of bounded length. The page keeps what it learns; nothing stays here.

Source: MCP 2025-11-25, "Authorization"; RFC 6749, 7591, 7636, 8414, 8707, 9728; decision 43.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import httpx2
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from runner.http.responses import SAFE_HEADERS, Refusal
from runner.playground.json_body import object_of
from runner.playground.other_servers import Beside, may_reach
from runner.settings.settings import Settings

__all__ = ["CALLBACK", "OAuthSteps"]

CALLBACK = "/play/oauth/callback"
"""Where an authorisation server sends the browser back to."""

_MAX_BODY = 64 * 1024
_MAX_ANSWER = 1024 * 1024
_TIMEOUT_S = 20.0
_METHODS = ("GET", "POST")
_HEADERS = frozenset(
    {"accept", "authorization", "content-type", "mcp-protocol-version", "mcp-method", "mcp-name"}
)


class OAuthSteps:
    """The routes of the OAuth debugger.

    Args:
        beside: Says whose page asks, and whether it may.
        settings: The effective settings.
    """

    def __init__(self, beside: Beside, settings: Settings) -> None:
        self._beside = beside
        self._settings = settings

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/play/oauth/step", self._step, methods=["POST"]),
            Route(CALLBACK, self._back, methods=["GET"]),
        ]

    async def _step(self, request: Request) -> JSONResponse:
        """Make one request of a login, and return all that came of it."""
        await self._beside.caller(request)
        said = await object_of(request, most=_MAX_BODY)
        url, method, body = said.get("url"), said.get("method", "GET"), said.get("body")
        if not isinstance(url, str) or not may_reach(self._settings, url):
            raise Refusal(403, f"pages of this server may not ask {url} (playground_connect)")
        if method not in _METHODS or not (body is None or isinstance(body, str)):
            raise Refusal(400, "method is GET or POST, and body a text")
        began = time.monotonic()
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                answer = await _answer(url, method, _headers(said.get("headers")), body)
        except TimeoutError:
            raise Refusal(504, f"{url} did not answer within {_TIMEOUT_S:.0f} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise Refusal(502, f"{url} cannot be asked: {str(error) or type(error).__name__}") from error
        took_ms = round((time.monotonic() - began) * 1000, 1)
        return JSONResponse({**answer, "took_ms": took_ms}, headers=SAFE_HEADERS)

    async def _back(self, request: Request) -> Response:
        """Lead the browser on to the page, with what the authorisation server said behind the `#`.

        There it is sent to nobody. Which login it belongs to, and whether to believe it, the page decides by
        the state that only it knows.
        """
        query = request.url.query
        return RedirectResponse(f"/#/oauth-answer?{query}", status_code=303, headers=SAFE_HEADERS)


def _headers(given: object) -> Mapping[str, str]:
    if not isinstance(given, Mapping):
        return {}
    named = {str(name).lower(): str(value) for name, value in given.items()}
    return {name: value for name, value in named.items() if name in _HEADERS}


async def _answer(url: str, method: str, headers: Mapping[str, str], body: str | None) -> dict[str, Any]:
    # Neither proxies nor passwords of this machine's environment are a page's to use.
    client = httpx2.AsyncClient(follow_redirects=False, trust_env=False, timeout=_TIMEOUT_S)
    async with client, client.stream(method, url, headers=dict(headers), content=body) as response:
        read = bytearray()
        async for part in response.aiter_bytes():
            read += part
            if len(read) > _MAX_ANSWER or response.headers.get("content-type", "").startswith("text/event-"):
                break
        return {
            "status": response.status_code,
            "headers": dict(response.headers),
            "body": bytes(read[:_MAX_ANSWER]).decode("utf-8", "replace"),
        }
