"""Caller of a request. Decided from settings, transport and verified claims; never from arguments.

1. A server bound to one user (`user`) serves that user and refuses a token of another.
2. Otherwise the claims of a verified token name the user: the first of `identity_claim` that is present.
3. Without a token, on stdio or on a loopback address only, the caller is the user of the operating system.

`client_id` is not among the default claims: two people using one client program would share a home.

Source: architecture, decision "Identity"; requirements S0-55, S0-69, S1-32, S1-105.
"""

import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from runner.errors import RunnerError, UsageError
from runner.settings.parts import ServerSettings
from runner.users.name_rule import accepted_name
from runner.users.resource import base_url, describes_itself, is_loopback
from runner.users.tokens_file import users_by_token
from runner.users.usernames import home_segment

if TYPE_CHECKING:
    from fastmcp.server.auth import AccessToken, AuthProvider, TokenVerifier

__all__ = [
    "IdentityError",
    "User",
    "auth_provider",
    "check_startable",
    "is_loopback",
    "os_user",
    "resolve",
    "unused_auth",
    "user_named",
    "user_of",
]


class IdentityError(RunnerError):
    """A request has no identity, or one that this server does not serve."""


@dataclass(frozen=True, slots=True)
class User:
    """An authenticated user.

    Attributes:
        name: The identity from the token or the operating system; the `username` of tools.
        session: The session of the request, where the protocol has one.
        segment: The folder name of the user's home, and the user's part of store keys.

    Raises:
        IdentityError: The name cannot name a home.
    """

    name: str
    session: str | None = None
    segment: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            segment = home_segment(self.name)
        except ValueError as error:
            raise IdentityError(f"the user name {self.name!r} cannot be used: {error}") from error
        object.__setattr__(self, "segment", segment)


def resolve(
    settings: ServerSettings,
    *,
    transport: Literal["stdio", "http"],
    claims: Mapping[str, Any] | None,
    host: str,
    process_user: str | None = None,
) -> User:
    """Return the user a request comes from.

    Args:
        settings: The server's settings.
        transport: Transport of the request.
        claims: Claims of the verified token, or None without one.
        host: Address the HTTP server listens on; ignored on stdio.
        process_user: User of the operating system; by default the one this process runs as.

    Raises:
        IdentityError: The identity is missing where it is required, or is not the one served.
    """
    if claims is None:
        if transport == "http" and settings.auth.kind != "none":
            raise IdentityError("this request carries no token, and the server needs one; log in first")
        if settings.user is not None:
            return _known(settings.user)
        if transport == "stdio" or is_loopback(host):
            return _known(process_user or os_user())
        raise IdentityError("nothing says who this request comes from; give the server --user or auth.kind")
    return user_named(settings, _claimed(claims, settings.identity_claim))


def user_of(
    settings: ServerSettings, token: "AccessToken | None", *, transport: Literal["stdio", "http"] = "http"
) -> User:
    """Return the user of a verified token, or of a request without one.

    Raises:
        IdentityError: As from `resolve`.
    """
    user = getattr(token, "user", None)
    if isinstance(user, User):
        # A pass. Its user is not a claim: the rules of claims would change the name again.
        return user
    claims = None if token is None else {"client_id": token.client_id, **token.claims}
    return resolve(settings, transport=transport, claims=claims, host=settings.host)


def user_named(settings: ServerSettings, claimed: str) -> User:
    """Return the user of an authenticated claim, or of a gateway's header.

    Raises:
        IdentityError: The name is refused, or is not the one served.
    """
    try:
        named = accepted_name(claimed, pattern=settings.identity_pattern, suffix=settings.identity_suffix)
    except ValueError as error:
        raise IdentityError(
            f"the identity {claimed!r} of the token is not taken here: {error}; "
            "have the login provider name you otherwise, or ask the operator"
        ) from error
    if settings.user not in (None, named):
        raise IdentityError(
            f"this server belongs to the user {settings.user!r}, and the token names {named!r}; "
            "connect to a server of your own"
        )
    return _known(named)


# Cached: checking a name takes longer than everything else about a user.
_known = lru_cache(maxsize=1024)(User)


def check_startable(settings: ServerSettings, transport: Literal["stdio", "http"]) -> None:
    """Refuse a server that would serve strangers.

    Raises:
        UsageError: HTTP would listen beyond this machine with neither tokens nor one user; or logins are
            configured without the address by which users reach the server.
    """
    anybody = settings.user is None and settings.auth.kind == "none"
    if transport == "http" and anybody and not is_loopback(settings.host):
        raise UsageError(
            f"--host {settings.host} is reachable from other machines, and nothing says who may call; "
            "set auth.kind (see docs/settings.md), bind the server to one user with --user, "
            "or listen on 127.0.0.1"
        )
    if transport == "http" and describes_itself(settings):
        base_url(settings)


def os_user() -> str:
    """Return the name of the user this process runs as."""
    return _name_of(os.geteuid())


@lru_cache(maxsize=1)
def _name_of(uid: int) -> str:
    # Cached: otherwise each request would read /etc/passwd.
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        # Usual in containers: a numeric user without an entry.
        return f"uid{uid}"


def auth_provider(
    settings: ServerSettings, of_file: Mapping[str, Any] | None = None
) -> "AuthProvider | None":
    """Return the verifier of bearer tokens for FastMCP, or None without tokens.

    Args:
        settings: The effective settings.
        of_file: The auth of the tool file, see `runner.toolset.catalog`.

    Raises:
        UsageError: The key or the tokens file cannot be used, or the auth of the tool file cannot.
    """
    auth = settings.auth
    if auth.kind == "none":
        return None
    if auth.kind == "file":
        return _as_file_says(settings, of_file)
    # FastMCP takes 0.7 s to import; `config` and `doctor` do without it.
    from fastmcp.server.auth.providers.jwt import StaticTokenVerifier  # noqa: PLC0415

    from runner.users import providers  # noqa: PLC0415

    if auth.tokens_file is not None:
        users = users_by_token(auth.tokens_file)
        return StaticTokenVerifier(
            {token: _static(user, settings.identity_claim) for token, user in users.items()}
        )
    try:
        return providers.of(settings, partial(_name_in, names=settings.identity_claim))
    except ValueError as error:
        raise UsageError(f"the settings under auth cannot be used: {error}") from error


def unused_auth(settings: ServerSettings, of_file: Mapping[str, Any] | None) -> str | None:
    """Return a warning that a file's own auth is not used, or None if it has none."""
    if of_file is None or settings.auth.kind != "none":
        return None
    kind = str(of_file.get("kind"))
    why = f"the file lets in who has a token that its {kind} accepts, and here no token is asked for"
    if _jwt_of(of_file) is not None:
        return f'{why}; to check the same tokens here, set auth.kind = "file" (RUNNER_AUTH__KIND=file)'
    if kind == "StaticTokenVerifier":
        return f'{why}; to take the same tokens here, set auth.kind = "static" and auth.tokens_file'
    return f'{why}: logins run in front of calls, where no file does; check its tokens with auth.kind = "jwt"'


def _as_file_says(settings: ServerSettings, of_file: Mapping[str, Any] | None) -> "TokenVerifier":
    jwt = _jwt_of(of_file)
    if jwt is None:
        what = "has none" if of_file is None else f"has {of_file.get('kind')}, which is not one of these"
        raise UsageError(
            'auth.kind is "file", which takes a JWTVerifier with one issuer and one audience from the file; '
            f'this file {what}: set auth.kind to "jwt" or "static", and say whose tokens count'
        )
    from runner.users.bearer_tokens import TimedVerifier  # noqa: PLC0415 - as in `auth_provider`

    try:
        name_of = partial(_name_in, names=settings.identity_claim)
        return TimedVerifier(name_of=name_of, keys_from="the jwks_uri of the tool file's auth", **jwt)
    except (TypeError, ValueError) as error:
        raise UsageError(f"the auth of the tool file cannot be used: {error}") from error


def _jwt_of(of_file: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the settings of a file's `JWTVerifier`, if tokens can be checked with them here."""
    jwt = None if of_file is None else of_file.get("jwt")
    if not isinstance(jwt, Mapping):
        return None
    texts = {name: jwt.get(name) for name in ("jwks_uri", "public_key", "algorithm", "issuer", "audience")}
    keys = [texts[name] for name in ("jwks_uri", "public_key") if texts[name]]
    is_whole = len(keys) == 1 and all(isinstance(texts[name], str) for name in ("issuer", "audience"))
    if not is_whole or str(texts["algorithm"]).startswith("HS") or not _is_key_address(texts["jwks_uri"]):
        return None
    scopes = jwt.get("required_scopes")
    return {**texts, "required_scopes": list(map(str, scopes)) if isinstance(scopes, list) else None}


def _is_key_address(address: object) -> bool:
    """Return whether keys may be fetched from there, as for the setting: over https, or from this machine."""
    if address is None:
        return True
    parts = urlsplit(str(address))
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))


def _claimed(claims: Mapping[str, Any], names: tuple[str, ...]) -> str:
    for index, name in enumerate(names):
        value = claims.get(name)
        if not isinstance(value, str) or not value:
            continue
        # An unverified address may be somebody else's.
        if name == "email" and claims.get("email_verified", True) not in (True, "true"):
            raise IdentityError(
                "the token's e-mail address is not verified; verify it with your login provider"
            )
        # Another claim with an address could impersonate the holder of that address.
        if "@" in value and "email" in names[:index]:
            raise IdentityError(
                f"the token has no email, and its {name} looks like one; for the operator: name one claim "
                f"by which users are known (identity_claim), such as {name}"
            )
        return value
    raise IdentityError(
        f"the token names no user: it has none of the claims {', '.join(names)} (identity_claim)"
    )


def _name_in(claims: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    try:
        return _claimed(claims, names)
    except IdentityError:
        # The handler of the request reports it.
        return None


def _static(user: str, identity_claim: tuple[str, ...]) -> dict[str, Any]:
    return {**dict.fromkeys(identity_claim, user), "client_id": user, "scopes": []}
