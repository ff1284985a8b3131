"""Bytes that somebody wants kept, and the small things that every store does with them."""

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

__all__ = ["digest_of", "opened", "same_file", "write_all"]

_READ_BYTES = 1024 * 1024


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


def digest_of(source: int | bytes) -> tuple[str, int]:
    """Return hex digest and length of bytes, or of a file from its start wherever it stands.

    Of a file that grows meanwhile it is as much as was there at first.
    """
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest(), len(source)
    digest, position, end = hashlib.sha256(), 0, os.fstat(source).st_size
    while chunk := os.pread(source, min(_READ_BYTES, end - position), position):
        digest.update(chunk)
        position += len(chunk)
    return digest.hexdigest(), position


def write_all(fd: int, content: bytes) -> None:
    """Write all of the bytes."""
    left = memoryview(content)
    while left:
        left = left[os.write(fd, left) :]
