"""Record of a home: its maker, its user, and its end.

The note is an extended attribute of the home itself. So it is available to every runner that uses the
home, even after the state folder is lost, and is removed with the home. No tool can write it: a `trusted.`
attribute needs a capability that no tool has. `user.` attributes, the fallback if the runner lacks that
capability too, are denied to tools by the seccomp filter. Otherwise only the owner of the folder could write
a `user.` attribute, so it is read only from folders that belong to us.

On a file system without attributes (ramfs; tmpfs for unprivileged users before Linux 6.6) the note is a
file in the state folder, which identifies the home by inode and birth time.

Source: xattr(7), "Trusted extended attributes" and "User extended attributes"; statx(2), stx_btime.
"""

import errno
import json
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from runner.system.own_folders import HOME_ATTRIBUTES, HomeError
from runner.system.state_files import make_folder, read_whole, write_whole
from sandbox.syscalls import birth_ns

__all__ = ["HomeMark", "HomeNote", "HomeNotes"]

log = logging.getLogger(__name__)

_TRUSTED, _USER = HOME_ATTRIBUTES
# EPERM: no capability, or a folder that accepts no attributes; ENOSYS: a file system without attributes.
_NOT_KEPT = (errno.ENOTSUP, errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EINVAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeNote:
    """Record of one home.

    Attributes:
        segment: The name of the home's folder: a note is void if its folder was renamed.
        kept_until: Time until which a session needs the home, in seconds since the epoch; 0 without one.
    """

    segment: str
    kept_until: float = 0

    @classmethod
    def from_json(cls, text: bytes) -> "HomeNote":
        """Parse a note.

        Raises:
            ValueError: It is not a note.
        """
        try:
            note = json.loads(text)
            return cls(segment=str(note["segment"]), kept_until=float(note["kept_until"]))
        except (KeyError, TypeError, RecursionError) as error:
            raise ValueError("no note of a home") from error

    @property
    def is_in_use(self) -> bool:
        """True if the home is kept for a session that continues later."""
        return self.kept_until > time.time()


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeMark:
    """Identity of a folder, distinct from that of a later one with its name and inode number."""

    device: int
    inode: int
    born_ns: int | None

    @classmethod
    def of(cls, fd: int) -> "HomeMark":
        """Return the mark of an open folder."""
        found = os.fstat(fd)
        return cls(device=found.st_dev, inode=found.st_ino, born_ns=birth_ns(fd))

    def is_named_by(self, record: Mapping[str, Any]) -> bool:
        """Return whether a record is one of this folder."""
        # Device numbers may change when a machine or a container restarts; birth times do not.
        same = (self.inode, self.born_ns) == (record.get("inode"), record.get("born_ns"))
        return same and (self.born_ns is not None or self.device == record.get("device"))


@dataclass(frozen=True, slots=True)
class HomeNotes:
    """The notes of all homes.

    Attributes:
        state: The runner's state folder, for file systems without attributes.
    """

    state: Path

    def read(self, fd: int, segment: str) -> HomeNote | None:
        """Return the note of a folder that belongs to us; None if there is none.

        Args:
            fd: The folder, open for reading.
            segment: Its name.

        Raises:
            HomeError: It may have a note in a file that this user may not read.
        """
        for look in (
            partial(_attribute, fd, _TRUSTED),
            partial(_attribute, fd, _USER),
            partial(self._record, fd, segment),
        ):
            text = look()
            if text is None:
                continue
            try:
                note = HomeNote.from_json(text)
            except ValueError:
                log.warning("home note unreadable", extra={"segment": segment})
                continue
            if note.segment == segment:
                return note
        return None

    def write(self, fd: int, note: HomeNote) -> None:
        """Write the note of an open home.

        Raises:
            HomeError: It cannot be written anywhere.
        """
        text = json.dumps(asdict(note)).encode()
        if not any(_set_attribute(fd, name, text) for name in (_TRUSTED, _USER)):
            self._write_record(fd, note)

    def forget(self, segment: str) -> None:
        """Remove the note file of a removed home."""
        self._path(segment).unlink(missing_ok=True)

    def _path(self, segment: str) -> Path:
        return self.state / "homes" / f"{segment}.json"

    def _record(self, fd: int, segment: str) -> bytes | None:
        path = self._path(segment)
        try:
            text = read_whole(path)
            record = json.loads(text)
        except PermissionError as error:
            raise HomeError(
                f"home note unreadable ({path}, setting `state_dir`): {error.strerror}; "
                f"let the runner's user read and write it, as runner doctor says"
            ) from error
        except (OSError, ValueError, RecursionError):
            return None
        return text if isinstance(record, dict) and HomeMark.of(fd).is_named_by(record) else None

    def _write_record(self, fd: int, note: HomeNote) -> None:
        path = self._path(note.segment)
        try:
            make_folder(self.state, path.parent.name)
            write_whole(path, json.dumps({**asdict(HomeMark.of(fd)), **asdict(note)}).encode())
        except OSError as error:
            raise HomeError(
                f"nowhere can be noted that a home was made: the folder for homes keeps no extended "
                f"attributes, and the state folder cannot be written ({error.strerror}); choose another "
                f"folder for homes (setting `homes`) or for the state (setting `state_dir`)"
            ) from error


def _attribute(fd: int, name: str) -> bytes | None:
    try:
        return os.getxattr(fd, name)
    except OSError:
        return None


def _set_attribute(fd: int, name: str, text: bytes) -> bool:
    try:
        os.setxattr(fd, name, text)
    except OSError as error:
        if error.errno not in _NOT_KEPT:
            raise
        return False
    return True
