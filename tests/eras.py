"""The versions of the protocol that clients of the tests speak, and how they are made to."""

from collections.abc import Iterator
from contextlib import contextmanager

from mcp.client import session

__all__ = ["NEWEST", "NEWEST_SESSION", "SESSION", "proposed"]

SESSION, NEWEST_SESSION, NEWEST = "2025-06-18", "2025-11-25", "2026-07-28"


@contextmanager
def proposed(version: str) -> Iterator[None]:
    """Let Python's clients propose a version in the handshake, where there is one."""
    # The module has it from elsewhere, and clients read it there.
    names = vars(session)
    newest = names["LATEST_HANDSHAKE_VERSION"]
    names["LATEST_HANDSHAKE_VERSION"] = min(version, NEWEST_SESSION)
    try:
        yield
    finally:
        names["LATEST_HANDSHAKE_VERSION"] = newest
