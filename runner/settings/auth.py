"""The settings under `auth`: how it is proved who calls over HTTP, and what belongs to which way.

Source: architecture, decision "Identity"; `docs/identity.md`.
"""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from runner.settings.values import (
    CertificateNames,
    EachName,
    KeyUrl,
    Networks,
    PrivatePath,
    PublicPath,
    UpstreamUrl,
    UpstreamUrls,
    https_url,
)

__all__ = ["Auth"]

_LOGINS = ("oauth_proxy", "oidc")
_AUTH_OF = {
    "jwks_uri": ("jwt", "oauth_proxy"),
    "public_key": ("jwt",),
    "issuer": ("jwt", *_LOGINS),
    "audience": ("jwt", *_LOGINS),
    "authorization_servers": ("jwt",),
    "required_scopes": ("jwt", *_LOGINS),
    "client_id": _LOGINS,
    "client_secret": _LOGINS,
    "client_secret_file": _LOGINS,
    "authorization_endpoint": ("oauth_proxy",),
    "token_endpoint": ("oauth_proxy",),
    "introspection_endpoint": ("oauth_proxy",),
    "tokens_file": ("static",),
    "gateway_addresses": ("gateway",),
    "gateway_certificate": ("gateway",),
    "gateway_key": ("gateway",),
    "gateway_ca": ("gateway",),
    "gateway_names": ("gateway",),
}
"""Of which kinds of `Auth` a setting is; of any that is not named here, of all."""


_TLS = ("gateway_certificate", "gateway_key", "gateway_ca", "gateway_names")
"""What belongs together: with it the server listens with TLS only, and asks for a certificate."""


class Auth(BaseModel):
    """Who may call over HTTP, and how that is proved."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["none", "jwt", "static", "file", "oauth_proxy", "oidc", "gateway"] = Field(
        "none",
        description="How it is proved who calls: not at all; by a token that is a JWT, stands in a list, or "
        "is as the tool file says; by a login here, with an OAuth or OpenID provider; or by a gateway.",
    )
    jwks_uri: KeyUrl | None = Field(
        None, description="Where the issuer publishes its keys; for `jwt`, instead of `public_key`."
    )
    public_key: SecretStr | None = Field(
        None, description="The issuer's key as PEM text, or the shared secret of an HS algorithm; for `jwt`."
    )
    algorithm: str = Field("RS256", description="The one signature algorithm accepted; for `jwt`.")
    issuer: str | None = Field(None, min_length=1, description="The `iss` a token must carry; for `jwt`.")
    audience: str | None = Field(
        None, min_length=1, description="The `aud` a token must carry, so that one for elsewhere is refused."
    )
    required_scopes: EachName = Field((), description="Scopes that every token must have.")
    authorization_servers: UpstreamUrls = Field(
        (), description="Where clients get tokens, told to them; for `jwt`."
    )
    client_id: str | None = Field(
        None, min_length=1, description="As what this server is registered with its login provider."
    )
    client_secret: SecretStr | None = Field(None, description="The secret that belongs to `client_id`.")
    client_secret_file: PrivatePath | None = Field(
        None, description="File with that secret, not readable by others; instead of `client_secret`."
    )
    authorization_endpoint: UpstreamUrl | None = Field(
        None, description="Where users log in; for `oauth_proxy`."
    )
    token_endpoint: UpstreamUrl | None = Field(None, description="Where tokens come from; for `oauth_proxy`.")
    introspection_endpoint: UpstreamUrl | None = Field(
        None, description="Where it is asked whose a token is, if it is no JWT; for `oauth_proxy`."
    )
    login_scopes: EachName = Field(
        ("openid", "email"), description="Scopes that a login asks its provider for."
    )
    client_redirects: EachName = Field(
        ("http://localhost:*", "http://127.0.0.1:*"),
        description="Where a login may lead back to: addresses of MCP clients, `*` for any piece.",
    )
    gateway_header: str = Field(
        "X-Forwarded-User",
        pattern=r"^[A-Za-z][A-Za-z0-9-]{0,63}$",
        description="Header in which a gateway names its user; for `gateway`.",
    )
    gateway_addresses: Networks = Field(
        (), description="Addresses and networks from which that header counts; from others it is refused."
    )
    gateway_certificate: PublicPath | None = Field(
        None,
        description="PEM file with this server's certificate and its chain: with it the server listens with "
        "TLS only, and takes connections of clients with a certificate only.",
    )
    gateway_key: PrivatePath | None = Field(
        None, description="PEM file with the key of that certificate, not readable by others."
    )
    gateway_ca: PublicPath | None = Field(
        None, description="PEM file with the authorities whose client certificates count."
    )
    gateway_names: CertificateNames = Field(
        (),
        description="DNS names and URIs, one of which the client certificate of a gateway carries as "
        "subjectAltName, to the letter; from others the header is refused.",
    )
    tokens_file: PrivatePath | None = Field(
        None, description="JSON object from token to user name, not readable by others; for `static`."
    )

    @model_validator(mode="after")
    def _belongs_together(self) -> Self:
        for name, kinds in _AUTH_OF.items():
            if getattr(self, name) and self.kind not in kinds:
                raise ValueError(
                    f"auth.{name} is given, but auth.kind is {self.kind}; set it to "
                    + " or ".join(f'"{kind}"' for kind in kinds)
                )
        if self.kind == "static" and not self.tokens_file:
            raise ValueError('auth.kind is "static", which needs auth.tokens_file')
        if self.kind == "gateway":
            self._is_whole_gateway()
        if self.kind == "jwt":
            self._is_whole_jwt()
        if self.kind in ("oauth_proxy", "oidc"):
            self._is_whole_login()
        return self

    def _is_whole_gateway(self) -> None:
        given = [name for name in _TLS if getattr(self, name)]
        if given and len(given) < len(_TLS):
            raise ValueError(
                f"auth.{given[0]} is given, and TLS with a gateway also needs "
                + " and ".join(f"auth.{name}" for name in _TLS if name not in given)
            )
        if not given and not self.gateway_addresses:
            raise ValueError(
                'auth.kind is "gateway", which needs auth.gateway_addresses, or for a gateway with a '
                "certificate " + ", ".join(f"auth.{name}" for name in _TLS)
            )

    def _is_whole_jwt(self) -> None:
        if bool(self.jwks_uri) == bool(self.public_key):
            raise ValueError('auth.kind is "jwt", which needs one of auth.jwks_uri and auth.public_key')
        if not self.issuer or not (self.audience or self.authorization_servers):
            raise ValueError(
                'auth.kind is "jwt", which needs auth.issuer and auth.audience: '
                "without them a token made for another service would be accepted"
            )

    def _is_whole_login(self) -> None:
        if not self.client_id or bool(self.client_secret) == bool(self.client_secret_file):
            raise ValueError(
                f'auth.kind is "{self.kind}", which needs auth.client_id and one of auth.client_secret and '
                "auth.client_secret_file"
            )
        if self.kind == "oidc":
            if not self.issuer:
                raise ValueError('auth.kind is "oidc", which needs auth.issuer')
            https_url(self.issuer)
        if self.kind == "oauth_proxy" and not (self.authorization_endpoint and self.token_endpoint):
            raise ValueError(
                'auth.kind is "oauth_proxy", which needs auth.authorization_endpoint and auth.token_endpoint'
            )
        checks_jwt = self.jwks_uri and self.issuer and self.audience
        if self.kind == "oauth_proxy" and bool(checks_jwt) == bool(self.introspection_endpoint):
            raise ValueError(
                'auth.kind is "oauth_proxy", which needs either auth.introspection_endpoint, or '
                "auth.jwks_uri, auth.issuer and auth.audience, to know whose a token of the provider is"
            )
