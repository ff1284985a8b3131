"""One username → one path segment: the name of a home, and the user's part of store keys.

The rule is injective, so that no two users share a home. A name that is a safe segment stays unchanged,
since tools write to `/tmp/{username}/` literally. Any other name is encoded and marked by `=`, which
unchanged names never contain.

Source: requirements S1-34, S1-106; contradiction C19; rule U1 of the conformance cases.
"""

import hashlib
import re
from functools import lru_cache

__all__ = ["home_segment", "user_of"]

_MAX_BYTES = 200
_STAYS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}")
# No dot: `..` of a quoted name should not appear in a path, even where it would be harmless.
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_@+-")


@lru_cache(maxsize=1024)
def home_segment(username: str) -> str:
    """Return the path segment of a user.

    Raises:
        ValueError: The name is empty, nothing but NUL characters, or not Unicode text.
    """
    if _STAYS.fullmatch(username):
        return username
    if not username.strip("\0"):
        raise ValueError("a user name needs at least one character that is not NUL")
    try:
        encoded = username.encode()
    except UnicodeEncodeError as error:
        raise ValueError("a user name must be Unicode text; this one holds half of a character") from error
    quoted = "=q" + "".join(chr(byte) if byte in _PLAIN else f"={byte:02X}" for byte in encoded)
    return quoted if len(quoted) <= _MAX_BYTES else f"=h{hashlib.sha256(encoded).hexdigest()}"


def user_of(segment: str) -> str:
    """Return the user of a path segment; the segment itself if it is a digest, which names no user."""
    if not segment.startswith("=q"):
        return segment
    quoted = segment.removeprefix("=q").encode()
    try:
        name = re.sub(rb"=([0-9A-F]{2})", lambda found: bytes([int(found[1], 16)]), quoted).decode()
    except UnicodeDecodeError:
        return segment
    return name if name.strip("\0") and home_segment(name) == segment else segment
