"""A tool file that asks the kernel of a path in every way that takes one, and says what it was told."""

import contextlib
import ctypes
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from fastmcp import FastMCP

mcp = FastMCP("oracles")

libc = ctypes.CDLL(None, use_errno=True)


def checked(answer: int) -> int:
    """Return what a function of the C library answered, or raise what went wrong."""
    if answer < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return answer


def opened(path: str, flags: int) -> str:
    """Open a path; the number of the descriptor says nothing."""
    os.close(os.open(path, flags))
    return "opened"


def own(username: str) -> str:
    """Return a file of one's own."""
    path = Path(os.environ["HOME"], "own")
    path.touch()
    return str(path)


WAYS: dict[str, Callable[[str, str], object]] = {
    "stat": lambda path, _own: os.stat(path).st_size,
    "lstat": lambda path, _own: os.lstat(path).st_size,
    "statx": lambda path, _own: checked(
        libc.statx(-100, path.encode(), 0, 0xFFF, ctypes.create_string_buffer(256))
    ),
    "statfs": lambda path, _own: os.statvfs(path).f_bsize,
    "access": lambda path, _own: checked(libc.access(path.encode(), 0)),
    "faccessat": lambda path, _own: checked(libc.faccessat(-100, path.encode(), 0, 0)),
    "readlink": lambda path, _own: os.readlink(f"{path}-link"),
    "getxattr": lambda path, _own: os.getxattr(path, "user.secret").decode(),
    "lgetxattr": lambda path, _own: os.getxattr(path, "user.secret", follow_symlinks=False).decode(),
    "listxattr": lambda path, _own: os.listxattr(path),
    "open": lambda path, _own: opened(path, os.O_RDONLY),
    "open to write": lambda path, _own: opened(path, os.O_WRONLY),
    "open exclusively": lambda path, _own: opened(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY),
    "open as a folder": lambda path, _own: opened(path, os.O_RDONLY | os.O_DIRECTORY),
    "open as a handle": lambda path, _own: opened(path, os.O_PATH),
    "list": lambda path, _own: os.listdir(Path(path).parent),
    "chdir": lambda path, _own: os.chdir(path),
    "truncate": lambda path, _own: os.truncate(path, 0),
    "unlink": lambda path, _own: os.unlink(path),
    "rmdir": lambda path, _own: os.rmdir(path),
    "mkdir": lambda path, _own: os.mkdir(path),
    "symlink": lambda path, _own: os.symlink("/", path),
    "mknod": lambda path, _own: os.mkfifo(path),
    "link": lambda path, own: os.link(path, f"{own}-linked"),
    "link over": lambda path, own: os.link(own, path),
    "rename": lambda path, own: os.rename(path, f"{own}-renamed"),
    "rename over": lambda path, own: os.rename(own, path),
    "chmod": lambda path, _own: os.chmod(path, 0o600),
    "chown": lambda path, _own: os.chown(path, -1, -1),
    "utime": lambda path, _own: os.utime(path, (1, 1)),
    "execute": lambda path, _own: checked(libc.execve(path.encode(), None, None)),
    "watch": lambda path, _own: checked(libc.inotify_add_watch(0, path.encode(), 1)),
    "handle": lambda path, _own: checked(
        libc.name_to_handle_at(-100, path.encode(), ctypes.create_string_buffer(256), bytes(8), 0)
    ),
    "swap": lambda path, _own: checked(libc.swapon(path.encode(), 0)),
    "account": lambda path, _own: checked(libc.acct(path.encode())),
    "change root": lambda path, _own: os.chroot(path),
    "mount": lambda path, _own: checked(libc.mount(b"none", path.encode(), b"tmpfs", 0, None)),
    "key of a queue": lambda path, _own: checked(libc.ftok(path.encode(), 1)) & 0,
}


@mcp.tool
def learns(username: str, path: str) -> dict[str, str]:
    """Try each way, and return the outcomes."""
    learnt: dict[str, str] = {}
    mine = own(username)
    for way, ask in WAYS.items():
        # What is of this file alone would tell two paths apart that answer alike.
        try:
            learnt[way] = str(ask(path, mine))
        except OSError as error:
            learnt[way] = errno.errorcode.get(error.errno or 0, "?")
        with contextlib.suppress(OSError):
            os.chdir("/")
        Path(mine).touch()
    return learnt


@mcp.tool
def copies(username: str) -> list[str]:
    """Copy a file with all that is known of it, and read the attributes of what is open."""
    source = own(username)
    shutil.copy2(source, f"{source}-copied")
    with open(source) as file:
        return [*os.listdir(Path(source).parent), *os.listxattr(file.fileno())]


@mcp.tool
def sees(username: str, word: str) -> list[str]:
    """Return the files of the system's own folders in which a word is said."""
    found = []
    places = ["/proc/self/mountinfo", "/proc/self/mounts", "/proc/self/maps", "/proc/locks", "/proc/net/unix"]
    with contextlib.suppress(OSError):
        for name in filter(str.isdigit, os.listdir("/proc")):
            places += [
                f"/proc/{name}/{file}" for file in ("cmdline", "environ", "maps", "mountinfo", "status")
            ]
            places += [f"/proc/{name}/{link}" for link in ("cwd", "root", "exe", "fd/3", "fd/4", "fd/5")]
    for place in places:
        with contextlib.suppress(OSError, ValueError):
            text = os.readlink(place) if Path(place).is_symlink() else Path(place).read_text(errors="replace")
            if word in text:
                found.append(place)
    return found
