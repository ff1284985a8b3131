"""Settings of the C library's allocator: few arenas, and early release.

A server has a handful of threads: they copy files, look at processes and homes, and ask the index of the
store. glibc gives each thread an arena of its own, up to eight for each processor, and an arena returns to
the system only what is free at its end. So what each of them once took at its busiest moment stays, though
nobody uses it: over seventy-five thousand calls that was two thirds of what a server grew by. In Python
threads take turns anyway, so two arenas keep nobody waiting.

glibc also learns: each large block that is freed lets it keep larger ones, up to 32 MiB, and twice as much at
the end of an arena. Setting the thresholds ends that. They are above the 256 KiB into which asyncio reads
what comes from a socket: below them each such read would map and unmap memory, for 15 microseconds.

Source: mallopt(3) on M_ARENA_MAX, M_MMAP_THRESHOLD and M_TRIM_THRESHOLD; malloc(3), "Notes".
"""

import ctypes

__all__ = ["ARENAS", "keep_little"]

ARENAS = 2
"""Number of malloc arenas that all threads share."""

_THRESHOLD_BYTES = 1024 * 1024
# From malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


def keep_little() -> bool:
    """Let this process keep little memory that it does not use; before it has threads.

    Returns:
        Whether the C library can be told: others than glibc have no such arenas.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    wanted = {
        _M_ARENA_MAX: ARENAS,
        _M_MMAP_THRESHOLD: _THRESHOLD_BYTES,
        _M_TRIM_THRESHOLD: _THRESHOLD_BYTES,
    }
    return all(bool(mallopt(option, value)) for option, value in wanted.items())
