"""The store that keeps nothing: what is put is measured, noted as lost, and gone.

For a host without a store: results stay small, and who reads one sees that its bytes were cut off.

Source: requirements S4-87, S4-91, S4-102 and S4-107; contradiction C33; rule ST4 of the conformance cases.
"""

import logging
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import datetime
from hashlib import sha256
from pathlib import Path

from runner.errors import CallError, Code
from runner.formats.mime import DEFAULT_MIME, guess
from runner.store.content import chunks
from runner.store.local.store import utc_now
from runner.store.protocol import Content, Origin, Put, Record, Removal, Scope
from runner.store.sources import opened
from runner.system.threads import run_in_thread

__all__ = ["NoStore", "does_not_fit", "is_lost", "not_kept"]

_log = logging.getLogger(__name__)


def not_kept(name: str | None) -> CallError:
    """Return the error of a file that somebody would want later, and that nothing keeps."""
    return CallError(
        Code.E_STORE,
        f"{name!r} was not kept: this server keeps no files (store = none:); "
        "set store to memory: or to an address",
        retryable=False,
    )


def does_not_fit(name: str | None) -> CallError:
    """Return the error of a file that is too large for its message, and that nothing keeps."""
    return CallError(
        Code.E_STORE,
        f"{name!r} does not fit into the message, and this server keeps no files (store = none:), so it is "
        "lost; return a smaller file, or set store to memory: or to an address",
        retryable=False,
    )


def is_lost(record: Record) -> bool:
    """Say whether a record only describes what no store has kept."""
    return record.said.source.get("truncated") is True and "original_size" in record.said.source


class NoStore:
    """An `ArtifactStore` without storage. Warns once, at the first put.

    What somebody puts for later, an upload or a deferred file, is refused: it would be gone at once.
    """

    def __init__(self) -> None:
        self._warned = False

    async def put_bytes(self, content: bytes, about: Put, *, scope: Scope) -> Record:
        """Return what the bytes would have been known by; they are gone."""
        return self._record(sha256(content).hexdigest(), len(content), about, scope)

    async def put_text(self, text: str, about: Put, *, scope: Scope) -> Record:
        """Return what the text would have been known by; it is gone."""
        return await self.put_bytes(text.encode(), about.as_text(), scope=scope)

    async def put_file(self, source: int | Path, about: Put, *, scope: Scope) -> Record:
        """Return what the file would have been known by; it stays where it is, and nowhere else."""
        digest, size = await run_in_thread(_measured, source)
        return self._record(digest, size, about, scope)

    def open(
        self, record: Record, *, scope: Scope, offset: int = 0, length: int | None = None
    ) -> AbstractAsyncContextManager[Content]:
        """Refuse: nothing is stored."""
        raise CallError(Code.E_FILE_NOT_FOUND, f"{record.shown!r} was not stored: there is no store")

    async def stat(self, id_: str, *, scope: Scope) -> Record | None:
        """Return None: nothing is kept."""

    async def find(self, name: str, *, scope: Scope) -> Record | None:
        """Return None: nothing is kept."""

    async def last_observation(self, name: str, *, scope: Scope) -> Record | None:
        """Return None: nothing is kept."""

    async def list(self, *, scope: Scope) -> Sequence[Record]:
        """Return no record: nothing is kept."""
        return ()

    async def sizes(self, *, scope: Scope) -> Sequence[int]:
        """Return no length: nothing is kept."""
        return ()

    async def delete(self, id_: str, *, scope: Scope, name: str | None = None) -> bool:
        """Return that there was no such artifact: nothing is kept."""
        return False

    async def touch(self, id_: str, *, scope: Scope, expires_at: datetime | None = None) -> bool:
        """Return that there was no such artifact: nothing is kept."""
        return False

    async def sweep(self) -> Sequence[Removal]:
        """Return no record: nothing is kept."""
        return ()

    async def fault(self) -> str | None:
        """Say that nothing is wrong: keeping nothing is what it is for."""
        return None

    def _record(self, digest: str, size: int, about: Put, scope: Scope) -> Record:
        if about.origin is not Origin.GENERATED:
            raise not_kept(about.name)
        if not self._warned:
            self._warned = True
            _log.warning("No ArtifactStore configured: files and large outputs are not kept, only described")
        said = replace(about, source={**about.source, "truncated": True, "original_size": size})
        return Record(
            id=f"{about.namespace.replace('.', '_')}_{digest[:12]}",
            name=about.name,
            mime=about.mime or (DEFAULT_MIME if about.name is None else guess(about.name)),
            size=size,
            sha256=digest,
            scope=scope,
            said=said,
            created=utc_now(),
        )


def _measured(source: int | Path) -> tuple[str, int]:
    digest, size = sha256(), 0
    with opened(source) as fd:
        for chunk in chunks(fd):
            digest.update(chunk)
            size += len(chunk)
    return digest.hexdigest(), size
