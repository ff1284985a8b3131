"""Address of a fleet's Redis, and the check that the connection is safe.

Write access to it controls what worker nodes do; read access reveals arguments and results of
all users. So beyond this machine it must be reached over TLS, with its certificate checked, and with a
password, unless the operator says that the network itself is safe.

Source: the schemes `redis` and `rediss`, registered with IANA; redis-py, `Redis.from_url`.
"""

import ipaddress
from urllib.parse import SplitResult, parse_qs, urlsplit

from runner.errors import UsageError

__all__ = ["checked_address", "shown_address"]

_PORT = 6379
_SCHEMES = ("redis", "rediss", "unix")


def checked_address(url: str, *, insecure: bool) -> str:
    """Return an address of Redis that may be used.

    Args:
        url: The address.
        insecure: Whether one beyond this machine may do without TLS and password.

    Raises:
        UsageError: It is not an address of Redis, or the way there is open to others.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise UsageError(f"redis_url: {error}; write redis://HOST:PORT or rediss://…") from error
    if parts.scheme not in _SCHEMES or not (parts.hostname or parts.path):
        raise UsageError(
            "redis_url is written as redis://HOST:PORT/0, rediss://:PASSWORD@HOST:PORT/0 or unix:///path"
        )
    lacking = _lacking(parts)
    if lacking and not insecure:
        raise UsageError(
            f"redis_url: Redis at {shown_address(url)} is on another machine and would be reached without "
            f"{' and '.join(lacking)}; write rediss://:PASSWORD@HOST:PORT (?ssl_ca_certs=FILE for a CA "
            "of your own), or, where nobody else is on that network, add --redis-insecure"
        )
    return url


def shown_address(url: str) -> str:
    """Return an address of Redis without its password."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return f"unix://{parts.path}"
    return f"{parts.scheme}://{parts.hostname}:{parts.port or _PORT}"


def _lacking(parts: SplitResult) -> list[str]:
    """Return the protection that the connection to Redis lacks, if it leads to another machine."""
    if parts.scheme == "unix" or _is_here(parts.hostname or "localhost"):
        return []
    found = []
    if parts.scheme != "rediss":
        found.append("TLS")
    elif not _is_verified(parts):
        found.append("a check of its certificate (ssl_cert_reqs, ssl_check_hostname)")
    return found if parts.password else [*found, "a password"]


def _is_verified(parts: SplitResult) -> bool:
    """Return whether the client verifies the server's certificate; the address can disable that."""
    options = parse_qs(parts.query, keep_blank_values=True)
    needed, names = options.get("ssl_cert_reqs", ["required"]), options.get("ssl_check_hostname", ["true"])
    return set(needed) == {"required"} and {name.lower() for name in names} <= {"true", "1", "yes"}


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
