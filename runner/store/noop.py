"""The store that keeps nothing: it measures each put, marks the record as lost, and drops the bytes.

For a host without a store: results stay small, and their readers see that bytes were dropped.

Source: requirements S4-87, S4-91, S4-102 and S4-107; contradiction C33; rule ST4 of the conformance cases.
"""

import logging
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from runner.errors import CallError, Code
from runner.store.entries import mime_of
from runner.store.protocol import Origin, Put, Record, Scope
from runner.store.sources import digest_of, opened
from runner.store.store import BlobStore
from runner.system.threads import run_in_thread

__all__ = ["NoStore", "does_not_fit", "is_lost", "nothing_stored"]

_log = logging.getLogger(__name__)


def nothing_stored(name: str | None) -> CallError:
    """Return the error for a file that is needed later but is not stored."""
    return CallError(
        Code.E_STORE,
        f"{name!r} was not kept: this server keeps no files (store = none:); "
        "set store to memory: or to an address",
        retryable=False,
    )


def does_not_fit(name: str | None) -> CallError:
    """Return the error for a file that is too large for its message and is not stored."""
    return CallError(
        Code.E_STORE,
        f"{name!r} does not fit into the message, and this server keeps no files (store = none:), so it is "
        "lost; return a smaller file, or set store to memory: or to an address",
        retryable=False,
    )


def is_lost(record: Record) -> bool:
    """Return whether a record only describes bytes that were not stored."""
    return record.metadata.source.get("truncated") is True and "original_size" in record.metadata.source


class NoStore(BlobStore):
    """An `ArtifactStore` without storage: an empty one in memory. Warns once, at the first put.

    A put of a file for later, an upload or a deferred file, is refused: the file would be lost at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self._warned = False

    async def put_bytes(self, content: bytes, about: Put, *, scope: Scope) -> Record:
        """Return the record that the bytes would have had; drop the bytes."""
        return self._described(digest_of(content), about, scope)

    async def put_file(self, source: int | Path, about: Put, *, scope: Scope) -> Record:
        """Return the record that the file would have had; leave the file in its place."""

        def measured() -> tuple[str, int]:
            with opened(source) as fd:
                return digest_of(fd)

        return self._described(await run_in_thread(measured), about, scope)

    def _opened(self, record: Record, scope: Scope, start: int, end: int) -> NoReturn:
        raise CallError(Code.E_FILE_NOT_FOUND, f"{record.shown!r} was not stored: there is no store")

    def _described(self, content: tuple[str, int], about: Put, scope: Scope) -> Record:
        if about.origin is not Origin.GENERATED:
            raise nothing_stored(about.name)
        if not self._warned:
            self._warned = True
            _log.warning("No ArtifactStore configured: contents dropped")
        digest, size = content
        return Record(
            id=f"{about.id_prefix}{digest[:12]}",
            name=about.name,
            mime=mime_of(about),
            size=size,
            sha256=digest,
            scope=scope,
            metadata=replace(about, source={**about.source, "truncated": True, "original_size": size}),
            created=self.clock(),
        )
