"""`runner doctor --repair` and `--verify`: verification and repair of the store.

Removed are left-over bytes and what has expired. Files whose bytes are gone are named and stay listed:
only their owner can say whether to put them again or to remove them.

Source: `docs/operating.md`, "The store".
"""

import asyncio
from collections.abc import Sequence

from runner.doctor.report import DoctorLine, missing, ok
from runner.errors import CallError
from runner.files.my_files import open_library
from runner.settings.execution import LibrarySettings
from runner.store.local.store import LocalStore
from runner.store.protocol import Reason, Removal
from runner.store.verifying import Damage, Verifiable

__all__ = ["repair", "verify"]

_SECTION = "store"


async def repair(settings: LibrarySettings) -> tuple[DoctorLine, ...]:
    """Sweep the store, end idle sessions, and return what was found, as lines of the report."""
    library = open_library(settings)
    try:
        ended = await library.end_idle_sessions(settings.session_idle_s)
        store = library.store
        removals = await store.sweep()
        lost = await asyncio.to_thread(store.missing) if isinstance(store, LocalStore) else []
    except CallError as error:
        return (missing(_SECTION, "sweep", error.message, "free the store for this user, then try again"),)
    lines = [_swept(removals, reason) for reason in (Reason.LEFT_BEHIND, Reason.EXPIRED)]
    lines.append(ok(_SECTION, "sessions", f"{ended} idle ones ended"))
    return (*lines, *map(_lost, lost))


async def verify(settings: LibrarySettings) -> tuple[DoctorLine, ...]:
    """Read everything in the store, and return what was found, as lines of the report."""
    store = open_library(settings).store
    if not isinstance(store, Verifiable):
        return ()
    try:
        verdict = await store.verify()
    except CallError as error:
        return (missing(_SECTION, "verify", error.message, "make the store usable, then try again"),)
    detail = f"{verdict.files} contents read, {verdict.bytes} bytes, {len(verdict.damaged)} damaged"
    return (ok(_SECTION, "verify", detail), *map(_lost, verdict.damaged))


def _swept(removals: Sequence[Removal], reason: Reason) -> DoctorLine:
    sizes = [removal.size for removal in removals if removal.reason is reason]
    name = "left over" if reason is Reason.LEFT_BEHIND else reason.value
    return ok(_SECTION, name, f"{len(sizes)} removed, {sum(sizes)} bytes")


def _lost(damage: Damage) -> DoctorLine:
    detail = f"{damage.shown!r} in {damage.area}: {damage.problem}"
    return missing(_SECTION, "damaged", detail, "put it again under its name, or remove it: runner files rm")
