"""The routes of the Playground: its page, the page's files, the login, and facts of the server.

Source: the design's notes on the security of shown content; decision 15.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from runner.http.browser_session import begin_session
from runner.http.context import Site
from runner.http.identify import identify, of_cookie, of_page
from runner.http.responses import SAFE_HEADERS, Refusal
from runner.http.wrong_keys import note_wrong
from runner.playground import dashboards
from runner.playground.config import Playground, frames_origin
from runner.users.resource import LOGINS, PAGE_LOGIN

if TYPE_CHECKING:
    from fastmcp.server.auth import AuthProvider

__all__ = ["playground_address", "routes"]


def routes(site: Site, playground: Playground, auth: "AuthProvider | None" = None) -> list[Route]:
    """Return the routes.

    Args:
        site: Their site.
        playground: The Playground.
        auth: The provider that checks the tokens of this server, and perhaps logs users in.
    """
    own = _Routes(site, playground)
    return [
        *_logins(site, auth),
        Route("/", own.page, methods=["GET"]),
        Route("/play/assets/{name}", own.asset, methods=["GET"]),
        Route("/play/info", own.info, methods=["GET"]),
        *dashboards.routes(site),
    ]


def _logins(site: Site, auth: "AuthProvider | None") -> list[Route]:
    if site.settings.auth.kind not in LOGINS:
        return []
    # Importing FastMCP's login takes a seventh of a start, so it is done only if users log in here.
    from fastmcp.server.auth import OAuthProxy  # noqa: PLC0415

    from runner.playground.internals import provider_login  # noqa: PLC0415

    return provider_login.routes(site, auth) if isinstance(auth, OAuthProxy) else []


def playground_address(base: str, playground: Playground) -> str:
    """Return the address to open, with the start key if there is one.

    Args:
        base: Address of the server.
        playground: Its Playground.
    """
    return base + "/" + (f"?key={playground.key.secret}" if playground.key is not None else "")


@dataclass(frozen=True, slots=True)
class _Routes:
    site: Site
    playground: Playground

    async def page(self, request: Request) -> Response:
        if "key" in request.query_params:
            return await self._enter(request)
        frames = self._frames(request)
        own = () if frames is None else (frames,)
        return self.playground.bundle.page([*own, *self.site.settings.iframe_origins])

    async def asset(self, request: Request) -> Response:
        found = await self.playground.bundle.asset(request)
        if found is None:
            raise Refusal(404, "the Playground has no such file; reload its page")
        return found

    async def info(self, request: Request) -> JSONResponse:
        user = await of_page(self.site, request, closed=_closed(self.site, self.playground))
        of_user = {"user": user.name, "session": user.session, "frames": self._frames(request)}
        return JSONResponse({**self.playground.facts(), **of_user}, headers=SAFE_HEADERS)

    async def _enter(self, request: Request) -> Response:
        """Exchange the start key for a session, and remove it from the address bar."""
        key = self.playground.key
        known = await of_cookie(self.site, request)
        if key is None or not key.opens(request.query_params["key"]):
            if known is None:
                note_wrong(request, "start key", "the Playground")
            # The page shows instructions if it has no session; a second tab uses that of the first.
            return RedirectResponse("/", status_code=303, headers=SAFE_HEADERS)
        session = await begin_session(self.site, known or await identify(self.site, request))
        answer = RedirectResponse("/", status_code=303, headers=SAFE_HEADERS)
        session.set_on(answer, request)
        return answer

    def _frames(self, request: Request) -> str | None:
        host = request.headers.get("host", "")
        return frames_origin(self.site.settings, host, self.playground.frames_port)


def _closed(site: Site, playground: Playground) -> str:
    if site.settings.auth.kind in LOGINS:
        return f"log in at {PAGE_LOGIN}"
    if playground.key is None:
        return "log in with your token"
    return (
        "open the address with the key that the server printed last; each one opens once, and when it "
        "has been used the server prints the next"
    )
