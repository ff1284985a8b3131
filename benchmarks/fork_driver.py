"""Runs the code of one command in a fork of itself for each line of JSON it reads; `oneshot` starts it.

Nothing is isolated: it is the least that a process for each call costs in Python, with all that it imports
imported. Its arguments are tool files, which it runs once for that.
It reads a list, the command, and writes a list: its status, what it printed, and what it complained of.
"""

import json
import os
import runpy
import sys

__all__: list[str] = []

_CODE_AT = 2
_PIPE_BYTES = 1 << 16


def main() -> None:
    """Serve until standard input ends."""
    for tools in sys.argv[1:]:
        runpy.run_path(tools)
    for line in sys.stdin:
        status, output = _forked(json.loads(line))
        sys.stdout.write(json.dumps([status, output.decode(errors="replace"), ""]) + "\n")
        sys.stdout.flush()


def _forked(command: list[str]) -> tuple[int, bytes]:
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writes, 1)
        sys.argv = command[_CODE_AT:]
        # The same code as every other way runs, in an interpreter that has started already.
        exec(compile(command[_CODE_AT], "<function>", "exec"), {"__name__": "__main__"})  # noqa: S102
        sys.stdout.flush()
        os._exit(0)
    os.close(writes)
    output = b""
    while piece := os.read(reads, _PIPE_BYTES):
        output += piece
    os.close(reads)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), output


if __name__ == "__main__":
    main()
