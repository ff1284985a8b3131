"""Emptying of a folder that hostile code filled, without touching anything outside it.

Every step is one system call on one name relative to an open folder, and no link is ever followed: an entry
other than a folder is unlinked, and a folder is opened by `openat2`, only below its parent and not across
a mount. The tree is not traversed recursively: subfolders are moved to the top first, so depth costs
neither descriptors nor recursion, and `..` is never used.

Source: unlink(2), rename(2), openat2(2); sandbox notes, finding 7.
"""

import contextlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field

from runner.system.openat import open_folder, reopen_folder

__all__ = ["Emptied", "empty", "remove"]

_MAX_PASSES = 1000
_MAX_REASONS = 20
# Folders moved to the top in one pass; the next pass finds the others.
_MAX_PENDING = 1000


@dataclass(slots=True)
class Emptied:
    """Outcome of emptying a folder.

    Attributes:
        removed: Number of removed files, links and folders.
        reasons: Reasons for remaining entries, by name, the first few; empty if none remain.
    """

    removed: int = 0
    reasons: dict[str, str] = field(default_factory=dict)

    def keep(self, name: str, reason: OSError | str) -> None:
        """Record an entry that could not be removed."""
        if len(self.reasons) < _MAX_REASONS:
            self.reasons[name] = reason if isinstance(reason, str) else reason.strerror or str(reason)


def empty(folder_fd: int) -> Emptied:
    """Delete everything in a folder; the folder itself stays.

    Never raises because of its content: entries that cannot be deleted are reported.

    Args:
        folder_fd: A descriptor of the folder; `O_PATH` is enough.
    """
    try:
        top = reopen_folder(folder_fd)
    except OSError as error:
        return Emptied(reasons={".": error.strerror or str(error)})
    removed = 0
    try:
        # A pass that removed nothing is the last. Many passes are needed only if a process still writes.
        for _pass in range(_MAX_PASSES):
            result = Emptied()
            for name in _names(top, result):
                _remove(top, name, result)
            removed += result.removed
            if not result.removed:
                return Emptied(removed, result.reasons)
        return Emptied(removed, {".": "it is filled faster than it can be emptied"})
    finally:
        os.close(top)


def remove(folder_fd: int, name: str) -> Emptied:
    """Delete one entry of a folder, with all its content.

    Never raises because of its content: entries that cannot be deleted are reported.

    Args:
        folder_fd: A descriptor of the folder.
        name: One path segment.
    """
    result = Emptied()
    if _unlinked(folder_fd, name, result):
        return result
    try:
        inside = open_folder(folder_fd, name)
        try:
            result = empty(inside)
        finally:
            os.close(inside)
        os.rmdir(name, dir_fd=folder_fd)
        result.removed += 1
    except FileNotFoundError:
        pass
    except OSError as error:
        result.keep(name, error)
    return result


def _remove(top: int, name: str, result: Emptied) -> None:
    pending = [name]
    while pending:
        folder = pending.pop()
        if _unlinked(top, folder, result):
            continue
        try:
            pending += _hollow(top, folder, result)
            os.rmdir(folder, dir_fd=top)
            result.removed += 1
        except FileNotFoundError:
            continue
        except OSError as error:
            result.keep(folder, error)


def _hollow(top: int, folder: str, result: Emptied) -> list[str]:
    """Unlink the files of a folder and move its folders to the top; return their new names."""
    moved: list[str] = []
    fd = open_folder(top, folder)
    try:
        for name in _names(fd, result):
            if not _unlinked(fd, name, result):
                _move(fd, name, top, moved, result)
    finally:
        os.close(fd)
    return moved


def _move(fd: int, name: str, top: int, moved: list[str], result: Emptied) -> None:
    new = f".emptying-{secrets.token_hex(8)}"
    try:
        # Opened for its side effect: a folder cannot be moved without permission to write to it.
        os.close(open_folder(fd, name))
        os.rename(name, new, src_dir_fd=fd, dst_dir_fd=top)
    except OSError as error:
        result.keep(name, error)
        return
    if len(moved) < _MAX_PENDING:
        moved.append(new)


def _unlinked(folder: int, name: str, result: Emptied) -> bool:
    """Unlink an entry, unless it is a folder; False if it is one."""
    try:
        os.unlink(name, dir_fd=folder)
        result.removed += 1
    except IsADirectoryError:
        return False
    except FileNotFoundError:
        pass
    except OSError as error:
        result.keep(name, error)
    return True


def _names(folder: int, result: Emptied) -> Iterator[str]:
    # Names one by one: a tool may create millions in a folder.
    try:
        with contextlib.closing(os.scandir(folder)) as entries:
            for entry in entries:
                yield entry.name
    except OSError as error:
        result.keep(".", error)
