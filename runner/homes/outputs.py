"""Which files of a home may be outputs of a call, by their names."""

import fnmatch
from collections.abc import Iterable

__all__ = ["NEVER_OUTPUT", "is_output"]

NEVER_OUTPUT = (
    "input_files", ".*", "__pycache__", "*.pyc", "cache", "caches", "tmp", "temp", "*.tmp", "*.temp",
    "*.part", "*.lock", "*.lck", "*.pid", "*-journal", "*-wal", "*-shm", "*~", "*.swp", "fontlist-*.json",
    "fontconfig", "core", "core.[0-9]*", "node_modules",
)  # fmt: skip
"""Patterns of names that are no outputs, whoever wrote them: of a file, or of any folder that it lies in."""


def is_output(file: str, further: Iterable[str] = ()) -> bool:
    """Say whether a file may be somebody's output: neither cache, nor lock, nor hidden, nor temporary.

    Args:
        file: Its path below the home.
        further: Patterns of what is none, beside `NEVER_OUTPUT`; one with a `/` is held against the path.
    """
    patterns = (*NEVER_OUTPUT, *further)
    return not any(
        fnmatch.fnmatchcase(part, pattern)
        for pattern in patterns
        for part in ((file,) if "/" in pattern else file.split("/"))
    )
