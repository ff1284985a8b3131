"""Caller of a request beside MCP, and the check against pages of other sites.

1. A bearer token, checked as on `/mcp`, names the user; the header `Mcp-Session-Id` may name the session.
2. Otherwise the cookie of a browser session names both. `runner.http.browser_session` set it. Over https its
   name begins with `__Host-`, so no neighbouring host and no page over plain http can have set it.
3. Otherwise `runner.users.identity` decides whether requests without a token have a user: the user that the
   server is bound to, or on a loopback address the user of the operating system.

The last two do not identify the page that sends the request: a browser adds the cookie, and reaches the
address, for any page. So such a request must come from a page of this server, from no page, or from a
configured origin.

Source: W3C Fetch Metadata; RFC 6265bis, 4.1.3 (names of cookies); architecture, decision "Identity";
`docs/serving.md`.
"""

import re
from functools import partial

from anyio.to_thread import run_sync
from fastmcp.server.auth import AccessToken
from fastmcp.server.dependencies import get_access_token
from starlette.requests import Request

from runner.http.context import Site
from runner.http.logins import Login, Logins
from runner.http.origins import is_own, over_https
from runner.http.responses import Refusal
from runner.settings.parts import ServerSettings
from runner.users.capability_tokens import TokenError, Tokens
from runner.users.identity import IdentityError, User, user_of

__all__ = [
    "BROWSER",
    "COOKIE",
    "ENDED",
    "browser_session",
    "check_page",
    "cookie_name",
    "identify",
    "login_of",
    "named",
    "of_cookie",
    "of_page",
    "with_session",
]

COOKIE = "toolcell_session"
"""The cookie of a browser session: its id, a dot, and a token for it. Over https it is `cookie_name`."""

BROWSER = "browser"
"""The purpose of the token in the cookie."""

ENDED = "this page's session has ended; open the address that the server printed last, or log in"
"""Error text for a session that has ended."""

_SESSION = re.compile(r"[!-~]{1,128}")
# `runner.http.challenges` adds where to log in.
_CHALLENGE = {"WWW-Authenticate": "Bearer"}
_WRONG_TOKEN = {"WWW-Authenticate": 'Bearer error="invalid_token"'}
_OF_THIS_SERVER = ("same-origin", "none")


async def identify(site: Site, request: Request) -> User:
    """Return the caller of a request.

    Raises:
        Refusal: 401 if the caller is unknown, 403 if refused for the user or sent by another site's page.
    """
    token = get_access_token()
    if token is not None:
        if site.settings.auth.kind == "gateway":
            # The browser's cookie for the gateway was enough, so any page could have sent this.
            check_page(site, request)
        return User(named(site, token).name, _session(request))
    if site.settings.auth.kind != "none" and "authorization" in request.headers:
        raise Refusal(
            401,
            "this token is not valid, or has expired (one without an end, exp, never counts); log in again",
            _WRONG_TOKEN,
        )
    check_page(site, request)
    known = await of_cookie(site, request)
    return known or User(_resolved(site, None).name, _session(request))


async def with_session(site: Site, request: Request) -> User:
    """Return the caller of a request, who must be in a session.

    Raises:
        Refusal: As from `identify`; 401 if there is no session.
    """
    user = await identify(site, request)
    if user.session is None:
        raise Refusal(
            401,
            "this address is for sessions, and the request names none; POST /api/session begins one, "
            "and an MCP client sends its Mcp-Session-Id",
        )
    return user


def check_page(site: Site, request: Request) -> None:
    """Refuse a request that a page of another site made a browser send.

    Raises:
        Refusal: 403.
    """
    origin, sent_from = request.headers.get("origin"), request.headers.get("sec-fetch-site")
    if origin is not None and origin in site.settings.allowed_origins:
        return
    if sent_from is not None:
        allowed = sent_from in _OF_THIS_SERVER
    else:
        allowed = origin is None or is_own(site.settings, request, origin)
    if not allowed:
        raise Refusal(
            403,
            "a page of another site sent this request; open this server's own page, send a bearer token, "
            "or name the page's origin in allowed_origins",
        )


def cookie_name(settings: ServerSettings, request: Request) -> str:
    """Return the name of the session cookie; a cookie of another name is ignored."""
    return f"__Host-{COOKIE}" if over_https(settings, request) else COOKIE


def browser_session(settings: ServerSettings, tokens: Tokens, request: Request, *, now: float) -> User | None:
    """Return the user and the session that a request's cookie names, or None without a valid cookie.

    Args:
        settings: The effective settings.
        tokens: Verifier of the cookie.
        request: The request.
        now: Seconds since the epoch.
    """
    session, _, token = request.cookies.get(cookie_name(settings, request), "").partition(".")
    if not token or not _SESSION.fullmatch(session):
        return None
    try:
        user = User(tokens.verify(token, purpose=BROWSER, key=session, now=now), session)
    except TokenError:
        return None
    return user if Logins(settings.state_dir).of(user) is not None else None


def login_of(site: Site, user: User) -> Login | None:
    """Return the note of a browser session; None if the session or its token has ended."""
    login = site.logins.of(user)
    if login is None or login.end <= site.clock():
        return None
    # When the operator removes a token from the file, its sessions end.
    return login if site.known_tokens is None or login.token in site.known_tokens else None


async def of_page(site: Site, request: Request, *, closed: str = ENDED) -> User:
    """Return the user of the page that sent a request, by its cookie only.

    Args:
        site: The server.
        request: The request.
        closed: Error text if the cookie names nobody.

    Raises:
        Refusal: 403 if another site's page sent it, 401 if the cookie names no user of this server.
    """
    check_page(site, request)
    user = await of_cookie(site, request)
    if user is None:
        raise Refusal(401, closed)
    return user


async def of_cookie(site: Site, request: Request) -> User | None:
    """Return the user and the session of a request's cookie, or None if it names no user of this server."""
    settings = site.settings
    known = await run_sync(partial(browser_session, settings, site.tokens, request, now=site.clock()))
    if known is None or login_of(site, known) is None:
        return None
    served = _resolved(site, None).name if settings.auth.kind == "none" else settings.user or known.name
    # A server with the same keys and other users may have set the cookie; its user is unknown here.
    return known if served == known.name else None


def named(site: Site, token: AccessToken) -> User:
    """Return the user that a verified token names.

    Raises:
        Refusal: 403: the token names no user of this server.
    """
    return _resolved(site, token)


def _session(request: Request) -> str | None:
    session = request.headers.get("mcp-session-id")
    if session is not None and not _SESSION.fullmatch(session):
        raise Refusal(400, "Mcp-Session-Id must be 1 to 128 visible ASCII characters")
    return session


def _resolved(site: Site, token: AccessToken | None) -> User:
    try:
        return user_of(site.settings, token)
    except IdentityError as error:
        if token is None:
            raise Refusal(401, str(error), _CHALLENGE) from error
        raise Refusal(403, str(error)) from error
