"""Storage requests of the layers, and the one place that fulfils them.

The layers are generators: they yield a `Find` and get a `KeptFind` back, and never use a store themselves.
So each can run without a store, and bytes are freed as soon as they are stored.

Source: document 004, sections 5.2 to 5.4; requirements S4-15, S4-71 to S4-74, S4-107; contradiction C33.
"""

import itertools
import re
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from anyio import to_thread

from runner.errors import CallError
from runner.output_guard.config import GuardConfig
from runner.store.protocol import Put, Record, Retention, Scope

__all__ = ["Find", "Keeper", "KeptFind", "LayerRun", "Store", "TooMany", "drive", "rebuilt"]

T = TypeVar("T")

_SOURCE_MAX_CHARS = 120
_LOOKED_INTO = frozenset({dict, list, bytes})
# Less is processed faster than it is passed to another thread.
_THREAD_FROM_CHARS = 100_000


class Store(Protocol):
    """The part of a `runner.store.protocol.ArtifactStore` that the guard needs."""

    async def put_bytes(self, content: bytes, about: Put, *, scope: Scope) -> Record:
        """Keep bytes."""

    async def put_text(self, text: str, about: Put, *, scope: Scope) -> Record:
        """Keep text as UTF-8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Find:
    """Content to remove from a result.

    Attributes:
        content: The whole content.
        mime: Its MIME type.
        name: A file name for it, if there is an obvious one.
        where: The field it was found in, for people.
        facts: Facts about it, such as its rows.
    """

    content: bytes | str
    mime: str
    name: str | None = None
    where: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Return its size in bytes."""
        if isinstance(self.content, bytes) or self.content.isascii():
            return len(self.content)
        return len(self.content.encode("utf-8", "replace"))


@dataclass(frozen=True, slots=True)
class KeptFind:
    """Outcome of one find.

    Attributes:
        record: Its record, if it was stored.
        reason: Why it was not stored.
        reading_tools: Whether a model has tools that read its text.
    """

    record: Record | None
    reason: str = ""
    reading_tools: bool = False


class TooMany(ValueError):
    """A layer finds more in one result than may be stored one by one."""


LayerRun = Generator[Find, KeptFind, T]


@dataclass(slots=True, kw_only=True)
class Keeper:
    """Storage of the finds of one result.

    Attributes:
        config: The guard's settings.
        store: The store; None if there is none, so that all finds are left out with a warning.
        scope: Scope of the stored content.
        tool: Name of the tool, with or without a prefix.
        server: Name of its server, if it has one; also the namespace of ids.
        stored: Records stored so far.
        warnings: Failures, for the log.
    """

    config: GuardConfig
    store: Store | None
    scope: Scope
    tool: str
    server: str | None = None
    stored: list[Record] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    async def keep(self, find: Find) -> KeptFind:
        """Store one find; if that fails, leave it out, with a warning."""
        if self.store is None:
            return self._lost(find, "no artifact store is configured")
        about = Put(
            name=find.name,
            mime=find.mime,
            retention=Retention.OBSERVATIONS,
            namespace=self._namespace(),
            source=self._source(find),
            facts=find.facts,
        )
        try:
            if isinstance(find.content, str):
                record = await self.store.put_text(find.content, about, scope=self.scope)
            else:
                record = await self.store.put_bytes(find.content, about, scope=self.scope)
        except CallError as error:
            return self._lost(find, error.message)
        if record.metadata.source.get("truncated"):
            return self._lost(find, "no artifact store is configured")
        self.stored.append(record)
        return KeptFind(record, reading_tools=self.config.reading_tools)

    def _lost(self, find: Find, reason: str) -> KeptFind:
        size, unit = len(find.content), "characters" if isinstance(find.content, str) else "bytes"
        self.warnings.append(f"{find.where or 'result'}: {size} {unit} of {find.mime} truncated, {reason}")
        return KeptFind(None, reason)

    def _namespace(self) -> str:
        named = self.server or self.tool
        # In lower case, as clients write the host of a URI.
        return re.sub(r"[^a-z0-9]+", "_", named.lower()).strip("_")[:40] or "art"

    def _source(self, find: Find) -> dict[str, Any]:
        source = {"tool": self.tool, "server": self.server, "field": find.where}
        return {key: value[:_SOURCE_MAX_CHARS] for key, value in source.items() if value}


def rebuilt(
    value: Any,
    edit: Callable[[Any, str], LayerRun[Any]],
    where: str,
    *,
    least: int,
    rename: Callable[[str, str], LayerRun[str]] | None = None,
) -> LayerRun[Any]:
    """Return a list or an object with its items edited; `value` itself if none changes.

    Args:
        value: The list or the object.
        edit: Gets each container, bytes, and text of at least `least` characters, and its place.
        where: The place of `value`.
        least: Shorter texts and keys are ignored.
        rename: Gets each key of at least `least` characters, and its place.
    """
    is_object, is_same = isinstance(value, dict), True
    made: dict[Any, Any] = {}
    items: Iterable[tuple[Any, Any]] = value.items() if is_object else enumerate(value)
    for key, item in items:
        new, name, kind = item, key, type(item)
        if len(item) >= least if kind is str else kind in _LOOKED_INTO:
            new = yield from edit(item, _place(where, key))
        if is_object and len(key) >= least and rename is not None:
            name = yield from rename(key, _place(where, key))
        is_same = is_same and new is item and name is key
        made[name] = new
    if is_same:
        return value
    return made if is_object else list(made.values())


def _place(where: str, key: str | int) -> str:
    return f"{where}[{key}]" if isinstance(key, int) else f"{where}.{key[:60]}".removeprefix(".")


async def drive(layer: LayerRun[T], keeper: Keeper, *, chars: int, most: int | None = None) -> T:
    """Run a layer to its end, store its finds, and return its value.

    Args:
        layer: The layer, not yet started.
        keeper: Stores its finds.
        chars: Characters that it has to process. While there are many for each step, it runs in a thread, so
            that other calls are not blocked.
        most: Most finds.

    Raises:
        TooMany: There are more.
    """
    stored: KeptFind | None = None
    for finds in itertools.count(1):
        if most is not None and finds > most + 1:
            layer.close()
            raise TooMany(f"more than {most} finds")
        threaded = chars > finds * _THREAD_FROM_CHARS
        step = await to_thread.run_sync(_next, layer, stored) if threaded else _next(layer, stored)
        if isinstance(step, _Done):
            return step.value  # type: ignore[no-any-return]
        stored = await keeper.keep(step)
    raise AssertionError("unreachable")


@dataclass(frozen=True, slots=True)
class _Done:
    value: Any


def _next(layer: LayerRun[Any], stored: KeptFind | None) -> Find | _Done:
    try:
        return next(layer) if stored is None else layer.send(stored)
    except StopIteration as stop:
        # A StopIteration cannot leave a thread's future.
        return _Done(stop.value)
