"""Where the Redis of a fleet is, and whether calls may be entrusted to the way there.

Whoever can write to it decides what worker nodes do, and whoever can read it reads arguments and results of
all users. So beyond this machine it must be reached over TLS and with a password, unless the operator says
that the network itself is safe.

Source: the schemes `redis` and `rediss`, registered with IANA; redis-py, `Redis.from_url`.
"""

import ipaddress
import socket
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import SplitResult, urlsplit

from runner.errors import UsageError

__all__ = ["RedisAddress", "addresses_of"]

_PORT = 6379
_SCHEMES = ("redis", "rediss", "unix")


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """An address of Redis, checked.

    Attributes:
        url: The address, with its password; for the client alone.
    """

    url: str = field(repr=False)

    @classmethod
    def checked(cls, url: str, *, insecure: bool) -> Self:
        """Return an address that may be used.

        Args:
            url: The address.
            insecure: Whether one beyond this machine may do without TLS and password.

        Raises:
            UsageError: It is no address of Redis, or the way there is open to others.
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
                f"redis_url: Redis at {shown(parts)} is on another machine and would be reached without "
                f"{' and '.join(lacking)}; write rediss://:PASSWORD@HOST:PORT, or, where nobody else is on "
                "that network, add --redis-insecure"
            )
        return cls(url)

    @property
    def shown(self) -> str:
        """Return it without its password."""
        return shown(urlsplit(self.url))

    @property
    def place(self) -> tuple[str, int] | None:
        """Return its host and port; None for a socket in the file system."""
        parts = urlsplit(self.url)
        return None if parts.scheme == "unix" else (parts.hostname or "localhost", parts.port or _PORT)


def shown(parts: SplitResult) -> str:
    """Return an address of Redis without its password."""
    if parts.scheme == "unix":
        return f"unix://{parts.path}"
    return f"{parts.scheme}://{parts.hostname}:{parts.port or _PORT}"


def addresses_of(place: tuple[str, int]) -> tuple[str, ...]:
    """Return the numeric addresses of a host and port as a policy has them; none where it is unknown now."""
    host, port = place
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return ()
    numeric = dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found)
    return tuple(f"[{one}]:{port}" if ":" in one else f"{one}:{port}" for one in numeric)


def _lacking(parts: SplitResult) -> list[str]:
    """Return what the way to Redis lacks, if it leads to another machine."""
    if parts.scheme == "unix" or _is_here(parts.hostname or "localhost"):
        return []
    found = [] if parts.scheme == "rediss" else ["TLS"]
    return found if parts.password else [*found, "a password"]


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
