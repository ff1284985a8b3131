"""A store in memory: for the Playground, for tests, and for what nobody needs after the process.

It decides by the same rows as the local store, in a database that lives in memory too. Only the bytes
are elsewhere: on a shelf, by default a dictionary.

Source: requirements S4-70 and S4-87; rules ST1 to ST3 of the conformance cases.
"""

import asyncio
import contextlib
import sqlite3
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from runner.errors import CallError, Code
from runner.formats.filenames import safe_name
from runner.store.areas import place_of
from runner.store.content import BytesContent, chunks, span
from runner.store.local.row import SCHEMA, Bytes
from runner.store.local.rows import Rows
from runner.store.local.store import utc_now
from runner.store.protocol import Content, Put, Reason, Record, Removal, Scope
from runner.store.removals import log_removals
from runner.store.retention import RetentionRules
from runner.store.sources import opened
from runner.system.threads import run_in_thread

__all__ = ["MemoryStore", "Shelf"]


class Shelf(Protocol):
    """Keeps the bytes of a `MemoryStore`. All methods may raise `CallError`."""

    async def put(self, at: Bytes, content: bytes, record: Record) -> None:
        """Keep bytes; again where they are kept already."""

    async def get(self, at: Bytes) -> bytes | None:
        """Return bytes, if they are still there."""

    async def delete(self, at: Bytes) -> None:
        """Drop bytes that no artifact names any more."""


class _Dictionary:
    """The shelf that is in memory too."""

    def __init__(self) -> None:
        self._contents: dict[Bytes, bytes] = {}

    async def put(self, at: Bytes, content: bytes, record: Record) -> None:
        self._contents[at] = content

    async def get(self, at: Bytes) -> bytes | None:
        return self._contents.get(at)

    async def delete(self, at: Bytes) -> None:
        self._contents.pop(at, None)


class MemoryStore:
    """An `ArtifactStore` that ends with its process.

    Args:
        rules: What may be kept.
        clock: Says the present time.
        shelf: Keeps the bytes.
    """

    def __init__(
        self,
        rules: RetentionRules | None = None,
        *,
        clock: Callable[[], datetime] = utc_now,
        shelf: Shelf | None = None,
    ) -> None:
        self._rules = rules or RetentionRules()
        self._clock = clock
        self._shelf: Shelf = shelf or _Dictionary()
        self._lock = asyncio.Lock()
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        # Closed when the store is gone, which happens whenever nobody holds it any more.
        weakref.finalize(self, self._connection.close)
        self._connection.executescript(SCHEMA)

    async def put_bytes(self, content: bytes, about: Put, *, scope: Scope) -> Record:
        """Keep bytes."""
        place = place_of(scope)
        digest = sha256(content).hexdigest()
        async with self._change() as rows:
            now = self._clock()
            added = rows.put(about, (digest, len(content)), scope=scope, now=now, rules=self._rules)
            record = added.row.record({place: scope.owner})
            await self._shelf.put(added.row.bytes, content, record)
            await self._drop(rows, [row.bytes for row, _ in added.gone])
        log_removals(row.removal(reason) for row, reason in added.gone)
        return record

    async def put_text(self, text: str, about: Put, *, scope: Scope) -> Record:
        """Keep text as UTF-8."""
        return await self.put_bytes(text.encode(), about.as_text(), scope=scope)

    async def put_file(self, source: int | Path, about: Put, *, scope: Scope) -> Record:
        """Keep a regular file."""
        return await self.put_bytes(await run_in_thread(_read, source), about, scope=scope)

    @asynccontextmanager
    async def open(
        self, record: Record, *, scope: Scope, offset: int = 0, length: int | None = None
    ) -> AsyncIterator[Content]:
        """Open the bytes of a record, or a range of them."""
        async with self._change() as rows:
            row = rows.use(record, scope=scope, now=self._clock())
            content = None if row is None else await self._shelf.get(row.bytes)
        if content is None:
            code = Code.E_FILE_NOT_FOUND if row is None else Code.E_STORE
            raise CallError(code, f"the file {record.shown!r} is no longer stored")
        start, end = span(record.size, offset, length)
        yield BytesContent(content[start:end])

    async def stat(self, id_: str, *, scope: Scope) -> Record | None:
        """Return the artifact of that id."""
        async with self._change() as rows:
            return rows.with_id(id_, scope=scope, now=self._clock()) if id_.isascii() else None

    async def find(self, name: str, *, scope: Scope) -> Record | None:
        """Return the file of exactly that name."""
        if safe_name(name) != name:
            return None
        async with self._change() as rows:
            return rows.named(name, scope=scope, now=self._clock())

    async def last_observation(self, name: str, *, scope: Scope) -> Record | None:
        """Return the newest observation of exactly that name."""
        async with self._change() as rows:
            return rows.last_observation(name, scope=scope, now=self._clock())

    async def list(self, *, scope: Scope) -> Sequence[Record]:
        """Return all artifacts that the scope may have, by name."""
        async with self._change() as rows:
            return rows.of(scope=scope, now=self._clock())

    async def sizes(self, *, scope: Scope) -> Sequence[int]:
        """Return the length of each content that counts against the quota of the user of `scope`."""
        async with self._change() as rows:
            return rows.sizes(place_of(scope).area)

    async def delete(self, id_: str, *, scope: Scope, name: str | None = None) -> bool:
        """Delete an artifact: that name of it, or all of it."""
        if not id_.isascii() or (name is not None and safe_name(name) != name):
            return False
        async with self._change() as rows:
            gone = rows.remove(id_, scope=scope, now=self._clock(), name=name)
            await self._drop(rows, [row.bytes for row in gone])
        return bool(gone)

    async def touch(self, id_: str, *, scope: Scope, expires_at: datetime | None = None) -> bool:
        """Renew the lifetime of an observation, or let any artifact end at `expires_at`."""
        now = self._clock()
        async with self._change() as rows:
            return rows.touch(id_, scope=scope, now=now, expires_at=expires_at, rules=self._rules)

    async def sweep(self) -> Sequence[Removal]:
        """Remove what has expired."""
        async with self._change() as rows:
            ended = rows.remove_ended(self._clock())
            await self._drop(rows, [row.bytes for row in ended])
        removals = [row.removal(Reason.EXPIRED) for row in ended]
        log_removals(removals)
        return removals

    async def fault(self) -> str | None:
        """Say that nothing is wrong: what fails in memory fails the process."""
        return None

    async def count(self) -> int:
        """Return how many artifacts there are, of all scopes together."""
        async with self._change() as rows:
            return rows.count(now=self._clock())

    async def _drop(self, rows: Rows, contents: Iterable[Bytes]) -> None:
        for content in contents:
            if not rows.refers_to(content.area, content.sha256):
                await self._shelf.delete(content)

    @asynccontextmanager
    async def _change(self) -> AsyncIterator[Rows]:
        """Look at the rows or change them: one operation at a time, all of it or nothing."""
        async with self._lock:
            self._connection.execute("BEGIN")
            try:
                yield Rows(self._connection)
            except BaseException:
                # Where an operation is given up together with its store, the database is gone already.
                with contextlib.suppress(sqlite3.ProgrammingError):
                    self._connection.rollback()
                raise
            self._connection.commit()


def _read(source: int | Path) -> bytes:
    with opened(source) as fd:
        return b"".join(chunks(fd))
