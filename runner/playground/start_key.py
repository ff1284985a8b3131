"""Access to the Playground: by the address printed at the start, or by a token.

1. The start key is part of that address. It is exchanged for a browser session at once, so that it does not
   stay in the address bar, and can be used once: addresses are recorded in histories and process lists. A
   new one is printed as soon as one is used. It exists only if the server accepts calls without a
   token; otherwise the page requests the token.
2. A pass lets one request of a known browser through the check of tokens on `/mcp`: a page cannot hold the
   token from which its session was created.

Source: the design's notes on the security of shown content; decision 15.
"""

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from fastmcp import FastMCP
from fastmcp.server.auth import AccessToken, AuthProvider
from pydantic import Field
from starlette.routing import Route

from runner.http.internals.authentication import replace_auth
from runner.users.identity import User
from runner.users.token_checks import tokens_fault

__all__ = ["PassVerifier", "Passes", "StartKey", "admit"]

_PREFIX = "page."
_MAX_PASSES = 1024


@dataclass(slots=True)
class StartKey:
    """The key in the address printed at the start, and its successors.

    Attributes:
        secret: The valid key.
        tell: Called when there is a new key.
    """

    secret: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    tell: Callable[[], None] = field(default=lambda: None)

    def opens(self, key: str) -> bool:
        """Return whether `key` is the start key; if so, replace it."""
        if not hmac.compare_digest(key.encode(), self.secret.encode()):
            return False
        self.secret = secrets.token_urlsafe(24)
        self.tell()
        return True


@dataclass(slots=True)
class Passes:
    """Issued and unused passes; each is for one request of one user."""

    _users: dict[str, User] = field(default_factory=dict)

    def give(self, user: User) -> str:
        """Return a new pass for a user, in the form of a bearer token."""
        while len(self._users) >= _MAX_PASSES:
            # A pass stays unused if its request was refused before the check of its token.
            del self._users[next(iter(self._users))]
        number = _PREFIX + secrets.token_urlsafe(24)
        self._users[number] = user
        return number

    def take(self, number: str) -> User | None:
        """Return the user of a pass, and use it up; None if it is not a pass."""
        return self._users.pop(number, None)


class _Pass(AccessToken):
    """The token of a pass. `user` is who it is for, and excluded from what a tool sees of its token."""

    user: User = Field(exclude=True)


class PassVerifier(AuthProvider):
    """Provider that accepts passes, and leaves all other tokens and all routes to the operator's provider.

    Args:
        inner: That provider.
        passes: The passes.
        claims: Names of the claims that name a user to a tool.
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
        return _Pass(
            token=token,
            client_id=user.name,
            scopes=list(self.required_scopes or ()),
            claims=dict.fromkeys(self._claims, user.name),
            user=User(user.name),
        )

    async def fault(self) -> str | None:
        """Return why tokens cannot be checked now, else None. Passes always can, but admit no client."""
        return await tokens_fault(self._inner)

    @property
    def scopes_supported(self) -> list[str]:
        """Scopes announced to clients."""
        return self._inner.scopes_supported

    def get_challenge_scopes(self, required_scopes: list[str] | None = None) -> list[str]:
        """Return the scopes requested from clients."""
        return self._inner.get_challenge_scopes(required_scopes)

    def set_mcp_path(self, mcp_path: str | None) -> None:
        """Record the path of MCP."""
        super().set_mcp_path(mcp_path)
        self._inner.set_mcp_path(mcp_path)

    def get_routes(self, mcp_path: str | None = None) -> list[Route]:
        """Return the routes of the provider."""
        self.set_mcp_path(mcp_path)
        return self._inner.get_routes(mcp_path)


def admit(app: FastMCP, passes: Passes, claims: tuple[str, ...]) -> None:
    """Make an application that checks tokens accept passes, too.

    Args:
        app: The application, before it is served.
        passes: The passes.
        claims: Names of the claims that name a user.
    """
    replace_auth(app, lambda auth: PassVerifier(auth, passes, claims))
