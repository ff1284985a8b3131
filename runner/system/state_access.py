"""Inaccessible files of the state folder and of a local store, found before a start.

After a change of a file's owner or mode, or of the user that runs a server, the error names the file and
a remedy. Such a file is not treated as missing: its content is needed, and a replacement would conflict with
it.

The content of files in a store is not checked, since there may be very many: `runner doctor --verify` reads
them.

Source: access(2), faccessat(2) on AT_EACCESS; statvfs(3) on ST_RDONLY.
"""

import os
import pwd
import shlex
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from runner.errors import StartError
from runner.system.state_files import APART

__all__ = ["Denied", "account_name", "check_access", "denied_in"]

_SHOWN = 3
# Entries of each area of a local store, and entries beside the areas.
_OF_AREA = ("records", "objects", "incoming", "removed", "quarantine")
_OF_STORE = ("index.sqlite",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Denied:
    """A file or folder that this user may not use.

    Attributes:
        path: Its path.
        problem: The denied operation, as a clause.
        cure: A remedy.
    """

    path: Path
    problem: str
    cure: str

    def __str__(self) -> str:
        return f"{self.path} {self.problem}; {self.cure}"


def check_access(state: Path, store: Path | None) -> None:
    """Raise an error if this user may not use a file of the state folder or the store.

    Args:
        state: The state folder.
        store: The folder of a local store, if there is one.

    Raises:
        StartError: There is such a file; the message names it and a remedy.
    """
    found = denied_in(state, store)
    first = list(islice(found, _SHOWN))
    if not first:
        return
    more = sum(1 for _ in found)
    rest = f"\nand {more} more; runner doctor lists them" if more else ""
    raise StartError("state cannot be used as it is, and was left so:\n" + "\n".join(map(str, first)) + rest)


def denied_in(state: Path, store: Path | None) -> Iterator[Denied]:
    """Yield the files of a state folder and of a local store that this user may not use.

    Args:
        state: The state folder.
        store: The folder of a local store, if there is one.
    """
    yield from _below(state)
    if store is not None:
        yield from _in_store(store)


def _below(folder: Path) -> Iterator[Denied]:
    """Yield a folder and files below it that may not be used; nothing if it does not exist."""
    found = _denied(folder)
    if found is None and os.path.lexists(folder) and not folder.is_dir():
        problem = "is a link to nothing" if not folder.exists() else "is not a folder"
        found = Denied(path=folder, problem=problem, cure="move it away, or set state_dir to another folder")
    if found is not None or not folder.is_dir():
        yield from filter(None, [found])
        return
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            # Quarantined files are not used any more; links are notes, or the operator's.
            if APART in entry.name or entry.is_symlink():
                continue
            if entry.is_dir():
                yield from _below(Path(entry.path))
            else:
                yield from filter(None, [_denied(Path(entry.path))])


def _in_store(store: Path) -> Iterator[Denied]:
    found = _denied(store)
    if found is not None or not store.is_dir():
        yield from filter(None, [found])
        return
    yield from _each(store / name for name in _OF_STORE)
    for kind in _folders_in(store):
        found = _denied(kind)
        if found is not None:
            yield found
            continue
        for area in _folders_in(kind):
            yield from _each(chain([area], (area / name for name in _OF_AREA)))


def _each(paths: Iterable[Path]) -> Iterator[Denied]:
    """Yield the paths that may not be used; nothing below one that is denied."""
    closed: list[Path] = []
    for path in paths:
        if path.parent not in closed:
            found = _denied(path)
            if found is not None:
                closed.append(path)
                yield found


def _folders_in(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        return sorted(Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))


def _denied(path: Path) -> Denied | None:
    """Return the denied right to a file or folder; None if all are granted, or it does not exist."""
    try:
        found = path.stat()
    except PermissionError:
        return _shut(path)
    except OSError:
        # Missing, or not a file: its reader reports that.
        return None
    is_folder = stat.S_ISDIR(found.st_mode)
    if not (is_folder or stat.S_ISREG(found.st_mode)):
        return None
    # A server's uses of a file or folder, each with the required right.
    wanted = [("read", os.R_OK), ("written", os.W_OK), ("entered", os.X_OK)][: 3 if is_folder else 2]
    lacking = [name for name, may in wanted if not _may(path, may)]
    if not lacking:
        return None
    return Denied(path=path, problem=f"may not be {_joined(lacking)} by {_me()}", cure=_cure(path, found))


def _may(path: Path, right: int) -> bool:
    if os.access(path, right, effective_ids=True):
        return True
    # A read-only file system is not a denial: its files can be listed and read.
    return right == os.W_OK and bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def _shut(path: Path) -> Denied:
    """Return the first folder on a path that this user may not search."""
    for folder in reversed(path.parents):
        if not os.access(folder, os.X_OK, effective_ids=True):
            problem = f"may not be entered by {_me()}, and leads to {path}"
            return Denied(path=folder, problem=problem, cure=_cure(folder, folder.stat()))
    return Denied(path=path, problem=f"may not be looked at by {_me()}", cure=f"let {_me()} look at it")


def _cure(path: Path, found: os.stat_result) -> str:
    rights = "u+rwx" if stat.S_ISDIR(found.st_mode) else "u+rw"
    if found.st_uid == os.geteuid():
        return f"chmod {rights} {shlex.quote(str(path))}"
    whose = f"it belongs to {account_name(found.st_uid)}"
    return f"{whose}: run as that user, or chown {_me()} {shlex.quote(str(path))} and chmod {rights} it"


def _joined(words: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _me() -> str:
    return account_name(os.geteuid())


def account_name(uid: int) -> str:
    """Return the name of an account of this machine, or its user id if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
