"""Safe opening of a file of a home that a result names, so that no trick makes the host read another.

The call's processes are dead when this runs, but the files they left are hostile: links, FIFOs, devices,
names with `..`. The path is resolved below the home's descriptor, following links only within the home,
and the file is checked before it is opened for reading.

A database is returned complete: content of a log beside it is applied to a copy, or the database is refused.

Source: openat2(2), proc_pid_fd(5); rule R2 of the conformance cases; sandbox notes, finding 7; requirements
S1-61 and S1-68.
"""

import errno
import os
import posixpath
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Protocol
from urllib.parse import unquote

from runner.artifacts.symlinks import open_within
from runner.contract.error_messages import artifact_missing, not_whole, outside_home, too_large, unusable_file
from runner.errors import CallError, Code
from runner.formats.database_logs import (
    MOST_LOG_BYTES,
    LogBudget,
    committed,
    is_log_of_its_own,
    is_transaction_under_way,
)
from runner.system.openat import CONFINED, copy_into, openat2

__all__ = ["Collected", "OpenHome", "collect", "paths_in_home", "relative_to_home"]

PATH_MAX_BYTES = 4095

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a symbolic link",
}


_ALONE = "Return it when nothing writes to it any more"
_READABLE = "Return a file that its owner may read"


class OpenHome(Protocol):
    """The home of a call: its path as tools name it, and a descriptor of the folder itself."""

    @property
    def path(self) -> Path:
        """Return the path as tools name it."""

    @property
    def fd(self) -> int:
        """Return a descriptor of the folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """One regular file, open for reading at its start.

    Attributes:
        fd: The descriptor; owned by the caller of `collect`.
        size: Its length in bytes.
        of: The files of the home that it was made from, if it is a copy.
    """

    fd: int
    size: int
    of: tuple[int, ...] = ()

    @property
    def inode(self) -> int:
        """Return the inode of the file in the home."""
        return os.fstat((*self.of, self.fd)[0]).st_ino

    @property
    def changed_ns(self) -> int:
        """Return the change time of the file, or of its log, in ns since 1970."""
        return max(os.fstat(fd).st_ctime_ns for fd in self.of or (self.fd,))


@contextmanager
def collect(path: object, home: OpenHome, *, max_bytes: int, logs: LogBudget) -> Iterator[Collected]:
    """Open the file that a result names as `path`; close it at the end.

    Args:
        path: The path as the tool named it.
        home: The home of the call.
        max_bytes: Largest file.
        logs: The budget for logs beside databases; such a log is subtracted before it is read.

    Raises:
        CallError: `E_INVALID_PATH` for anything but a regular file of this home,
            `E_INVALID_RESULT` if there is no such file, or it is a database that is incomplete without a log,
            `E_FILE_TOO_LARGE` above `max_bytes`, `E_STORE` if a database cannot be copied.
    """
    shown = path if isinstance(path, str) else repr(path)
    relative = relative_to_home(path, home.path)
    if relative is None:
        raise outside_home(shown, home.path)
    with _closing(_find(relative, shown, home)) as found:
        judged = os.fstat(found)
        problem = _problem(judged, os.fstat(home.fd))
        if problem is not None:
            raise unusable_file(shown, *problem)
        if judged.st_size > max_bytes:
            raise too_large(judged.st_size, max_bytes)
        with _closing(_reopen(found, shown, home)) as fd:
            now = os.fstat(fd)
            if (now.st_dev, now.st_ino, now.st_size) != (judged.st_dev, judged.st_ino, judged.st_size):
                raise unusable_file(shown, "it changed while it was read", _ALONE)
            with _whole(fd, found, shown, home, max_bytes, logs) as collected:
                yield collected


def relative_to_home(path: object, home: Path) -> str | None:
    """Return the path of a file relative to `home`, by its text alone; None if it is not below it.

    A relative path is relative to the home, and `file:` URIs are accepted. Tools' paths are normalised only
    here.
    """
    if isinstance(path, str) and path.startswith("file://"):
        host, slash, rest = path.removeprefix("file://").partition("/")
        path = unquote(slash + rest) if host in ("", "localhost") else ""
    if not isinstance(path, str) or not path or "\0" in path:
        return None
    try:
        if len(os.fsencode(path)) > PATH_MAX_BYTES:
            return None
    except UnicodeEncodeError:
        return None
    # normpath keeps exactly two leading slashes, which are equivalent to one on Linux.
    full = posixpath.normpath(posixpath.join(home, path))
    full = "/" + full.lstrip("/")
    # Tools may use the default name of the home; in tier `namespace` it leads to this folder.
    for prefix in paths_in_home("", home):
        if full.startswith(prefix) and full != prefix:
            return full.removeprefix(prefix)
    return None


def paths_in_home(relative: str, home: Path) -> tuple[str, ...]:
    """Return the absolute paths by which tools may name a file of a home."""
    return tuple(dict.fromkeys((f"{home}/{relative}", f"/tmp/{home.name}/{relative}")))  # noqa: S108


@contextmanager
def _whole(
    fd: int, found: int, shown: str, home: OpenHome, max_bytes: int, logs: LogBudget
) -> Iterator[Collected]:
    """Yield an open file or, for a database with a log beside it, a copy with the log applied."""
    with ExitStack() as stack:
        journal, other, log = (_beside(found, ending, home, stack) for ending in ("-journal", ".wal", "-wal"))
        if journal is not None and is_transaction_under_way(journal):
            raise not_whole(shown, "a transaction is under way in it", "Commit it or roll it back")
        if other is not None and is_log_of_its_own(fd):
            raise not_whole(shown, "its last changes are in a log beside it, .wal", "Run CHECKPOINT")
        if log is not None and not logs.takes(os.fstat(log).st_size):
            problem = f"the logs of a call's databases, -wal, have more than {MOST_LOG_BYTES} bytes"
            raise not_whole(shown, problem, "Run PRAGMA wal_checkpoint(TRUNCATE)")
        before = [os.fstat(each) for each in (fd, *(() if log is None else (log,)))]
        pages = None if log is None else committed(log)
        if pages is None or log is None:
            yield Collected(fd=fd, size=before[0].st_size)
            return
        if pages.size > max_bytes:
            raise too_large(pages.size, max_bytes)
        try:
            copy = stack.enter_context(TemporaryFile(dir=f"/proc/self/fd/{home.fd}")).fileno()
            # Pages beyond the end of the log's database would be dropped again.
            copy_into(copy, fd, min(before[0].st_size, pages.size))
            pages.write(log, copy)
        except OSError as error:
            message = (
                f"The database {posixpath.basename(shown)!r} cannot be copied with its log: {error.strerror}"
            )
            raise CallError(Code.E_STORE, message) from error
        after = [os.fstat(each) for each in (fd, log)]
        if [(at.st_ctime_ns, at.st_size) for at in before] != [(at.st_ctime_ns, at.st_size) for at in after]:
            raise unusable_file(shown, "it changed while it was read", _ALONE)
        os.lseek(copy, 0, os.SEEK_SET)
        yield Collected(fd=copy, size=pages.size, of=(fd, log))


def _beside(found: int, ending: str, home: OpenHome, stack: ExitStack) -> int | None:
    """Open a file with content beside another one, by the same rules; None if there is none."""
    # By the real name of the file, with links resolved: SQLite names its logs that way.
    top, path = (os.readlink(f"/proc/self/fd/{fd}") for fd in (home.fd, found))
    flags = os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with _closing(
            openat2(home.fd, path.removeprefix(f"{top}/") + ending, flags, resolve=CONFINED)
        ) as beside:
            judged = os.fstat(beside)
            if not judged.st_size or _problem(judged, os.fstat(home.fd)) is not None:
                return None
            fd = os.open(f"/proc/self/fd/{beside}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return None
    stack.callback(os.close, fd)
    return fd


def _find(relative: str, shown: str, home: OpenHome) -> int:
    try:
        return open_within(home.fd, home.path, relative)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise artifact_missing(shown) from error
        if error.errno in (errno.ELOOP, errno.EXDEV):
            problem = "a link leads out of the folder, or something is mounted on the way"
            raise outside_home(shown, home.path, problem=problem) from error
        raise unusable_file(shown, f"the system says: {error.strerror}", _READABLE) from error


def _reopen(found: int, shown: str, home: OpenHome) -> int:
    try:
        return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        raise unusable_file(shown, f"the system says: {error.strerror}", _READABLE) from error


def _problem(file: os.stat_result, home: os.stat_result) -> tuple[str, str] | None:
    """Return why a file is refused and a remedy; None if it is accepted."""
    kind = stat.S_IFMT(file.st_mode)
    if kind != stat.S_IFREG:
        advice = "Return the files in it, or an archive of them" if kind == stat.S_IFDIR else "Return a file"
        return f"it is {_KINDS.get(kind, 'of another kind')}, not a regular file", advice
    if file.st_nlink != 1:
        problem = f"it has {file.st_nlink} names (hard links), and not all of them need lie in the folder"
        return problem, "Return a copy of it: shutil.copyfile in place of os.link"
    if file.st_uid != home.st_uid:
        return "it belongs to another user of the system", "Return a copy of it"
    return None


@contextmanager
def _closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)
