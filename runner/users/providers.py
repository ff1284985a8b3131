"""FastMCP's auth providers, as the settings ask for them.

1. `jwt`: tokens of an authorisation server, checked here. Where clients are told which one, the server
   describes itself as a protected resource, and without another audience tokens are made for its address.
2. `oauth_proxy`, `oidc`: clients log in here, and this server logs the user in with its provider. Clients get
   tokens of ours, never those of the provider; these stay in the state folder.

3. `gateway`: no token counts; `runner.http.gateway` says who calls.

The provider's own token determines the user, and is checked each time.

Source: RFC 8414; RFC 9728; RFC 8707; RFC 9700, 2.1 and 4.1; MCP specification 2025-11-25, "Authorization".
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import httpx2
from fastmcp.server.auth import (
    AccessToken,
    AuthProvider,
    OAuthProxy,
    OIDCProxy,
    RemoteAuthProvider,
    TokenVerifier,
)
from pydantic import AnyHttpUrl, BaseModel, TypeAdapter, UrlConstraints
from starlette.routing import Route

from runner.errors import UsageError
from runner.settings.parts import ServerSettings
from runner.settings.values import UpstreamUrl
from runner.system.private_files import read_private
from runner.users.asked_tokens import AskingVerifier
from runner.users.bearer_tokens import TimedVerifier
from runner.users.login_state import LoginState, signing_key
from runner.users.resource import PAGE_LOGIN_DONE, WELL_KNOWN, base_url, resource_url
from runner.users.token_checks import tokens_fault

__all__ = ["of"]

log = logging.getLogger(__name__)

# Exactly: clients compare it with what the server calls itself, which may have no slash at its end.
_URL = TypeAdapter(Annotated[AnyHttpUrl, UrlConstraints(preserve_empty_path=True)])

_MOST_SECRET_BYTES = 64 * 1024
_METADATA_S = 10.0

_KEYS_OF_PROVIDER = "the jwks_uri of the provider of auth.issuer"

NameOf = Callable[[Mapping[str, object]], str | None]


def of(settings: ServerSettings, name_of: NameOf) -> AuthProvider:
    """Return the provider for tokens of an issuer, or for logins.

    Args:
        settings: The effective settings; `auth.kind` is `jwt`, `oauth_proxy`, `oidc` or `gateway`.
        name_of: Returns the name of the user that claims are of, or None.

    Raises:
        UsageError: The secret cannot be read, or nobody says by which address users reach this server.
        ValueError: FastMCP does not take the settings.
    """
    auth, kind = settings.auth, settings.auth.kind
    if kind == "oauth_proxy":
        return _proxy(settings, name_of)
    if kind == "oidc":
        return _oidc(settings, name_of)
    if kind == "gateway":
        return _NoTokens()
    servers = auth.authorization_servers
    verifier = TimedVerifier(
        name_of=name_of,
        jwks_uri=auth.keys if isinstance(auth.keys, str) else None,
        public_key=_secret("auth.keys", auth.keys) if isinstance(auth.keys, Path) else None,
        algorithm=auth.algorithm,
        issuer=auth.issuer,
        audience=auth.audience or resource_url(settings),
        required_scopes=list(auth.required_scopes),
    )
    if not servers:
        return verifier
    return _Resource(
        token_verifier=verifier,
        authorization_servers=[_URL.validate_python(server) for server in servers],
        base_url=base_url(settings),
        scopes_supported=list(auth.scopes) or None,
    )


class _NoTokens(TokenVerifier):
    """Takes no token: who calls is said otherwise."""

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return None."""
        return None


class _Resource(RemoteAuthProvider):
    """FastMCP's provider, which describes the server at the root as well: some clients look there only."""

    async def fault(self) -> str | None:
        """Return the reason why no token can be checked now; None if one can."""
        return await tokens_fault(self.token_verifier)

    def get_routes(self, mcp_path: str | None = None) -> list[Route]:
        """Return the routes on which the server describes itself."""
        return _with_root(super().get_routes(mcp_path))


class _OwnTokens:
    """Base of the proxies below: the user that a token names, and the client's own token for tools."""

    name_of: NameOf
    checks: TokenVerifier

    async def fault(self) -> str | None:
        """Return the reason why no token can be checked now; None if one can: ours stand for theirs."""
        return await tokens_fault(self.checks)

    def _own(self, token: str, found: AccessToken | None) -> AccessToken | None:
        """Return the claims of a token, without the provider's own token, which no tool may have."""
        if found is None:
            return None
        name = self.name_of({"client_id": found.client_id, **found.claims})
        return found.model_copy(update={"token": token, "subject": name or found.subject})


class _Proxy(_OwnTokens, OAuthProxy):
    """FastMCP's proxy of an OAuth provider."""

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return the claims of a token, or None if it is not valid."""
        return self._own(token, await super().verify_token(token))

    def get_routes(self, mcp_path: str | None = None) -> list[Route]:
        """Return the routes of logins, and those on which the server describes itself."""
        return _with_root(super().get_routes(mcp_path))


class _Oidc(_OwnTokens, OIDCProxy):
    """FastMCP's proxy of an OpenID provider, whose tokens are checked as all are here.

    Args:
        settings: The effective settings.
        name_of: Returns the name of the user that claims are of, or None.
        options: FastMCP's own.
    """

    def __init__(self, *, settings: ServerSettings, name_of: NameOf, **options: Any) -> None:
        self._settings = settings
        self.name_of = name_of
        super().__init__(**options)

    def get_token_verifier(
        self,
        *,
        algorithm: str | None = None,
        audience: str | None = None,
        required_scopes: list[str] | None = None,
        timeout_seconds: int | None = None,
    ) -> TokenVerifier:
        """Return the verifier of the provider's tokens. The arguments are FastMCP's."""
        if self.oidc_config.issuer is None or self.oidc_config.jwks_uri is None:
            raise ValueError("the OpenID provider names no issuer or no jwks_uri below auth.issuer")
        self.checks = TimedVerifier(
            name_of=self.name_of,
            keys_from=_KEYS_OF_PROVIDER,
            jwks_uri=str(self.oidc_config.jwks_uri),
            issuer=str(self.oidc_config.issuer),
            algorithm=algorithm,
            audience=audience,
            required_scopes=required_scopes,
        )
        return self.checks

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return the claims of a token, or None if it is not valid."""
        return self._own(token, await super().verify_token(token))

    def get_routes(self, mcp_path: str | None = None) -> list[Route]:
        """Return the routes of logins, and those on which the server describes itself."""
        return _with_root(super().get_routes(mcp_path))


def _oidc(settings: ServerSettings, name_of: NameOf) -> AuthProvider:
    auth = settings.auth
    # What an access token looks like is the provider's own business; an ID token is always a JWT for us.
    by_id_token = auth.audience is None
    return _Oidc(
        settings=settings,
        name_of=name_of,
        # OpenID Connect Discovery 1.0, section 4.
        config_url=f"{str(auth.issuer).rstrip('/')}/.well-known/openid-configuration",
        client_id=str(auth.client_id),
        algorithm=auth.algorithm,
        audience=auth.audience,
        verify_id_token=by_id_token,
        required_scopes=list(auth.required_scopes),
        valid_scopes=list(auth.scopes),
        **_login(settings),
    )


class _Metadata(BaseModel):
    """Endpoints of an OAuth provider, as it publishes them."""

    issuer: str
    authorization_endpoint: UpstreamUrl
    token_endpoint: UpstreamUrl
    introspection_endpoint: UpstreamUrl | None = None
    jwks_uri: UpstreamUrl | None = None


def _metadata_of(issuer: str) -> _Metadata:
    """Fetch the metadata of a provider.

    Raises:
        UsageError: It publishes none, or that of another issuer.
    """
    address = urlsplit(issuer.rstrip("/"))
    urls = (
        # RFC 8414, section 3.1; OpenID Connect Discovery 1.0, section 4.
        f"{address.scheme}://{address.netloc}/.well-known/oauth-authorization-server{address.path}",
        f"{address.geturl()}/.well-known/openid-configuration",
    )
    for url in urls:
        try:
            answer = httpx2.get(url, timeout=_METADATA_S).raise_for_status()
            found = _Metadata.model_validate_json(answer.content)
        except (httpx2.HTTPError, ValueError) as error:
            log.info("provider metadata unavailable", extra={"url": url, "reason": str(error)})
            continue
        if found.issuer.rstrip("/") == address.geturl():
            return found
    raise UsageError(
        f"auth.issuer {issuer} publishes no metadata of its own with https endpoints, at {urls[0]} or "
        f"{urls[1]}; set it to the issuer that the provider's metadata names"
    )


def _proxy(settings: ServerSettings, name_of: NameOf) -> AuthProvider:
    auth, login = settings.auth, _login(settings)
    provider = _metadata_of(str(auth.issuer))
    verifier: TokenVerifier
    if provider.introspection_endpoint is not None:
        verifier = AskingVerifier(
            introspection_url=provider.introspection_endpoint,
            client_id=str(auth.client_id),
            client_secret=_client_secret(settings),
            required_scopes=list(auth.required_scopes),
            audience=auth.audience,
        )
    elif provider.jwks_uri is not None and auth.audience is not None:
        verifier = TimedVerifier(
            name_of=name_of,
            keys_from=_KEYS_OF_PROVIDER,
            jwks_uri=provider.jwks_uri,
            issuer=provider.issuer,
            algorithm=auth.algorithm,
            audience=auth.audience,
            required_scopes=list(auth.required_scopes),
        )
    else:
        raise UsageError(
            "the metadata of auth.issuer has no introspection_endpoint; without it, access tokens have to be "
            "JWTs, with a jwks_uri in the metadata and their audience in auth.audience"
        )
    proxy = _Proxy(
        upstream_authorization_endpoint=provider.authorization_endpoint,
        upstream_token_endpoint=provider.token_endpoint,
        upstream_client_id=str(auth.client_id),
        upstream_client_secret=login.pop("client_secret"),
        token_verifier=verifier,
        valid_scopes=list(auth.scopes),
        **login,
    )
    proxy.name_of, proxy.checks = name_of, verifier
    return proxy


def _login(settings: ServerSettings) -> dict[str, Any]:
    """Return the options that both kinds of login share."""
    return {
        "client_secret": _client_secret(settings),
        "base_url": base_url(settings),
        # The page of this server is one of the clients.
        "allowed_client_redirect_uris": [
            *settings.auth.client_redirects,
            base_url(settings) + PAGE_LOGIN_DONE,
        ],
        "client_storage": LoginState(settings.state_dir),
        "jwt_signing_key": signing_key(settings.state_dir),
        # Who wants the provider's token for an audience asks for it; some providers refuse the question.
        "forward_resource": settings.auth.audience is not None,
        # Clients register; documents of theirs are not fetched from addresses that strangers name.
        "enable_cimd": False,
    }


def _client_secret(settings: ServerSettings) -> str:
    return _secret("auth.client_secret_file", Path(str(settings.auth.client_secret_file)))


def _secret(setting: str, path: Path) -> str:
    raw = read_private(setting, path, most_bytes=_MOST_SECRET_BYTES)
    try:
        text = raw.decode().strip()
    except UnicodeDecodeError:
        raise UsageError(f"{setting} {path} is not UTF-8 text") from None
    if not text:
        raise UsageError(f"{setting} {path} is empty; write the key or secret into it")
    return text


def _with_root(routes: list[Route]) -> list[Route]:
    described = [route for route in routes if route.path.startswith(f"{WELL_KNOWN}/")]
    root = [Route(WELL_KNOWN, route.endpoint, methods=["GET", "OPTIONS"]) for route in described[:1]]
    return [*routes, *root]
