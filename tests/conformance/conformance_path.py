"""Where the tests' shared modules are. The harness may run by itself, without the paths pytest is told."""

import sys
from pathlib import Path

__all__ = ["TESTS"]

TESTS = Path(__file__).parents[1]
if str(TESTS) not in sys.path:
    sys.path.append(str(TESTS))
