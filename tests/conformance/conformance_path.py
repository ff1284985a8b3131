"""Path of the tests' shared modules. The harness may run by itself, without pytest's paths."""

import sys
from pathlib import Path

__all__ = ["TESTS"]

TESTS = Path(__file__).parents[1]
for folder in (TESTS, TESTS / "playground", TESTS / "widgets"):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
