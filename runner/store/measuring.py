"""Metrics of a store: stored bytes, pending files and failed puts."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from runner.errors import CallError, Code
from runner.store.protocol import ArtifactStore

__all__ = ["Measurable", "Meter", "StoreFacts", "measured"]

_KEPT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """Usage of a store at one moment.

    Attributes:
        stored_bytes: Length of all stored content, equal content of one user once; None if unknown:
            a bucket would have to be listed for it.
        pending_files: Files that wait on this machine for the store.
        pending_bytes: Their length.
        failed_puts: How often the store did not take a file since the server began, what is sent again
            included.
    """

    stored_bytes: int | None = None
    pending_files: int = 0
    pending_bytes: int = 0
    failed_puts: int = 0


@runtime_checkable
class Measurable(Protocol):
    """A store that says of itself how much it keeps and what it did not take."""

    async def measure(self) -> StoreFacts:
        """Return the present usage; stored sizes may be a minute old."""


@dataclass(slots=True, eq=False)
class Meter:
    """Counters of a store.

    Attributes:
        failed_puts: How often a file was not taken.
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

    def facts(self, add_up: Callable[[], int]) -> StoreFacts:
        """Return the usage, its bytes summed once a minute; unknown if that fails."""
        if time.monotonic() - self._known_at > _KEPT_S:
            self._size, self._known_at = None, time.monotonic()
            with suppress(CallError):
                self._size = add_up()
        return StoreFacts(stored_bytes=self._size, failed_puts=self.failed_puts)


async def measured(store: ArtifactStore) -> StoreFacts:
    """Return the usage of a store; nothing for a store that does not report it."""
    return await store.measure() if isinstance(store, Measurable) else StoreFacts()
