"""Release of a fleet's service, so that two can run side by side."""

import hashlib
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from runner.fleet.messages import WIRE_VERSION
from runner.worker.targets import tool_files

__all__ = ["release_of"]

_CHARS = 16


def release_of(targets: Sequence[str]) -> str:
    """Return the release of tool files, a digest of what is served.

    Args:
        targets: The tool files. What they import is not in the digest.
    """
    digest = hashlib.sha256(f"{version('toolcell')}\0{WIRE_VERSION}\0".encode())
    for target, path in zip(targets, tool_files(targets), strict=False):
        digest.update(f"{Path(target).name}\0".encode())
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()[:_CHARS]
