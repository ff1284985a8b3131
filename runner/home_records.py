"""What is on record of homes: which folder we made, until when it is kept, and who has to do with it now.

Three files for each home: `<segment>.json` with inode and time of birth of the folder, `<segment>.kept` whose
time is until when a session counts on it, and `<segment>.lock`. What they are for, `runner.homes` says.

Source: flock(2).
"""

import fcntl
import json
import logging
import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from runner.errors import CallError, Code
from runner.openat import birth_ns

__all__ = ["HomeError", "HomeMark", "HomeRecords", "try_exclusive"]

log = logging.getLogger(__name__)


class HomeError(CallError):
    """A home cannot be used; the message says why and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.E_ISOLATION, message)


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeMark:
    """What tells one folder from any other, also from a later one of the same name and inode number."""

    device: int
    inode: int
    born_ns: int | None

    @classmethod
    def of(cls, fd: int) -> "HomeMark":
        """Return the mark of an open folder."""
        found = os.fstat(fd)
        return cls(device=found.st_dev, inode=found.st_ino, born_ns=birth_ns(fd))

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "HomeMark":
        """Return the mark that was written down."""
        born = record["born_ns"]
        return cls(
            device=int(record["device"]),
            inode=int(record["inode"]),
            born_ns=None if born is None else int(born),
        )

    def names_the_same(self, other: "HomeMark") -> bool:
        """Say whether both are marks of one folder."""
        # Device numbers may change when a machine or a container starts anew; births do not.
        same = (self.inode, self.born_ns) == (other.inode, other.born_ns)
        return same and (self.born_ns is not None or self.device == other.device)


@dataclass(frozen=True, slots=True)
class HomeRecords:
    """The records of all homes of one runner.

    Attributes:
        root: The folder that homes are made in.
        state: The runner's state folder.
    """

    root: Path
    state: Path

    @property
    def folder(self) -> Path:
        """The folder of the records."""
        return self.state / "homes"

    def segments(self) -> list[str]:
        """Return the names of the homes that we made."""
        return sorted(record.stem for record in self.folder.glob("*.json"))

    def has(self, segment: str) -> bool:
        """Say whether there is a record of a home."""
        return (self.folder / f"{segment}.json").exists()

    def forget(self, segment: str) -> None:
        """Remove the record of a home that is gone."""
        (self.folder / f"{segment}.json").unlink(missing_ok=True)

    def let_go(self, segment: str) -> None:
        """Note that nobody counts on a home any more."""
        (self.folder / f"{segment}.kept").unlink(missing_ok=True)

    def read(self, segment: str) -> HomeMark | None:
        """Return the mark of the home that we made; None if we made none.

        Raises:
            HomeError: The record cannot be read.
        """
        path = self.folder / f"{segment}.json"
        try:
            return HomeMark.from_record(json.loads(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise HomeError(
                f"the record {path} cannot be read; "
                f"remove it together with {self.root / segment} and try again"
            ) from error

    def write(self, segment: str, mark: HomeMark) -> None:
        """Note the home that we are about to put in place, with the lock held exclusively."""
        # Only the holder of the exclusive lock writes, so one name for the new file is enough.
        new = self.folder / f"{segment}.new"
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "w") as file:
            json.dump({**asdict(mark), "created": time.time()}, file)
            file.flush()
            os.fsync(fd)
        new.replace(self.folder / f"{segment}.json")

    def keep(self, segment: str, until: float) -> None:
        """Note until when the home is to be kept. Held against nothing: a lost note empties a home early."""
        path = self.folder / f"{segment}.kept"
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            os.utime(path, (until, until))
        except OSError as error:
            log.warning("home cannot be kept", extra={"segment": segment, "reason": str(error)})

    def is_kept(self, segment: str) -> bool:
        """Say whether a session that goes on later counts on the home."""
        try:
            return (self.folder / f"{segment}.kept").stat().st_mtime > time.time()
        except OSError:
            return False

    def check(self) -> None:
        """Make the folder of records if there is none.

        Raises:
            HomeError: It cannot be made, or is not ours.
        """
        records = self.folder
        try:
            self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
            records.mkdir(mode=0o700, exist_ok=True)
            found = records.lstat()
            if found.st_uid == os.geteuid() and stat.S_ISDIR(found.st_mode):
                if stat.S_IMODE(found.st_mode) != 0o700:
                    records.chmod(0o700)
                return
        except OSError as error:
            raise HomeError(f"the state folder {records} cannot be used: {error.strerror}") from error
        raise HomeError(
            f"the state folder {records} is not a folder of yours; choose another one (setting `state_dir`)"
        )

    @contextmanager
    def lock(self, segment: str) -> Iterator[int]:
        """Open the lock of a home, not yet locked; what of it is held goes at the end.

        Raises:
            HomeError: It cannot be opened.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(self.folder / f"{segment}.lock", flags, 0o600)
        except OSError as error:
            raise HomeError(f"cannot lock the home {self.root / segment}: {error.strerror}") from error
        try:
            yield fd
        finally:
            # Said aloud: a child that is between fork and exec still has the descriptor, and closing
            # ours alone would leave the home locked until then.
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)


def try_exclusive(lock: int) -> bool:
    """Lock exclusively if nobody else holds it. Gives up a shared lock in either case."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
