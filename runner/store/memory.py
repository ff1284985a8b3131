"""A store in memory: for the Playground, for tests, and for what nobody needs after the process.

Source: requirements S4-70 and S4-87; rules ST1 to ST3 of the conformance cases.
"""

from collections.abc import Callable
from datetime import datetime

from runner.store.blobs import MemoryBlobs, utc_now
from runner.store.retention import RetentionRules
from runner.store.store import BlobStore

__all__ = ["MemoryStore"]


class MemoryStore(BlobStore):
    """An `ArtifactStore` that ends with its process.

    Args:
        rules: What may be kept.
        clock: The present time.
        blobs: Keeps the bytes and records.
    """

    def __init__(
        self,
        rules: RetentionRules | None = None,
        *,
        clock: Callable[[], datetime] = utc_now,
        blobs: MemoryBlobs | None = None,
    ) -> None:
        super().__init__(blobs or MemoryBlobs(), rules, clock=clock)
