"""Paths in error texts: of libraries in C and Rust, of SQLite, and of programs that were run.

Pure decisions. The path in an error is trusted only for the explanation: a tool that forges such an error
gets its explanation and nothing else.

Source: strerror(3); the messages of pyarrow, polars, SQLite, coreutils and dash.
"""

import re
import sqlite3
import subprocess
from collections.abc import Iterator

__all__ = ["named_paths", "wants_socket"]

_MOST_CHARS = 16_384
_DENIED = re.compile(
    r"permission denied|no permission to access|operation not permitted|read-only file system"
    r"|unable to open database: |(?:os error|errno) (?:1|13|30)\b",
    re.IGNORECASE,
)
# Messages about sockets: of Node and libuv, of Chromium for a profile, and of the C library.
_SOCKET = re.compile(
    r"\b(?:listen|bind) (?:EACCES|EPERM)\b[^\n]{0,200}?/|process_singleton[^\n]{0,200}?permission denied"
    r"|\b(?:socket|bind)(?:\(\))? failed: (?:permission denied|operation not permitted)"
    r"|\blistens on a socket, which this call may not\b"
    r"|\bunix (?:domain )?socket\b[^\n]{0,200}?(?:permission denied|not permitted)",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"['\"\u2018`](/[^'\"\u2019\n]+)['\"\u2019]")
_SAYS = re.compile(r": (?:permission denied|operation not permitted|read-only file system)", re.IGNORECASE)
_BEFORE = re.compile(r"\s(/.+)")
_AT_END = re.compile(r": (/.+)$")
_BARE = re.compile(r"(?<![\w/.-])/[^\s:;,'\"]+")


def wants_socket(text: str) -> bool:
    """Return whether a text reports a UNIX socket that could not be created or listened on."""
    return _SOCKET.search(text[-_MOST_CHARS:]) is not None


def named_paths(error: BaseException) -> Iterator[str]:
    """Yield the absolute paths that an error reports as denied, most likely first; often there are none."""
    for line in _text_of(error)[-_MOST_CHARS:].splitlines():
        if _DENIED.search(line):
            yield from _QUOTED.findall(line)
            yield from _before(line) or _AT_END.findall(line)
            # A shell names itself first.
            yield from reversed(_BARE.findall(line))


def _before(line: str) -> list[str]:
    """Return the paths that precede the words of a denial."""
    # One expression for both would take quadratic time in a line full of path beginnings.
    found, start = [], 0
    for says in _SAYS.finditer(line):
        path = _BEFORE.search(line, start, says.start())
        if path is not None:
            found.append(path[1])
        start = says.end()
    return found


def _text_of(error: BaseException) -> str:
    match error:
        case subprocess.CalledProcessError(stderr=stderr, output=output):
            return "\n".join(_text(part) for part in (output, stderr))
        case OSError() | sqlite3.Error():
            return str(error)
    # Many errors mention permissions; only these concern files.
    return ""


def _text(part: object) -> str:
    if isinstance(part, bytes):
        return part[-_MOST_CHARS:].decode(errors="replace")
    return part if isinstance(part, str) else ""
