"""Metrics of a store: stored bytes, pending files and failed puts."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from runner.errors import CallError, Code
from runner.observation.store_facts import StoreFacts
from runner.store.protocol import ArtifactStore

__all__ = ["Measurable", "Meter", "measured"]

_KEPT_S = 60.0


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
        clock: Returns the time in seconds, from any origin.
    """

    failed_puts: int = 0
    clock: Callable[[], float] = time.monotonic
    _size_and_time: tuple[int | None, float] = field(default=(None, float("-inf")))

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count a put that fails with `E_STORE`; refusals by a limit are not counted."""
        try:
            yield
        except CallError as error:
            self.failed_puts += error.code is Code.E_STORE
            raise

    def stored_bytes(self, add_up: Callable[[], int]) -> int | None:
        """Return the stored bytes, summed once a minute; None if that fails."""
        if self.clock() - self._size_and_time[1] > _KEPT_S:
            try:
                size: int | None = add_up()
            except CallError:
                size = None
            self._size_and_time = size, self.clock()
        return self._size_and_time[0]


async def measured(store: ArtifactStore) -> StoreFacts:
    """Return the usage of a store; nothing for a store that does not report it."""
    return await store.measure() if isinstance(store, Measurable) else StoreFacts()
