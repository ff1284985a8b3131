"""Stored bytes, being read: from an open file, or piece by piece.

Source: sendfile(2), ioctl_ficlone(2).
"""

import hashlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any

from runner.errors import CallError
from runner.store.damage import NOT_WHAT_WAS_PUT, Verified, damaged
from runner.store.protocol import Record
from runner.store.sources import CHUNK_BYTES, write_all
from runner.system.openat import copy_into, ficlone
from runner.system.threads import run_in_thread

__all__ = [
    "FileContent",
    "StreamContent",
    "problem_in",
    "span",
]

_verified = Verified()


def span(size: int, offset: int, length: int | None) -> tuple[int, int]:
    """Return start and end of a range within `size` bytes, cut to what there is."""
    start = min(max(offset, 0), size)
    return start, size if length is None else min(start + max(length, 0), size)


def problem_in(content: "StreamContent", record: Record) -> str | None:
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

    Attributes:
        in_thread: Reads a piece in a thread, within some time.
    """

    def __init__(
        self,
        source: Callable[[], Iterator[bytes]],
        *,
        start: int,
        end: int,
        record: Record,
    ) -> None:
        self.start, self.end, self.record = start, end, record
        self._source = source
        self.in_thread: Callable[[Callable[[], Any]], Awaitable[Any]] = run_in_thread

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
        digest, pieces, held = hashlib.sha256(), self.pieces(), b""

        def following() -> bytes:
            piece = next(pieces, b"")
            if self._is_whole:
                digest.update(piece)
            return piece

        while piece := await self.in_thread(following):
            if held:
                yield held
            held = piece
        if self._is_whole and digest.hexdigest() != self.record.sha256:
            raise damaged(self.record, NOT_WHAT_WAS_PUT)
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
        if self._is_whole:
            await run_in_thread(self._copy, fd)
        else:
            await super().copy_to(fd)

    def _chunks(self) -> Iterator[bytes]:
        position = self.start
        while position < self.end:
            try:
                chunk = os.pread(self.fd, min(CHUNK_BYTES, self.end - position), position)
            except OSError as error:
                raise damaged(self.record, f"its bytes cannot be read: {error.strerror}") from error
            if not chunk:
                raise self._cut(position)
            position += len(chunk)
            yield chunk

    def _cut(self, size: int) -> CallError:
        return damaged(self.record, f"the store holds {size} bytes of its {self.record.size}")

    def _copy(self, target: int) -> None:
        if _verified.has(self.fd, self.record.sha256):
            copy_into(target, self.fd, self.end)
            if (size := os.fstat(self.fd).st_size) < self.end:
                raise self._cut(size)
            return
        shared = ficlone(self.fd, target)
        digest = hashlib.sha256()
        try:
            for chunk in self._chunks():
                digest.update(chunk)
                if not shared:
                    write_all(target, chunk)
            if digest.hexdigest() != self.record.sha256:
                raise damaged(self.record, NOT_WHAT_WAS_PUT)
        except CallError:
            os.ftruncate(target, 0)
            raise
        _verified.add(self.fd, self.record.sha256)
