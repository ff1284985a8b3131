"""The option that would have allowed a server's failed operation, found in its error output.

Pure. The server's text is trusted only for the hint.

Source: `docs/isolation.md`.
"""

import itertools
import os.path
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from runner.contract.error_messages import ALLOW_SOCKETS
from runner.contract.missed_network import missed_network
from runner.proxy.stdio_process import DIVIDER
from runner.settings.execution import ExecutionSettings
from runner.settings.lendable import flag_for, within
from runner.settings.trust import quoted
from sandbox.denials.paths_in_errors import named_paths, wants_socket
from sandbox.probe.machine import Tier
from sandbox.readable import OF_OTHERS

__all__ = ["folder_hint", "network_hint", "option_hint", "relative_hint", "variable_hint"]

_MISSING = re.compile(
    r"ENOENT|no such file or directory|does not exist|not found|no files? matching|"
    r"(?:could not|cannot|can't) find",
    re.IGNORECASE,
)
# Errors that occur only on writing.
_READ_ONLY = re.compile(r"EROFS|read-only file system", re.IGNORECASE)
_MOST_CHARS = 8192
# An absolute path that is not part of a URL.
_PATH = re.compile(r"(?<![\w/.:-])/[^\s:;,'\"`()\[\]{}<>\u2018\u2019]+")
# Checking a path takes time.
_MOST_PATHS = 16
_SEMAPHORE = re.compile(r"\bSemLock\b|\bsem_open\b")
# Messages of Python and Node about a missing file, with a relative path.
_RELATIVE = re.compile(
    r"(?:No such file or directory|ENOENT)[^'\"]{0,99}['\"]([^'\"/~][^'\"]{0,199})['\"]", re.IGNORECASE
)
# Messages of Python and Node about a missing module, and the variables with module paths.
_NO_MODULE = re.compile(r"No module named|Cannot find (?:module|package)|ERR_MODULE_NOT_FOUND")
_OF_MODULES = ("PYTHONPATH", "NODE_PATH")
# Written by `sandbox.inside.exec_gate`.
_DENIED = re.compile(r"\brunner: connection to ([A-Za-z0-9._:\[\]-]+) denied")
# An underscore is required: other words in capitals are not variables.
_VARIABLE = re.compile(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b")


def option_hint(text: str, settings: ExecutionSettings, tier: Tier) -> str | None:
    """Return a sentence that names the option that would have helped, if any, for a path, socket or lock.

    Args:
        text: The server's error output.
        settings: The settings of the server, with the paths lent to it.
        tier: Its isolation tier.
    """
    rights, is_apart = settings.rights(), tier is Tier.NAMESPACE
    if not rights.sockets and wants_socket(text):
        return (
            "This server may have no UNIX socket, which it needs. For the operator: "
            f"{ALLOW_SOCKETS} would allow those in its home, in tier namespace"
        )
    # A stderr tail is one string, with `DIVIDER` between its lines.
    lines = text[-_MOST_CHARS:].replace(DIVIDER, "\n")
    # Semaphores are in the shared memory, which a server has in that tier only.
    if not is_apart and _SEMAPHORE.search(lines):
        return (
            "This server makes a POSIX semaphore (a lock between processes, as of Python's multiprocessing), "
            "which it may in tier namespace only, where /dev/shm can be its own. For the operator: "
            "--isolation=namespace, or make it use one process, if it has an option for that"
        )
    written = {path for line in lines.splitlines() if _READ_ONLY.search(line) for path in _paths(line)}
    named = list(itertools.islice(named_paths(OSError(lines)), _MOST_PATHS))
    # Below a readable path the write right is missing; elsewhere the missing right is unknown.
    readable = {path for path in named if _is_within(path, rights.read)}
    denied = [(path, "write" if path in written | readable else "") for path in named]
    # In that tier, files of others seem to be missing.
    unseen = (*map(Path, OF_OTHERS), settings.homes) if is_apart else ()
    reported = (path for line in lines.splitlines() if _MISSING.search(line) for path in _paths(line))
    missing = [(path, "read") for path in reported if _is_within(path, unseen)]
    for path, wants in (*denied, *missing):
        flag = flag_for(path, wants, homes=settings.homes)
        if flag is not None and not _is_within(
            path, (*rights.write, *(rights.read if "read=" in flag else ()))
        ):
            return f"{path} is not open to this server. For the operator: {flag} would lend its folder"
    return None


def network_hint(text: str, *, has_network: bool) -> str | None:
    """Return a sentence that names the option to allow a server's denied connections, if any.

    Args:
        text: The stderr output of the server and its gate.
        has_network: Whether it may connect to any address.
    """
    denied = ",".join(dict.fromkeys(_DENIED.findall(text)))
    if denied:
        return f"connections of this server were denied. For the operator: --allow-net={denied} allows them"
    if not has_network and missed_network(text):
        return "a confined server has no network. For the operator: --allow-net=HOST allows one"
    return None


def variable_hint(text: str, passed: Collection[str], variables: Collection[str]) -> str | None:
    """Return a sentence that names the option to pass a variable, if the server seems to lack one.

    Args:
        text: The server's last output.
        passed: Names of the variables that are passed to the server.
        variables: Names of the variables of this process.
    """
    wanted = [*_VARIABLE.findall(text), *(_OF_MODULES if _NO_MODULE.search(text) else ())]
    for name in wanted:
        if name in variables and name not in passed:
            hint = f"{name} is set here and not passed to this server. For the operator: --allow-env={name}"
            more = ", and --allow-read=FOLDER lends the folders that it names" if name in _OF_MODULES else ""
            return f"{hint} passes it{more}"
    return None


def relative_hint(text: str) -> str | None:
    """Return a sentence about the working folder, if a relative path was not found there.

    Args:
        text: The server's last output.
    """
    found = _RELATIVE.search(text)
    if found is None:
        return None
    return (
        f"{quoted(Path(found[1]))} was looked for in the scratch home, its working folder: "
        "name an absolute path in a lent folder"
    )


def _is_within(path: str, tops: Iterable[Path]) -> bool:
    return any(within(Path(path), top) for top in tops)


def _paths(line: str) -> Iterator[str]:
    """Yield the absolute paths named in a line, at most `_MOST_PATHS`."""
    found = (each[0].rstrip(".") for each in _PATH.finditer(line))
    yield from itertools.islice(found, _MOST_PATHS)


def folder_hint(words: Sequence[str], settings: ExecutionSettings) -> str | None:
    """Return the option that would lend a folder named in a command, if it is not lent.

    A program such as `uv run --directory FOLDER` reports that a file was not found, but not its path.
    """
    rights = settings.rights()
    for word in words:
        folder = word.rpartition("=")[2] if word.startswith("-") else word
        # Not `Path.is_dir`, which raises for a word that is too long for a name, such as a script.
        if not (folder.startswith("/") and os.path.isdir(folder)):
            continue
        flag = flag_for(f"{folder}/file", "read", homes=settings.homes)
        if flag is not None and not _is_within(folder, (*rights.read, *rights.write)):
            return f"its command names {quoted(Path(folder))}, which {flag} lends to be read"
    return None
