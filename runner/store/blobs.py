"""Blobs: named bytes in a folder, in a bucket or in memory, behind one interface.

Five verbs do the work: `put` with a condition, `get`, `scan`, `delete` and `stat`. The rest coordinates
several writers. If `shares` is true, a lock excludes all other writers of an area, so records may share
bytes. If it is false, a write to a record that changed meanwhile is rejected by its etag.

All methods block. They raise `OSError`, or `CallError` if a server fails.

Source: requirements S4-70 and S4-87; `docs/decisions/0056-records-and-blobs-over-five-verbs.md`.
"""

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol, TypeVar

from runner.store.content import StreamContent
from runner.store.entries import Entry
from runner.store.protocol import Put, Scope
from runner.store.sources import CHUNK_BYTES, chunks

__all__ = ["Blob", "Blobs", "Incoming", "MemoryBlobs", "OrphanNote", "utc_now"]

T = TypeVar("T")
R = TypeVar("R")


def utc_now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """One blob of a listing.

    Attributes:
        key: Its key.
        size: Length in bytes.
        etag: The back end's version tag of its content.
        modified: When it was put.
    """

    key: str
    size: int
    etag: str
    modified: datetime


@dataclass(slots=True, kw_only=True)
class Incoming:
    """Received bytes that no record refers to yet.

    Attributes:
        key: Their key once they are placed.
        sha256: Hex digest.
        size: Length in bytes.
        place: Stores them under their key, durably; bytes that are not placed are dropped.
        is_placed: Whether `place` was called.
    """

    key: str
    sha256: str
    size: int
    place: Callable[[], None]
    is_placed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanNote:
    """A note of an interrupted operation: the bytes that it names are removed if no record needs them.

    Attributes:
        note: Key of the note, removed last.
        blob: Key of the bytes.
    """

    note: str
    blob: str


class Blobs(Protocol):
    """A back end of a store.

    Attributes:
        shares: Whether `exclusive` locks out every other writer, on all hosts.
    """

    shares: bool

    def now(self) -> datetime:
        """Return the time that all hosts agree on; by default that of this host's clock."""
        return utc_now()

    def prefix(self, area: str) -> str:
        """Return the prefix of all keys of an area of `runner.store.entries`; it ends in a slash."""
        return f"{area}/"

    def areas(self) -> Iterable[str]:
        """Return the prefixes of all areas."""

    def named(self, prefix: str) -> str:
        """Return the readable name of the area of a prefix."""
        return prefix.rstrip("/")

    def exclusive(self, area: str) -> AbstractContextManager[object]:
        """Lock out other writers of an area."""

    def version(self, area: str) -> object | None:
        """Return a value that changes with the records of an area; None: only a listing shows changes."""

    def receive(
        self, area: str, source: int | bytes, about: Put, scope: Scope
    ) -> AbstractContextManager[Incoming]:
        """Receive bytes, or a file from its start; they are dropped at the end unless they were placed."""

    def put(
        self, key: str, content: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> Blob | None:
        """Write a small blob atomically and durably; None: the condition did not hold."""

    def get(self, key: str) -> tuple[bytes, str] | None:
        """Return a small blob and its etag."""

    def content(self, entry: Entry, start: int, end: int) -> AbstractContextManager[StreamContent]:
        """Open the bytes of a record, or a range of them.

        Raises:
            FileNotFoundError: They do not exist.
        """

    def stat(self, key: str) -> int | None:
        """Return the length of a blob."""

    def scan(self, prefix: str) -> Iterable[Blob]:
        """Return the blobs whose keys begin with a prefix that ends in a slash."""

    def delete(self, key: str) -> None:
        """Delete a blob, if it is there."""

    def retire(self, entry: Entry) -> str | None:
        """Make a record unreadable for everybody, durably, before its bytes are deleted.

        Returns:
            Key of a note that exists until the bytes are deleted; None: the record changed since it was read.
        """

    def leftovers(self, area: str) -> Iterable[OrphanNote]:
        """Yield leftovers of interrupted operations in an area, each locked until the next is requested.

        Call it within `exclusive`.
        """
        return ()

    def check(self) -> None:
        """Probe the back end: write a small blob, and list blobs."""

    def stored_bytes(self) -> int | None:
        """Return the length of all bytes of artifacts; None: it would take too long."""
        return None

    def convert(self, prefix: str) -> None:
        """Convert what an earlier version left below a prefix; if it is empty, what is outside all areas."""
        del prefix

    def map(self, act: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Apply a function to each item, several at a time where that helps."""
        return [act(item) for item in items]


class MemoryBlobs(Blobs):
    """Blobs in a dictionary."""

    shares = True

    def __init__(self) -> None:
        self._held: dict[str, bytes] = {}
        self._lock = threading.RLock()
        self._count = 0

    def areas(self) -> list[str]:
        """Return the prefixes of all areas."""
        return sorted({"/".join(key.split("/")[:2]) + "/" for key in [*self._held]})

    def exclusive(self, area: str) -> AbstractContextManager[object]:
        """Lock out other writers of all areas."""
        return self._lock

    def version(self, area: str) -> int:
        """Return a number that grows with each change."""
        return self._count

    @contextlib.contextmanager
    def receive(self, area: str, source: int | bytes, about: Put, scope: Scope) -> Iterator[Incoming]:
        """Receive bytes."""
        content = source if isinstance(source, bytes) else b"".join(chunks(source))
        digest = hashlib.sha256(content).hexdigest()
        key = f"{area}objects/{digest}"
        yield Incoming(
            key=key, sha256=digest, size=len(content), place=lambda: self.keep(key, content, about, scope)
        )

    def keep(self, key: str, content: bytes, about: Put, scope: Scope) -> None:
        """Store bytes."""
        self._held[key] = content

    def read(self, key: str) -> bytes | None:
        """Return bytes."""
        return self._held.get(key)

    def put(
        self, key: str, content: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> Blob | None:
        """Write a small blob."""
        with self._lock:
            if if_absent and key in self._held:
                return None
            self._count += 1
            self._held[key] = content
            return self._blob(key, content)

    def get(self, key: str) -> tuple[bytes, str] | None:
        """Return a small blob and its etag."""
        content = self._held.get(key)
        return None if content is None else (content, _etag(content))

    @contextlib.contextmanager
    def content(self, entry: Entry, start: int, end: int) -> Iterator[StreamContent]:
        """Open bytes."""
        content = self.read(entry.blob)
        if content is None:
            raise FileNotFoundError(entry.blob)

        def pieces() -> Iterator[bytes]:
            for at in range(start, end, CHUNK_BYTES):
                yield content[at : min(at + CHUNK_BYTES, end)]

        yield StreamContent(pieces, start=start, end=end, record=entry.record)

    def stat(self, key: str) -> int | None:
        """Return the length of a blob."""
        content = self._held.get(key)
        return None if content is None else len(content)

    def scan(self, prefix: str) -> Iterable[Blob]:
        """Return the blobs of a prefix."""
        return [self._blob(key, held) for key, held in [*self._held.items()] if key.startswith(prefix)]

    def delete(self, key: str) -> None:
        """Delete a blob."""
        self._count += 1
        self._held.pop(key, None)

    def retire(self, entry: Entry) -> str:
        """Delete a record."""
        self.delete(entry.key)
        return entry.key

    def check(self) -> None:
        """Do nothing: a failure of memory ends the process."""

    def _blob(self, key: str, content: bytes) -> Blob:
        return Blob(key=key, size=len(content), etag=_etag(content), modified=utc_now())


def _etag(content: bytes) -> str:
    return f"{hash(content):x}"
