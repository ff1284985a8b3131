"""Paths that a server names where it fails, and that are not lent to it: told to its operator only.

A server that words a denial itself says no more than where it failed: "cannot use /srv/notes/a". Perhaps that
is for want of an option and perhaps not, so the server's words go to its client as they are, and the option
stands in the log, once.

Source: `docs/lending.md`, "What an error says".
"""

import logging
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from runner.settings.lendable import flag_for, within
from runner.settings.rights import Rights

__all__ = ["UnlentPaths"]

log = logging.getLogger(__name__)

_MOST_CHARS = 8192
# How many options are named of one server: it could go on inventing paths.
_MOST_TOLD = 16
_PATH = re.compile(r"(?<![\w/.:-])/[^\s:;,'\"`()\[\]{}<>\u2018\u2019]+")


class UnlentPaths:
    """What one server has named.

    Args:
        server: The server.
        rights: What it may do, and what is lent to it.
        homes: The folder of homes.
        left_out: Folders that it may read without, or that are never lent.
        tops: Names in the root folder; what begins otherwise is no path, but perhaps a part of an address.
    """

    def __init__(
        self,
        server: str,
        rights: Rights,
        *,
        homes: Path,
        left_out: Sequence[Path] = (),
        tops: Sequence[str] | None = None,
    ) -> None:
        self._server = server
        self._homes = homes
        self._left_out = (*rights.write, *rights.read, *left_out)
        self._tops = frozenset(os.listdir("/") if tops is None else tops)
        self._told: set[str] = set()

    def note(self, said: str) -> None:
        """Tell the operator of the paths in what a server said of a failure, each option once."""
        for path, flag in self._named(said[:_MOST_CHARS]):
            if flag not in self._told and len(self._told) < _MOST_TOLD:
                self._told.add(flag)
                facts = {"server": self._server, "path": path, "option": flag}
                log.warning("a server failed and named a path that is not lent to it", extra=facts)

    def _named(self, said: str) -> Iterator[tuple[str, str]]:
        for found in _PATH.findall(said):
            path = found.rstrip(".")
            if path.split("/", 2)[1] not in self._tops or any(
                within(Path(path), top) for top in self._left_out
            ):
                continue
            flag = flag_for(path, "", homes=self._homes)
            if flag is not None:
                yield path, flag
