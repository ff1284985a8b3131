"""The local store: artifacts in a folder of this machine. The default.

Source: requirements S1-9, S1-20, S1-27, S1-74; `docs/operating.md`.
"""

import asyncio
import builtins
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from runner.store.areas import place_of
from runner.store.blobs import utc_now
from runner.store.local.blobs import LocalBlobs
from runner.store.local.conversion import convert, is_old
from runner.store.measuring import Meter, StoreFacts
from runner.store.protocol import Put, Record, Scope
from runner.store.retention import RetentionRules
from runner.store.store import BlobStore
from runner.system.threads import run_in_thread

__all__ = ["LocalStore", "utc_now"]

_USERS = "users/"


class LocalStore(BlobStore):
    """An `ArtifactStore` below one folder. Any number of processes and threads may have it.

    Args:
        root: The folder of the store; made on first use.
        rules: What may be kept.
        clock: The present time.
    """

    def __init__(
        self, root: Path, rules: RetentionRules | None = None, clock: Callable[[], datetime] = utc_now
    ) -> None:
        super().__init__(LocalBlobs(root), rules, clock=clock)
        self.root = root
        self._meter = Meter()
        self._is_converted = False

    async def measure(self) -> StoreFacts:
        """Return the stored bytes, and the number of files refused."""
        return await asyncio.to_thread(self._meter.facts, self._stored_bytes)

    async def users(self) -> Sequence[str]:
        """Return the areas of users who have anything here, as the segments of their names."""

        def users() -> builtins.list[str]:
            self._convert("")
            areas = [area for area in self.blobs.areas() if area.startswith(_USERS)]
            return [area[len(_USERS) : -1] for area in areas if self._known(area).entries]

        return await run_in_thread(users)

    async def all_of(self, user: str) -> Sequence[Record]:
        """Return all that a user has here, of every session, observations too."""

        def all_of() -> builtins.list[Record]:
            found = self._known(self._ready(place_of(Scope(user_id=user)).area)).entries.values()
            return [each.record for each in sorted(filter(self._is_alive, found), key=lambda e: e.put)]

        return await run_in_thread(all_of)

    def _put(self, source: int | bytes, size: int, about: Put, scope: Scope) -> Record:
        with self._meter.counting():
            return super()._put(source, size, about, scope)

    def _convert(self, prefix: str) -> None:
        if not self._is_converted:
            if is_old(self.root):
                convert(self.root)
            self._is_converted = True

    def _stored_bytes(self) -> int:
        return sum(blob.size for area in self.blobs.areas() for blob in self.blobs.scan(f"{area}objects/"))
