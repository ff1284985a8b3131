"""Browser sessions: `POST /api/session` sets the cookie that identifies a browser, `DELETE` removes it.

A client that may call tools begins one, with a bearer token where the server requires it. The cookie holds a
token of its own, never the bearer token. No script can read it, and no page of another site can send it. It
expires with the bearer token or after twelve hours.

Source: RFC 6265; the design's notes on the security of shown content; `docs/serving.md`.
"""

import secrets
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from anyio.to_thread import run_sync
from fastmcp.server.auth import AccessToken
from fastmcp.server.dependencies import get_access_token
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from runner.http.context import Site
from runner.http.identify import BROWSER, check_page, cookie_name, identify, with_session
from runner.http.logins import Login
from runner.http.origins import over_https
from runner.http.responses import SAFE_HEADERS, Refusal
from runner.http.under_way import UnderWay
from runner.users.identity import User
from runner.users.tokens_file import token_print

__all__ = ["SESSION_S", "BrowserSession", "begin_session", "routes"]

SESSION_S = 12 * 3600.0
"""Lifetime of a browser session in seconds."""

# Clears the page's call history and drafts, unless the request has `?keep`.
# Not "cookies": that would also clear those of neighbouring hosts.
_FORGET = {"Clear-Site-Data": '"storage"'}


def routes(site: Site, under_way: UnderWay) -> list[Route]:
    """Return the routes that begin and end a browser session.

    Args:
        site: The server.
        under_way: The requests in flight, which are cancelled with their session.
    """

    async def begin(request: Request) -> JSONResponse:
        # A page of another site may not begin a session, whatever credentials it sends.
        check_page(site, request)
        user = await identify(site, request)
        session = await begin_session(site, user)
        expires_at = datetime.fromtimestamp(int(session.end), UTC).isoformat()
        answer = JSONResponse(
            {"user": user.name, "session": session.session, "expires_at": expires_at},
            status_code=201,
            headers=SAFE_HEADERS,
        )
        session.set_on(answer, request)
        return answer

    async def end(request: Request) -> Response:
        user = await with_session(site, request)
        await run_sync(_end, site, user)
        await under_way.end(user)
        await site.library.of(user.name, user.session).end_session()
        keeps = "keep" in request.query_params
        answer = Response(status_code=204, headers={**SAFE_HEADERS, **({} if keeps else _FORGET)})
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
    """A new browser session, whose cookie is not set yet.

    Attributes:
        site: The server.
        session: Its id.
        signed: The signed token that proves it.
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


async def begin_session(site: Site, user: User, token: AccessToken | None = None) -> BrowserSession:
    """Begin a browser session of a user, or renew the session of the request.

    Args:
        site: The server.
        user: The user.
        token: The token that the session expires with; by default that of the request.
    """
    speaking = User(user.name, user.session or secrets.token_hex(16))
    now = site.clock()
    login, signed = await run_sync(_noted, site, speaking, token or get_access_token(), now)
    return BrowserSession(site=site, session=str(speaking.session), signed=signed, now=now, end=login.end)


def _noted(site: Site, user: User, token: AccessToken | None, now: float) -> tuple[Login, str]:
    """Record a session; return its note and its signed token."""
    if token is not None:
        made_from = Login(end=0, token_end=token.expires_at or 0, token=token_print(token.token))
    else:
        # A session renewed by its cookie ends no later than the token it was made from.
        made_from = site.logins.of(user) or Login(end=0)
    end = int(min(now + SESSION_S, made_from.token_end or now + SESSION_S))
    login = replace(made_from, end=end)
    try:
        site.logins.note(user, login, now=now)
    except OSError as error:
        raise Refusal(
            503, f"a session cannot be noted in state_dir at present ({error.strerror}); try again later"
        ) from error
    return login, site.tokens.sign(
        user=user.name, key=str(user.session), purpose=BROWSER, now=now, ttl_s=end - now
    )


def _end(site: Site, user: User) -> None:
    try:
        site.logins.end(user)
    except OSError as error:
        raise Refusal(
            503,
            f"the end of this session cannot be noted in state_dir ({error.strerror}), so it goes on; "
            "try again, or have the operator remove tokens.json there, which ends all sessions",
        ) from error
