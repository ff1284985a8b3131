"""The folder of an installation of `runner up`, and who may enter what in it.

```text
FOLDER/             0711  ours
  supervisor/       0700  ours: lock, socket, record, logs, user ids
  users/            0711  ours: nobody else can list it, or exchange what is in it
    SEGMENT/        0700  the user's server's: state and store
```

What lies below a user's folder is never touched by us: as root we would follow whatever the server's user id
has put there.
"""

import contextlib
import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from runner.errors import StartError
from runner.settings.values import default_state_dir

__all__ = ["Folders"]

_OF_ROOT = Path("/var/lib/toolcell/up")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of one installation."""

    top: Path

    @classmethod
    def at(cls, top: Path | None) -> "Folders":
        """Return those at a place; by default where root's are, or those of whoever runs this."""
        if top is not None:
            return cls(top.absolute())
        return cls(_OF_ROOT if os.geteuid() == 0 else default_state_dir() / "up")

    @property
    def supervisor(self) -> Path:
        """The folder that is ours alone."""
        return self.top / "supervisor"

    @property
    def users(self) -> Path:
        """The folder with a folder for each user."""
        return self.top / "users"

    @property
    def record(self) -> Path:
        """The file that says which servers there are."""
        return self.supervisor / "record.json"

    @property
    def mark(self) -> str:
        """What tells this installation's control groups from those of others."""
        return hashlib.sha256(os.fsencode(self.top)).hexdigest()[:8]

    def log(self, segment: str) -> Path:
        """Return the log of a user's server."""
        return self.supervisor / "logs" / f"{segment}.log"

    def make(self) -> None:
        """Make the folders that are not there.

        Raises:
            StartError: One cannot be made, or belongs to somebody else.
        """
        try:
            self.top.mkdir(mode=0o711, parents=True, exist_ok=True)
            for folder, mode in (
                (self.supervisor, 0o700),
                (self.supervisor / "logs", 0o700),
                (self.users, 0o711),
            ):
                folder.mkdir(mode=mode, exist_ok=True)
            for folder in (self.top, self.supervisor, self.users):
                _check(folder)
        except OSError as error:
            raise StartError(
                f"the folder {self.top} cannot be used: {error.strerror}; choose another one with --folder"
            ) from error

    def make_user(self, segment: str, uid: int | None) -> None:
        """Make the folder of a user's server, and give it to its user id.

        Raises:
            OSError: It cannot be made, or is somebody else's.
        """
        owner = os.geteuid() if uid is None else uid
        parent = os.open(self.users, _FOLDER)
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(segment, 0o700, dir_fd=parent)
            fd = os.open(segment, _FOLDER, dir_fd=parent)
        finally:
            os.close(parent)
        try:
            found = os.fstat(fd)
            if found.st_uid == os.geteuid() != owner and not os.listdir(fd):
                os.fchown(fd, owner, owner)
            elif found.st_uid != owner:
                raise PermissionError(
                    f"{self.users / segment} belongs to user id {found.st_uid}, not to {owner}; "
                    f"chown -R {owner}:{owner} it, or move it away"
                )
            os.fchmod(fd, 0o700)
        finally:
            os.close(fd)


def _check(folder: Path) -> None:
    found = folder.stat()
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise StartError(
            f"{folder} belongs to user id {found.st_uid} or can be written by others, who could exchange "
            f"what is in it; choose another one with --folder"
        )
