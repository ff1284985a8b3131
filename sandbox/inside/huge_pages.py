"""Huge pages for imported code and data, so that forks and exits of descendants cost less.

A fork copies a table entry for each page, and the end of a process releases each. Both are faster if
hundreds of adjacent pages are merged into one. Memory stays shared as before. It is only an optimization.

Source: madvise(2) on MADV_COLLAPSE, Linux 6.1; proc_pid_maps(5).
"""

import errno
import os
import re
from collections.abc import Iterator

from sandbox.syscalls import MADV_COLLAPSE, madvise

__all__ = ["collapse", "open_maps"]

_HUGE_BYTES = 2 * 1024 * 1024
# The kernel returns EAGAIN while a page is in use; a few pages stay in use.
_ATTEMPTS = 3
# No free huge pages, or a memory limit. Other errors concern one range, such as one never written to.
_FOR_ALL = frozenset({errno.ENOMEM, errno.EBUSY})
_ANONYMOUS = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) rw-p 0+ 00:00 0 *(?:\[heap\])?$", re.MULTILINE)


def open_maps() -> int:
    """Open the memory map of this process for `collapse`, while /proc can still be opened."""
    return os.open("/proc/self/maps", os.O_RDONLY | os.O_CLOEXEC)


def collapse(maps: int) -> None:
    """Collapse the private memory of this process, as far as the kernel permits.

    Args:
        maps: From `open_maps`; it is closed.
    """
    with open(maps, encoding="ascii", errors="replace") as lines:
        text = lines.read()
    for start, length in huge_ranges(text):
        for _ in range(_ATTEMPTS):
            fault = _fault(start, length)
            if fault != errno.EAGAIN:
                break
        if fault in _FOR_ALL:
            return


def _fault(start: int, length: int) -> int | None:
    """Collapse a range; return the number of the error, if there was one."""
    try:
        madvise(start, length, MADV_COLLAPSE)
    except OSError as error:
        return error.errno
    return None


def huge_ranges(maps: str) -> Iterator[tuple[int, int]]:
    """Yield start and length of candidate ranges, from the text of /proc/self/maps."""
    for found in _ANONYMOUS.finditer(maps):
        start = -(-int(found[1], 16) // _HUGE_BYTES) * _HUGE_BYTES
        end = int(found[2], 16) // _HUGE_BYTES * _HUGE_BYTES
        if start < end:
            yield start, end - start
