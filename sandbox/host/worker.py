"""The host's record of a worker, and facts about a process from the kernel.

A worker is forked from a zygote that has run author code, so its own reports are not trusted.

Source: unix(7) on SO_PEERCRED; pidfd_send_signal(2).
"""

import contextlib
import errno
import os
import signal
import socket
import stat
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from sandbox.host.connection import Connection
from sandbox.host.process_stat import read_proc
from sandbox.host.stopping import WHOLE_GROUP
from sandbox.policy import Limits

__all__ = ["Worker", "children_of", "maker_of", "number_inside", "own_end"]

_CREDENTIALS = struct.Struct("3i")
_PART_BYTES = 1 << 16


@dataclass(slots=True, kw_only=True, eq=False)
class Worker:
    """A worker, as seen by the host.

    Attributes:
        pid: Its process id.
        pidfd: A descriptor of the process.
        connection: The host's end of its connection.
        output: The pipe with its output.
        origin_bytes: Private memory it had when it was ready for its first call.
        first_called: When its first call began, in seconds of the monotonic clock.
        idle_since: When it was parked last.
        calls: How many calls it has been given.
        stop_sent: Whether a stop signal was sent.
        looked_at: When it was last found fit for another call, in seconds of the monotonic clock.
        has_stopped: Whether all its threads were seen stopped, and it was found fit for another call.
        was_long: Whether its last call ran long enough to be watched.
        limits: The kernel limits set in it; None before its first call.
        cpu_before_s: Processor seconds it had used before its current call.
        renewal: Its usage before its next call, if it has to renew its limits itself.
        is_apart: Whether it differs from its siblings after a call, so that it is preferred for the next.
        goes_on: Whether background work of its calls continues between them.
        sessions: Sessions whose calls have started background work; None stands for no session.
        is_shared: Whether it serves concurrent calls, each on a connection of its own.
        data_bytes: Private memory that does not count as memory of its calls.
    """

    pid: int
    pidfd: int
    connection: Connection
    output: int
    origin_bytes: int = 0
    first_called: float = 0.0
    idle_since: float = field(default_factory=time.monotonic)
    calls: int = 0
    stop_sent: bool = False
    looked_at: float = float("-inf")
    has_stopped: bool = False
    was_long: bool = False
    limits: Limits | None = None
    cpu_before_s: float = 0.0
    renewal: Mapping[str, object] | None = None
    is_apart: bool = False
    goes_on: bool = False
    sessions: set[str | None] = field(default_factory=set)
    is_shared: bool = False
    data_bytes: int = 0

    def is_running(self) -> bool:
        """Return whether it is still running."""
        try:
            signal.pidfd_send_signal(self.pidfd, 0)
        except ProcessLookupError:
            return False
        return True

    def kill(self) -> None:
        """Kill the worker and everything in its process group."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        self.kill_group()

    def kill_group(self) -> bool:
        """Kill everything in the process group; return False if it is empty."""
        try:
            # By pidfd: once the worker is reaped, its pid may be another group's.
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL, None, WHOLE_GROUP)
        except ProcessLookupError:
            return False
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return self._kill_group_by_number()
        return True

    def _kill_group_by_number(self) -> bool:
        """Kill the group on Linux before 6.9, whose pidfds know no groups."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def close(self) -> None:
        """Close the descriptors; the process must have ended."""
        self.connection.close()
        os.close(self.output)
        os.close(self.pidfd)


def maker_of(connection: int) -> int:
    """Return the pid of the process that made a connected UNIX socket pair, by SO_PEERCRED.

    Raises:
        OSError: The descriptor is something else.
    """
    if not stat.S_ISSOCK(os.fstat(connection).st_mode):
        raise OSError(errno.ENOTSOCK, "its connection is not a socket")
    with socket.socket(fileno=os.dup(connection)) as pair:
        domain, kind = (pair.getsockopt(socket.SOL_SOCKET, of) for of in (socket.SO_DOMAIN, socket.SO_TYPE))
        if (domain, kind) != (socket.AF_UNIX, socket.SOCK_STREAM):
            raise OSError(errno.EPROTOTYPE, "its connection is not a pair of UNIX stream sockets")
        credentials = pair.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(credentials)[0]
    return pid


def own_end(pipe: int) -> int:
    """Reopen a pipe for non-blocking reads; its maker cannot change the mode of the new descriptor.

    Raises:
        OSError: The descriptor is something else.
    """
    if not stat.S_ISFIFO(os.fstat(pipe).st_mode):
        raise OSError(errno.EINVAL, "its output is not a pipe")
    return os.open(f"/proc/self/fd/{pipe}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def children_of(pid: int) -> set[int]:
    """Return the children of every thread of a process.

    Raises:
        OSError: It has ended, or the kernel keeps no lists of children.
    """
    found: set[int] = set()
    for thread in os.listdir(f"/proc/{pid}/task"):
        descriptor = os.open(f"/proc/{pid}/task/{thread}/children", os.O_RDONLY | os.O_CLOEXEC)
        try:
            whole = b""
            # The kernel returns one page of the list at a time.
            while part := os.read(descriptor, _PART_BYTES):
                whole += part
        finally:
            os.close(descriptor)
        found.update(map(int, whole.split()))
    return found


def number_inside(pid: int) -> int:
    """Return the process id that a process has in its own pid namespace.

    Raises:
        OSError: It has ended.
    """
    numbers = read_proc(f"/proc/{pid}/status").partition(b"\nNSpid:")[2]
    return int(numbers[: numbers.index(b"\n")].split()[-1])
