"""Helpers to start other processes and to become a user without privileges."""

import ctypes
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from runner.files.my_files import Library, MyFiles
from runner.files.sessions import Sessions
from runner.store.local.blobs import LocalBlobs
from runner.store.store import BlobStore

__all__ = ["Start", "become_nobody", "files_in"]

Start = Callable[..., "subprocess.Popen[str]"]

_NOBODY = 65534
_PR_SET_DUMPABLE = 4


def become_nobody() -> None:
    """Drop root permanently, if we are root, and keep access to our own /proc, as a new process has."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
        assert ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0) == 0


def files_in(place: Path) -> MyFiles:
    """Return the files of alice in a store below a folder."""
    return Library(store=BlobStore(LocalBlobs(place / "store")), sessions=Sessions(place / "sessions")).of(
        "alice"
    )
