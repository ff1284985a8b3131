"""Route of a file to its caller: inside the message, or as a reference to the store.

Source: document 001, section 6.2; rule R1 of the conformance cases; contradiction C14; requirements S1-15,
S1-17, S1-25, S1-26, S1-69, S1-70, S1-75 and S1-112.
"""

import enum
from typing import Any

from runner.contract.error_messages import too_large
from runner.errors import CallError, Code
from runner.store.protocol import Record
from runner.users.usernames import home_segment

__all__ = ["BUCKET", "NEVER_INLINE", "Route", "route", "s3_ref", "too_many_bytes"]

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


def too_many_bytes(size: int, taken_bytes: int, limit: int) -> CallError:
    """Return the error of a file for which the files before it left no room."""
    return CallError(
        Code.E_FILE_TOO_LARGE,
        f"The files of this call would be more than {limit} bytes together",
        details={
            "file_size_bytes": size,
            "taken_bytes": taken_bytes,
            "current_limit_bytes": limit,
            "suggestion": "Return fewer or smaller files in one call",
        },
    )


def s3_ref(record: Record) -> dict[str, Any]:
    """Return the internal reference of a result to a stored file, `s3_ref`. It never leaves over MCP.

    Its key is the store's own or, where that has none, what it would be in an object store.
    """
    user = home_segment(record.scope.user_id or "")
    key = record.key or f"{user}/artifacts/{record.created:%Y%m%d}/{record.name}"
    return {"s3_ref": {"bucket": BUCKET, "key": key, "internal": True}}
