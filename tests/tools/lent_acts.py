"""Acts on files by the C library alone, which bypass the guard. As a program, the control.

usage: python lent_acts.py ACT PATH [PATH]
"""

import ctypes
import errno
import os
import sys
from collections.abc import Callable

__all__ = ["ACTS", "attempt"]

_libc = ctypes.CDLL(None, use_errno=True)
_MS_BIND = 4096
_AT_FDCWD = -100
_S_IFIFO = 0o010000


def _checked(answer: int) -> int:
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer


def _open(path: str, flags: int) -> int:
    return _checked(_libc.open(path.encode(), flags, 0o666))


def _read(path: str) -> None:
    fd = _open(path, os.O_RDONLY)
    _checked(_libc.read(fd, ctypes.create_string_buffer(16), 16))
    os.close(fd)


def _written(path: str, flags: int) -> None:
    fd = _open(path, os.O_WRONLY | flags)
    _checked(_libc.write(fd, b"changed", 7))
    os.close(fd)


def _run(path: str) -> None:
    _checked(_libc.open(path.encode(), os.O_RDONLY))
    pid = os.fork()
    if not pid:
        arguments = (ctypes.c_char_p * 2)(path.encode(), None)
        _libc.execv(path.encode(), arguments)
        os._exit(ctypes.get_errno())
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        raise OSError(code, os.strerror(code))


ACTS: dict[str, Callable[..., object]] = {
    "read": _read,
    "list": lambda path: os.close(_open(path, os.O_RDONLY | os.O_DIRECTORY)),
    "write": lambda path: _written(path, 0),
    "create": lambda path: _written(path, os.O_CREAT | os.O_EXCL),
    "open_truncated": lambda path: os.close(_open(path, os.O_WRONLY | os.O_TRUNC)),
    "read_truncated": lambda path: os.close(_open(path, os.O_RDONLY | os.O_TRUNC)),
    "truncate": lambda path: _checked(_libc.truncate(path.encode(), ctypes.c_long(1))),
    "unlink": lambda path: _checked(_libc.unlink(path.encode())),
    "mkdir": lambda path: _checked(_libc.mkdir(path.encode(), 0o777)),
    "rmdir": lambda path: _checked(_libc.rmdir(path.encode())),
    "rename": lambda old, new: _checked(_libc.rename(old.encode(), new.encode())),
    "exchange": lambda old, new: _checked(
        _libc.renameat2(_AT_FDCWD, old.encode(), _AT_FDCWD, new.encode(), 2)
    ),
    "link": lambda old, new: _checked(_libc.link(old.encode(), new.encode())),
    "symlink": lambda old, new: _checked(_libc.symlink(old.encode(), new.encode())),
    "chmod": lambda path: _checked(_libc.chmod(path.encode(), 0o600)),
    "utime": lambda path: _checked(
        _libc.utimensat(_AT_FDCWD, path.encode(), (ctypes.c_long * 4)(1, 0, 1, 0), 0)
    ),
    "setxattr": lambda path: _checked(_libc.setxattr(path.encode(), b"user.lent", b"1", 1, 0)),
    "fifo": lambda path: _checked(_libc.mknod(path.encode(), _S_IFIFO | 0o666, 0)),
    "run": _run,
    "mount": lambda old, new: _checked(_libc.mount(old.encode(), new.encode(), None, _MS_BIND, None)),
}


def attempt(name: str, *paths: str) -> str:
    """Return `done`, or the name of the kernel's answer."""
    try:
        ACTS[name](*paths)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error.errno))
    return "done"


if __name__ == "__main__":
    sys.stdout.write(attempt(*sys.argv[1:]))
