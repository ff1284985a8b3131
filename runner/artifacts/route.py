"""Which way a file goes to its caller: inside the message, or as a reference to the store.

Source: document 001, section 6.2; rule R1 of the conformance cases; contradiction C14.
"""

import enum
from typing import Any

from runner.contract.envelope import too_large

__all__ = ["BUCKET", "NEVER_INLINE", "Route", "route", "s3_ref"]

BUCKET = "user-storage"

# As `inline_max_bytes`: not even an empty file travels inside the message.
NEVER_INLINE = -1


class Route(enum.Enum):
    """The two ways of a file."""

    INLINE = "inline"
    STORE = "store"


def route(size: int, *, inline_max_bytes: int, max_bytes: int) -> Route:
    """Return the way of a file of `size` bytes; the inline limit itself is still inline.

    Raises:
        CallError: `E_FILE_TOO_LARGE` above `max_bytes`.
    """
    if size > max_bytes:
        raise too_large(size, max_bytes)
    return Route.INLINE if size <= inline_max_bytes else Route.STORE


def s3_ref(key: str) -> dict[str, Any]:
    """Return the internal reference to a stored file. Never leaves over MCP."""
    return {"bucket": BUCKET, "key": key, "internal": True}
