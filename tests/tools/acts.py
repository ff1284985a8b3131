"""Things that a tool may try and must not be able to do; a test does them unconfined first."""

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import signal
import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["ACTS", "WAYS_TO_STAY", "connections", "leave_all", "mark", "observed", "perform"]

_PR_SET_PDEATHSIG = 1
_PR_GET_SECCOMP = 21
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_NO_NEW_PRIVS = 39
_PTRACE_SEIZE = 0x4206
_PROCESS_VM_READV = {"x86_64": 310, "aarch64": 270}

_libc = ctypes.CDLL(None, use_errno=True)


def perform(name: str, arguments: list[Any]) -> dict[str, Any]:
    """Do one act; say what came of it, or with which error number it was denied."""
    try:
        return {"value": ACTS[name](*arguments)}
    except OSError as error:
        return {"denied": errno.errorcode.get(error.errno or 0, str(error))}


def mark(path: str) -> None:
    """Lock a file as long as this process lives, or one that it forks."""
    fcntl.flock(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), fcntl.LOCK_EX)


def leave_all(folder: str) -> None:
    """Leave processes behind in every way there is, each with a mark of its name in `folder`."""
    read, write = os.pipe()
    for way, prepare in WAYS_TO_STAY.items():
        if os.fork() == 0:
            mark(f"{folder}/{way}")
            with contextlib.suppress(OSError):
                prepare()
            os.write(write, b"+")
            if way == "stopped":
                signal.signal(signal.SIGHUP, signal.SIG_IGN)
                os.kill(os.getpid(), signal.SIGSTOP)
            if way == "program":
                _inheritable()
                os.execvp("sleep", ["sleep", "3600"])
            time.sleep(3600)
            os._exit(0)
    for _ in WAYS_TO_STAY:
        os.read(read, 1)
    os.close(read)
    os.close(write)


def _twice() -> None:
    os.setsid()
    if os.fork():
        os._exit(0)


def _deaf() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())


def _patron() -> None:
    """Take in orphans, and have one."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(3600)
        os._exit(0)


def _inheritable() -> None:
    """Keep every descriptor, and so the host's sockets, across the start of a program."""
    for descriptor in range(3, 256):
        with contextlib.suppress(OSError):
            os.set_inheritable(descriptor, True)


WAYS_TO_STAY: dict[str, Callable[[], Any]] = {
    "plain": lambda: None,
    "setsid": os.setsid,
    "group": lambda: os.setpgid(0, 0),
    "double": _twice,
    "ignoring": lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    "deaf": _deaf,
    "patron": _patron,
    "stopped": lambda: None,
    "program": lambda: None,
}


def observed() -> dict[str, Any]:
    """Return how this process is confined, and whether it could write where it must not."""
    return {
        "no_new_privs": _libc.prctl(_PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0),
        "seccomp": _libc.prctl(_PR_GET_SECCOMP, 0, 0, 0, 0),
        "shadow": perform("read", ["/etc/shadow"]),
        "tmp": perform("create", [f"/tmp/toolcell-at-import-{os.getpid()}"]),
        # 0 would be the caller: the first process of a pid namespace has no parent.
        "parent": perform("signal", [os.getppid()]) if os.getppid() else {"denied": "ESRCH"},
    }


def connections() -> Iterator[socket.socket]:
    """Yield a duplicate of every socket this process has."""
    for descriptor in range(3, 64):
        try:
            is_socket = stat.S_ISSOCK(os.fstat(descriptor).st_mode)
        except OSError:
            continue
        if is_socket:
            yield socket.socket(fileno=os.dup(descriptor))


def _write(path: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    os.write(descriptor, b"written")
    os.close(descriptor)


def _create(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    if path.startswith("/tmp/toolcell-at-import-"):
        os.unlink(path)


def _write_through_link(path: str, link: str) -> None:
    os.symlink(path, link)
    _write(link)


def _bind(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)


def _memory(pid: int) -> None:
    os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY))


def _pidfd_signal(pid: int) -> None:
    descriptor = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGCONT)
    finally:
        os.close(descriptor)


def _owner_signal(pid: int) -> None:
    """Make the kernel send the signal, to the owner of a descriptor."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        fcntl.fcntl(ours, fcntl.F_SETOWN, pid)


def _trace(pid: int) -> None:
    _checked(_libc.ptrace(ctypes.c_long(_PTRACE_SEIZE), ctypes.c_long(pid), None, None))


def _peek(pid: int) -> None:
    class Span(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))

    buffer = ctypes.create_string_buffer(1)
    span = Span(ctypes.addressof(buffer), 1)
    number = _PROCESS_VM_READV[os.uname().machine]
    # The same address there need not be mapped: EFAULT says that the look itself was allowed.
    try:
        _checked(
            _libc.syscall(
                ctypes.c_long(number),
                ctypes.c_long(pid),
                ctypes.byref(span),
                ctypes.c_long(1),
                ctypes.byref(span),
                ctypes.c_long(1),
                ctypes.c_long(0),
            )
        )
    except OSError as error:
        if error.errno != errno.EFAULT:
            raise


def _limit(pid: int) -> None:
    resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))


def _checked(answer: int) -> None:
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _connect(host: str, port: int) -> None:
    socket.create_connection((host, port), timeout=5).close()


def _datagram(path: str) -> None:
    """Reach a named socket without a socket of one's own making but a pair."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        ours.sendto(b"x", path)


def _leave(path: str, group: bool) -> None:
    """Leave a process behind that makes a mark at `path` and stays."""
    read, write = os.pipe()
    if os.fork() == 0:
        if group:
            os.setpgid(0, 0)
        mark(path)
        os.write(write, b"+")
        time.sleep(3600)
        os._exit(0)
    os.read(read, 1)
    os.close(read)
    os.close(write)


ACTS: dict[str, Callable[..., Any]] = {
    "read": lambda path: Path(path).read_text(),
    "list": lambda path: sorted(os.listdir(path)),
    "write": _write,
    "create": _create,
    "truncate": lambda path: os.truncate(path, 0),
    "unlink": os.unlink,
    "rename": os.rename,
    "link": os.link,
    "symlink": os.symlink,
    "mkdir": os.mkdir,
    "rmdir": os.rmdir,
    "mkfifo": os.mkfifo,
    "bind": _bind,
    "chmod": lambda path: os.chmod(path, 0o777),
    "utime": lambda path: os.utime(path, (1, 1)),
    "write through link": _write_through_link,
    "environ": lambda pid: len(Path(f"/proc/{pid}/environ").read_bytes()),
    "memory": _memory,
    "peek": _peek,
    "trace": _trace,
    "signal": lambda pid: os.kill(pid, signal.SIGCONT),
    "group signal": lambda pid: os.killpg(pid, signal.SIGCONT),
    "pidfd signal": _pidfd_signal,
    "owner signal": _owner_signal,
    "limit": _limit,
    "affinity": lambda pid: os.sched_setaffinity(pid, os.sched_getaffinity(0)),
    "priority": lambda pid: os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid)),
    "connect": _connect,
    "datagram": _datagram,
    "leave": _leave,
    "environment": lambda: dict(os.environ),
    "pid": os.getpid,
    "parent": os.getppid,
}
