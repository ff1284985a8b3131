"""Shared parts of store tests: a clock that stands still, and short forms of puts."""

import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from runner.store.local.blobs import LocalBlobs
from runner.store.protocol import ArtifactStore, Origin, Put, Record, Retention, Scope
from runner.store.store import BlobStore

__all__ = ["ALICE", "BOB", "NOBODY", "Clock", "content_of", "keep", "observe", "root_of", "run"]

ALICE = Scope(user_id="alice")
BOB = Scope(user_id="bob")
NOBODY = Scope()


@dataclass
class Clock:
    """A clock that returns the time it was set to."""

    now: datetime = datetime(2024, 8, 27, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def root_of(store: BlobStore) -> Path:
    """Return the folder of a local store."""
    assert isinstance(store.blobs, LocalBlobs)
    return store.blobs.root


async def keep(
    store: ArtifactStore, content: bytes, name: str, scope: Scope = ALICE, **metadata: Any
) -> Record:
    """Put a file."""
    about = Put(**{"name": name, "origin": Origin.UPLOADED, **metadata})
    return await store.put_bytes(content, about, scope=scope)


async def observe(store: ArtifactStore, content: bytes, scope: Scope = NOBODY, **metadata: Any) -> Record:
    """Put an observation."""
    return await store.put_bytes(content, Put(retention=Retention.OBSERVATIONS, **metadata), scope=scope)


async def content_of(store: ArtifactStore, record: Record, scope: Scope | None = None, **span: int) -> bytes:
    """Return the bytes of a record, as its owner reads them."""
    async with store.open(record, scope=scope or record.scope, **span) as content:
        found = b"".join([chunk async for chunk in content])
        assert content.size == len(found)
    return found


def run(code: str, *arguments: object, timeout: float = 100) -> str:
    """Run Python in a process of its own; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
