"""Order of the kernel's out-of-memory kills: tools, then their parents, the host last.

The kernel kills the process with the most memory, after adding to each what its score says, in thousandths
of all there is. A score is inherited, and who has no privilege may raise its own, and lower it to where a
process with CAP_SYS_RESOURCE set it last. Of that a worker makes nothing: it cannot write in /proc.

Source: proc_pid_oom_score_adj(5); the kernel's filesystems/proc.rst, section 3.1.
"""

import contextlib
from pathlib import Path

__all__ = ["CONFINED", "STARTS_OTHERS", "offer"]

STARTS_OTHERS = 300
"""Score of a forkserver: its end is undone, but all calls end with it."""

CONFINED = 1000
"""Score of all that may run author code; there is none above it."""

_SCORE = Path("/proc/self/oom_score_adj")


def offer(score: int) -> None:
    """Give this process, and all that it will start, a score of at least this, where it may.

    The score is not a wall: where /proc cannot be written, as within another sandbox, it stays what it is.
    """
    # As bytes: what names an encoding may not be readable to who will run.
    with contextlib.suppress(PermissionError):
        if int(_SCORE.read_bytes()) < score:
            _SCORE.write_bytes(b"%d" % score)
