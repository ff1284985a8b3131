"""Connections by UNIX sockets among the processes of one zygote, and with nobody else.

A path is walked as the process sees it that asks, and what it leads to is held before it is looked at, so
that nothing can be exchanged in between. Two things must be true of it, each by what the kernel says of it:

- it is a socket beneath the home, where only processes of its user can make one. So nobody is even knocked at
  who listens elsewhere on the machine;
- who listens there is in the asking process's own pid namespace, which is one zygote's. So nobody gets at a
  process of the same user with other rights, such as another server's browser, which has the same home.

Names without a file (abstract ones) are refused: the host, which connects, is in another network.

Source: unix(7), openat2(2), pid_namespaces(7), proc_pid_root(5).
"""

import errno
import os
import socket
import stat
import struct
from pathlib import Path

from sandbox.fsuid import as_owner_of
from sandbox.syscalls import Resolve, openat2

__all__ = ["join", "path_of"]

# Since Linux 6.5, which is older than what Landlock has to know before sockets are allowed.
_SO_PEERPIDFD = 77
_FAMILY = struct.Struct("=H")
_HANDLE = os.O_PATH | os.O_CLOEXEC


def path_of(raw: bytes) -> str | None:
    """Return the path that a `struct sockaddr_un` holds; None for one without, or of another family."""
    if len(raw) <= _FAMILY.size or _FAMILY.unpack_from(raw)[0] != socket.AF_UNIX:
        return None
    return os.fsdecode(raw[_FAMILY.size :].partition(b"\0")[0]) or None


def join(thread: int, path: str, *, home: Path) -> socket.socket:
    """Return a connection with who listens at a path, as a thread sees it. Waits for nobody.

    Args:
        thread: The thread that asks. That it is still the one must be known after this, too.
        path: What it asks for.
        home: The home, where sockets may lie.

    Raises:
        OSError: There is nobody (`ECONNREFUSED`, `ENOENT`), nobody of its own (`EACCES`), or too many wait
            there already (`EAGAIN`).
    """
    place = _walked(thread, path)
    try:
        if not stat.S_ISSOCK(os.fstat(place).st_mode) or not _is_beneath(place, home):
            raise PermissionError(errno.EACCES, "no socket in the home")
        ours = _connected(f"/proc/self/fd/{place}")
    finally:
        os.close(place)
    try:
        _check_peer(ours, thread)
    except BaseException:
        ours.close()
        raise
    return ours


def _walked(thread: int, path: str) -> int:
    """Return a handle on what a path leads to, by the root and the working folder of a thread."""
    with as_owner_of(thread):
        whole = os.path.join(os.readlink(f"/proc/{thread}/cwd"), path)
        root = os.open(f"/proc/{thread}/root", _HANDLE | os.O_DIRECTORY)
        try:
            resolve = Resolve.IN_ROOT | Resolve.NO_MAGICLINKS
            return openat2(whole, _HANDLE, directory=root, resolve=resolve)
        finally:
            os.close(root)


def _is_beneath(place: int, home: Path) -> bool:
    """Return whether a handle is beneath the home, by the path that the kernel has of it."""
    return Path(os.readlink(f"/proc/self/fd/{place}")).is_relative_to(os.path.realpath(home))


def _connected(name: str) -> socket.socket:
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        ours = socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            ours.connect(name)
        except OSError as error:
            ours.close()
            if error.errno != errno.EPROTOTYPE:
                raise
        else:
            return ours
    raise OSError(errno.EPROTOTYPE, "no socket for connections listens there")


def _check_peer(ours: socket.socket, thread: int) -> None:
    if _pid_namespace_of_peer(ours) != _pid_namespace(thread):
        raise PermissionError(errno.EACCES, "who listens there is not of the same processes")


def _pid_namespace_of_peer(ours: socket.socket) -> tuple[int, int]:
    """Return the pid namespace of who began to listen where a socket was connected.

    Raises:
        OSError: That process has exited; the present owner of its socket is unknown.
    """
    held = ours.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    try:
        found = _pid_namespace(_number_of(held))
        # Only now it is sure that this number was still that process.
        _number_of(held)
    finally:
        os.close(held)
    return found


def _number_of(pidfd: int) -> int:
    with open(f"/proc/self/fdinfo/{pidfd}", "rb") as file:
        lines = dict(line.split(b":", 1) for line in file if b":" in line)
    number = int(lines.get(b"Pid", b"-1"))
    if number <= 0:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "who began to listen there has ended")
    return number


def _pid_namespace(pid: int) -> tuple[int, int]:
    """Return an identifier of the pid namespace of a process."""
    with as_owner_of(pid):
        found = os.stat(f"/proc/{pid}/ns/pid")
    return found.st_dev, found.st_ino
