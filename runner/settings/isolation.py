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
    "isolation_meta",
    "lacking",
    "layers_of",
    "uids_of",
    "unfit",
]

log = logging.getLogger(__name__)

AUTO: tuple[Tier, ...] = (Tier.NAMESPACE, Tier.USER, Tier.PROCESS)
"""Tiers that `auto` tries in this order; the last one is used, or refused, in any case."""


ISOLATION_META = "toolcell/isolation"
"""Key in a result's `_meta` for the isolation of its call."""


def isolation_meta(tier: Tier, *, worker: str | None = None, goes_on: bool | None = None) -> dict[str, str]:
    """Return the isolation of a call, for its result.

    Args:
        tier: The tier in force.
        worker: `fresh` or `kept`: whether the worker had served its user before.
        goes_on: Whether the worker runs on between calls; None if the tool does not request that.
    """
    meta = {"tier": tier.value} if worker is None else {"tier": tier.value, "worker": worker}
    if goes_on is not None:
        meta["between_calls"] = "runs" if goes_on else "stopped"
    return meta


def in_force(settings: ExecutionSettings, files: Sequence[Path] = ()) -> Tier:
    """Return the tier of every call. Whether the machine offers one that was asked for, `lacking` says.

    Args:
        settings: The effective settings.
        files: Tool files; a tier in which one of them could not be read is not taken by `auto`.
    """
    if settings.isolation != "auto":
        return Tier(settings.isolation)
    offered = (tier for tier in AUTO[:-1] if not _missing(tier, settings.uids.start))
    return next((tier for tier in offered if _fits(tier, files, settings)), AUTO[-1])


def lacking(settings: ExecutionSettings) -> tuple[str, ...]:
    """Return a sentence, with its cure, for each thing that the tier in force needs and the machine lacks."""
    return _missing(in_force(settings), settings.uids.start)


def has_ids(tier: Tier) -> bool:
    """Return whether each user has a user id in a tier."""
    return tier in (Tier.USER, Tier.NAMESPACE) and os.geteuid() == 0


def uids_of(settings: ExecutionSettings, tier: Tier) -> Uids | None:
    """Return the ids that users get in a tier, if they get any.

    Where something is lent that only its owner may use, all of them get that owner's; none, if that is us.
    """
    lender = settings.lender
    if (has_ids(tier) if lender is None else lender != os.geteuid()) and tier is not Tier.GUARD:
        return Uids(settings.state_dir, settings.uids, settings.homes, lender)
    return None


def unfit(tier: Tier, files: Sequence[Path], settings: ExecutionSettings) -> str | None:
    """Return a sentence, with its cure, if what a server is to be cannot be had in a tier.

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
    # In a view of its own only the file itself can be closed: the folders above it are ours.
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
        # Links are not granted, so nobody has to be able to read them.
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
    # A trial takes a tenth of a second, and its outcome stays.
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
