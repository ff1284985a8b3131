"""A look at a local store that changes nothing: its index, its journals, and what is in quarantine.

Source: sqlite.org, "PRAGMA integrity_check".
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from runner.store.local.index import fault_in
from runner.store.local.journal import Journal, JournalLine
from runner.store.local.objects import Objects

__all__ = ["StoreFinding", "examine"]

_ANEW = "runner doctor --repair, or the next start of a server, makes it anew from the journals"
_APART = "docs/store.md says what it is, how to get files back and how to remove it"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFinding:
    """One thing that was looked at.

    Attributes:
        name: What it was.
        detail: What was found.
        cure: What to do; None: all is well.
    """

    name: str
    detail: str
    cure: str | None = None


def examine(root: Path) -> list[StoreFinding]:
    """Look at a store.

    Args:
        root: Its folder; where there is none yet nothing is found.

    Raises:
        OSError: It cannot be read.
    """
    return [*_index(root), *_journals(root), *_quarantine(root)]


def _index(root: Path) -> Iterator[StoreFinding]:
    path, objects = root / "index.sqlite", Objects(root)
    if not path.exists():
        if any(True for _ in objects.areas()):
            yield StoreFinding(name="index", detail="missing", cure=_ANEW)
        return
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            fault = fault_in(connection)
            (version,) = connection.execute("PRAGMA user_version").fetchone()
    except sqlite3.Error as error:
        fault, version = str(error), -1
    if fault is None and version == 0:
        fault = "it is empty"
    if fault is None:
        yield StoreFinding(name="index", detail="sound")
    else:
        yield StoreFinding(name="index", detail=f"damaged: {fault.splitlines()[0]}", cure=_ANEW)


def _journals(root: Path) -> Iterator[StoreFinding]:
    for area in Objects(root).areas():
        journal = Journal(root, area)
        try:
            unread = sum(line == JournalLine() for line in journal.lines())
        except FileNotFoundError:
            yield StoreFinding(
                name="journal", detail=f"{area}: none yet", cure="runner doctor --repair writes it"
            )
            continue
        except OSError as error:
            cure = "let the user of the server read it"
            yield StoreFinding(name="journal", detail=f"{area}: {os.strerror(error.errno or 0)}", cure=cure)
            continue
        if unread:
            cure = "runner doctor --repair keeps a copy and writes it anew from the index"
            yield StoreFinding(name="journal", detail=f"{area}: {unread} lines cannot be read", cure=cure)


def _quarantine(root: Path) -> Iterator[StoreFinding]:
    sizes: dict[str, list[int]] = {}
    for there in Objects(root).apart():
        sizes.setdefault(there.area, []).append(there.size)
    for area, found in sizes.items():
        detail = f"{area}/quarantine: {len(found)} files of {sum(found)} bytes that no record knows"
        yield StoreFinding(name="quarantine", detail=detail, cure=_APART)
