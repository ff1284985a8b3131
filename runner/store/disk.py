"""Free space and inodes of a disk.

Source: statvfs(3).
"""

import os
import secrets
from pathlib import Path

from runner.store.sources import write_all

__all__ = ["free_bytes", "least_free_bytes", "try_to_write"]

_LEAST_BYTES = 64 * 1024 * 1024
_LEAST_SHARE = 50

_TRIAL = bytes(64 * 1024)


def free_bytes(folder: Path) -> int:
    """Return the number of bytes that can be written below a folder, ignoring quotas.

    Raises:
        OSError: It is not there or cannot be looked at.
    """
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def least_free_bytes(folder: Path) -> int:
    """Return the bytes to leave free on the disk of a folder: 64 MiB, on a small disk a fiftieth.

    With less, a server is not ready for calls, and takes no upload.

    Raises:
        OSError: It is not there or cannot be looked at.
    """
    found = os.statvfs(folder)
    return min(_LEAST_BYTES, found.f_blocks * found.f_frsize // _LEAST_SHARE)


def try_to_write(folder: Path) -> None:
    """Write a little below a folder, and remove it again.

    Raises:
        OSError: It cannot be written: read-only, full, not ours, or gone and not to be made.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f".trial-{secrets.token_hex(8)}"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        # First, so that nothing is left however this ends.
        path.unlink()
        write_all(fd, _TRIAL)
    finally:
        os.close(fd)
