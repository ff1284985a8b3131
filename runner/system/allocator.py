"""Settings of the C library's allocator: few arenas, and early release.

A server has a handful of threads: they copy files, inspect processes and homes, and query the index of the
store. glibc gives each thread an arena of its own, up to eight for each processor, and an arena returns to
the system only the free memory at its end. So the peak usage of each arena is retained although it is unused:
over seventy-five thousand calls that was two thirds of a server's growth. Python threads take turns
anyway, so two arenas cause no contention.

glibc also adapts its thresholds: after each large block that is freed it retains larger ones, up to 32 MiB,
and twice as much at the end of an arena. Setting the thresholds disables that. They are above the 256 KiB
buffer of asyncio's socket reads: otherwise each read would map and unmap memory, for 15 microseconds.

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
    """Limit the unused memory that this process retains. Call it before threads are started.

    Returns:
        Whether the C library supports that: only glibc does.
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
