"""Connections by UNIX sockets among the processes of one zygote only.

A path is resolved in the requester's view, and its target is held open before it is checked, so that it
cannot be exchanged in between. Two conditions must hold, both according to the kernel:

- it is a socket beneath the home, where only processes of its user can create one. So servers elsewhere on
  the machine do not even see a connection attempt;
- the listener is in the requester's own pid namespace, which belongs to one zygote. So no call reaches a
  process of the same user with other rights, such as another server's browser, which has the same home.

Abstract names are refused: the host, which connects, is in another network namespace.

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

# Since Linux 6.5, which is older than the Landlock ABI that sockets require.
_SO_PEERPIDFD = 77
_FAMILY = struct.Struct("=H")
_HANDLE = os.O_PATH | os.O_CLOEXEC


def path_of(raw: bytes) -> str | None:
    """Return the path in a `struct sockaddr_un`; None if it has none, or is of another family."""
    if len(raw) <= _FAMILY.size or _FAMILY.unpack_from(raw)[0] != socket.AF_UNIX:
        return None
    return os.fsdecode(raw[_FAMILY.size :].partition(b"\0")[0]) or None


def join(thread: int, path: str, *, home: Path) -> socket.socket:
    """Return a connection with the listener at a path, in a thread's view. Never blocks.

    Args:
        thread: Id of the requesting thread. The caller must verify afterwards that it was not reused.
        path: The requested path.
        home: The home, where sockets may be.

    Raises:
        OSError: No listener (`ECONNREFUSED`, `ENOENT`), one of another zygote (`EACCES`), or a full queue
            (`EAGAIN`).
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
    """Return an `O_PATH` descriptor of a path, resolved with the root and working folder of a thread."""
    with as_owner_of(thread):
        whole = os.path.join(os.readlink(f"/proc/{thread}/cwd"), path)
        root = os.open(f"/proc/{thread}/root", _HANDLE | os.O_DIRECTORY)
        try:
            resolve = Resolve.IN_ROOT | Resolve.NO_MAGICLINKS
            return openat2(whole, _HANDLE, directory=root, resolve=resolve)
        finally:
            os.close(root)


def _is_beneath(place: int, home: Path) -> bool:
    """Return whether a descriptor's file is beneath the home, by the kernel's path of it."""
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
    """Return the pid namespace of the process that called listen on a socket's peer.

    Raises:
        OSError: That process has exited; the present owner of its socket is unknown.
    """
    held = ours.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    try:
        found = _pid_namespace(_number_of(held))
        # Only this proves that the pid still belonged to that process.
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
