"""Replacements for parts of the standard library that fail under confinement.

`multiprocessing` keeps semaphores and shared memory in /dev/shm, one folder for all users of a machine. A
worker may not write there; so its semaphores have no name (`sandbox.inside.semaphore`), and its shared memory
is in a folder of the home, and removed with it. Both work for forked processes, the default; a spawned
interpreter does not have them.

If the filter denies setting file times, `shutil.copy2` and `copytree` skip them.

Source: CPython, Lib/multiprocessing/synchronize.py, shared_memory.py and heap.py; Lib/shutil.py; shm_open(3).
"""

import errno
import functools
import multiprocessing.heap
import multiprocessing.managers
import multiprocessing.shared_memory
import multiprocessing.synchronize
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import ParamSpec

from sandbox.inside.semaphore import SemLock

__all__ = ["FOLDER", "install"]

P = ParamSpec("P")

FOLDER = ".shm"
"""Folder of shared memory, below the home."""


@dataclass(frozen=True, slots=True)
class _SharedMemory:
    """Replacement for the module `_posixshmem`: named files in the home instead of /dev/shm."""

    home: Path | None

    def shm_open(self, path: str, flags: int, mode: int = 0o600) -> int:
        """Open or make shared memory; return its descriptor."""
        file = self._file(path)
        if flags & os.O_CREAT:
            os.makedirs(os.path.dirname(file), mode=0o700, exist_ok=True)
        return os.open(file, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode)

    def shm_unlink(self, path: str) -> None:
        """Unlink shared memory; processes that have it open keep it."""
        os.unlink(self._file(path))

    def _file(self, path: str) -> str:
        name = path.removeprefix("/")
        if not name or "/" in name or name in (".", ".."):
            raise OSError(errno.EINVAL, "a name of shared memory holds no slash", path)
        if self.home is None:
            raise PermissionError(errno.EACCES, "this call may not write files, nor shared memory", path)
        return os.path.join(self.home, FOLDER, name)


def install(home: Path | None, *, sockets: bool = False, times: bool = True) -> None:
    """Install the replacements in this process and all that it forks.

    Args:
        home: The home of the calls, or None if they have none.
        sockets: Whether they may listen on a UNIX socket there.
        times: Whether they may set times of their files.
    """
    # `_multiprocessing.SemLock` stays: joblib tries it, and starts interpreters of its own only if it works.
    replaced = {"SemLock": SemLock, "sem_unlink": os.unlink}
    _set(multiprocessing.synchronize, "_multiprocessing", SimpleNamespace(**replaced))
    _set(multiprocessing.shared_memory, "_posixshmem", _SharedMemory(home))
    # The tracker would start an interpreter to remove files that are removed with the home anyway.
    tracker = SimpleNamespace(register=_nothing, unregister=_nothing)
    _set(multiprocessing.shared_memory, "resource_tracker", tracker)
    _set(multiprocessing.heap.Arena, "_dir_candidates", [])
    if not times:
        _set(shutil, "copystat", _copy_stat_without_times(shutil.copystat))
    if not sockets:
        _set(multiprocessing.managers.BaseManager, "start", _refuse_manager)


def _copy_stat_without_times(copy_stat: Callable[P, None]) -> Callable[P, None]:
    """Return a `shutil.copystat` that ignores EPERM from its first step, setting times."""

    @functools.wraps(copy_stat)
    def copystat(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            copy_stat(*args, **kwargs)
        except PermissionError as error:
            if error.errno != errno.EPERM:
                raise

    return copystat


def _nothing(_name: str, _kind: str) -> None:
    """Track nothing."""


def _refuse_manager(*_args: object, **_kwargs: object) -> None:
    # Otherwise its process would exit when it listens, and its waiter would only get end of file.
    raise OSError(
        errno.ENOTSUP,
        "a manager listens on a socket, which this call may not: "
        "share a Queue, Value, Array or SharedMemory instead",
    )


def _set(owner: object, name: str, value: object) -> None:
    if not hasattr(owner, name):
        raise AttributeError(f"{owner!r} has no {name}: this version of Python keeps it elsewhere")
    setattr(owner, name, value)
