"""A tool file that reads what /proc has of its process: by two names, in Python and through the C library."""

import ctypes
import errno
import os

import psutil
from fastmcp import FastMCP

mcp = FastMCP("own files")

OWN = ("cgroup", "status", "maps", "mounts", "mountinfo", "limits", "stat", "statm", "io", "fd")
_LIBC = ctypes.CDLL(None, use_errno=True)


def _by_python(path: str) -> str:
    try:
        if os.path.isdir(path):
            return "read" if os.listdir(path) else "empty"
        with open(path, "rb") as file:
            return "read" if file.read() else "empty"
    except OSError as error:
        return errno.errorcode[error.errno or 0]


def _by_libc(path: str) -> str:
    opened = _LIBC.open(path.encode(), os.O_RDONLY)
    if opened < 0:
        return errno.errorcode[ctypes.get_errno()]
    os.close(opened)
    return "read"


@mcp.tool
def reads(other: int, username: str) -> dict[str, dict[str, list[str]]]:
    """Read each of one's own, and of another process."""
    whose = {"own": ("/proc/self", f"/proc/{os.getpid()}"), "other": (f"/proc/{other}",)}
    return {
        key: {name: [way(f"{top}/{name}") for top in tops for way in (_by_python, _by_libc)] for name in OWN}
        for key, tops in whose.items()
    }


@mcp.tool
def memory(username: str) -> int:
    """Return the memory of this process, measured as tools of others do."""
    return int(psutil.Process().memory_info().rss)
