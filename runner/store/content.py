"""Stored bytes, being read: from an open file, or from memory.

Source: copy_file_range(2), sendfile(2), ioctl_ficlone(2).
"""

import errno
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from runner.errors import CallError
from runner.store.damage import Digest, Verified, damaged
from runner.store.protocol import Record
from runner.store.sources import write_all
from runner.system.openat import ficlone
from runner.system.threads import run_in_thread

__all__ = ["BytesContent", "FileContent", "chunks", "span"]

_CHUNK_BYTES = 1024 * 1024
_COPY_BYTES = 64 * 1024 * 1024
# What copy_file_range answers where it cannot serve these two files at all.
_NO_RANGE_COPY = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM})

_verified = Verified()


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
    """The bytes of an artifact, or a range of them, in an open file, which belongs to whoever opened it.

    Attributes:
        fd: The descriptor; where it stands does not matter.
        start: First byte of the range.
        end: The byte behind its last one.
        record: The artifact. Read as a whole it is held against its digest.
    """

    fd: int
    start: int
    end: int
    record: Record

    @property
    def size(self) -> int:
        """Return how many bytes will be read."""
        return self.end - self.start

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the bytes in chunks; the last one of a whole artifact only when its digest is right.

        Raises:
            CallError: `E_STORE`: they are not the ones that were put, or cannot be read.
        """
        digest, position, held = Digest(self.record), self.start, b""
        while position < self.end:
            if held:
                yield held
            held = await run_in_thread(self._read, position)
            if self._is_whole:
                await run_in_thread(digest.update, held)
            position += len(held)
        if self._is_whole:
            digest.check()
        if held:
            yield held

    async def copy_to(self, fd: int) -> None:
        """Write the bytes to an open file, by sharing its blocks where the file system can.

        Raises:
            CallError: `E_STORE`: they are not the ones that were put, or cannot be read; it is empty then.
            OSError: They cannot be written.
        """
        await run_in_thread(self._copy, fd)

    @property
    def _is_whole(self) -> bool:
        return self.start == 0 and self.end == self.record.size

    def _read(self, position: int) -> bytes:
        try:
            chunk = os.pread(self.fd, min(_CHUNK_BYTES, self.end - position), position)
        except OSError as error:
            raise damaged(self.record, f"its bytes cannot be read: {error.strerror}") from error
        if not chunk:
            raise damaged(self.record, f"the store holds {position} bytes of its {self.record.size}")
        return chunk

    def _copy(self, target: int) -> None:
        if not self._is_whole or _verified.has(self.fd, self.record.sha256):
            self._copy_blocks(target)
            return
        shared = ficlone(self.fd, target)
        try:
            digest, position = Digest(self.record), 0
            while position < self.end:
                chunk = self._read(position)
                digest.update(chunk)
                if not shared:
                    write_all(target, chunk)
                position += len(chunk)
            digest.check()
        except CallError:
            os.ftruncate(target, 0)
            raise
        _verified.add(self.fd, self.record.sha256)

    def _copy_blocks(self, target: int) -> None:
        if self._is_whole and ficlone(self.fd, target):
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
                raise damaged(self.record, f"the store holds {position} bytes of its {self.record.size}")
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
        await run_in_thread(write_all, fd, self.content)
