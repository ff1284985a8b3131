"""Availability of token checks: some providers depend on another service."""

from typing import Protocol, runtime_checkable

__all__ = ["NeedsOthers", "tokens_fault"]


@runtime_checkable
class NeedsOthers(Protocol):
    """A provider that can check tokens only while somebody else answers, such as their issuer."""

    async def fault(self) -> str | None:
        """Return in a sentence why no token can be checked now; None if one can."""


async def tokens_fault(provider: object) -> str | None:
    """Return why no token can be checked now; None if they can, or need no other service.

    Args:
        provider: What checks tokens for FastMCP, or None.
    """
    return await provider.fault() if isinstance(provider, NeedsOthers) else None
