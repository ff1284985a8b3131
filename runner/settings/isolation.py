"""Isolation tier in force: the configured one, or the strongest that the machine and the files allow.

Source: architecture, invariant 3; requirements, tiers; `docs/isolation.md`.
"""

import functools
import logging
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from runner.settings.execution import ExecutionSettings
from runner.system.uids import Uids
from sandbox.inside.confine import LAYERS
from sandbox.probe.machine import Tier, missing, unreadable
from sandbox.readable import sibling_modules

__all__ = [
    "AUTO",
    "ISOLATION_META",
    "has_ids",
    "in_force",
    "lacking",
    "layers_of",
    "uids_of",
    "unfit",
]

log = logging.getLogger(__name__)

AUTO: tuple[Tier, ...] = (Tier.NAMESPACE, Tier.USER, Tier.PROCESS)
"""Tiers that `auto` tries in this order; the last one is taken without a trial."""


ISOLATION_META = "toolcell/isolation"
"""Key in a result's `_meta` for the isolation of its call."""


def in_force(settings: ExecutionSettings, files: Sequence[Path] = ()) -> Tier:
    """Return the tier of every call. `lacking` reports if the machine does not support it.

    Args:
        settings: The effective settings.
        files: Tool files; `auto` skips a tier in which one of them could not be read.
    """
    if settings.isolation != "auto":
        return Tier(settings.isolation)
    offered = (tier for tier in AUTO[:-1] if not _missing(tier, settings.uids.start))
    return next((tier for tier in offered if _fits(tier, files, settings)), AUTO[-1])


def lacking(settings: ExecutionSettings) -> tuple[str, ...]:
    """Return a sentence, with a remedy, for each missing requirement of the tier in force."""
    return _missing(in_force(settings), settings.uids.start)


def has_ids(tier: Tier) -> bool:
    """Return whether each user has a user id of its own in a tier."""
    return tier in (Tier.USER, Tier.NAMESPACE) and os.geteuid() == 0


def uids_of(settings: ExecutionSettings, tier: Tier) -> Uids | None:
    """Return the ids that users get in a tier, if they get any.

    If lent files are accessible only to their owner, all users get the owner's id; none if that is ours.
    """
    lender = settings.lender
    if (has_ids(tier) if lender is None else lender != os.geteuid()) and tier is not Tier.GUARD:
        return Uids(settings.state_dir, settings.uids, settings.homes, lender)
    return None


def unfit(tier: Tier, files: Sequence[Path], settings: ExecutionSettings) -> str | None:
    """Return a sentence, with a remedy, if a tier does not support a server's files and settings.

    A user id may not be able to read a tool file or a module beside it; and sockets need namespaces.

    Args:
        tier: The tier.
        files: The tool files.
        settings: The effective settings.
    """
    if settings.has_sockets and tier not in (Tier.NAMESPACE, Tier.GUARD):
        return (
            f"allow_sockets cannot be given in tier {tier.value}, where their names are everybody's: leave "
            "it out, or start the runner where tier namespace works (`runner doctor` says what it lacks)"
        )
    if uids_of(settings, tier) is None or not files:
        return None
    uid = settings.uids.start if settings.lender is None else settings.lender
    needed = [path for file in files for path in _needed(file)]
    # With namespaces only the file itself can be inaccessible: the folders above it are made by us.
    if tier is Tier.NAMESPACE:
        return _closed(needed, uid)
    return unreadable(needed, uid=uid)


def _fits(tier: Tier, files: Sequence[Path], settings: ExecutionSettings) -> bool:
    reason = unfit(tier, files, settings)
    if reason is not None:
        log.warning("stronger isolation not available", extra={"tier": tier.value, "reason": reason})
    return reason is None


def _needed(file: Path) -> Iterator[Path]:
    yield file
    for module in sibling_modules(file):
        yield module
        # Links are not granted, so they need not be readable.
        yield from sorted(path for path in module.rglob("*.py") if not path.is_symlink())


def _closed(files: Sequence[Path], uid: int) -> str | None:
    for file in files:
        facts = file.stat()
        wanted = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(facts.st_mode) else 0)
        if facts.st_uid != uid and facts.st_mode & wanted != wanted:
            rights = "rx" if stat.S_ISDIR(facts.st_mode) else "r"
            return f"{file} is closed to other users, and tools run as one; chmod o+{rights} {file}"
    return None


@functools.cache
def _missing(tier: Tier, uid: int) -> tuple[str, ...]:
    # Cached: a trial takes a tenth of a second, and its outcome does not change.
    return missing(tier, uid=uid)


def layers_of(tier: Tier) -> tuple[str, ...]:
    """Return the layers that a tier puts in place, in their order."""
    without: set[str] = set()
    if tier is not Tier.NAMESPACE:
        without |= {"cgroup", "namespaces"}
    if tier not in (Tier.USER, Tier.NAMESPACE) or os.geteuid() != 0:
        without.add("identity")
    if tier is Tier.GUARD:
        without |= {"landlock", "seccomp"}
    return tuple(layer for layer in LAYERS if layer not in without)
