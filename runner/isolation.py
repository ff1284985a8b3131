"""Which isolation tier is in force: the one asked for, or the first of `AUTO` that the machine offers.

Source: architecture, invariant 3; `docs/isolation.md`.
"""

import functools

from runner.settings import Settings
from sandbox.probe import Tier, missing

__all__ = ["AUTO", "in_force", "lacking"]

AUTO: tuple[Tier, ...] = (Tier.PROCESS,)
"""What `auto` tries, in this order; the last is taken, or refused, whatever it lacks."""


def in_force(settings: Settings) -> Tier:
    """Return the tier of every call. Whether the machine offers one that was asked for, `lacking` says."""
    if settings.isolation != "auto":
        return Tier(settings.isolation)
    found = (tier for tier in AUTO[:-1] if not _missing(tier, settings.uids.start))
    return next(found, AUTO[-1])


def lacking(settings: Settings) -> tuple[str, ...]:
    """Return a sentence, with its cure, for each thing that the tier in force needs and the machine lacks."""
    return _missing(in_force(settings), settings.uids.start)


@functools.cache
def _missing(tier: Tier, uid: int) -> tuple[str, ...]:
    # A trial takes a tenth of a second, and its outcome stays.
    return missing(tier, uid=uid)
