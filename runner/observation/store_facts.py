"""Facts about a store for an operator."""

from dataclasses import dataclass

__all__ = ["StoreFacts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """Facts at one moment.

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
