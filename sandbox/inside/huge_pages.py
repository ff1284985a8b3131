"""Put what this process has imported on huge pages, so that its descendants cost less to fork and to end.

A fork copies an entry for each page, and the end of a process gives each back. Both go faster where
hundreds of neighbouring pages are one. Memory stays shared as before. Nothing depends on it.

Source: madvise(2) on MADV_COLLAPSE, Linux 6.1; proc_pid_maps(5).
"""

import errno
import os
import re
from collections.abc import Iterator

from sandbox.syscalls import MADV_COLLAPSE, madvise

__all__ = ["collapse", "open_maps"]

_HUGE_BYTES = 2 * 1024 * 1024
_ANONYMOUS = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) rw-p 0+ 00:00 0 *(?:\[heap\])?$", re.MULTILINE)


def open_maps() -> int:
    """Return what `collapse` learns from where memory is, once /proc cannot be opened any more."""
    return os.open("/proc/self/maps", os.O_RDONLY | os.O_CLOEXEC)


def collapse(maps: int) -> None:
    """Collapse the private memory of this process; what the kernel will not collapse stays as it is.

    Args:
        maps: From `open_maps`; it is closed.
    """
    with open(maps, encoding="ascii", errors="replace") as lines:
        text = lines.read()
    for start, length in huge_ranges(text):
        try:
            madvise(start, length, MADV_COLLAPSE)
        except OSError as error:
            # A part of the range that nothing was ever written to, or a kernel without it.
            if error.errno != errno.EINVAL:
                # No free huge pages at the moment, or a limit of memory.
                return


def huge_ranges(maps: str) -> Iterator[tuple[int, int]]:
    """Yield start and length of what could lie on huge pages, from the text of /proc/self/maps."""
    for found in _ANONYMOUS.finditer(maps):
        start = -(-int(found[1], 16) // _HUGE_BYTES) * _HUGE_BYTES
        end = int(found[2], 16) // _HUGE_BYTES * _HUGE_BYTES
        if start < end:
            yield start, end - start
