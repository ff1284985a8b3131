"""Files named by settings: read up to a bound, or refused with advice.

A private file may be readable only by its owner and a group, like files of a Kubernetes Secret. Opening never
blocks: a pipe without a writer would block the process for ever.

Source: open(2), fifo(7), inode(7).
"""

import errno
import os
import stat
from pathlib import Path

from runner.errors import UsageError

__all__ = ["open_file", "read_file", "read_private", "read_public"]

_OPEN_TO_OTHERS = 0o027
# More than any file written by hand.
_MOST_BYTES = 16 << 20
_WITH_MODE = ", with mode 0600"
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def read_private(setting: str, path: Path, *, most_bytes: int) -> bytes:
    """Return the contents of a file that no other user may read or write.

    Args:
        setting: The setting that names the file; errors begin with it.
        path: The file.
        most_bytes: Largest size.

    Raises:
        UsageError: It is unreadable, too long or open to other users; the message never has its content.
    """
    content, mode = _read(setting, path, most_bytes, _WITH_MODE)
    if mode & _OPEN_TO_OTHERS:
        raise UsageError(f"{setting} {path} is open to other users; chmod 600 {path}")
    return content


def read_public(setting: str, path: Path, *, most_bytes: int) -> bytes:
    """Return the contents of a file of any mode; otherwise like `read_private`."""
    return _read(setting, path, most_bytes, "")[0]


def open_file(path: Path) -> int:
    """Open a regular file, or a link to one, for reading, without blocking on anything else.

    Raises:
        OSError: It cannot be opened, or is a folder, a pipe, a socket or a device, named in `strerror`.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:
            # The error of a socket, and of a device without a driver.
            raise _no_file(stat.S_IFSOCK, path) from error
        raise
    # Of the open file: its name may lead elsewhere by now.
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        raise _no_file(mode, path)
    return fd


def read_file(path: Path, *, most_bytes: int = _MOST_BYTES) -> bytes:
    """Return the contents of a file of any mode.

    Args:
        path: The file.
        most_bytes: Largest size.

    Raises:
        OSError: As for `open_file`; or it is longer.
    """
    return _content(path, most_bytes)[0]


def _content(path: Path, most_bytes: int) -> tuple[bytes, int]:
    with open(open_file(path), "rb") as file:
        content = file.read(most_bytes + 1)
        if len(content) > most_bytes:
            raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes", str(path))
        return content, os.fstat(file.fileno()).st_mode


def _no_file(mode: int, path: Path) -> OSError:
    kind = _KINDS.get(stat.S_IFMT(mode), "something else")
    return OSError(errno.EINVAL, f"it is {kind}, and has to be a regular file", str(path))


def _read(setting: str, path: Path, most_bytes: int, mode_wanted: str) -> tuple[bytes, int]:
    try:
        return _content(path, most_bytes)
    except FileNotFoundError:
        raise UsageError(f"{setting} {path} does not exist; write it there{mode_wanted}") from None
    except PermissionError as error:
        cure = f"let it belong to the user of the runner{mode_wanted}"
        raise UsageError(f"{setting} {path} may not be read by this user; {cure}") from error
    except OSError as error:
        if error.errno == errno.EFBIG:
            problem = f"has more than {most_bytes} bytes; is it the file that was meant?"
            raise UsageError(f"{setting} {path} {problem}") from error
        raise UsageError(f"{setting} {path} cannot be read: {error.strerror}") from error
