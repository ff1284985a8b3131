"""Sources of bytes to store, and operations on them that all stores share.

Source: stat(2) on st_blocks; lseek(2) on holes.
"""

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["CHUNK_BYTES", "chunks", "digest_of", "opened", "same_file", "write_all", "writer_for"]

CHUNK_BYTES = 1024 * 1024
"""Size of the largest chunk that is read or returned at once."""

# No file system in use has smaller holes.
_BLOCK_BYTES = 4096
_ZEROS = bytes(_BLOCK_BYTES)


@contextlib.contextmanager
def opened(source: int | Path) -> Iterator[int]:
    """Open a regular file, or duplicate a descriptor of one, which the caller may close meanwhile.

    Raises:
        OSError: It is not a regular file or cannot be opened.
    """
    # Non-blocking: opening a FIFO would wait for a writer before we could detect the FIFO.
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
    """Yield a part of a file in chunks, without using or moving the descriptor's offset.

    Args:
        fd: The file.
        start: Offset of the first byte.
        end: Offset after the last byte; by default the current end of the file, which may keep growing.
    """
    position = start
    end = os.fstat(fd).st_size if end is None else end
    while chunk := os.pread(fd, min(CHUNK_BYTES, end - position), position):
        yield chunk
        position += len(chunk)


def digest_of(source: int | bytes) -> tuple[str, int]:
    """Return hex digest and length of bytes, or of a file from its start, whatever its offset.

    Of a file that grows meanwhile, only the initial length is read.
    """
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest(), len(source)
    digest, size = hashlib.sha256(), 0
    for chunk in chunks(source):
        digest.update(chunk)
        size += len(chunk)
    return digest.hexdigest(), size


def write_all(fd: int, content: bytes | bytearray) -> None:
    """Write all of the bytes."""
    left = memoryview(content)
    while left:
        left = left[os.write(fd, left) :]


def writer_for(source: int) -> Callable[[int, bytes], None]:
    """Return the function that writes chunks of a file to a copy: `write_all`, or one that keeps holes.

    A copy with holes needs `os.ftruncate` to its length at the end.
    """
    status = os.fstat(source)
    return _write_with_holes if status.st_blocks * 512 < status.st_size else write_all


def _write_with_holes(fd: int, chunk: bytes) -> None:
    """Write a chunk, with holes where it is zero: a sparse file of terabytes must not fill the disk."""
    if chunk == bytes(len(chunk)):
        os.lseek(fd, len(chunk), os.SEEK_CUR)
        return
    for start in range(0, len(chunk), _BLOCK_BYTES):
        block = chunk[start : start + _BLOCK_BYTES]
        if block == _ZEROS[: len(block)]:
            os.lseek(fd, len(block), os.SEEK_CUR)
        else:
            write_all(fd, block)
