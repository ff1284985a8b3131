"""Reports of a store: its usage for metrics, and the verification of all content against its digests.

A verification changes nothing, and does not count as a use. Files put or removed meanwhile are not counted
as damaged.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from runner.errors import CallError, Code
from runner.store.protocol import ArtifactStore

__all__ = ["Damage", "Meter", "Reporting", "StoreFacts", "StoreVerdict", "measured"]

_KEPT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """Usage of a store at one moment.

    Attributes:
        stored_bytes: Length of all stored content, equal content of one user once; None if unknown:
            a bucket would have to be listed for it.
        pending_files: Files that wait on this machine for the store.
        pending_bytes: Their total length.
        failed_puts: Number of failed puts to the store since the server started, retries included.
    """

    stored_bytes: int | None = None
    pending_files: int = 0
    pending_bytes: int = 0
    failed_puts: int = 0


@runtime_checkable
class Reporting(Protocol):
    """A store that reports on itself: every store of ours, but not that of a program."""

    async def measure(self) -> StoreFacts:
        """Return the current usage; stored sizes may be a minute old."""

    async def verify(self) -> "StoreVerdict":
        """Read all content of every user and verify its digest.

        Raises:
            CallError: `E_STORE`: it cannot be listed, or a server cannot be reached.
        """


@dataclass(slots=True, eq=False)
class Meter:
    """Counters of a store.

    Attributes:
        failed_puts: Number of failed puts.
    """

    failed_puts: int = 0
    _size: int | None = None
    _known_at: float = float("-inf")

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count a put that fails with `E_STORE`; refusals by a limit are not counted."""
        try:
            yield
        except CallError as error:
            self.failed_puts += error.code is Code.E_STORE
            raise

    def facts(self, add_up: Callable[[], int | None]) -> StoreFacts:
        """Return the usage, its bytes summed once a minute; unknown if that fails."""
        if time.monotonic() - self._known_at > _KEPT_S:
            self._size, self._known_at = None, time.monotonic()
            with suppress(CallError, OSError):
                self._size = add_up()
        return StoreFacts(stored_bytes=self._size, failed_puts=self.failed_puts)


async def measured(store: ArtifactStore) -> StoreFacts:
    """Return the usage of a store; nothing for a store that does not report it."""
    return await store.measure() if isinstance(store, Reporting) else StoreFacts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A stored file that is not what was put.

    Attributes:
        shown: Its name, or the id of an observation.
        area: The folder of its owner, relative to the store's.
        problem: What is wrong with its bytes, as a clause.
    """

    shown: str
    area: str
    problem: str


@dataclass(slots=True, kw_only=True)
class StoreVerdict:
    """The result of a verification.

    Attributes:
        files: Number of contents read; equal content counts once.
        bytes: Their total length according to the records.
        damaged: The damaged ones.
    """

    files: int = 0
    bytes: int = 0
    damaged: list[Damage] = field(default_factory=list)

    def count(self, shown: str, area: str, size: int, problem: str | None) -> None:
        """Add one content; `problem` is its fault, if any."""
        self.files += 1
        self.bytes += size
        if problem is not None:
            self.damaged.append(Damage(shown=shown, area=area, problem=problem))
