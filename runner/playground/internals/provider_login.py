"""Login to the Playground if users log in at a provider: `auth.kind` `oidc` and `oauth_proxy`.

The page is a client of this server like any other: it is registered, goes to `/authorize`, the user logs in
at the provider, and the browser returns with a code of ours. The difference is that the code is exchanged in
this process, and its token becomes a browser session at once, which ends with the token: no token reaches the
page.

A cookie identifies the browser that began a login, and only that browser can complete it. It holds the PKCE
secret of the code and the state. So no state of pending logins is stored, and login CSRF is prevented.

Source: RFC 6749, 10.12; RFC 7636; RFC 9700, 2.1 and 4.7; RFC 6265bis, 4.1.2.7 (SameSite).
"""

import base64
import hashlib
import hmac
import logging
import secrets
import time
from dataclasses import dataclass

from fastmcp.server.auth import AccessToken, OAuthProxy
from mcp.server.auth.provider import AuthorizationCode, AuthorizationParams, AuthorizeError, TokenError
from mcp.shared.auth import OAuthClientInformationFull
from pydantic import AnyUrl
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from runner.http.browser_session import begin_session
from runner.http.context import Site
from runner.http.identify import named
from runner.http.origins import over_https
from runner.http.responses import SAFE_HEADERS, Refusal
from runner.http.wrong_keys import note_wrong
from runner.users.resource import PAGE_LOGIN, PAGE_LOGIN_DONE, base_url, resource_url

__all__ = ["routes"]

log = logging.getLogger(__name__)

_CLIENT = "toolcell-playground"
_COOKIE = "toolcell_login"
# Equal to FastMCP's lifetime of a pending login.
_LOGIN_S = 15 * 60
_ENTERED = "/?entered"
_NOT_BEGUN = "this login was not begun in this browser, or took too long; open this server's page again"


def routes(site: Site, provider: OAuthProxy) -> list[Route]:
    """Return the routes.

    Args:
        site: The site of the browsers.
        provider: The login provider.
    """
    login = _Login(site, provider)
    return [
        Route(PAGE_LOGIN, login.begin, methods=["GET"]),
        Route(PAGE_LOGIN_DONE, login.end, methods=["GET"]),
    ]


@dataclass(frozen=True, slots=True)
class _Login:
    site: Site
    provider: OAuthProxy

    async def begin(self, request: Request) -> Response:
        """Redirect a browser to the login."""
        base = base_url(self.site.settings)
        if f"{request.url.scheme}://{request.url.netloc}" != base and not over_https(
            self.site.settings, request
        ):
            # The browser returns to the public address of this server, so the cookie must be set there.
            return RedirectResponse(base + PAGE_LOGIN, status_code=303, headers=SAFE_HEADERS)
        client = self._client()
        await self.provider.register_client(client)
        secret = secrets.token_urlsafe(48)
        params = AuthorizationParams(
            state=_state(secret),
            scopes=list(self.site.settings.auth.scopes),
            code_challenge=_challenge(secret),
            redirect_uri=self._back(),
            redirect_uri_provided_explicitly=True,
            resource=resource_url(self.site.settings),
        )
        try:
            address = await self.provider.authorize(client, params)
        except AuthorizeError as error:
            raise Refusal(
                503, f"no login can be begun now: {error.error_description or error.error}"
            ) from error
        answer = RedirectResponse(address, status_code=303, headers=SAFE_HEADERS)
        secure = over_https(self.site.settings, request)
        # Lax: the provider's page, on another site, redirects the browser back here.
        answer.set_cookie(
            self._cookie(request), secret, max_age=_LOGIN_S, secure=secure, httponly=True, samesite="lax"
        )
        return answer

    async def end(self, request: Request) -> Response:
        """Begin the session of a browser that returns from the login."""
        secret, query = request.cookies.get(self._cookie(request), ""), request.query_params
        if not secret or not hmac.compare_digest(query.get("state", ""), _state(secret)):
            note_wrong(request, "login", "the Playground")
            raise Refusal(403, _NOT_BEGUN)
        if "error" in query:
            # The text in the address is not shown, since anyone could have written it.
            raise Refusal(
                403, "the login was refused, by you or by the provider; open this server's page again"
            )
        token = await self._token(query.get("code", ""), secret)
        if token is None:
            note_wrong(request, "login", "the Playground")
            raise Refusal(403, _NOT_BEGUN)
        user = named(self.site, token)
        session = await begin_session(self.site, user, token)
        answer = RedirectResponse(_ENTERED, status_code=303, headers=SAFE_HEADERS)
        session.set_on(answer, request)
        answer.delete_cookie(
            self._cookie(request),
            secure=over_https(self.site.settings, request),
            httponly=True,
            samesite="lax",
        )
        log.info("provider login succeeded", extra={"user": user.name})
        return answer

    async def _token(self, code_text: str, secret: str) -> AccessToken | None:
        """Return the token of a code; None if it is unknown, another browser's, or expired."""
        client = await self.provider.get_client(_CLIENT)
        code = None if client is None else await self.provider.load_authorization_code(client, code_text)
        if client is None or code is None or not self._is_for(code, secret):
            return None
        try:
            token = await self.provider.exchange_authorization_code(client, code)
        except TokenError as error:
            log.warning("provider login failed", extra={"problem": error.error_description or error.error})
            return None
        return await self.provider.verify_token(token.access_token)

    def _is_for(self, code: AuthorizationCode, secret: str) -> bool:
        """Return whether a code belongs to this browser's login, with the checks of the SDK's endpoint."""
        return (
            hmac.compare_digest(code.code_challenge, _challenge(secret))
            and str(code.redirect_uri) == str(self._back())
            and code.expires_at > time.time()
        )

    def _client(self) -> OAuthClientInformationFull:
        return OAuthClientInformationFull(
            client_id=_CLIENT,
            client_name="the Playground of this server",
            redirect_uris=[self._back()],
            token_endpoint_auth_method="none",  # noqa: S106 - it has no secret
            grant_types=["authorization_code"],
            response_types=["code"],
            scope=" ".join(self.site.settings.auth.scopes),
        )

    def _back(self) -> AnyUrl:
        return AnyUrl(base_url(self.site.settings) + PAGE_LOGIN_DONE)

    def _cookie(self, request: Request) -> str:
        return f"__Host-{_COOKIE}" if over_https(self.site.settings, request) else _COOKIE


def _challenge(secret: str) -> str:
    return _hashed(secret)


def _state(secret: str) -> str:
    return _hashed(f"state of {secret}")


def _hashed(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
