"""Order of the kernel's out-of-memory kills: tools, then their parents, the host last.

The kernel kills the process with the most memory, after adding its score to it, in thousandths of the total
memory. A score is inherited. An unprivileged process may raise its own score, and lower it to the value last
set with CAP_SYS_RESOURCE. A worker cannot do either: it cannot write in /proc.

Source: proc_pid_oom_score_adj(5); the kernel's filesystems/proc.rst, section 3.1.
"""

import contextlib
from pathlib import Path

__all__ = ["CONFINED", "STARTS_OTHERS", "offer"]

STARTS_OTHERS = 300
"""Score of a forkserver: it is restarted, but all calls end with it."""

CONFINED = 1000
"""Score of processes that may run author code; the maximum."""

_SCORE = Path("/proc/self/oom_score_adj")


def offer(score: int) -> None:
    """Raise the score of this process and its future children to at least this, if permitted.

    The score is not a security boundary: if /proc is not writable, as in another sandbox, it is unchanged.
    """
    # As bytes: text would import an encoding, whose file may not be readable here.
    with contextlib.suppress(PermissionError):
        if int(_SCORE.read_bytes()) < score:
            _SCORE.write_bytes(b"%d" % score)
