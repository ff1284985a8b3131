"""The command line of toolcell, with a beat in its event loop; run by the stall tests.

usage: python watched_host.py FILE ARGUMENTS...      the longest pause between two beats is written to FILE
"""

import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from stall_probe import beat_into


def main() -> None:
    """Run the command line."""
    beat_into(Path(sys.argv.pop(1)))
    runpy.run_module("runner", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
