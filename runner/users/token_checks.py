"""Check that tokens can be verified now: some providers depend on another server."""

from typing import Protocol, runtime_checkable

__all__ = ["NeedsOthers", "tokens_fault"]


@runtime_checkable
class NeedsOthers(Protocol):
    """A provider that can check tokens only while another server responds, such as their issuer."""

    async def fault(self) -> str | None:
        """Return a sentence on why no token can be checked now; None if one can."""


async def tokens_fault(provider: object) -> str | None:
    """Return why tokens cannot be checked now; None if they can, or if checks need no other server.

    Args:
        provider: FastMCP's auth provider, or None.
    """
    return await provider.fault() if isinstance(provider, NeedsOthers) else None
