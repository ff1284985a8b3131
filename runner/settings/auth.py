"""The settings under `auth`: authentication of callers over HTTP, and the settings of each kind.

Source: architecture, decision "Identity"; `docs/serving.md`.
"""

from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from runner.settings.values import (
    CertificateNames,
    EachName,
    KeySource,
    Networks,
    PrivatePath,
    SettingsTable,
    UpstreamUrls,
    https_url,
)

__all__ = ["Auth"]


@dataclass(frozen=True, slots=True)
class _For:
    """The kinds of `Auth` that a setting belongs to; without this mark, all of them."""

    kinds: tuple[str, ...]


_JWT = _For(("jwt",))
_STATIC = _For(("static",))
_GATEWAY = _For(("gateway",))
_LOGINS = _For(("oauth_proxy", "oidc"))
_TOKENS = _For(("jwt", "oauth_proxy", "oidc"))

_NEEDS = {
    "static": ("tokens_file",),
    "jwt": ("keys",),
    **dict.fromkeys(("oidc", "oauth_proxy"), ("client_id", "client_secret_file", "issuer")),
}
"""Settings that a kind requires."""

_TLS = ("gateway_tls", "gateway_names")
"""Settings that go together: with them the server requires TLS and a client certificate."""


class Auth(SettingsTable):
    """Authentication of callers over HTTP."""

    kind: Literal["none", "jwt", "static", "file", "oauth_proxy", "oidc", "gateway"] = Field(
        "none",
        description="Authentication method. Tokens checked here: `jwt`, `static`, or `file`, by the tool "
        "file's own `JWTVerifier` ([serving.md](serving.md#auth-of-a-tool-file)). Logins here: "
        "`oauth_proxy`, `oidc`. A header of a gateway in front: `gateway`. See "
        "[serving.md](serving.md#authentication).",
    )
    keys: Annotated[KeySource | None, _JWT] = Field(
        None,
        description="For `jwt`: the address of the issuer's keys (JWKS; https, or loopback), or a file of "
        "mode 0600 with its public key in PEM form, or with the secret of an HS algorithm.",
    )
    algorithm: str = Field(
        "RS256", description="The only accepted signature algorithm, for `jwt`, `oauth_proxy` and `oidc`."
    )
    issuer: Annotated[str | None, _TOKENS] = Field(
        None,
        min_length=1,
        description="Required `iss` of a token, for `jwt`. For `oidc` and `oauth_proxy` the provider, whose "
        "metadata is read at start: its address before `/.well-known/openid-configuration`.",
    )
    audience: Annotated[str | None, _TOKENS] = Field(
        None,
        min_length=1,
        description="Required `aud` of a token, so that a token for another service is refused. Required for "
        "`jwt`; with `auth.authorization_servers` it defaults to the address of `/mcp`. With it, `oidc` "
        "checks access tokens of the provider instead of ID tokens; `oauth_proxy` needs it if the provider "
        "offers no introspection. Tokens need an expiry (`exp`); one whose "
        "`nbf` is more than 60 s ahead is refused.",
    )
    required_scopes: Annotated[EachName, _TOKENS] = Field(
        (),
        description="Scopes that every token must have; others get status 403. A login requests them: with "
        "`oidc` beside `openid` and `email`, with `oauth_proxy` instead of these two.",
    )
    authorization_servers: Annotated[UpstreamUrls, _JWT] = Field(
        (),
        description="For `jwt`: issuers of tokens. They are published to clients, which log in after the "
        "first 401. Needs `public_url`, or a fixed port on loopback.",
    )
    client_id: Annotated[str | None, _LOGINS] = Field(
        None,
        min_length=1,
        description="This server's client id at the login provider, for `oauth_proxy` and `oidc`.",
    )
    client_secret_file: Annotated[PrivatePath | None, _LOGINS] = Field(
        None, description="A file with the secret of that client id, mode 0600."
    )
    client_redirects: EachName = Field(
        ("http://localhost:*", "http://127.0.0.1:*"),
        description="For `oauth_proxy` and `oidc`: allowed redirect URIs of MCP clients, `*` for any part. "
        "Add those of hosted clients.",
    )
    gateway_header: str = Field(
        "X-Forwarded-User",
        pattern=r"^[A-Za-z][A-Za-z0-9-]{0,63}$",
        description="For `gateway`: the header with the user's name.",
    )
    gateway_addresses: Annotated[Networks, _GATEWAY] = Field(
        (),
        description="For `gateway`: addresses and networks, such as `10.0.0.5, 10.1.0.0/16`, from which that "
        "header counts. Optional with a client certificate, where it narrows further.",
    )
    gateway_tls: Annotated[PrivatePath | None, _GATEWAY] = Field(
        None,
        description="For `gateway`: folder of `tls.crt`, `tls.key` and `ca.crt`, as a Kubernetes Secret has "
        "them. With it and `auth.gateway_names` the server accepts only TLS connections with a client "
        "certificate of an authority in `ca.crt` ([serving.md](serving.md#a-gateway-with-a-certificate)). No "
        "tool can read it.",
    )
    gateway_names: Annotated[CertificateNames, _GATEWAY] = Field(
        (),
        description="DNS names and URIs, such as `gateway.example.com, spiffe://example.com/gateway`. The "
        "header counts on connections whose client certificate has one of them as subjectAltName, compared "
        "exactly, without wildcards.",
    )
    tokens_file: Annotated[PrivatePath | None, _STATIC] = Field(
        None,
        description="For `static`: a JSON object from token to user name, mode 0600, tokens of 16 "
        "characters or more.",
    )

    @property
    def scopes(self) -> tuple[str, ...]:
        """Return the scopes that clients and logins request."""
        usual = ("openid", "email")
        match self.kind:
            case "oidc":
                return tuple(dict.fromkeys((*usual, *self.required_scopes)))
            case "oauth_proxy":
                return self.required_scopes or usual
            case _:
                return self.required_scopes

    @model_validator(mode="after")
    def _belongs_together(self) -> Self:
        for name, field in type(self).model_fields.items():
            for mark in field.metadata:
                if isinstance(mark, _For) and getattr(self, name) and self.kind not in mark.kinds:
                    kinds = " or ".join(f'"{kind}"' for kind in mark.kinds)
                    raise ValueError(
                        f'auth.{name} is given, but auth.kind is "{self.kind}"; set it to {kinds}'
                    )
        if missing := [name for name in _NEEDS.get(self.kind, ()) if not getattr(self, name)]:
            needed = " and ".join(f"auth.{name}" for name in missing)
            raise ValueError(f'auth.kind is "{self.kind}", which needs {needed}')
        if self.kind == "gateway":
            self._is_whole_gateway()
        if self.kind == "jwt":
            self._is_whole_jwt()
        if self.kind in _LOGINS.kinds and self.issuer:
            https_url(self.issuer)
        return self

    def _is_whole_gateway(self) -> None:
        present = [name for name in _TLS if getattr(self, name)]
        if present and len(present) < len(_TLS):
            raise ValueError(
                f"auth.{present[0]} is given, and TLS with a gateway also needs "
                + " and ".join(f"auth.{name}" for name in _TLS if name not in present)
            )
        if not present and not self.gateway_addresses:
            raise ValueError(
                'auth.kind is "gateway", which needs auth.gateway_addresses, or for a gateway with a '
                "certificate " + ", ".join(f"auth.{name}" for name in _TLS)
            )

    def _is_whole_jwt(self) -> None:
        if not self.issuer or not (self.audience or self.authorization_servers):
            raise ValueError(
                'auth.kind is "jwt", which needs auth.issuer and auth.audience: '
                "without them a token made for another service would be accepted"
            )
