"""Runs one command in sandlock for each line of JSON it reads; `oneshot` starts it in an environment with it.

It reads a list, the command, and writes a list: its status, what it printed, and what it complained of.
"""

import json
import sys

import sandlock  # type: ignore[import-not-found]

__all__: list[str] = []

_CALL_S = 60


def main() -> None:
    """Serve until standard input ends."""
    folder = sys.argv[1]
    for line in sys.stdin:
        sandbox = sandlock.Sandbox(fs_readable=["/"], fs_writable=[folder])
        done = sandbox.run(json.loads(line), timeout=_CALL_S)
        status = 0 if done.success else 1
        complaint = done.stderr.decode(errors="replace")
        sys.stdout.write(json.dumps([status, done.stdout.decode(errors="replace"), complaint]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
