"""The option that would have allowed a server's failed operation, found in its error output.

Pure. The words of a server are trusted for the hint only.

Source: `docs/isolation.md`.
"""

import itertools
import logging
import os
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner.contract.error_messages import ALLOW_SOCKETS
from runner.contract.missed_network import missed_network
from runner.proxy.stderr import DIVIDER
from runner.settings.lendable import flag_for, within
from runner.settings.rights import Rights
from runner.settings.trust import quoted
from sandbox.denials.paths_in_errors import named_paths, wants_socket

__all__ = ["UnlentPaths", "folder_hint", "network_hint", "option_hint", "variable_hint"]

log = logging.getLogger(__name__)

_MISSING = re.compile(
    r"ENOENT|no such file or directory|does not exist|not found|no files? matching|"
    r"(?:could not|cannot|can't) find",
    re.IGNORECASE,
)
# Errors of writing, which a reader never gets.
_READ_ONLY = re.compile(r"EROFS|read-only file system", re.IGNORECASE)
_MOST_CHARS = 8192
# Not part of an address.
_PATH = re.compile(r"(?<![\w/.:-])/[^\s:;,'\"`()\[\]{}<>\u2018\u2019]+")
# To look at a path costs some time.
_MOST_PATHS = 16
_SEMAPHORE = re.compile(r"\bSemLock\b|\bsem_open\b")
# Messages of Python and Node about a missing module, and the variables with module paths.
_NO_MODULE = re.compile(r"No module named|Cannot find (?:module|package)|ERR_MODULE_NOT_FOUND")
_OF_MODULES = ("PYTHONPATH", "NODE_PATH")
# What `sandbox.inside.exec_gate` writes.
_DENIED = re.compile(r"\brunner: connection to ([A-Za-z0-9._:\[\]-]+) denied")
# With an underscore, so that a word in capitals is not taken for a name.
_VARIABLE = re.compile(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b")


def option_hint(
    text: str, rights: Rights, *, homes: Path, unseen: Sequence[Path], shares_memory: bool
) -> str | None:
    """Return a sentence that names the option, if one would have helped: to lend a path, or to have a socket.

    Args:
        text: Its error output.
        rights: What it may do, and what is lent to it.
        homes: The folder of homes.
        unseen: Folders that are empty for it but for what is its own.
        shares_memory: Whether it has POSIX shared memory, which holds its semaphores.
    """
    if not rights.sockets and wants_socket(text):
        return (
            "This server may have no UNIX socket, which it needs. For the operator: "
            f"{ALLOW_SOCKETS} would allow those in its home, in tier namespace"
        )
    # The last words of a process are its lines, divided in this way.
    lines = text[-_MOST_CHARS:].replace(DIVIDER, "\n")
    if not shares_memory and _SEMAPHORE.search(lines):
        return (
            "This server makes a POSIX semaphore (a lock between processes, as of Python's multiprocessing), "
            "which it may in tier namespace only, where /dev/shm can be its own. For the operator: "
            "--isolation=namespace, or make it use one process, if it has an option for that"
        )
    for path, flag in _flags(lines, rights, homes=homes, unseen=unseen):
        return f"{path} is not open to this server. For the operator: {flag} would lend its folder"
    return None


def network_hint(text: str, *, has_network: bool) -> str | None:
    """Return a sentence that names the option which allows the connections that a server was denied.

    Args:
        text: What the server and its gate wrote to standard error.
        has_network: Whether it may connect to any address.
    """
    denied = ",".join(dict.fromkeys(_DENIED.findall(text)))
    if denied:
        return f"connections of this server were denied. For the operator: --allow-net={denied} allows them"
    if not has_network and missed_network(text):
        return "a confined server has no network. For the operator: --allow-net=HOST allows one"
    return None


def variable_hint(text: str, passed: Collection[str], variables: Collection[str]) -> str | None:
    """Return a sentence that names the option which passes a variable, if a server seems to lack one.

    Args:
        text: The server's last output.
        passed: Names of the variables that it may see.
        variables: Names of the variables of this process.
    """
    wanted = [*_VARIABLE.findall(text), *(_OF_MODULES if _NO_MODULE.search(text) else ())]
    for name in wanted:
        if name in variables and name not in passed:
            hint = f"{name} is set here and not passed to this server. For the operator: --allow-env={name}"
            more = ", and --allow-read=FOLDER lends the folders that it names" if name in _OF_MODULES else ""
            return f"{hint} passes it{more}"
    return None


def _flags(text: str, rights: Rights, *, homes: Path, unseen: Sequence[Path]) -> list[tuple[str, str]]:
    written = {path for line in text.splitlines() if _READ_ONLY.search(line) for path in _paths(line)}
    named = list(itertools.islice(named_paths(OSError(text)), _MOST_PATHS))
    # Below a readable path the right to write is missing; elsewhere it is not known which.
    readable = {path for path in named if any(within(Path(path), top) for top in rights.read)}
    denied = [(path, "write" if path in written | readable else "") for path in named]
    lines = (line for line in text.splitlines() if _MISSING.search(line))
    missing = [
        (path, "read")
        for line in lines
        for path in _paths(line)
        if any(within(Path(path), top) for top in unseen)
    ]
    found = [(path, flag_for(path, wants, homes=homes)) for path, wants in (*denied, *missing)]
    open_already = (*rights.write, *rights.read)
    return [
        (path, flag)
        for path, flag in found
        if flag is not None
        and not any(within(Path(path), top) for top in (open_already if "read=" in flag else rights.write))
    ]


def _paths(line: str) -> Iterator[str]:
    """Yield the absolute paths that a line names, a few at most."""
    found = (each[0].rstrip(".") for each in _PATH.finditer(line))
    yield from itertools.islice(found, _MOST_PATHS)


def folder_hint(words: Sequence[str], lent: Sequence[Path], homes: Path) -> str | None:
    """Return the option that would lend a folder named by a command, if it is not lent.

    A program such as `uv run --directory FOLDER` reports that something was not found, but not its path.
    """
    for word in words:
        folder = Path(word.rpartition("=")[2] if word.startswith("-") else word)
        if not folder.is_absolute() or not folder.is_dir() or any(within(folder, one) for one in lent):
            continue
        flag = flag_for(str(folder / "file"), "read", homes=homes)
        if flag is not None:
            return f"its command names {quoted(folder)}, which {flag} lends to be read"
    return None


# A server may name as many as it likes, in every failure; what it costs to look at them is bounded.
_MOST_PATH_CHARS = 1024
_MOST_KNOWN = 256
_MOST_TOLD = 16


@dataclass(slots=True, eq=False)
class UnlentPaths:
    """Paths that one server names where it fails, and that are not lent to it: for its operator only.

    A server with its own error text names only the path: "cannot use /srv/notes/a". It may have made that up.
    So its client gets the text unchanged, and the option that would lend the folder for reading is logged,
    once.

    Attributes:
        server: The server.
        rights: What it may do, and what is lent to it.
        homes: The folder of homes.
        never: Folders that are never lent.
        readable: What its processes may read or list besides, as found when one was started.
    """

    server: str
    rights: Rights
    homes: Path
    never: Sequence[Path] = ()
    readable: tuple[Path, ...] = ()
    # Other beginnings are not a path, but perhaps part of an address.
    _tops: frozenset[str] = field(default_factory=lambda: frozenset(os.listdir("/")))
    _known: set[str] = field(default_factory=set)
    _hinted: set[str] = field(default_factory=set)

    def note(self, text: str) -> None:
        """Log the paths in a server's error for the operator, each option once."""
        if len(self._hinted) >= _MOST_TOLD or len(self._known) >= _MOST_KNOWN:
            return
        for found in _paths(text[:_MOST_CHARS]):
            path = os.path.normpath(found)
            if path in self._known or len(path) > _MOST_PATH_CHARS:
                continue
            self._known.add(path)
            flag = self._flag(path)
            if flag is not None and flag not in self._hinted:
                self._hinted.add(flag)
                facts = {"server": self.server, "path": path, "option": shlex.quote(flag)}
                log.warning("server failed on unlent path", extra=facts)

    def _flag(self, path: str) -> str | None:
        """Return the option that would lend the folder of a path for reading, if it is needed and allowed."""
        left_out = (*self.rights.write, *self.rights.read, *self.never, *self.readable)
        if path.split("/", 2)[1] not in self._tops or any(within(Path(path), top) for top in left_out):
            return None
        # To be written it may be wanted, too. That is a server's word, and more than it may need.
        return flag_for(path, "read", homes=self.homes)
