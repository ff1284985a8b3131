"""Where the tests' shared modules are. The harness may run by itself, without the paths pytest is told."""

import sys
from pathlib import Path

__all__ = ["TESTS"]

TESTS = Path(__file__).parents[1]
for folder in (TESTS, TESTS / "playground", TESTS / "widgets"):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
