"""Homes: `/tmp/{user}/`, one folder a user, made by us, leased to sessions, emptied when the last lets go.

Two files in the state folder go with each home: `homes/<segment>.json` records which folder we made, by
inode and time of birth, and `homes/<segment>.lock` is locked by everyone who has to do with it
(`runner.home_records`):

- A lease holds the lock shared, as long as it lives. Any number of hosts and sessions may.
- Making and emptying need it exclusively, so they happen only while nobody holds a lease.

A home is made under a name nobody knows, recorded, and only then renamed into place, if that is free.
So there is no moment, and no crash, after which a home stands at its place unrecorded; and whatever
stands there unrecorded is somebody else's and is refused. The alternative, `mkdir` in place and a
look at what it made, would leave after a crash a home that the next start must refuse.

Source: requirements S1-23, S1-34 to S1-37; architecture, decision "Homes"; flock(2), rename(2).
"""

import contextlib
import errno
import fcntl
import logging
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from runner.emptying import Emptied, empty
from runner.home_records import HomeError, HomeMark, HomeRecords, try_exclusive
from runner.leftovers import walk
from runner.openat import rename_noreplace
from runner.uids import Uids
from runner.usernames import home_segment

__all__ = ["INPUT_FOLDER", "HomeLease", "Homes"]

log = logging.getLogger(__name__)

INPUT_FOLDER = "input_files"

_HANDLE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ATTEMPTS = 20


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
    """All homes of one runner. Any number of processes may have the same.

    Attributes:
        root: The folder that homes are made in, `/tmp`.
        state: The runner's state folder.
        uids: User ids, by which homes belong to their users; None where all belong to us.
    """

    root: Path
    state: Path
    uids: Uids | None = None

    @property
    def _records(self) -> HomeRecords:
        return HomeRecords(self.root, self.state)

    def owner(self, segment: str) -> int:
        """Return the user and group id that a home and all in it belongs to.

        Raises:
            CallError: No id is left, or the record of them cannot be used.
        """
        return os.geteuid() if self.uids is None else self.uids.of(segment)

    @contextmanager
    def lease(self, user: str, *, keep_s: float = 0) -> Iterator[HomeLease]:
        """Make the home of a user ready and hold it; when its last lease ends, it is emptied.

        Blocks while another process makes or empties the same home.

        Args:
            user: Whose home.
            keep_s: How long after this lease the home is still to be kept, in seconds: for a session
                that goes on in a later process.

        Raises:
            HomeError: The folder is not one that we made, or cannot be made.
            ValueError: The name cannot name a home.
        """
        segment = home_segment(user)
        with self._root() as root_fd, self._records.lock(segment) as lock:
            home_fd = self._acquire(root_fd, lock, segment, self.owner(segment))
            try:
                yield HomeLease(user=user, segment=segment, path=self.root / segment, fd=home_fd)
            finally:
                if keep_s > 0:
                    self._records.keep(segment, time.time() + keep_s)
                if try_exclusive(lock) and not self._records.is_kept(segment):
                    self._clear(root_fd, home_fd, segment)
                os.close(home_fd)

    def recorded(self) -> tuple[Path, ...]:
        """Return the homes that this runner has made so far."""
        return tuple(self.root / segment for segment in self._records.segments())

    def end(self, user: str) -> bool:
        """End the session that a home is kept for; say whether it was emptied, now or before.

        A home that somebody holds is left alone and goes when that lease ends.

        Raises:
            HomeError: The folder of homes or the state folder cannot be used.
            ValueError: The name cannot name a home.
        """
        segment = home_segment(user)
        with self._root() as root_fd, self._records.lock(segment) as lock:
            self._records.let_go(segment)
            if not try_exclusive(lock):
                return False
            if self._records.has(segment):
                self._sweep_one(root_fd, segment)
            return True

    def sweep(self) -> dict[str, Emptied]:
        """Empty the homes that nobody holds and a crash may have left full; return them by segment.

        Raises:
            HomeError: The folder of homes or the state folder cannot be used.
        """
        swept: dict[str, Emptied] = {}
        with self._root() as root_fd:
            for segment in self._records.segments():
                with self._records.lock(segment) as lock:
                    if try_exclusive(lock) and not self._records.is_kept(segment):
                        swept |= self._sweep_one(root_fd, segment)
        return swept

    def _sweep_one(self, root_fd: int, segment: str) -> dict[str, Emptied]:
        try:
            home_fd = self._open(root_fd, segment)
        except HomeError as error:
            log.warning("home not swept", extra={"segment": segment, "reason": str(error)})
            return {}
        if home_fd is None:
            return {}
        try:
            return {segment: self._clear(root_fd, home_fd, segment)}
        finally:
            os.close(home_fd)

    def _clear(self, root_fd: int, home_fd: int, segment: str) -> Emptied:
        """Empty the home and take it away, with the lock held exclusively.

        An empty folder left behind would belong to this runner's record alone: a runner with another
        state folder, of the same person, would have to refuse it for ever.
        """
        emptied = _empty(home_fd, segment)
        mark = HomeMark.of(home_fd)
        try:
            found = self._open(root_fd, segment)
        except HomeError:
            return emptied
        if found is not None:
            same = HomeMark.of(found).names_the_same(mark)
            os.close(found)
            # What could not be emptied stays, and so does its record.
            with contextlib.suppress(OSError):
                if same:
                    os.rmdir(segment, dir_fd=root_fd)
                    self._records.forget(segment)
        return emptied

    def _acquire(self, root_fd: int, lock: int, segment: str, owner: int) -> int:
        """Return a handle of the home, with the lock held shared."""
        for _attempt in range(_ATTEMPTS):
            if try_exclusive(lock):
                self._make(root_fd, segment, owner)
            # The lock is free for an instant here, and whoever gets it may empty the home once more.
            fcntl.flock(lock, fcntl.LOCK_SH)
            home_fd = self._open(root_fd, segment)
            if home_fd is not None and os.fstat(home_fd).st_uid != owner:
                os.close(home_fd)
                raise HomeError(
                    f"{self.root / segment} is in use under another isolation tier; "
                    f"end the other sessions of this user and try again"
                )
            if home_fd is not None:
                self._make_input_folder(home_fd, segment, owner)
                return home_fd
        raise HomeError(
            f"{self.root / segment} was removed while another session uses it; "
            f"end the other sessions of this user and try again"
        )

    def _make(self, root_fd: int, segment: str, owner: int) -> None:
        """Make the home, or empty what a crash left in it, unless a session still counts on it."""
        home_fd = self._open(root_fd, segment)
        try:
            if home_fd is None:
                home_fd = self._create(root_fd, segment)
            elif not self._records.is_kept(segment):
                _empty(home_fd, segment)
            _give(home_fd, owner)
        except OSError as error:
            raise HomeError(f"cannot make the home {self.root / segment}: {error.strerror}") from error
        finally:
            if home_fd is not None:
                os.close(home_fd)

    def _make_input_folder(self, home_fd: int, segment: str, owner: int) -> None:
        try:
            os.mkdir(INPUT_FOLDER, 0o700, dir_fd=home_fd)
            if owner != os.geteuid():
                os.chown(INPUT_FOLDER, owner, owner, dir_fd=home_fd, follow_symlinks=False)
        except FileExistsError:
            return
        except OSError as error:
            os.close(home_fd)
            raise HomeError(f"cannot make {self.root / segment / INPUT_FOLDER}: {error.strerror}") from error

    def _create(self, root_fd: int, segment: str) -> int:
        hidden = f".toolcell-{secrets.token_hex(8)}"
        os.mkdir(hidden, 0o700, dir_fd=root_fd)
        try:
            home_fd = os.open(hidden, _HANDLE, dir_fd=root_fd)
        except OSError:
            os.rmdir(hidden, dir_fd=root_fd)
            raise
        try:
            self._records.write(segment, HomeMark.of(home_fd))
            rename_noreplace(hidden, segment, dir_fd=root_fd)
        except OSError as error:
            os.close(home_fd)
            os.rmdir(hidden, dir_fd=root_fd)
            if error.errno == errno.EEXIST:
                raise self._foreign(segment, "appeared this very moment") from error
            raise
        return home_fd

    def _open(self, root_fd: int, segment: str) -> int | None:
        """Return a handle of the home if it is the one we made; None if there is nothing of that name."""
        try:
            fd = os.open(segment, _HANDLE, dir_fd=root_fd)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise self._foreign(segment, "is a link or a file, not a folder") from error
            raise HomeError(f"cannot open the home {self.root / segment}: {error.strerror}") from error
        try:
            self._check(fd, segment)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _check(self, fd: int, segment: str) -> None:
        found = os.fstat(fd)
        # As root we may have given it away, to a user id that nobody else has.
        if found.st_uid != os.geteuid() != 0:
            raise self._foreign(segment, f"belongs to the user with id {found.st_uid}")
        recorded = self._records.read(segment)
        if recorded is None or not recorded.names_the_same(HomeMark.of(fd)):
            raise self._foreign(segment, "was not made by this runner")
        if stat.S_IMODE(found.st_mode) != 0o700:
            os.chmod(f"/proc/self/fd/{fd}", 0o700)

    def _foreign(self, segment: str, why: str) -> HomeError:
        return HomeError(
            f"{self.root / segment} {why}, so it is neither used nor emptied; "
            f"move it away or remove it, or choose another folder for homes (setting `homes`)"
        )

    @contextmanager
    def _root(self) -> Iterator[int]:
        try:
            fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise HomeError(
                f"the folder for homes {self.root} cannot be opened: {error.strerror}; "
                f"create it, or choose another one (setting `homes`)"
            ) from error
        try:
            self._check_root(os.fstat(fd))
            self._records.check()
            yield fd
        finally:
            os.close(fd)

    def _check_root(self, root: os.stat_result) -> None:
        if root.st_uid not in (0, os.geteuid()):
            raise HomeError(
                f"the folder for homes {self.root} belongs to the user with id {root.st_uid}, who could "
                f"exchange every home in it; choose one of root's or your own (setting `homes`)"
            )
        if root.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not root.st_mode & stat.S_ISVTX:
            raise HomeError(
                f"the folder for homes {self.root} can be written by others and has no sticky bit, so "
                f"they could exchange every home in it; chmod +t it, or choose another one (setting `homes`)"
            )


def _give(home_fd: int, owner: int) -> None:
    """Let the home and all that lies in it belong to `owner`. Nobody of its user may be alive."""
    if os.fstat(home_fd).st_uid != owner:
        for folder, entry in walk(home_fd):
            os.chown(entry.name, owner, owner, dir_fd=folder, follow_symlinks=False)
        # Last, so that a home that was given halfway is given again.
        os.chown(f"/proc/self/fd/{home_fd}", owner, owner)


def _empty(home_fd: int, segment: str) -> Emptied:
    result = empty(home_fd)
    if result.kept:
        log.warning("home not emptied", extra={"segment": segment, "kept": dict(result.kept)})
    return result
