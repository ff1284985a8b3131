"""Paths that a server names where it fails, and that are not lent to it: told to its operator only.

A server that words a denial itself says no more than where it failed: "cannot use /srv/notes/a". Perhaps that
may lack an option or not, and the server may have made it up. So its words go to its client as
they are, and what would lend the folder to be read stands in the log, once.

Source: `docs/isolation.md`, "Errors and bounds".
"""

import itertools
import logging
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from runner.settings.lendable import flag_for, within
from runner.settings.rights import Rights

__all__ = ["UnlentPaths"]

log = logging.getLogger(__name__)

_MOST_CHARS = 8192
# A server may name as many as it likes, in every failure; what it costs to look at them is bounded.
_MOST_PATHS = 16
_MOST_PATH_CHARS = 1024
_MOST_KNOWN = 256
_MOST_TOLD = 16
_PATH = re.compile(r"(?<![\w/.:-])/[^\s:;,'\"`()\[\]{}<>\u2018\u2019]+")


class UnlentPaths:
    """Paths that one server has named.

    Attributes:
        readable: What its processes may read or list besides, as found when one was started.

    Args:
        server: The server.
        rights: What it may do, and what is lent to it.
        homes: The folder of homes.
        never: Folders that are never lent.
        tops: Names in the root folder; other beginnings are not a path, but perhaps part of an address.
    """

    def __init__(
        self,
        server: str,
        rights: Rights,
        *,
        homes: Path,
        never: Sequence[Path] = (),
        tops: Sequence[str] | None = None,
    ) -> None:
        self._server = server
        self._homes = homes
        self.readable: tuple[Path, ...] = ()
        self._left_out = (*rights.write, *rights.read, *never)
        self._tops = frozenset(os.listdir("/") if tops is None else tops)
        self._known: set[str] = set()
        self._hinted: set[str] = set()

    def note(self, text: str) -> None:
        """Log the paths in a server's error for the operator, each option once."""
        if len(self._hinted) >= _MOST_TOLD or len(self._known) >= _MOST_KNOWN:
            return
        for found in itertools.islice(_PATH.finditer(text[:_MOST_CHARS]), _MOST_PATHS):
            path = os.path.normpath(found[0].rstrip("."))
            if path in self._known or len(path) > _MOST_PATH_CHARS:
                continue
            self._known.add(path)
            flag = self._flag(path)
            if flag is not None and flag not in self._hinted:
                self._hinted.add(flag)
                facts = {"server": self._server, "path": path, "option": shlex.quote(flag)}
                log.warning("server failed on unlent path", extra=facts)

    def _flag(self, path: str) -> str | None:
        """Return what would lend the folder of a path to be read, if that is wanting and can be lent."""
        left_out = (*self._left_out, *self.readable)
        if path.split("/", 2)[1] not in self._tops or any(within(Path(path), top) for top in left_out):
            return None
        # To be written it may be wanted, too. That is a server's word, and more than it may need.
        return flag_for(path, "read", homes=self._homes)
