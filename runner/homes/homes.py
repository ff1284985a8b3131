"""Homes: `/tmp/{user}/`, one folder for each user, created by us, leased to sessions, emptied after the last.

All metadata of a home is on the home itself, so any number of runners with different state folders may share
the folder of homes, and a lost state folder does no harm:

- `runner.homes.notes` records that we made it, and for which user.
- A lease holds a shared lock of the folder. Any number of runners and sessions may hold one.
- Creating and emptying a home takes an exclusive lock, so it happens only without a lease.

A home is created under a random name, noted, and only then renamed into place, if that is free. So a
home never has its final name without a note, even after a crash. A folder without a note is taken over
only if no one can lose data: its owner is in the range of user ids reserved for users, or it is empty,
closed to others and our own. Any other folder belongs to someone else and is refused.

Source: requirements S1-23, S1-34 to S1-37, S1-49 and S1-103; architecture, decision "Homes";
`docs/decisions/0024-*`; flock(2), rename(2).
"""

import contextlib
import errno
import logging
import os
import stat
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from runner.homes.emptying import Emptied, empty
from runner.homes.leftovers import walk
from runner.homes.notes import HomeNote, HomeNotes
from runner.settings.execution import ExecutionSettings
from runner.system import locks
from runner.system.openat import CONFINED, openat2
from runner.system.own_folders import (
    HIDDEN,
    HomeError,
    folders_in,
    is_at,
    made_folder,
    open_homes,
    sweep_unfinished,
)
from runner.system.uids import Uids
from runner.users.usernames import home_segment
from sandbox.host.home_usage import HomeUsage, measure
from sandbox.syscalls import rename_noreplace

__all__ = ["INPUT_FOLDER", "USUAL_HOMES", "HomeLease", "Homes"]

log = logging.getLogger(__name__)

INPUT_FOLDER = "input_files"

USUAL_HOMES = Path("/tmp")  # noqa: S108
"""Folder of homes as tools see it."""

_HANDLE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_WAIT_S = 30.0
"""Bound on taking a home while other processes create and remove it; one of them succeeds each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeLease:
    """The right to use one home until the lease ends.

    Attributes:
        user: The user's name.
        segment: The name of the home's folder.
        path: The home, as tools name it.
        fd: An `O_PATH` descriptor of the home; closed when the lease ends.
    """

    user: str
    segment: str
    path: Path
    fd: int


@dataclass(frozen=True, slots=True)
class Homes:
    """All homes of one runner. Any number of processes may share them.

    Attributes:
        root: The folder that homes are made in, `/tmp`.
        state: The runner's state folder.
        uids: User ids of homes' owners; None if all homes belong to us.
        ids: User ids reserved for users: a home with one of these is ours.
        lender: User id of the owner of lent files, under which all tools run: a noted home with it is ours.
    """

    root: Path
    state: Path
    uids: Uids | None = None
    ids: range = range(0)
    lender: int | None = None

    @classmethod
    def of(cls, settings: ExecutionSettings, uids: Uids | None = None) -> "Homes":
        """Return the homes for the settings."""
        return cls(settings.homes, settings.state_dir, uids, settings.uids, settings.lender)

    @property
    def known(self) -> Container[int]:
        """Return the user ids, other than our own, that may own our folders."""
        return self.ids if self.lender is None else {*self.ids, self.lender}

    @property
    def _notes(self) -> HomeNotes:
        return HomeNotes(self.state)

    def owner(self, segment: str) -> int:
        """Return the user and group id that own a home and its content.

        Raises:
            CallError: No id is left, or the record of them cannot be used.
        """
        return os.geteuid() if self.uids is None else self.uids.of(segment)

    @contextmanager
    def lease(self, user: str, *, keep_s: float = 0) -> Iterator[HomeLease]:
        """Lease the home of a user, ready for use; when its last lease ends, it is emptied and removed.

        Blocks while another process creates or empties the same home.

        Args:
            user: The user.
            keep_s: Seconds to keep the home after this lease, for a session that continues in a later
                process.

        Raises:
            HomeError: The folder is not one that we made, or cannot be created.
            ValueError: The name cannot name a home.
        """
        segment = home_segment(user)
        with open_homes(self.root) as root_fd, self._acquired(root_fd, segment) as held:
            handle = os.open(".", _HANDLE, dir_fd=held)
            try:
                yield HomeLease(user=user, segment=segment, path=self.root / segment, fd=handle)
            finally:
                os.close(handle)
                if keep_s > 0:
                    self._keep(held, segment, time.time() + keep_s)
                if locks.try_lock(held):
                    self._leave(root_fd, held, segment)

    def made(self) -> tuple[Path, ...]:
        """Return the existing homes of all processes."""
        try:
            with open_homes(self.root) as root_fd:
                return tuple(self.root / segment for segment in self._segments(root_fd))
        except HomeError:
            # A call that needs a home there gets the error.
            return ()

    def usage(self, user: str, *, most_entries: int) -> HomeUsage | None:
        """Return the usage of a user's home, up to `most_entries`; None without a home.

        Raises:
            HomeError: The folder of homes cannot be used.
            ValueError: The name cannot name a home.
        """
        segment = home_segment(user)
        with open_homes(self.root) as root_fd:
            if segment not in self._segments(root_fd):
                return None
            with self._opened(root_fd, segment) as held:
                return None if held is None else measure(held, most_entries=most_entries)

    def end(self, user: str) -> bool:
        """End the session that a home is kept for; return whether it was emptied, now or before.

        A home with a lease is unchanged, and is removed when that lease ends.

        Raises:
            HomeError: The folder of homes cannot be used.
            ValueError: The name cannot name a home.
        """
        segment = home_segment(user)
        with open_homes(self.root) as root_fd:
            if segment not in self._segments(root_fd):
                return True
            with self._opened(root_fd, segment) as held:
                if held is None:
                    return True
                self._keep(held, segment, 0)
                if not locks.try_lock(held):
                    return False
                self._clear(root_fd, held, segment)
                return True

    def sweep(self) -> dict[str, Emptied]:
        """Empty the unleased homes that a crash may have left full; return the results by segment.

        Raises:
            HomeError: The folder of homes cannot be used.
        """
        swept: dict[str, Emptied] = {}
        with open_homes(self.root) as root_fd:
            sweep_unfinished(root_fd)
            for segment in self._segments(root_fd):
                try:
                    with self._opened(root_fd, segment) as held:
                        if held is not None and locks.try_lock(held) and not self._is_in_use(held, segment):
                            swept[segment] = self._clear(root_fd, held, segment)
                except HomeError as error:
                    log.warning("home not swept", extra={"segment": segment, "reason": str(error)})
        return swept

    def _segments(self, root_fd: int) -> list[str]:
        """Return the names of the existing homes."""
        names = [name for name, _owner in folders_in(root_fd, self.known) if not name.startswith(HIDDEN)]
        return sorted(name for name in names if self._is_noted(root_fd, name))

    def _is_noted(self, root_fd: int, name: str) -> bool:
        try:
            with self._opened(root_fd, name) as fd:
                return fd is not None and self._notes.read(fd, name) is not None
        except HomeError:
            return False

    def _keep(self, held: int, segment: str, until: float) -> None:
        """Record until when a home is to be kept; if that fails, the home is emptied early."""
        try:
            self._notes.write(held, HomeNote(segment=segment, kept_until=until))
        except (OSError, HomeError) as error:
            log.warning("home cannot be kept", extra={"segment": segment, "reason": str(error)})

    def _is_in_use(self, held: int, segment: str) -> bool:
        note = self._notes.read(held, segment)
        return note is not None and note.is_in_use

    def _leave(self, root_fd: int, held: int, segment: str) -> None:
        """Release a home without other leases: empty it, unless it is kept for a session."""
        if not self._is_in_use(held, segment):
            self._clear(root_fd, held, segment)
        elif self.lender is not None:
            # Owned by us meanwhile: a runner without lent files accepts no home of another account.
            with contextlib.suppress(OSError):
                _give(held, os.geteuid())

    def _clear(self, root_fd: int, held: int, segment: str) -> Emptied:
        """Empty and remove a home that is locked exclusively."""
        emptied = _empty(held, segment)
        # A home that could not be emptied stays, with its note.
        with contextlib.suppress(OSError):
            if is_at(root_fd, segment, held):
                os.rmdir(segment, dir_fd=root_fd)
                self._notes.forget(segment)
        return emptied

    @contextmanager
    def _acquired(self, root_fd: int, segment: str) -> Iterator[int]:
        """Hold a shared lock of a home that is ready for use; release it at the end."""
        owner = self.owner(segment)
        deadline = time.monotonic() + _MOST_WAIT_S
        while time.monotonic() < deadline:
            with self._opened(root_fd, segment) as fd:
                if fd is None:
                    self._create(root_fd, segment)
                elif self._hold(root_fd, fd, segment, owner):
                    self._make_input_folder(fd, segment, owner)
                    yield fd
                    return
        raise HomeError(
            f"{self.root / segment} was made and removed by other processes for {_MOST_WAIT_S:.0f} s; "
            f"end the other sessions of this user and try again"
        )

    def _hold(self, root_fd: int, fd: int, segment: str, owner: int) -> bool:
        """Take a shared lock of an open home; return whether its name still leads to it."""
        if locks.try_lock(fd):
            if not is_at(root_fd, segment, fd):
                return False
            self._make_ready(fd, segment, owner)
        # The folder is unlocked for an instant here, and another process may empty and remove it.
        locks.wait_for(fd, shared=True)
        if not is_at(root_fd, segment, fd):
            return False
        self._check_note(fd, segment)
        if os.fstat(fd).st_uid != owner:
            raise HomeError(
                f"{self.root / segment} is in use under another user id, by a runner with another isolation "
                f"tier or state folder; end the other sessions of this user and try again, or give each "
                f"runner homes of its own (setting `homes`)"
            )
        return True

    def _make_ready(self, fd: int, segment: str, owner: int) -> None:
        """Prepare an unlocked home; empty what a crash left, unless it is kept for a session."""
        try:
            note = self._notes.read(fd, segment)
            if note is None:
                self._check_ownerless(fd, segment)
                note = HomeNote(segment=segment)
                self._notes.write(fd, note)
            if not note.is_in_use:
                _empty(fd, segment)
            _give(fd, owner)
        except OSError as error:
            raise HomeError(f"cannot make the home {self.root / segment}: {error.strerror}") from error

    def _check_ownerless(self, fd: int, segment: str) -> None:
        """Refuse a folder without a note that may hold data of others."""
        found = os.fstat(fd)
        if found.st_uid in self.ids:
            # Only we assign folders to these user ids.
            return
        with os.scandir(fd) as entries:
            is_empty = next(entries, None) is None
        mode = stat.S_IMODE(found.st_mode)
        if not is_empty or mode != 0o700 or found.st_uid != os.geteuid():
            has = "is empty" if is_empty else "is not empty"
            raise self._foreign(segment, f"was not made by a runner (it has mode {mode:04o} and {has})")

    def _check_note(self, fd: int, segment: str) -> None:
        if self._notes.read(fd, segment) is None:
            raise self._foreign(segment, "was not made by a runner, and somebody holds it")

    def _make_input_folder(self, fd: int, segment: str, owner: int) -> None:
        try:
            os.mkdir(INPUT_FOLDER, 0o700, dir_fd=fd)
            if owner != os.geteuid():
                os.chown(INPUT_FOLDER, owner, owner, dir_fd=fd, follow_symlinks=False)
        except FileExistsError:
            return
        except OSError as error:
            raise HomeError(f"cannot make {self.root / segment / INPUT_FOLDER}: {error.strerror}") from error

    def _create(self, root_fd: int, segment: str) -> None:
        """Put a new home in place, unless another process has meanwhile."""
        try:
            hidden, fd = made_folder(root_fd)
            try:
                self._notes.write(fd, HomeNote(segment=segment))
                rename_noreplace(hidden, segment, directory=root_fd)
            except BaseException as error:
                os.rmdir(hidden, dir_fd=root_fd)
                if not isinstance(error, FileExistsError):
                    raise
            finally:
                locks.let_go(fd)
        except OSError as error:
            raise HomeError(f"cannot make the home {self.root / segment}: {error.strerror}") from error

    @contextmanager
    def _opened(self, root_fd: int, segment: str) -> Iterator[int | None]:
        """Open a home that belongs to us; None if it does not exist."""
        try:
            fd = self._open(root_fd, segment)
        except FileNotFoundError:
            yield None
            return
        except OSError as error:
            why = {
                errno.ENOTDIR: "is a link or a file, not a folder",
                errno.ELOOP: "is a link or a file, not a folder",
                errno.EXDEV: "is a mount point",
            }.get(error.errno or 0)
            if why is not None:
                raise self._foreign(segment, why) from error
            raise HomeError(f"cannot open the home {self.root / segment}: {error.strerror}") from error
        try:
            yield fd
        finally:
            locks.let_go(fd)

    def _open(self, root_fd: int, segment: str) -> int:
        handle = openat2(root_fd, segment, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, resolve=CONFINED)
        try:
            found = os.fstat(handle)
            if found.st_uid != os.geteuid() and (os.geteuid() != 0 or found.st_uid not in self.known):
                raise self._foreign(segment, f"belongs to the user with id {found.st_uid}")
            # Unchanged: a folder that turns out not to be a home keeps its permissions.
            return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=handle)
        finally:
            os.close(handle)

    def _foreign(self, segment: str, why: str) -> HomeError:
        return HomeError(
            f"{self.root / segment} {why}, so it is neither used nor emptied; "
            f"move it away or remove it, or choose another folder for homes (setting `homes`)"
        )


def _give(fd: int, owner: int) -> None:
    """Give the home and its content to `owner` alone. No process of its user may be alive."""
    if os.fstat(fd).st_uid != owner:
        for folder, entry in walk(fd):
            if entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_nlink > 1:
                # It may be a hard link to a lent file of another account.
                continue
            os.chown(entry.name, owner, owner, dir_fd=folder, follow_symlinks=False)
        # Last, so that an interrupted change of owner is repeated.
        os.fchown(fd, owner, owner)
    if stat.S_IMODE(os.fstat(fd).st_mode) != 0o700:
        os.fchmod(fd, 0o700)


def _empty(fd: int, segment: str) -> Emptied:
    result = empty(fd)
    if result.reasons:
        log.warning("home not emptied", extra={"segment": segment, "kept": dict(result.reasons)})
    return result
