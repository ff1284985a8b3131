"""Stored bytes, being read: from an open file, from a stream, or from memory.

Source: copy_file_range(2), sendfile(2), ioctl_ficlone(2).
"""

import errno
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from runner.errors import CallError
from runner.store.damage import NOT_WHAT_WAS_PUT, Digest, Verified, damaged
from runner.store.protocol import Record
from runner.store.sources import write_all
from runner.system.openat import ficlone
from runner.system.threads import run_in_thread

__all__ = [
    "BytesContent",
    "FileContent",
    "Run",
    "StoredContent",
    "StreamContent",
    "chunks",
    "problem_in",
    "span",
]

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


T = TypeVar("T")


class Run(Protocol):
    """Does something in a thread, within some time."""

    async def __call__(self, operation: Callable[[], T], /) -> T:
        """Return the outcome."""


class StoredContent(Protocol):
    """Stored bytes, or a range of them, for readers of an `ArtifactStore` and for its own checks."""

    @property
    def size(self) -> int:
        """Return the number of bytes to read."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the bytes in chunks of at most 1 MiB."""

    async def copy_to(self, fd: int) -> None:
        """Write the bytes to an open file."""

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes without a look at their digest; blocks."""


def problem_in(content: StoredContent, record: Record) -> str | None:
    """Read all of an artifact; return the fault of its bytes, as a clause, or None.

    Raises:
        CallError: `E_STORE`: a server cannot be reached.
    """
    digest = hashlib.sha256()
    try:
        for piece in content.pieces():
            digest.update(piece)
    except CallError as error:
        if error.retryable:
            raise
        return str(error.details["reason"])
    return None if digest.hexdigest() == record.sha256 else NOT_WHAT_WAS_PUT


class StreamContent:
    """The bytes of an artifact, or a range of them, that come piece by piece.

    Args:
        source: Yields them; called once.
        start: First byte of the range.
        end: The byte behind its last one.
        record: The artifact. Read as a whole it is held against its digest.
        run: Reads a piece in a thread.
    """

    def __init__(
        self,
        source: Callable[[], Iterator[bytes]],
        *,
        start: int,
        end: int,
        record: Record,
        run: Run = run_in_thread,
    ) -> None:
        self.start, self.end, self.record = start, end, record
        self._source = source
        self.in_thread = run

    @property
    def size(self) -> int:
        """Return the number of bytes to read."""
        return self.end - self.start

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes without a look at their digest; blocks."""
        return self._source()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the bytes in chunks; the last one of a whole artifact only when its digest is right.

        Raises:
            CallError: `E_STORE`: they are not the ones that were put, or cannot be read.
        """
        digest, pieces, held = Digest(self.record), self.pieces(), b""

        def following() -> bytes:
            piece = next(pieces, b"")
            if self._is_whole:
                digest.update(piece)
            return piece

        while piece := await self.in_thread(following):
            if held:
                yield held
            held = piece
        if self._is_whole:
            digest.check()
        if held:
            yield held

    async def copy_to(self, fd: int) -> None:
        """Write the bytes to an open file.

        Raises:
            CallError: `E_STORE`: they are not the ones that were put, or cannot be read.
            OSError: They cannot be written.
        """
        async for chunk in self:
            await self.in_thread(partial(write_all, fd, chunk))

    @property
    def _is_whole(self) -> bool:
        return self.start == 0 and self.end == self.record.size


class FileContent(StreamContent):
    """The bytes of an artifact, or a range of them, in an open file, which belongs to its opener.

    Args:
        fd: The descriptor; its position does not matter.
        start: First byte of the range.
        end: The byte behind its last one.
        record: The artifact.
    """

    def __init__(self, *, fd: int, start: int, end: int, record: Record) -> None:
        super().__init__(self._chunks, start=start, end=end, record=record)
        self.fd = fd

    async def copy_to(self, fd: int) -> None:
        """Write the bytes to an open file, by sharing its blocks where the file system can.

        Raises:
            CallError: `E_STORE`: they are not the ones that were put, or cannot be read; it is empty then.
            OSError: They cannot be written.
        """
        await run_in_thread(self._copy, fd)

    def _chunks(self) -> Iterator[bytes]:
        position = self.start
        while position < self.end:
            chunk = self._read(position)
            position += len(chunk)
            yield chunk

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
        """Return the number of bytes to read."""
        return len(self.content)

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes in chunks."""
        for start in range(0, len(self.content), _CHUNK_BYTES):
            yield self.content[start : start + _CHUNK_BYTES]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the bytes in chunks."""
        for piece in self.pieces():
            yield piece

    async def copy_to(self, fd: int) -> None:
        """Write the bytes to an open file."""
        await run_in_thread(write_all, fd, self.content)
