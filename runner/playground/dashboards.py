"""Dashboards: pages of other servers that a result requests to open beside it.

Only pages of origins named by the operator are shown. Each gets a token of its own, valid for a few minutes,
that only proves that this user has this dashboard open; the page passes it by message, never in an address.
Actions in a dashboard are logged with the user's name and the dashboard's id.

Source: document 000, sections 3 and 7; requirements S0-38 to S0-47, S0-74.
"""

import json
import logging
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from runner.contract.pages import check_page as fault_of_page
from runner.http.context import Site
from runner.http.identify import of_page
from runner.http.responses import SAFE_HEADERS, Refusal
from runner.http.wrong_keys import note_wrong
from runner.users.capability_tokens import TokenError, named_in
from runner.users.identity import User

__all__ = ["DASHBOARD", "TOKEN_S", "routes"]

log = logging.getLogger(__name__)

DASHBOARD = "dashboard"
"""The purpose of a dashboard's token."""

TOKEN_S = 300.0
"""Seconds until the token expires."""

_MAX_ID = 200
_MAX_ACTION = 500
_MAX_BODY = 16 * 1024


def routes(site: Site) -> list[Route]:
    """Return the routes of dashboards."""
    own = _Dashboards(site)
    return [
        Route("/play/dashboards", own.open, methods=["POST"]),
        Route("/play/dashboards/actions", own.act, methods=["POST"]),
        Route("/api/dashboards/verify", own.verify, methods=["POST"]),
    ]


@dataclass(frozen=True, slots=True)
class _Dashboards:
    site: Site

    async def open(self, request: Request) -> JSONResponse:
        """Issue a token for a dashboard that the page is about to show."""
        user, body = await self._request_body(request)
        name, url = _word(body, "id", _MAX_ID), _word(body, "url", 2000)
        fault = fault_of_page(url, self.site.settings.iframe_origins)
        if fault is not None:
            raise Refusal(403, fault)
        sign = partial(self.site.tokens.sign, user=user.name, key=name, purpose=DASHBOARD, ttl_s=TOKEN_S)
        token = await run_sync(partial(sign, now=self.site.clock()))
        log.info("dashboard opened", extra={"user": user.name, "dashboard": name, "page": _origin(url)})
        return JSONResponse({"token": token, "ttl_s": TOKEN_S}, status_code=201, headers=SAFE_HEADERS)

    async def act(self, request: Request) -> Response:
        """Log a user's action in a dashboard."""
        user, body = await self._request_body(request)
        name, action = _word(body, "id", _MAX_ID), _word(body, "action", _MAX_ACTION)
        log.info("dashboard action", extra={"user": user.name, "dashboard": name, "action": action})
        return Response(status_code=204, headers=SAFE_HEADERS)

    async def verify(self, request: Request) -> JSONResponse:
        """Return the user of a token to a dashboard's own server. The token authorises the request."""
        body = await _json(request)
        token, name = _word(body, "token", 4096), _word(body, "id", _MAX_ID)
        check = partial(self.site.tokens.verify, token, purpose=DASHBOARD, key=name, now=self.site.clock())
        try:
            user = await run_sync(check)
        except TokenError as error:
            note_wrong(request, "dashboard", name, *named_in(token))
            raise Refusal(403, "this token is not valid for this dashboard, or has expired") from error
        return JSONResponse({"user": user, "id": name}, headers=SAFE_HEADERS)

    async def _request_body(self, request: Request) -> tuple[User, dict[str, Any]]:
        user = await of_page(self.site, request)
        return user, await _json(request)


async def _json(request: Request) -> dict[str, Any]:
    body = await request.body()
    if len(body) <= _MAX_BODY and request.headers.get("content-type", "").startswith("application/json"):
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            return value
    raise Refusal(400, f"a JSON object of at most {_MAX_BODY} bytes is needed, sent as application/json")


def _word(body: dict[str, Any], key: str, most: int) -> str:
    value = body.get(key)
    if not isinstance(value, str) or not 0 < len(value) <= most:
        raise Refusal(400, f"{key} must be a text of 1 to {most} characters")
    return value


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
