"""Sessions whose files end with them: the existing ones, and those that have been idle for too long.

Only needed if files do not persist. A session is a small file below the state folder; its modification time
is that of its last use. A process that uses a session holds a shared lock on its file, and ending it takes
the exclusive lock: no host ends a session that another host, or a shell, is using.

Source: requirements S1-12 and S1-13; architecture, decision "Session"; flock(2).
"""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from runner.errors import CallError, Code
from runner.system import locks
from runner.system.state_files import Damaged, make_folder, open_lock, open_regular, read_whole

__all__ = ["Claim", "KnownSessions", "Right", "Session", "Sessions", "Unkept"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One session of one user.

    Attributes:
        user: The user's name.
        name: The session's name.
    """

    user: str
    name: str

    @property
    def note(self) -> str:
        """Return the JSON text that names the session in a file or in Redis."""
        return json.dumps([self.user, self.name])


class Right(Protocol):
    """The right to end one session."""

    def forget(self) -> None:
        """Forget the session: it has ended."""

    def release(self) -> None:
        """Give the right back; a waiting caller restarts the session, or continues it."""


class KnownSessions(Protocol):
    """The sessions that were used and have not ended: the interface of `Sessions`. All methods block."""

    def using(self, session: Session, *, to_read: bool = False) -> AbstractContextManager[None]:
        """Use a session: it does not end meanwhile, and its idle time restarts."""

    def claim(self, session: Session, *, idle_s: float = 0) -> Right | None:
        """Return the right to end a session; None: it may not end."""

    def known(self, *, idle_s: float = 0) -> Iterator[Session]:
        """Yield every session that has not ended; perhaps only those unused for `idle_s` seconds."""


@dataclass(frozen=True, slots=True)
class Unkept:
    """No sessions: for a worker node, whose hosts track sessions and end them."""

    def using(self, session: Session, *, to_read: bool = False) -> AbstractContextManager[None]:
        """Do nothing: the host uses the session as long as its call runs."""
        del session, to_read
        return contextlib.nullcontext()

    def claim(self, session: Session, *, idle_s: float = 0) -> None:
        """Return None, as for a session in use: only hosts end sessions, not a worker node."""
        del session, idle_s

    def known(self, *, idle_s: float = 0) -> Iterator[Session]:
        """Yield no session: those of the hosts are not known here."""
        del idle_s
        return iter(())


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to end one session."""

    _path: Path
    _fd: int

    def forget(self) -> None:
        """Forget the session: it has ended."""
        self._path.unlink(missing_ok=True)

    def release(self) -> None:
        """Give the right back; a waiting caller restarts the session, or continues it."""
        locks.let_go(self._fd)


@dataclass(frozen=True, slots=True)
class Sessions:
    """The sessions that were used and have not ended. Any number of processes may share them.

    Attributes:
        folder: Folder of their files; created on first use.
    """

    folder: Path

    @contextmanager
    def using(self, session: Session, *, to_read: bool = False) -> Iterator[None]:
        """Use a session: it does not end meanwhile, and its idle time restarts. Blocks while it ends.

        Args:
            session: The session.
            to_read: Whether the session is only used if it exists. Only its stored files can be read, and a
                session that has none is not recorded.

        Raises:
            CallError: `E_STORE`: it cannot be recorded.
        """
        path = self._path(session)
        try:
            fd = self._locked(path, session, to_read=to_read)
        except (CallError, Damaged):
            if not to_read:
                raise
            yield
            return
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.utime(fd)
            Claim(path, fd).release()

    def claim(self, session: Session, *, idle_s: float = 0) -> "Claim | None":
        """Return the right to end a session, which keeps others from using it; None if it may not end.

        Args:
            session: The session.
            idle_s: How long it must have been unused, in seconds.

        Raises:
            CallError: `E_STORE`: its file cannot be read.
        """
        path = self._path(session)
        try:
            fd = open_regular(path, os.O_RDWR)
        except (FileNotFoundError, Damaged):
            return None
        except OSError as error:
            raise _unusable(error) from error
        claim = Claim(path, fd)
        if locks.try_lock(fd) and locks.is_linked(fd) and time.time() - os.fstat(fd).st_mtime >= idle_s:
            return claim
        claim.release()
        return None

    def known(self, *, idle_s: float = 0) -> Iterator[Session]:
        """Yield every session that has not ended; `claim` checks its idle time."""
        del idle_s
        for path in sorted(self.folder.glob("*.session")):
            with contextlib.suppress(OSError, ValueError, TypeError):
                user, name = json.loads(read_whole(path))
                yield Session(user=user, name=name)

    def _path(self, session: Session) -> Path:
        return self.folder / f"{hashlib.sha256(session.note.encode()).hexdigest()}.session"

    def _locked(self, path: Path, session: Session, *, to_read: bool) -> int:
        try:
            if not to_read:
                make_folder(self.folder.parent, self.folder.name)
            while True:
                fd = open_regular(path, os.O_RDWR) if to_read else open_lock(path)
                locks.wait_for(fd, shared=True)
                # The process that ended it may have removed the file between our open and our lock.
                if locks.is_linked(fd):
                    break
                os.close(fd)
        except OSError as error:
            raise _unusable(error) from error
        try:
            note = session.note.encode()
            # The name of the file is derived from its content, so a damaged file can be repaired.
            if os.pread(fd, len(note) + 1, 0) != note:
                os.ftruncate(fd, len(note))
                os.pwrite(fd, note, 0)
        except OSError as error:
            os.close(fd)
            raise _unusable(error) from error
        return fd


def _unusable(error: OSError) -> CallError:
    message = f"sessions cannot be noted below the folder of the setting state_dir: {error.strerror}"
    return CallError(Code.E_STORE, message)
