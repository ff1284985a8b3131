"""Scratch folders: writable by libraries while a tool file is imported; one for each zygote.

They are in the folder of homes, where every user id can enter its own. Each is locked as long as its host
lives. So an orphan of a killed host is recognised by its name, its owner and the missing lock; the next
process to start removes it, with any state folder.

Source: `runner.system.worker_environment`, which points personal folders there, and
`runner.system.own_folders`.
"""

import contextlib
import os
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.homes.emptying import remove
from runner.system import locks
from runner.system.own_folders import HIDDEN, folders_in, held, made_folder, open_homes
from runner.system.worker_environment import FOLDERS

__all__ = ["scratch_folder", "sweep"]

_PREFIX = f"{HIDDEN}import-"


@contextmanager
def scratch_folder(homes: Path, *, owner: int | None) -> Iterator[Path]:
    """Make a scratch folder, and remove it at the end.

    Args:
        homes: The folder of homes.
        owner: User and group id of its owner; by default ours.

    Raises:
        HomeError: The folder of homes cannot be used.
        OSError: The scratch folder cannot be made.
    """
    with open_homes(homes) as homes_fd:
        name, fd = made_folder(homes_fd, _PREFIX)
        try:
            _furnish(homes / name, owner)
            yield homes / name
        finally:
            remove(homes_fd, name)
            locks.let_go(fd)


def sweep(homes: Path, ids: Container[int]) -> None:
    """Remove the folders whose hosts have ended without removing them.

    Args:
        homes: The folder of homes.
        ids: User ids that such a folder may belong to, beside ours.

    Raises:
        HomeError: The folder of homes cannot be used.
    """
    with open_homes(homes) as homes_fd:
        left = [name for name, _owner in folders_in(homes_fd, ids) if name.startswith(_PREFIX)]
        for name in left:
            with contextlib.suppress(OSError), held(homes_fd, name):
                remove(homes_fd, name)


def _furnish(folder: Path, owner: int | None) -> None:
    for name in (*FOLDERS.values(), "empty"):
        (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    if owner is not None:
        for made in (folder, *folder.rglob("*")):
            os.chown(made, owner, owner)
