"""Scratch folders: where libraries may write while a tool file is imported; one for each zygote.

Each has a file in the state folder that says where it is, and is locked as long as its host lives. What a
host that was killed has left is found by that and removed.

Source: `runner.environment`, which points everything personal there; flock(2).
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.environment import FOLDERS

__all__ = ["scratch_folder", "sweep"]

_PREFIX = ".toolcell-scratch-"


@contextmanager
def scratch_folder(state: Path, *, within: Path | None, owner: int | None) -> Iterator[Path]:
    """Make a scratch folder, and remove it at the end.

    Args:
        state: The runner's state folder.
        within: A folder that the owner can enter, where that is not so of the state folder.
        owner: User and group id that it shall belong to; by default ours.
    """
    records = state / "scratch"
    records.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=within or records))
    record = records / f"{folder.name}.at"
    lock = os.open(record, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.write(lock, os.fsencode(folder))
        _furnish(folder, owner)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        record.unlink(missing_ok=True)
        os.close(lock)


def sweep(state: Path) -> None:
    """Remove the folders whose hosts have ended without doing it."""
    for record in sorted((state / "scratch").glob(f"{_PREFIX}*.at")):
        with contextlib.suppress(OSError), record.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            folder = Path(os.fsdecode(file.read()))
            # Empty where the host ended, or is, between making the file and writing to it.
            if folder.name == record.stem:
                shutil.rmtree(folder, ignore_errors=True)
                record.unlink()


def _furnish(folder: Path, owner: int | None) -> None:
    for name in (*FOLDERS.values(), "empty"):
        (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    if owner is not None:
        for made in (folder, *folder.rglob("*")):
            os.chown(made, owner, owner)
