"""Blobs in a bucket of an S3 server, which any number of hosts may share.

    {prefix}{user}/records/{session}/…                       records, see `runner.store.entries`
    {prefix}{user}/artifacts/{YYYYMMDD}/{token}/{name}       bytes of a file
    {prefix}{user}/observations/{YYYYMMDD}/{token}           bytes of an observation

No lock excludes other hosts, so records do not share bytes: each has a key of its own, used once. A record
is created by `If-None-Match: *` and changed by `If-Match`. A removal first overwrites it with a note that it
is gone; only the host that succeeds in this deletes the bytes and then the note.

Source: rule R1 of the conformance cases; requirement S1-73; Amazon S3 User Guide, "Conditional requests".
"""

import contextlib
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from dataclasses import replace
from datetime import datetime
from typing import TypeVar
from urllib.parse import quote

from botocore.exceptions import BotoCoreError
from urllib3.exceptions import HTTPError

from runner.errors import CallError, Code
from runner.store.blobs import Blob, Blobs, Incoming
from runner.store.content import StreamContent, damaged
from runner.store.entries import Entry, mime_of
from runner.store.protocol import Put, Scope
from runner.store.s3.bucket import (
    Bucket,
    BucketAddress,
    NoSuchObject,
    Stopped,
    Stream,
    failed,
    fault_in,
)
from runner.store.s3.conversion import convert
from runner.store.sources import CHUNK_BYTES, digest_of, same_file

__all__ = ["PROBE", "S3Blobs", "stopping"]

PROBE = "=probe"
"""Key, below the prefix, of a small object that is written only to probe the bucket."""

_AT_ONCE = 8
_THREADS = 32
_ATTEMPTS = 5
_WAIT_S = 0.2

T = TypeVar("T")
R = TypeVar("R")

stopping: ContextVar[threading.Event | None] = ContextVar("stopping", default=None)
"""Set when the caller of a put has gone: its artifact may be in a spool by now, or deleted from there."""


class S3Blobs(Blobs):
    """Blobs below a prefix of a bucket."""

    shares = False

    def __init__(self, address: BucketAddress) -> None:
        self.bucket = Bucket(address)
        self._prefix = address.prefix
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="s3-read")

    def now(self) -> datetime:
        """Return the server's time."""
        return self.bucket.now()

    def prefix(self, area: str) -> str:
        """Return the prefix of all keys of an area."""
        kind, segment = area.split("/", 1)
        # A user's segment never begins with `=s`: only with a letter, a digit, `=q` or `=h`.
        return f"{self._prefix}{segment if kind == 'users' else f'=s{segment}'}/"

    def areas(self) -> Iterable[str]:
        """Return the prefixes of all areas."""
        return self.bucket.folders(self._prefix)

    def named(self, prefix: str) -> str:
        """Return the area of a prefix."""
        segment = prefix.removeprefix(self._prefix).rstrip("/")
        return f"scopes/{segment[2:]}" if segment.startswith("=s") else f"users/{segment}"

    def exclusive(self, area: str) -> contextlib.AbstractContextManager[object]:
        """Do nothing: conditional requests replace the lock of other back ends."""
        return contextlib.nullcontext()

    def version(self, area: str) -> None:
        """Return None: only a listing shows changes."""

    @contextlib.contextmanager
    def receive(
        self, area: str, source: int | bytes, about: Put, scope: Scope, *, eager: bool = False, day: str = ""
    ) -> Iterator[Incoming]:
        """Receive bytes.

        Args:
            area: Their area.
            source: The bytes, or a file.
            about: Their metadata.
            scope: Their owner.
            day: The day in their key, as YYYYMMDD; by default today.
            eager: Whether to send them at once and hash them meanwhile, not when they are placed.
        """
        before = None if isinstance(source, bytes) else os.fstat(source)
        size = len(source) if isinstance(source, bytes) else os.fstat(source).st_size
        token, day = secrets.token_hex(12), day or f"{self.now():%Y%m%d}"
        key = f"{area}observations/{day}/{token}"
        if about.is_file:
            key = f"{area}artifacts/{day}/{token}/{about.name}"
        sha256, size = ("", size) if eager else digest_of(source)

        def place() -> None:
            if incoming.is_placed:
                return
            noted = {"origin": about.origin.value}
            noted |= {"sha256": incoming.sha256} if incoming.sha256 else {}
            noted |= {"name": quote(about.name)} if about.name is not None else {}
            stop = stopping.get() or threading.Event()
            incoming.is_placed = True
            sent = self.bucket.upload(key, source, size, mime=mime_of(about), metadata=noted, stop=stop)
            changed = before and isinstance(source, int) and not same_file(before, os.fstat(source))
            if changed or incoming.sha256 not in ("", sent):
                raise CallError(Code.E_STORE, "the file changed while it was being stored", retryable=False)
            incoming.sha256 = sent

        incoming = Incoming(key=key, sha256=sha256, size=size, place=place)
        if eager:
            try:
                place()
            except BaseException:
                with contextlib.suppress(CallError):
                    self.bucket.delete(key)
                raise
        yield incoming

    def put(
        self, key: str, content: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> Blob | None:
        """Write a small blob."""
        stop = stopping.get()
        if stop is not None and stop.is_set():
            raise Stopped
        probe = f"{self._prefix}{PROBE}"
        etag = self.bucket.put_if(key, content, absent=if_absent, match=if_match, probe=probe)
        if etag is None:
            found = self.bucket.get(key)
            # The answer to an earlier attempt may have been lost on its way.
            if found is None or found[0] != content:
                return None
            etag = found[1]
        return Blob(key=key, size=len(content), etag=etag, modified=self.now())

    def get(self, key: str) -> tuple[bytes, str] | None:
        """Return a small blob and its etag."""
        return self.bucket.get(key)

    @contextlib.contextmanager
    def content(self, entry: Entry, start: int, end: int) -> Iterator[StreamContent]:
        """Open the bytes of a record, or a range of them; a broken connection is resumed where it broke."""
        stream: Stream | None = None
        try:
            # A server rejects an empty range, but the object must exist nevertheless.
            if end > start:
                stream = self.bucket.stream(entry.blob, offset=start, length=end - start)
        except NoSuchObject:
            raise FileNotFoundError(entry.blob) from None
        if stream is None and self.bucket.size(entry.blob) is None:
            raise FileNotFoundError(entry.blob)
        streams = [stream] if stream is not None else []

        def close() -> None:
            while streams:
                streams.pop().body.close()

        def pieces() -> Iterator[bytes]:
            at, etag, failures = start, streams[0].etag if streams else None, 0
            while at < end:
                chunk = b""
                try:
                    if not streams:
                        streams.append(self.bucket.stream(entry.blob, offset=at, length=end - at, etag=etag))
                    with contextlib.suppress(BotoCoreError, HTTPError, OSError):
                        chunk = bytes(streams[0].body.read(min(CHUNK_BYTES, end - at)))
                except NoSuchObject:
                    raise damaged(entry.record, "its bytes went missing while they were read") from None
                except CallError:
                    if failures + 1 == _ATTEMPTS:
                        raise
                if chunk:
                    at, failures = at + len(chunk), 0
                    yield chunk
                    continue
                close()
                failures += 1
                if failures == _ATTEMPTS:
                    raise failed("get", "ConnectionBroken")
                time.sleep(_WAIT_S * failures)

        try:
            yield StreamContent(pieces, start=start, end=end, record=entry.record)
        finally:
            close()

    def stat(self, key: str) -> int | None:
        """Return the length of a blob."""
        return self.bucket.size(key)

    def scan(self, prefix: str) -> Iterable[Blob]:
        """Return the blobs of a prefix."""
        return self.bucket.list(prefix)

    def delete(self, key: str) -> None:
        """Delete a blob."""
        self.bucket.delete(key)

    def retire(self, entry: Entry) -> str | None:
        """Overwrite a record with a note that it is gone."""
        gone = replace(entry, is_gone=True, put=int(self.now().timestamp() * 1e9))
        return entry.key if self.put(entry.key, gone.written(), if_match=entry.etag) else None

    def check(self) -> None:
        """Probe the bucket: list it, and write a small object."""
        probe = f"{self._prefix}{PROBE}"
        try:
            self.bucket.ask(self._prefix)
            self.bucket.put(probe, b"1")
            self.bucket.put_if(probe, b"1", absent=True, match=None, probe=probe)
        except CallError as error:
            if not error.retryable:
                raise
            fault = fault_in(error)
            message = f"the object store cannot be used: {fault.reason}; {fault.cure}"
            raise CallError(Code.E_STORE, message) from error

    def convert(self, prefix: str) -> None:
        """Convert the records of an area."""
        if prefix:
            convert(self.bucket, self, prefix)

    def map(self, act: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Apply a function to each item, a few at a time, since all callers share the threads."""
        found: list[R] = []
        waiting = list(items)
        for start in range(0, len(waiting), _AT_ONCE):
            some = waiting[start : start + _AT_ONCE]
            futures = [self._threads.submit(copy_context().run, act, item) for item in some]
            found += [each.result() for each in futures]
        return found

    def close(self) -> None:
        """Close all connections."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.bucket.close()
