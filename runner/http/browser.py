"""Browser sessions: `POST /api/session` sets the cookie by which a browser is known, `DELETE` takes it away.

Whoever may call begins one: with a bearer token, or without one where the server needs none. The cookie
holds a token of its own, never the one it was made for; no script can read it, no other site's page can
send it, and it ends with the bearer token or after twelve hours.

Source: RFC 6265; the design's notes on the security of shown content; `docs/http.md`.
"""

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime

from anyio.to_thread import run_sync
from fastmcp.server.dependencies import get_access_token
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from runner.http.answers import SAFE_HEADERS
from runner.http.site import Site
from runner.http.visitors import BROWSER, check_page, cookie_name, over_https, who, with_session
from runner.identity import User

__all__ = ["SESSION_S", "BrowserSession", "begin_session", "routes"]

SESSION_S = 12 * 3600.0
"""How long a browser is known, in seconds."""


def routes(site: Site) -> list[Route]:
    """Return the routes that begin and end a browser's session."""

    async def begin(request: Request) -> JSONResponse:
        # A page of another site is not to make one, whatever it sends along.
        check_page(site, request)
        user = await who(site, request)
        begun = await begin_session(site, user)
        expires_at = datetime.fromtimestamp(int(begun.end), UTC).isoformat()
        answer = JSONResponse(
            {"user": user.name, "session": begun.session, "expires_at": expires_at},
            status_code=201,
            headers=SAFE_HEADERS,
        )
        begun.set_on(answer, request)
        return answer

    async def end(request: Request) -> Response:
        user = await with_session(site, request)
        await site.library.of(user.name, user.session).end_session()
        answer = Response(status_code=204, headers=SAFE_HEADERS)
        answer.delete_cookie(
            cookie_name(site.settings, request),
            secure=over_https(site.settings, request),
            httponly=True,
            samesite="strict",
        )
        return answer

    return [
        Route("/api/session", begin, methods=["POST"]),
        Route("/api/session", end, methods=["DELETE"]),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserSession:
    """A browser session, about to be known to the browser.

    Attributes:
        site: Whose it is.
        session: Its id.
        signed: What proves it.
        now: When it began, in seconds since the epoch.
        end: When it ends.
    """

    site: Site
    session: str
    signed: str
    now: float
    end: float

    def set_on(self, answer: Response, request: Request) -> None:
        """Set the cookie on an answer."""
        answer.set_cookie(
            cookie_name(self.site.settings, request),
            f"{self.session}.{self.signed}",
            max_age=int(self.end - self.now),
            secure=over_https(self.site.settings, request),
            httponly=True,
            samesite="strict",
        )


async def begin_session(site: Site, user: User) -> BrowserSession:
    """Begin a browser's session of a user, or prolong the one the user speaks in."""
    session = user.session or secrets.token_hex(16)
    token, now = get_access_token(), site.clock()
    end = now + SESSION_S if token is None else min(now + SESSION_S, token.expires_at or now + SESSION_S)
    signed = await run_sync(_sign, site, user.name, session, end)
    return BrowserSession(site=site, session=session, signed=signed, now=now, end=end)


def _sign(site: Site, user: str, session: str, end: float) -> str:
    now = site.clock()
    return site.tokens.sign(user=user, key=session, purpose=BROWSER, now=now, ttl_s=end - now)
