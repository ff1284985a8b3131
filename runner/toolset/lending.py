"""Grants of an operator: files and folders that tools may read or write besides their home, called lent.

They are resolved once, when the runner starts: links are followed then and never again. Paths that do not
exist or would open more than was meant are refused, and the user id for tools is determined. The kernel
enforces the grants (`sandbox.layers.landlock`, `sandbox.layers.mounts`).

Source: `docs/isolation.md`; `docs/decisions/0030-*`.
"""

import os
import pwd
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.errors import UsageError
from runner.homes.homes import Homes
from runner.settings.execution import ExecutionSettings, SettingsT, ToolSettings
from runner.settings.lendable import never_lent, of_the_system, shared, within
from runner.settings.rights import Lent
from runner.toolset.grants import opened
from sandbox.readable import sibling_modules

__all__ = ["lend"]

_UMASK = re.compile(r"^Umask:\s*([0-7]+)$", re.MULTILINE)
_DEFAULT_UMASK = 0o077


@dataclass(frozen=True, slots=True, kw_only=True)
class _Named:
    """One file or folder to grant.

    Attributes:
        flag: The option or setting that grants it, for messages.
        name: Its path as the operator wrote it.
        path: Its path without links.
        writes: Whether it may be written.
    """

    flag: str
    name: Path
    path: Path
    writes: bool


def lend(settings: SettingsT, programs: Sequence[Path]) -> SettingsT:
    """Return the settings with their granted paths resolved and checked.

    Args:
        settings: The effective settings, with the paths as the operator wrote them.
        programs: The tool files, or the files of a command, which no process that runs them may change.

    Raises:
        UsageError: A path cannot be granted; the message has the path, the reason and a remedy.
    """
    found = list(_named(settings))
    if not found:
        return settings
    refused = [f"{one.flag}: {why}" for one in found if (why := _refusal(one, settings, programs))]
    if refused:
        raise UsageError("\n".join(dict.fromkeys(refused)))
    at = {one.name: one.path for one in found}
    writes = any(one.writes for one in found)
    lent = Lent(
        names=tuple(dict.fromkeys(one.name for one in found if one.name != one.path)),
        owner=_owner(found),
        # New files there get the permissions of files from other programs of the operator.
        umask=_umask() if writes else None,
    )
    general = _resolved(at, settings.allow_read, settings.allow_write)
    tools = {name: _resolved_tool(at, settings, own) for name, own in settings.tools.items()}
    changed = settings.model_copy(
        update={"allow_read": general[0], "allow_write": general[1], "tools": tools}
    )
    changed._lent = lent
    return changed


def _named(settings: ExecutionSettings) -> Iterator[_Named]:
    yield from _listed("--allow-read", settings.allow_read, writes=False)
    yield from _listed("--allow-write", settings.allow_write, writes=True)
    for tool, own in settings.tools.items():
        yield from _listed(f"[tools.{tool}] allow_read", own.allow_read or (), writes=False)
        yield from _listed(f"[tools.{tool}] allow_write", own.allow_write or (), writes=True)


def _listed(option: str, names: Iterable[Path], *, writes: bool) -> Iterator[_Named]:
    for name in names:
        try:
            path = Path(os.path.realpath(name, strict=True))
        except FileNotFoundError:
            raise UsageError(
                f"{option}: there is no file or folder {name}; check the name, or make it first"
            ) from None
        except OSError as error:
            raise UsageError(f"{option}: {name} cannot be looked at: {error.strerror}") from error
        yield _Named(flag=option, name=name, path=path, writes=writes)


def _resolved(
    at: dict[Path, Path], read: Iterable[Path], write: Iterable[Path]
) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Return the granted paths to read and to write, without those below others."""
    writes = {at[name] for name in write}
    reads = {at[name] for name in read} - writes
    roots = tuple(sorted(path for path in writes if not writes.intersection(path.parents)))
    granted = reads | writes
    return tuple(sorted(path for path in reads if not granted.intersection(path.parents))), roots


def _resolved_tool(at: dict[Path, Path], settings: ExecutionSettings, own: ToolSettings) -> ToolSettings:
    if own.allow_read is None and own.allow_write is None:
        return own
    read = settings.allow_read if own.allow_read is None else own.allow_read
    write = settings.allow_write if own.allow_write is None else own.allow_write
    reads, writes = _resolved(at, read, write)
    return own.model_copy(update={"allow_read": reads, "allow_write": writes})


def _refusal(one: _Named, settings: ExecutionSettings, programs: Sequence[Path]) -> str | None:
    """Return why a path is refused, with a remedy; None if it is granted."""
    shown = str(one.name) if one.name == one.path else f"{one.name} ({one.path})"
    if not (one.path.is_dir() or one.path.is_file()):
        return f"{shown} is neither a folder nor a regular file; name the folder it lies in"
    if never_lent(one.path):
        return f"{shown} holds processes, devices or sockets of this machine and is never lent"
    if shared(one.path):
        return (
            f"{shown} as a whole cannot be granted: keys and files of others lie in it; name a folder in it"
        )
    return _secret(one, shown, settings) or (_changeable(one, shown, programs) if one.writes else None)


def _secret(one: _Named, shown: str, settings: ExecutionSettings) -> str | None:
    why = opened(one.path, settings)
    if why is not None:
        return f"{shown} {why}; name another folder, or one in it that does not hold this"
    homes = _real(settings.homes)
    if within(homes, one.path):
        return f"{shown} holds the homes of all users ({homes}); name a folder in it that is not a home"
    for home in map(_real, Homes.of(settings).made()):
        if within(one.path, home):
            return f"{shown} lies in {home}, which is the home of a user of this runner; name another folder"
    return None


def _changeable(one: _Named, shown: str, programs: Sequence[Path]) -> str | None:
    """Return why a path is not granted for writing: written files could change programs that run from it."""
    if of_the_system(one.path):
        return f"{shown} belongs to the system and is not lent to write; name another folder"
    for place in map(_real, _own_places()):
        if _overlap(one.path, place):
            return (
                f"{shown} would open {place} to be written, from where the runner itself is loaded, "
                "unconfined; name a folder beside it"
            )
    for program in programs:
        for path in map(_real, (program, *sibling_modules(program))):
            if _overlap(one.path, path):
                return (
                    f"{shown} holds {path}, which tools run from: one call could change it for the calls of "
                    "others; name a folder in it, or move the program elsewhere"
                )
    if os.geteuid() != 0 and not os.access(one.path, os.W_OK):
        return f"{shown} may not be written by who starts the runner; change its permissions, or only read it"
    return None


def _own_places() -> Iterator[Path]:
    """Yield the folders from which this process loads its own code."""
    yield from (Path(name) for name in (sys.prefix, sys.base_prefix) if name != "/usr")
    yield from (Path(name) for name in sys.path if name)
    yield Path(__file__).parents[2]


def _owner(found: Sequence[_Named]) -> tuple[int, int] | None:
    """Return the user and group id that tools need to use the granted paths, if not their users' own.

    Only root can assign ids. Any other user who starts the runner grants their own files.
    """
    if os.geteuid() != 0:
        return None
    owners = {one: one.path.stat() for one in found if one.writes or _is_closed(one.path)}
    if len({facts.st_uid for facts in owners.values()}) > 1:
        listed = ", ".join(f"{one.path} of {_user_name(facts.st_uid)}" for one, facts in owners.items())
        raise UsageError(
            f"--allow-read, --allow-write: what is lent belongs to several users ({listed}), and tools work "
            "there as its owner; lend what belongs to one of them, or start the runner as a user who may "
            "use all of it"
        )
    return next(((facts.st_uid, facts.st_gid) for facts in owners.values()), None)


def _is_closed(path: Path) -> bool:
    """Return whether a path is unreadable for users who are neither its owner nor in its group."""
    mode = path.stat().st_mode
    wanted = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(mode) else 0)
    return mode & wanted != wanted or any(not top.stat().st_mode & stat.S_IXOTH for top in path.parents)


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user id {uid}"


def _umask() -> int:
    # Read from /proc, not by setting and resetting it: other threads may create files meanwhile.
    found = _UMASK.search(Path("/proc/self/status").read_text(encoding="utf-8"))
    return int(found[1], 8) if found else _DEFAULT_UMASK


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _overlap(one: Path, other: Path) -> bool:
    """Return whether two paths are equal or one lies below the other."""
    return within(one, other) or within(other, one)
