"""Whether an address is this machine's alone."""

from functools import lru_cache
from ipaddress import ip_address

__all__ = ["is_loopback"]


@lru_cache(maxsize=8)
def is_loopback(host: str) -> bool:
    """Say whether an address to listen on is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        # Another name may resolve to anything, and to something else tomorrow.
        return False
