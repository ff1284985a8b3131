"""The bytes of an object, being read: a broken connection is taken up where it broke, and all is verified.

The last chunk of a whole object is given out only once the digest of everything is right, so that a
damaged file can never look complete.

Source: RFC 9110, sections 13.1.1 (If-Match) and 14.2 (Range).
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Protocol, TypeVar

from botocore.exceptions import BotoCoreError
from urllib3.exceptions import HTTPError

from runner.errors import CallError
from runner.store.damage import Digest, damaged
from runner.store.protocol import Record
from runner.store.s3.bucket import Bucket, NoSuchObject, Stream, failed
from runner.store.sources import write_all

__all__ = ["S3Content", "problem_of"]

_CHUNK_BYTES = 1024 * 1024
_ATTEMPTS = 5
_WAIT_S = 0.2

T = TypeVar("T")


class Run(Protocol):
    """Does something in a thread, within some time."""

    async def __call__(self, operation: Callable[[], T], /) -> T:
        """Return what came of it."""


class S3Content:
    """A range of an object. Made by `S3Store.open`, which has found that the object is there."""

    def __init__(
        self,
        bucket: Bucket,
        record: Record,
        *,
        offset: int,
        length: int,
        run: "Run",
        stream: Stream | None,
    ) -> None:
        self._bucket = bucket
        self._record = record
        self._in_thread = run
        self._stream = stream
        self._etag = stream.etag if stream else None
        self._offset = offset
        self._end = offset + length
        self._at = offset
        self._digest = Digest(record) if length == record.size else None

    @property
    def size(self) -> int:
        """Return how many bytes will be read."""
        return self._end - self._offset

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the bytes in chunks of at most 1 MiB; once.

        Raises:
            CallError: `E_STORE`: the server failed, or the bytes are not the ones that were put.
        """
        held = b""
        while self._at < self._end:
            if held:
                yield held
            held = await self._in_thread(self._read)
        if self._digest is not None:
            self._digest.check()
        if held:
            yield held

    async def copy_to(self, fd: int) -> None:
        """Write the bytes to an open file."""
        async for chunk in self:
            await self._in_thread(partial(write_all, fd, chunk))

    def close(self) -> None:
        """Give the connection up."""
        if self._stream is not None:
            self._stream.body.close()
            self._stream = None

    def _read(self) -> bytes:
        for attempt in range(_ATTEMPTS):
            with contextlib.suppress(BotoCoreError, HTTPError, OSError):
                chunk = self._next()
                if chunk:
                    return chunk
            self.close()
            time.sleep(_WAIT_S * attempt)
        raise failed("get", "ConnectionBroken")

    def _next(self) -> bytes:
        if self._stream is None:
            try:
                self._stream = self._bucket.stream(
                    self._record.key or "", offset=self._at, length=self._end - self._at, etag=self._etag
                )
            except NoSuchObject:
                raise damaged(self._record, "its bytes went missing while they were read") from None
        chunk = bytes(self._stream.body.read(min(_CHUNK_BYTES, self._end - self._at)))
        self._at += len(chunk)
        if self._digest is not None:
            self._digest.update(chunk)
        return chunk


async def problem_of(bucket: Bucket, record: Record) -> str | None:
    """Read all of an artifact; return what is wrong with its bytes, as a clause, or None.

    Raises:
        CallError: `E_STORE`: the server cannot be reached.
    """
    content = S3Content(bucket, record, offset=0, length=record.size, run=asyncio.to_thread, stream=None)
    try:
        if not record.size and await asyncio.to_thread(bucket.size, record.key or "") is None:
            return "its bytes are missing"
        async for _ in content:
            pass
    except CallError as error:
        if error.retryable:
            raise
        return str(error.details["reason"])
    finally:
        content.close()
    return None
