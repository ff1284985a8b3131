"""Readers of stored bytes: from an open file, or chunk by chunk.

A whole file is hashed while it is read, and its last chunk is returned only if the digest matches the
record. If the kernel shares or copies blocks by itself, the file is read separately for its digest. That is
skipped if this process verified the file within ten minutes and nobody has written to it since.
`runner doctor --verify` reads everything.

Source: sendfile(2), ioctl_ficlone(2); FIPS 180-4; stat(2), on when the change time changes.
"""

import hashlib
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any

from runner.errors import CallError, Code
from runner.store.protocol import Record
from runner.store.sources import CHUNK_BYTES, write_all, writer_for
from runner.system.openat import copy_into, ficlone
from runner.system.threads import run_in_thread

__all__ = [
    "FileContent",
    "StreamContent",
    "Verified",
    "damaged",
    "problem_in",
    "span",
]

_NOT_WHAT_WAS_PUT = "its bytes are not the ones that were put"

_KEEP_S = 600.0
_REMEMBERED = 4096

_log = logging.getLogger(__name__)


def span(size: int, offset: int, length: int | None) -> tuple[int, int]:
    """Return start and end of a range, clipped to `size` bytes."""
    start = min(max(offset, 0), size)
    return start, size if length is None else min(start + max(length, 0), size)


def damaged(record: Record, why: str) -> CallError:
    """Return the error for an artifact whose bytes are damaged or missing; log it for the operator.

    Args:
        record: The artifact.
        why: What is wrong, as a clause that begins with `its`.
    """
    facts = {"artifact": record.id, "user": record.scope.user_id, "reason": why}
    _log.error("stored file damaged", extra=facts)
    message = f"the file {record.shown!r} is listed but {why}; remove it and put it again"
    details = {"name": record.name, "id": record.id, "reason": why}
    return CallError(Code.E_STORE, message, details=details, retryable=False)


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
    return None if digest.hexdigest() == record.sha256 else _NOT_WHAT_WAS_PUT


class StreamContent:
    """The bytes of an artifact, or a range of them, read chunk by chunk.

    Args:
        source: Yields them; called once.
        start: First byte of the range.
        end: The byte after its last one.
        record: The artifact. Its digest is verified if all of it is read.

    Attributes:
        in_thread: Reads a chunk in a thread; may have a time limit.
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
        """Yield the bytes without verifying their digest; blocks."""
        return self._source()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the bytes in chunks; the last one of a whole artifact only if its digest matches.

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
            raise damaged(self.record, _NOT_WHAT_WAS_PUT)
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
        fd: The descriptor; its offset does not matter.
        start: First byte of the range.
        end: The byte after its last one.
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
        shared, write = ficlone(self.fd, target), writer_for(self.fd)
        digest = hashlib.sha256()
        try:
            for chunk in self._chunks():
                digest.update(chunk)
                if not shared:
                    write(target, chunk)
            os.ftruncate(target, self.end)
            if digest.hexdigest() != self.record.sha256:
                raise damaged(self.record, _NOT_WHAT_WAS_PUT)
        except CallError:
            os.ftruncate(target, 0)
            raise
        _verified.add(self.fd, self.record.sha256)


class Verified:
    """Files that were verified recently. May be used from any thread.

    Args:
        keep_s: Time for which a verification is valid, in seconds.
    """

    def __init__(self, keep_s: float = _KEEP_S) -> None:
        self._keep_s = keep_s
        self._until: OrderedDict[tuple[object, ...], float] = OrderedDict()
        self._lock = threading.Lock()

    def has(self, fd: int, sha256: str) -> bool:
        """Return whether an open file was verified with this digest and has not changed since."""
        with self._lock:
            return self._until.get(_mark(fd, sha256), 0.0) > time.monotonic()

    def add(self, fd: int, sha256: str) -> None:
        """Record that an open file has this digest."""
        with self._lock:
            self._until[_mark(fd, sha256)] = time.monotonic() + self._keep_s
            while len(self._until) > _REMEMBERED:
                self._until.popitem(last=False)


def _mark(fd: int, sha256: str) -> tuple[object, ...]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, sha256


_verified = Verified()
