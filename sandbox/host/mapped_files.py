"""Files without a name that a process has mapped: they occupy disk space even if they are not open.

The kernel takes a quarter of a millisecond for the 250 mappings of a Python process. From Linux 6.11 on,
PROCMAP_QUERY returns the next writable mapping of a file, and there are few of these.

Source: proc_pid_maps(5); PROCMAP_QUERY in the kernel's include/uapi/linux/fs.h and fs/proc/task_mmu.c.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from sandbox.host.usage import threads_of

__all__ = ["MappedFile", "mapped_files", "shared_files"]

_DELETED = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) ...(.) ([0-9a-f]+) ([0-9a-f]+):([0-9a-f]+) (\d+) .* \(deleted\)$",
    re.MULTILINE,
)
# Query: size, flags, address. Answer: start, end, flags, page size, offset, inode, major, minor. Then the
# lengths of name and build id, and the addresses of their buffers.
_QUERY = struct.Struct("=QQQQQQQQQIIIIQQ")
_PROCMAP_QUERY = 0xC0000000 | _QUERY.size << 16 | ord("f") << 8 | 17
_VMA_SHARED, _COVERING_OR_NEXT_VMA, _FILE_BACKED_VMA = 0x08, 0x10, 0x20
_NAME_BYTES = 4096
_NONE_FURTHER = errno.ENOENT
# Above this number, reading the whole list is faster than querying one by one.
_MOST_ASKED = 64


class MappedFile(NamedTuple):
    """A mapping of an unlinked file.

    Attributes:
        inode: Its inode number.
        size: End of the mapping within the file, in bytes: the file has or had at least this size.
        private: Whether writes to the mapping do not reach the file.
    """

    inode: int
    size: int
    private: bool


def mapped_files(pid: int, device: int) -> Iterator[MappedFile]:
    """Yield the unnamed files on a file system that a process has mapped.

    Args:
        pid: The process.
        device: Number of the file system.

    Raises:
        OSError: The process cannot be inspected.
    """
    text = b""
    for folder in threads_of(pid):
        gone = contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError)
        with gone, open(f"{folder}/maps", "rb") as maps:
            text = maps.read()
        if text:
            break
    if b" (deleted)" not in text:
        return
    for first, last, kind, offset, major, minor, inode in _DELETED.findall(text):
        if os.makedev(int(major, 16), int(minor, 16)) == device:
            yield MappedFile(int(inode), int(offset, 16) + int(last, 16) - int(first, 16), kind == b"p")


def shared_files(pid: int, device: int) -> list[MappedFile]:
    """Return the unnamed files that a process has mapped shared and writable.

    Args:
        pid: The process.
        device: Number of the file system.

    Raises:
        OSError: The process cannot be inspected.
    """
    for folder in threads_of(pid):
        # The folder of an ended thread shows no mappings.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            maps = os.open(f"{folder}/maps", os.O_RDONLY | os.O_CLOEXEC)
            try:
                return _queried(maps, device)
            except ProcessLookupError:
                raise
            except OSError:
                # Before Linux 6.11, in an emulated kernel, for a path too long for us, or for very many.
                break
            finally:
                os.close(maps)
    return [found for found in mapped_files(pid, device) if not found.private]


def _queried(maps: int, device: int) -> list[MappedFile]:
    """Read one mapping after the other from the kernel.

    Raises:
        OSError: The kernel does not answer the query.
    """
    found: list[MappedFile] = []
    name = ctypes.create_string_buffer(_NAME_BYTES)
    kind = _VMA_SHARED | _FILE_BACKED_VMA | _COVERING_OR_NEXT_VMA
    address = 0
    for _ in range(_MOST_ASKED):
        query = _QUERY.pack(
            _QUERY.size, kind, address, 0, 0, 0, 0, 0, 0, 0, 0, _NAME_BYTES, 0, ctypes.addressof(name), 0
        )
        try:
            answer = fcntl.ioctl(maps, _PROCMAP_QUERY, query)
        except OSError as error:
            if error.errno == _NONE_FURTHER:
                return found
            raise
        _, _, _, start, address, _, _, offset, inode, major, minor, *_ = _QUERY.unpack(answer)
        if os.makedev(major, minor) == device and name.value.endswith(b" (deleted)"):
            found.append(MappedFile(inode, offset + address - start, private=False))
    raise OSError(errno.E2BIG, "there are very many")
