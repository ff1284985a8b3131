"""Stored bytes, being read: from an open file, or from memory.

Source: copy_file_range(2), sendfile(2), ioctl_ficlone(2).
"""

import errno
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from runner.openat import ficlone
from runner.threads import finished

__all__ = ["BytesContent", "FileContent", "chunks", "span"]

_CHUNK_BYTES = 1024 * 1024
_COPY_BYTES = 64 * 1024 * 1024
# What copy_file_range answers where it cannot serve these two files at all.
_NO_RANGE_COPY = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM})


def chunks(fd: int) -> Iterator[bytes]:
    """Yield a file from its start, wherever the descriptor stands, which does not move.

    Of a file that grows meanwhile it is as much as was there at first: it could grow for ever.
    """
    position, end = 0, os.fstat(fd).st_size
    while chunk := os.pread(fd, min(_CHUNK_BYTES, end - position), position):
        yield chunk
        position += len(chunk)


def span(size: int, offset: int, length: int | None) -> tuple[int, int]:
    """Return start and end of a range within `size` bytes, cut to what there is."""
    start = min(max(offset, 0), size)
    return start, size if length is None else min(start + max(length, 0), size)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileContent:
    """A range of an open file, which belongs to whoever opened it.

    Attributes:
        fd: The descriptor; where it stands does not matter.
        start: First byte of the range.
        end: The byte behind its last one.
    """

    fd: int
    start: int
    end: int

    @property
    def size(self) -> int:
        """Return how many bytes will be read."""
        return self.end - self.start

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the bytes in chunks.

        Raises:
            EOFError: The file ended before the range did.
        """
        position = self.start
        while position < self.end:
            chunk = await finished(os.pread, self.fd, min(_CHUNK_BYTES, self.end - position), position)
            if not chunk:
                raise EOFError(f"the stored file ended at byte {position} of {self.end}")
            position += len(chunk)
            yield chunk

    async def copy_to(self, fd: int) -> None:
        """Write the bytes to an open file, by sharing its blocks where the file system can."""
        await finished(self._copy, fd)

    def _copy(self, target: int) -> None:
        if self.start == 0 and self.end == os.fstat(self.fd).st_size and ficlone(self.fd, target):
            return
        # Without a given offset the copy would start wherever the descriptor stands.
        position = self.start
        try:
            while position < self.end:
                count = os.copy_file_range(self.fd, target, min(_COPY_BYTES, self.end - position), position)
                if not count:
                    break
                position += count
        except OSError as error:
            if error.errno not in _NO_RANGE_COPY:
                raise
        while position < self.end:
            count = os.sendfile(target, self.fd, position, min(_COPY_BYTES, self.end - position))
            if not count:
                raise EOFError(f"the stored file ended at byte {position} of {self.end}")
            position += count


@dataclass(frozen=True, slots=True)
class BytesContent:
    """Bytes in memory.

    Attributes:
        content: What will be read.
    """

    content: bytes

    @property
    def size(self) -> int:
        """Return how many bytes will be read."""
        return len(self.content)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the bytes in chunks."""
        for start in range(0, len(self.content), _CHUNK_BYTES):
            yield self.content[start : start + _CHUNK_BYTES]

    async def copy_to(self, fd: int) -> None:
        """Write the bytes to an open file."""
        await finished(_write, fd, self.content)


def _write(fd: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(fd, left) :]
