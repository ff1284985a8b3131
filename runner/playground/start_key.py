"""Access to the Playground: by the address printed at the start, or by a token.

1. The start key stands in that address. It is exchanged for a browser session at once, so that it does not
   stay in the address bar, and opens once: addresses are kept in histories and in lists of processes. The
   next one is printed as soon as one is used. There is one only where the server takes calls without a
   token; elsewhere the page asks for the token.
2. A pass lets one request of a known browser through the check of tokens on `/mcp`: a page cannot hold the
   token that its session was made with.

Source: the design's notes on the security of shown content; decision 15.
"""

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from fastmcp import FastMCP
from fastmcp.server.auth import AccessToken, AuthProvider
from starlette.routing import Route

from runner.http.internals.authentication import replace_auth
from runner.users.token_checks import tokens_fault

__all__ = ["PassVerifier", "Passes", "StartKey", "admit"]

_PREFIX = "page."
_MAX_PASSES = 1024


@dataclass(slots=True)
class StartKey:
    """The key in the address that is printed at the start, and those that follow it.

    Attributes:
        secret: The one that opens next.
        tell: Is called when there is another one.
    """

    secret: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    tell: Callable[[], None] = field(default=lambda: None)

    def opens(self, key: str) -> bool:
        """Return whether `key` is the start key, and use it up if so."""
        if not hmac.compare_digest(key.encode(), self.secret.encode()):
            return False
        self.secret = secrets.token_urlsafe(24)
        self.tell()
        return True


@dataclass(slots=True)
class Passes:
    """Passes that were given out and not yet used; each is for one request of one user."""

    _users: dict[str, str] = field(default_factory=dict)

    def give(self, user: str) -> str:
        """Return a new pass for a user, in the form of a bearer token."""
        while len(self._users) >= _MAX_PASSES:
            # Of a request that was refused before its token was looked at.
            del self._users[next(iter(self._users))]
        number = _PREFIX + secrets.token_urlsafe(24)
        self._users[number] = user
        return number

    def take(self, number: str) -> str | None:
        """Return the user of a pass, and use it up; None if it is not a pass."""
        return self._users.pop(number, None)


class PassVerifier(AuthProvider):
    """Takes passes, and leaves every other token, and all routes, to the provider that the operator chose.

    Args:
        inner: That provider.
        passes: The passes.
        claims: Names of the claims that name a user.
    """

    def __init__(self, inner: AuthProvider, passes: Passes, claims: tuple[str, ...]) -> None:
        super().__init__(
            base_url=inner.base_url,
            required_scopes=inner.required_scopes,
            resource_base_url=inner.resource_base_url,
        )
        self._inner = inner
        self._passes = passes
        self._claims = claims

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return the claims of a token, or None if it is not valid."""
        if not token.startswith(_PREFIX):
            return await self._inner.verify_token(token)
        user = self._passes.take(token)
        if user is None:
            return None
        return AccessToken(
            token=token,
            client_id=user,
            scopes=list(self.required_scopes or ()),
            claims=dict.fromkeys(self._claims, user),
        )

    async def fault(self) -> str | None:
        """Return why tokens cannot be checked now, else None. Passes always can, and admit no client."""
        return await tokens_fault(self._inner)

    @property
    def scopes_supported(self) -> list[str]:
        """Scopes that clients are told of."""
        return self._inner.scopes_supported

    def get_challenge_scopes(self, required_scopes: list[str] | None = None) -> list[str]:
        """Return the scopes that clients are asked for."""
        return self._inner.get_challenge_scopes(required_scopes)

    def set_mcp_path(self, mcp_path: str | None) -> None:
        """Take note of where MCP is."""
        super().set_mcp_path(mcp_path)
        self._inner.set_mcp_path(mcp_path)

    def get_routes(self, mcp_path: str | None = None) -> list[Route]:
        """Return the routes of the provider."""
        self.set_mcp_path(mcp_path)
        return self._inner.get_routes(mcp_path)


def admit(app: FastMCP, passes: Passes, claims: tuple[str, ...]) -> None:
    """Let an application that checks tokens take passes, too.

    Args:
        app: The application, before it is served.
        passes: The passes.
        claims: Names of the claims that name a user.
    """
    replace_auth(app, lambda auth: PassVerifier(auth, passes, claims))
