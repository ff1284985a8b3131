"""This server as a protected resource: its address, and that of its metadata.

Clients request a token for this address from an authorisation server, and read here where to log in. So it
must be the address by which they reach this server: `public_url`, or on this machine the listening address.

Source: RFC 9728, sections 2, 3 and 5.1; RFC 8707, section 2; MCP specification 2025-11-25, "Authorization".
"""

from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from runner.errors import UsageError
from runner.settings.parts import ServerSettings

__all__ = [
    "LOGINS",
    "MCP_PATH",
    "PAGE_LOGIN",
    "PAGE_LOGIN_DONE",
    "WELL_KNOWN",
    "base_url",
    "describes_itself",
    "is_loopback",
    "metadata_url",
    "resource_url",
]

MCP_PATH = "/mcp"

LOGINS = ("oauth_proxy", "oidc")
"""The kinds of auth with which users log in here, at a provider."""

PAGE_LOGIN, PAGE_LOGIN_DONE = "/play/login", "/play/login/done"
"""Start of a browser login at the provider, and its redirect target."""

WELL_KNOWN = "/.well-known/oauth-protected-resource"
"""Prefix of the path of protected resource metadata (RFC 9728)."""


@lru_cache(maxsize=8)
def is_loopback(host: str) -> bool:
    """Return whether an address to listen on is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        # Another name may resolve to any address, and its address may change.
        return False


def base_url(settings: ServerSettings) -> str:
    """Return the address by which clients reach this server, without a trailing slash.

    Raises:
        UsageError: It is not configured.
    """
    if settings.public_url is not None:
        return settings.public_url
    if is_loopback(settings.host) and settings.port:
        return f"{settings.scheme}://{settings.host}:{settings.port}"
    raise UsageError(
        "logins need the address by which users reach this server; set public_url, "
        "such as https://tools.example.com"
    )


def resource_url(settings: ServerSettings) -> str:
    """Return the audience that a token must have, if its issuer follows RFC 8707.

    Raises:
        UsageError: As from `base_url`.
    """
    return base_url(settings) + MCP_PATH


def describes_itself(settings: ServerSettings) -> bool:
    """Return whether the server describes itself as a protected resource."""
    return bool(settings.auth.authorization_servers) or settings.auth.kind in LOGINS


def metadata_url(settings: ServerSettings) -> str | None:
    """Return the address of the metadata for logging in, if the server describes itself."""
    if not describes_itself(settings):
        return None
    parts = urlsplit(resource_url(settings))
    return f"{parts.scheme}://{parts.netloc}{WELL_KNOWN}{parts.path}"
