"""Bytes that somebody wants kept, and the small things that every store does with them."""

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

__all__ = ["CHUNK_BYTES", "chunks", "digest_of", "opened", "same_file", "write_all"]

CHUNK_BYTES = 1024 * 1024
"""The longest piece that is read or given out at once."""


@contextlib.contextmanager
def opened(source: int | Path) -> Iterator[int]:
    """Open a regular file, or take a descriptor of one, which the giver may close meanwhile.

    Raises:
        OSError: It is not a regular file or cannot be opened.
    """
    # Not blocking: a FIFO would wait for a writer before we could see that it is one.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    fd = os.dup(source) if isinstance(source, int) else os.open(source, flags)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        yield fd
    finally:
        os.close(fd)


def same_file(before: os.stat_result, after: os.stat_result) -> bool:
    """Return whether a file was not written to between two calls of stat(2)."""
    return (before.st_size, before.st_mtime_ns, before.st_ctime_ns) == (
        after.st_size,
        after.st_mtime_ns,
        after.st_ctime_ns,
    )


def chunks(fd: int, start: int = 0, end: int | None = None) -> Iterator[bytes]:
    """Yield a part of a file, wherever the descriptor stands, which does not move.

    Args:
        fd: The file.
        start: Offset of the first byte.
        end: Offset after the last byte; by default the present end of the file, which could grow for ever.
    """
    position = start
    end = os.fstat(fd).st_size if end is None else end
    while chunk := os.pread(fd, min(CHUNK_BYTES, end - position), position):
        yield chunk
        position += len(chunk)


def digest_of(source: int | bytes) -> tuple[str, int]:
    """Return hex digest and length of bytes, or of a file from its start wherever it stands.

    Of a file that grows meanwhile it is as much as was there at first.
    """
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest(), len(source)
    digest, size = hashlib.sha256(), 0
    for chunk in chunks(source):
        digest.update(chunk)
        size += len(chunk)
    return digest.hexdigest(), size


def write_all(fd: int, content: bytes) -> None:
    """Write all of the bytes."""
    left = memoryview(content)
    while left:
        left = left[os.write(fd, left) :]
