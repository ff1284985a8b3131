"""The running servers of a state folder: each has a file there, locked for as long as it runs.

So a command finds them, signals them to reload their configuration, and reads the result.

Source: flock(2); pid_namespaces(7): a pid of another container is meaningless here.
"""

import contextlib
import json
import logging
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.system import locks
from runner.system.state_files import Damaged, make_folder, open_lock, open_regular

__all__ = ["Running", "RunningServer", "one_at_a_time", "running_in"]

log = logging.getLogger(__name__)

_FOLDER = "servers"
_LOCK = "reload.lock"
_MOST_BYTES = 1 << 20
_ATTEMPTS = 20
_LOOK_S = 0.01


@dataclass(slots=True, eq=False)
class RunningServer:
    """This server's file, created with `open`."""

    _fd: int
    _note: dict[str, Any] = field(default_factory=dict)

    @classmethod
    @contextmanager
    def open(cls, state: Path, *, what: str) -> "Iterator[RunningServer]":
        """Register this server for commands while the block runs; a failure to write is only logged.

        Args:
            state: The state folder.
            what: Description of its service, for people.
        """
        path = state / _FOLDER / f"{os.getpid()}-{secrets.token_hex(4)}.json"
        note = {"pid": os.getpid(), "pids": _pids(), "serves": what, "reloads": 0}
        with contextlib.ExitStack() as held:
            fd = -1
            try:
                make_folder(state, _FOLDER)
                fd = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
                held.callback(os.close, fd)
                held.callback(_removed, path)
                # It was just created, so it is not locked.
                locks.try_lock(fd)
            except OSError as error:
                _untold(error)
            server = cls(fd)
            server._write(note)
            yield server

    def reloaded(self, outcome: Mapping[str, Any]) -> None:
        """Record the outcome of a reload."""
        self._write({**self._note, "reloads": self._note["reloads"] + 1, "outcome": dict(outcome)})

    def _write(self, note: dict[str, Any]) -> None:
        self._note = note
        if self._fd < 0:
            return
        content = json.dumps(note).encode()
        try:
            # In place, since the lock belongs to the file: a reader of a partial file reads again.
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, content, 0)
        except OSError as error:
            _untold(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A running server.

    Attributes:
        path: Its file.
        pid: Its process id.
        is_near: Whether that process id is valid here, too.
        serves: Description of its service.
        reloads: How often it has reloaded its configuration.
        outcome: Outcome of the last reload.
    """

    path: Path
    pid: int
    is_near: bool
    serves: str
    reloads: int
    outcome: Mapping[str, Any]

    def again(self) -> "Running | None":
        """Return its current state; None if it has ended."""
        return _read(self.path)


def running_in(state: Path) -> list[Running]:
    """Return the running servers of a state folder; remove the files of ended ones."""
    files = sorted((state / _FOLDER).glob("*.json"))
    return [server for file in files if (server := _read(file)) is not None]


@contextmanager
def one_at_a_time(state: Path, *, patience_s: float) -> Iterator[None]:
    """Wait for another command that is reloading the servers of a state folder.

    A server counts its reloads without recording the requester: two concurrent commands would both get the
    outcome of the first. If the folder is not writable or the time is over, the command proceeds without
    waiting.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            fd = open_lock(state / _FOLDER / _LOCK)
            held.callback(os.close, fd)
            deadline = time.monotonic() + patience_s
            while not locks.try_lock(fd) and time.monotonic() < deadline:
                time.sleep(_LOOK_S)
        yield


def _read(path: Path) -> Running | None:
    with contextlib.suppress(FileNotFoundError, Damaged):
        fd = open_regular(path)
        try:
            if _is_left(fd):
                path.unlink(missing_ok=True)
                return None
            for _ in range(_ATTEMPTS):
                # A partial file while the server writes it, or permanently if its disk was full.
                with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):
                    return _of(path, json.loads(os.pread(fd, _MOST_BYTES, 0)))
                time.sleep(_LOOK_S)
        finally:
            os.close(fd)
    return None


def _removed(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def _untold(error: OSError) -> None:
    # `runner reload` cannot find this server then; SIGHUP still reloads it.
    log.warning("server note not written", extra={"problem": error.strerror, "folder": _FOLDER})


def _is_left(fd: int) -> bool:
    """Return whether a file belongs to a server that has ended."""
    return locks.try_lock(fd, shared=True)


def _of(path: Path, note: Mapping[str, Any]) -> Running:
    return Running(
        path=path,
        pid=int(note["pid"]),
        is_near=note["pids"] == _pids(),
        serves=str(note["serves"]),
        reloads=int(note["reloads"]),
        outcome=note.get("outcome", {}),
    )


def _pids() -> str:
    """Return a key that distinguishes process ids here from those of another container."""
    return os.readlink("/proc/self/ns/pid")
