"""Verification of all stored content against its digests.

Nothing is changed, and nothing is noted as used. What comes or goes meanwhile is not counted as damaged.
"""

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

__all__ = ["Damage", "StoreVerdict", "Verifiable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A stored file that is not what was put.

    Attributes:
        shown: Its name, or the id of an observation.
        area: Whose it is: the folder of its owner, relative to the store's.
        problem: What is wrong with its bytes, as a clause.
    """

    shown: str
    area: str
    problem: str


@dataclass(slots=True, kw_only=True)
class StoreVerdict:
    """The result of a verification.

    Attributes:
        files: How many contents were read.
        bytes: How long they should be together.
        damaged: Those that are not what was put.
    """

    files: int = 0
    bytes: int = 0
    damaged: list[Damage] = field(default_factory=list)

    def count(self, shown: str, area: str, size: int, problem: str | None) -> None:
        """Add one content; `problem` says what is wrong with it."""
        self.files += 1
        self.bytes += size
        if problem is not None:
            self.damaged.append(Damage(shown=shown, area=area, problem=problem))


@runtime_checkable
class Verifiable(Protocol):
    """A store that can read all it keeps."""

    async def verify(self) -> StoreVerdict:
        """Read all content of every user and verify its digest.

        Raises:
            CallError: `E_STORE`: it cannot be listed, or a server cannot be reached.
        """
