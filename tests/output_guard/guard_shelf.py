"""A store that keeps what the guard puts in a list, or refuses it; and how the guard is called in tests."""

import hashlib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import anyio
from clamping import Clamped, clamp

from runner.errors import CallError, Code
from runner.output_guard.config import from_mapping
from runner.output_guard.pipeline import Guarded, guard
from runner.output_guard.storing import Keeper, Store
from runner.store.protocol import Put, Record, Scope

__all__ = ["SCOPE", "Refusing", "Shelf", "clamped", "guarded"]

SCOPE = Scope(user_id="alice", session_id="s1", trace_id="t1")
_NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Shelf:
    """Keeps everything."""

    records: list[Record] = field(default_factory=list)
    contents: list[bytes] = field(default_factory=list)

    async def put_bytes(self, content: bytes, about: Put, *, scope: Scope) -> Record:
        digest = hashlib.sha256(content).hexdigest()
        record = Record(
            id=f"{about.namespace}_{digest[:12]}",
            name=about.name,
            mime=about.mime or "application/octet-stream",
            size=len(content),
            sha256=digest,
            scope=scope,
            metadata=about,
            created=_NOW,
        )
        self.records.append(record)
        self.contents.append(content)
        return record

    async def put_text(self, text: str, about: Put, *, scope: Scope) -> Record:
        return await self.put_bytes(text.encode(), about, scope=scope)


class Refusing(Shelf):
    """Refuses everything, as a store does whose limit is reached."""

    async def put_bytes(self, content: bytes, about: Put, *, scope: Scope) -> Record:
        raise CallError(Code.E_QUOTA, "the limit of 0 bytes an artifact is reached")


def guarded(
    result: Any,
    *,
    store: Store | None,
    tool: str = "tool",
    server: str | None = None,
    transformer: Any = None,
    **config: Any,
) -> Guarded:
    async def run() -> Guarded:
        keeper = Keeper(config=from_mapping(config), store=store, scope=SCOPE, tool=tool, server=server)
        return await guard(result, keeper, transformer=transformer)

    return anyio.run(run)


def clamped(observation: Any, *, store: Store | None, **config: Any) -> Clamped:
    async def run() -> Clamped:
        return await clamp(observation, config=from_mapping(config), store=store, scope=SCOPE)

    return anyio.run(run)
