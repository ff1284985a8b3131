"""FastMCP's auth providers, by the settings.

1. `jwt`: tokens of an authorisation server, verified here. If the settings name that server, this one
   describes itself as a protected resource, and its address is the default audience of tokens.
2. `oauth_proxy`, `oidc`: clients log in here, and this server logs the user in with its provider. Clients get
   tokens of ours, never those of the provider; these stay in the state folder.

3. `gateway`: tokens are not accepted; `runner.http.gateway` identifies the caller.

The provider's own token determines the user, and is verified on each request.

Source: RFC 8414; RFC 9728; RFC 8707; RFC 9700, 2.1 and 4.1; MCP specification 2025-11-25, "Authorization".
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import httpx2
from fastmcp.server.auth import (
    AccessToken,
    AuthProvider,
    OIDCProxy,
    RemoteAuthProvider,
    TokenVerifier,
)
from fastmcp.server.auth.oidc_proxy import OIDCConfiguration
from pydantic import AnyHttpUrl, TypeAdapter, UrlConstraints
from starlette.routing import Route

from runner.errors import UsageError
from runner.settings.auth import Auth
from runner.settings.parts import ServerSettings
from runner.settings.values import https_url
from runner.system.private_files import read_private
from runner.users.asked_tokens import AskingVerifier
from runner.users.bearer_tokens import TimedVerifier
from runner.users.login_state import LoginState, signing_key
from runner.users.resource import LOGINS, PAGE_LOGIN_DONE, WELL_KNOWN, base_url, resource_url
from runner.users.token_checks import tokens_fault

__all__ = ["of"]

# Exact: clients compare it with the address in the server's metadata, which may lack a trailing slash.
_URL = TypeAdapter(Annotated[AnyHttpUrl, UrlConstraints(preserve_empty_path=True)])

_MOST_SECRET_BYTES = 64 * 1024
_METADATA_S = 10.0
_MOST_METADATA_BYTES = 256 * 1024
# Optional endpoints of a provider.
_OPTIONAL = ("jwks_uri", "introspection_endpoint", "revocation_endpoint")

NameOf = Callable[[Mapping[str, object]], str | None]


def of(settings: ServerSettings, name_of: NameOf) -> AuthProvider:
    """Return the provider for tokens of an issuer, or for logins.

    Args:
        settings: The effective settings; `auth.kind` is `jwt`, `oauth_proxy`, `oidc` or `gateway`.
        name_of: Returns the name of the user that claims identify, or None.

    Raises:
        UsageError: The secret cannot be read, or no setting has the address by which users reach this server.
        ValueError: FastMCP does not accept the settings.
    """
    auth, kind = settings.auth, settings.auth.kind
    if kind in LOGINS:
        return _login(settings, name_of)
    if kind == "gateway":
        return _NoTokens()
    verifier = TimedVerifier(
        name_of=name_of,
        jwks_uri=auth.keys if isinstance(auth.keys, str) else None,
        public_key=_public_key(auth.keys) if isinstance(auth.keys, Path) else None,
        algorithm=auth.algorithm,
        issuer=auth.issuer,
        audience=auth.audience or resource_url(settings),
        required_scopes=list(auth.required_scopes),
    )
    if not auth.authorization_servers:
        return verifier
    return _Resource(
        token_verifier=verifier,
        authorization_servers=[_URL.validate_python(server) for server in auth.authorization_servers],
        base_url=base_url(settings),
        scopes_supported=list(auth.scopes) or None,
    )


class _NoTokens(TokenVerifier):
    """A verifier that accepts no token: the gateway identifies the caller."""

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return None."""
        return None


class _Resource(RemoteAuthProvider):
    """FastMCP's provider with metadata at the root as well: some clients look only there."""

    async def fault(self) -> str | None:
        """Return the reason why no token can be checked now; None if one can."""
        return await tokens_fault(self.token_verifier)

    def get_routes(self, mcp_path: str | None = None) -> list[Route]:
        """Return the routes on which the server describes itself."""
        return _with_root(super().get_routes(mcp_path))


class _Login(OIDCProxy):
    """FastMCP's proxy of a provider that publishes metadata; its tokens are verified like all others.

    Args:
        settings: The effective settings.
        name_of: Returns the name of the user that claims identify, or None.
        options: Options of FastMCP's proxy.
    """

    checks: TokenVerifier

    def __init__(self, *, settings: ServerSettings, name_of: NameOf, **options: Any) -> None:
        self._settings = settings
        self._name_of = name_of
        super().__init__(**options)

    async def fault(self) -> str | None:
        """Return the reason why no token of the provider, and so none of ours, can be checked; else None."""
        return await tokens_fault(self.checks)

    def get_oidc_configuration(
        self,
        config_url: AnyHttpUrl,
        strict: bool | None,  # noqa: FBT001 - FastMCP's
        timeout_seconds: int | None,
    ) -> OIDCConfiguration:
        """Return the metadata of the provider. The arguments are FastMCP's."""
        return _metadata_of(self._settings.auth)

    def get_token_verifier(
        self,
        *,
        algorithm: str | None = None,
        audience: str | None = None,
        required_scopes: list[str] | None = None,
        timeout_seconds: int | None = None,
    ) -> TokenVerifier:
        """Return the verifier of the provider's tokens. The arguments are FastMCP's."""
        auth, provider = self._settings.auth, self.oidc_config
        if auth.kind == "oauth_proxy" and provider.introspection_endpoint is not None:
            self.checks = AskingVerifier(
                introspection_url=str(provider.introspection_endpoint),
                client_id=str(auth.client_id),
                client_secret=_client_secret(self._settings),
                required_scopes=required_scopes,
                audience=audience,
            )
            return self.checks
        if provider.jwks_uri is None or audience is None:
            raise ValueError(
                "the metadata of auth.issuer has no introspection_endpoint for oauth_proxy; without it, set "
                "auth.audience, and have the metadata name the provider's jwks_uri"
            )
        self.checks = TimedVerifier(
            name_of=self._name_of,
            keys_from="the jwks_uri of the provider of auth.issuer",
            jwks_uri=str(provider.jwks_uri),
            issuer=str(provider.issuer),
            algorithm=algorithm,
            audience=audience,
            required_scopes=required_scopes,
        )
        return self.checks

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return the claims of a token, without the provider's own token, which no tool may have."""
        found = await super().verify_token(token)
        if found is None:
            return None
        name = self._name_of({"client_id": found.client_id, **found.claims})
        return found.model_copy(update={"token": token, "subject": name or found.subject})

    def get_routes(self, mcp_path: str | None = None) -> list[Route]:
        """Return the routes of logins, and those on which the server describes itself."""
        return _with_root(super().get_routes(mcp_path))


def _metadata_of(auth: Auth) -> OIDCConfiguration:
    """Fetch the metadata of a provider.

    Raises:
        UsageError: It has no usable metadata.
    """
    issuer = str(auth.issuer).rstrip("/")
    parts = urlsplit(issuer)
    # RFC 8414, section 3.1; OpenID Connect Discovery 1.0, section 4.
    plain = f"{parts.scheme}://{parts.netloc}/.well-known/oauth-authorization-server{parts.path}"
    openid = f"{issuer}/.well-known/openid-configuration"
    found, problem = None, ""
    for url in (openid,) if auth.kind == "oidc" else (plain, openid):
        try:
            found = OIDCConfiguration.model_validate({**_fetched(url), "strict": False})
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            reason = str(error).partition("\n")[0]
            problem = f"{url}: {reason or type(error).__name__}"
        else:
            break
    if found is None:
        raise UsageError(
            f"auth.issuer {auth.issuer} publishes no metadata that can be used ({problem}); check the "
            "address, and that it can be reached from here"
        )
    if str(found.issuer).rstrip("/") != issuer:
        raise UsageError(
            f"the metadata of auth.issuer {auth.issuer} is of the issuer {found.issuer}; set auth.issuer to "
            "the issuer that it names, if that is the provider"
        )
    for name in ("authorization_endpoint", "token_endpoint", *_OPTIONAL):
        endpoint = getattr(found, name)
        if endpoint is None and name in _OPTIONAL:
            continue
        try:
            https_url(str(endpoint or ""))
        except ValueError as error:
            raise UsageError(
                f"the metadata of auth.issuer {auth.issuer} has the {name} {endpoint}: {error}"
            ) from None
    return found


def _fetched(url: str) -> dict[str, Any]:
    """Return the JSON object at an address.

    Raises:
        httpx2.HTTPError: It cannot be reached, or its status is not 2xx.
        ValueError: It is too long, too slow, or not a JSON object.
    """
    content, ends = b"", time.monotonic() + _METADATA_S
    with httpx2.stream("GET", url, timeout=_METADATA_S) as answer:
        answer.raise_for_status()
        for piece in answer.iter_bytes():
            content += piece
            if len(content) > _MOST_METADATA_BYTES or time.monotonic() > ends:
                raise ValueError(f"above {_MOST_METADATA_BYTES} bytes or {_METADATA_S:.0f} s")
    found = json.loads(content)
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - it is what the provider says, as other faults
    return found


def _login(settings: ServerSettings, name_of: NameOf) -> AuthProvider:
    auth = settings.auth
    # The format of an access token is up to the provider; an ID token is always a JWT with our audience.
    by_id_token = auth.kind == "oidc" and auth.audience is None
    return _Login(
        settings=settings,
        name_of=name_of,
        config_url=str(auth.issuer),
        client_id=str(auth.client_id),
        client_secret=_client_secret(settings),
        algorithm=auth.algorithm,
        audience=auth.audience,
        verify_id_token=by_id_token,
        required_scopes=list(auth.required_scopes),
        valid_scopes=list(auth.scopes),
        base_url=base_url(settings),
        # The playground page is one of the clients.
        allowed_client_redirect_uris=[*auth.client_redirects, base_url(settings) + PAGE_LOGIN_DONE],
        client_storage=LoginState(settings.state_dir),
        jwt_signing_key=signing_key(settings.state_dir),
        # `resource` is forwarded only if an audience is configured: some providers refuse it.
        forward_resource=auth.audience is not None,
        # Clients register instead: their metadata documents would be fetched from addresses of strangers.
        enable_cimd=False,
    )


def _public_key(path: Path) -> str:
    if not os.path.exists(path):
        # Without the value, which may be the key itself.
        raise UsageError("auth.keys names no file; give the address of the keys, or a file with the key")
    return _secret("auth.keys", path)


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
