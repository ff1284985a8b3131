"""Protocol versions that the tests' clients use, and a way to make clients propose one."""

from collections.abc import Iterator
from contextlib import contextmanager

from mcp.client import session

__all__ = ["NEWEST", "NEWEST_SESSION", "SESSION", "proposed"]

SESSION, NEWEST_SESSION, NEWEST = "2025-06-18", "2025-11-25", "2026-07-28"


@contextmanager
def proposed(version: str) -> Iterator[None]:
    """Make the SDK's clients propose a version, if they make a handshake."""
    # Replaced in the module that imported it, where clients read it.
    names = vars(session)
    newest = names["LATEST_HANDSHAKE_VERSION"]
    names["LATEST_HANDSHAKE_VERSION"] = min(version, NEWEST_SESSION)
    try:
        yield
    finally:
        names["LATEST_HANDSHAKE_VERSION"] = newest
