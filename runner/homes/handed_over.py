"""Files that calls left in a home in which others were still under way, for whichever of those ends last.

The last of overlapping calls looks at what all of them changed. Where it fails, or its own files are ignored,
nobody could tell them from those of the others; so each that ends well before it says here what changed
while it ran.

Source: `docs/decisions/0034-collect-generated-files.md`.
"""

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from runner.homes.changes import ChangedFile
from runner.homes.homes import HomeLease

__all__ = ["HandedOver"]

_log = logging.getLogger(__name__)

_MOST = 1000


@dataclass(slots=True, eq=False)
class HandedOver:
    """Files handed over in the homes of one runner, by name of the home and path."""

    _files: dict[str, dict[str, ChangedFile]] = field(default_factory=dict)

    def add(self, segment: str, changes: Iterable[ChangedFile]) -> None:
        """Hand files over, 1000 of a home at most, in place of what was said of them before."""
        files = self._files.setdefault(segment, {})
        for change in changes:
            if change.file in files or len(files) < _MOST:
                files[change.file] = change

    def seen(self, segment: str) -> list[ChangedFile]:
        """Return what was handed over, by path."""
        return sorted(self._files.get(segment, {}).values())

    def take(self, home: HomeLease) -> list[ChangedFile]:
        """Return what of it is still there, and hand it over to nobody else."""
        changes = self.seen(home.segment)
        self._files.pop(home.segment, None)
        return [change for change in changes if _is_there(change, home)]

    def forget(self, segment: str) -> None:
        """Let go of a home that is gone."""
        left = self._files.pop(segment, None)
        if left:
            _log.warning("generated files lost with home", extra={"count": len(left)})


def _is_there(change: ChangedFile, home: HomeLease) -> bool:
    try:
        os.stat(change.file, dir_fd=home.fd, follow_symlinks=False)
    except OSError:
        return False
    return True
