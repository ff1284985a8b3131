"""Choice of the configuration file, with checks of who can change it and whether the caller trusts it.

A file applies in full if the caller names it (`--config`, `RUNNER_CONFIG`), if it is in a folder of the
caller's configuration, or if `runner trust` has recorded its path and digest. In any other file in the
current folder, only settings apply that narrow rights (`NARROWS` in `runner.settings.values`).

A file that another user can change is never read. The open file is checked and read once, so replacing its
name in between has no effect.

Source: `docs/settings.md`, "Trust"; inode(7), path_resolution(7), statvfs(3) on ST_RDONLY; TOML 1.0,
"Keys", "Table" and "Array of Tables".
"""

import contextlib
import errno
import functools
import grp
import hashlib
import json
import os
import pwd
import re
import shlex
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from runner.errors import UsageError
from runner.settings.values import default_config_dir, default_state_dir
from runner.system.own_folders import HOME_ATTRIBUTES
from runner.system.private_files import open_file
from runner.system.state_files import holding, make_folder, write_whole

__all__ = [
    "CONFIG_FILE",
    "CONFIG_VARIABLE",
    "ConfigFile",
    "JudgedFile",
    "UnsafeFile",
    "config_file",
    "distrust",
    "how_to_trust",
    "is_trusted",
    "quoted",
    "read_judged",
    "read_named",
    "read_trusted",
    "reread",
    "trust",
    "trust_record",
    "trusted_files",
]

CONFIG_FILE = "runner.toml"
CONFIG_VARIABLE = "RUNNER_CONFIG"

_SYSTEM_FOLDER = Path("/etc/toolcell")
_RECORD = "trusted.json"
# The kernel's limit: path_resolution(7).
_MOST_LINKS = 40
# The longest is a file with the users of `runner up`.
_MOST_BYTES = 4 << 20
_Records = Mapping[Path, tuple[str, int]]
_OTHERS = stat.S_IWGRP | stat.S_IWOTH

_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_KEYS = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_HEADER = re.compile(rf"[ \t]*(\[\[?)[ \t]*({_KEYS})[ \t]*\]")
_ENTRY = re.compile(rf"[ \t]*({_KEYS})[ \t]*=")


class UnsafeFile(ValueError):
    """A file that another user can change; the message names the cause, as a clause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedFile:
    """Content of a file that only root and the caller can change.

    Attributes:
        path: Its path, in which only the last component may be a link. Relative paths in the content are
            relative to the link, so trust in its target does not extend to the link.
        content: Its whole content.
        uid: Its owner.
    """

    path: Path
    content: bytes
    uid: int

    @property
    def mark(self) -> tuple[str, int]:
        """Return the recorded identity of a trusted file: hexadecimal SHA-256 of the content, and owner."""
        return hashlib.sha256(self.content).hexdigest(), self.uid


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """The configuration file of a process, chosen once, when it starts.

    Attributes:
        path: Its absolute path; None if there was no file, so that none is read later.
        label: Its name in messages.
        is_named: Whether the caller names it, or it is in a configuration folder.
        content: Its content when last read; None if it was not read.
        is_trusted: Whether all of its settings apply.
        notes: Sentences about a file that is not read.
    """

    path: Path | None = None
    label: str = CONFIG_FILE
    is_named: bool = False
    content: bytes | None = None
    is_trusted: bool = False
    notes: tuple[str, ...] = ()

    def place(self, *key: str | int) -> str:
        """Return the beginning of a sentence about a key: the file and the line; nothing without a file."""
        if self.path is None:
            return ""
        text, leaf = (self.content or b"").decode(errors="replace"), tuple(map(str, key))
        # For a missing key, the line of its table.
        lines = (_line_of(text, leaf[:end]) for end in range(len(leaf), 0, -1))
        line = next(filter(None, lines), None)
        return f"{quoted(self.label)}{f', line {line}' if line else ''}: "


def quoted(text: object) -> str:
    """Return an untrusted name as one shell word without control characters."""
    shown = str(text)
    return shlex.quote(shown) if shown.isprintable() else ascii(shown)


def config_file(config: Path | None) -> ConfigFile:
    """Choose and read the configuration file of this process.

    Args:
        config: The file of `--config`, if it is given.

    Raises:
        UsageError: A file that the caller names cannot be read, or others can change it.
    """
    named = config or _named_by_variable()
    if named is not None:
        return _named(named, str(named))
    here = Path(CONFIG_FILE).absolute()
    found = _of_folder(here) if os.path.lexists(here) else None
    if found is not None and found.is_trusted:
        return found
    usual = next((path for path in _configured() if os.path.lexists(path)), None)
    if usual is None:
        return found or ConfigFile()
    chosen = _named(usual, str(usual))
    if found is None:
        return chosen
    note = f"{quoted(here)} is not trusted and is ignored, since {usual} applies: {how_to_trust(here)}"
    return replace(chosen, notes=(note,))


def reread(file: ConfigFile) -> ConfigFile:
    """Reread the file that a process was started with, under the rules of its start.

    Raises:
        UsageError: It is missing, cannot be read, or others can change it.
    """
    if file.path is None:
        return file
    if file.is_named:
        return replace(_named(file.path, file.label), notes=file.notes)
    return _of_folder(file.path)


def read_judged(path: Path) -> JudgedFile:
    """Read a regular file that only root and the caller can change.

    Raises:
        UnsafeFile: Others can change it, or it lies in the home of a user.
        OSError: It cannot be read, or is longer than 4 MiB.
    """
    with open(open_file(path), "rb") as file:
        facts = os.fstat(file.fileno())
        place = _place(file.fileno(), path)
        # No one can write through a read-only mount, such as a ConfigMap in a container.
        if not os.fstatvfs(file.fileno()).f_flag & os.ST_RDONLY:
            _check_writers(facts, "it", file.fileno())
        for folder in dict.fromkeys((*place.parents, *_on_the_way(path))):
            _check_folder(folder)
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {_MOST_BYTES} bytes", str(path))
    return JudgedFile(path=_in_folder(path), content=content, uid=facts.st_uid)


def read_named(path: Path, name: str, *, refusal: str, check: str = "the path") -> JudgedFile:
    """Read a file like `read_judged`, with each failure as a sentence.

    Args:
        path: The file.
        name: Its name at the beginning of the sentence.
        refusal: Predicate of the sentence about a file that others can change.
        check: Object that the sentence about a missing file advises to check.

    Raises:
        UsageError: It cannot be read, or others can change it.
    """
    try:
        return read_judged(path)
    except FileNotFoundError:
        raise UsageError(f"{name} does not exist; check {check}") from None
    except UnsafeFile as error:
        raise UsageError(f"{name} {refusal}: {error}") from None
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror}") from error


def is_trusted(file: JudgedFile) -> bool:
    """Return whether a file is in a configuration folder, or is recorded with its content and owner."""
    if str(file.path.parent) in {os.path.realpath(path.parent) for path in _configured()}:
        return True
    return trusted_files().get(file.path) == file.mark


def read_trusted(path: Path, use: str) -> bytes:
    """Return the content of a file that the caller trusts.

    Args:
        path: The file.
        use: Its purpose, for error messages.

    Raises:
        UsageError: It cannot be read, others can change it, or it is not trusted.
    """
    file = read_named(path, quoted(path), refusal=f"is not used for {use}")
    if not is_trusted(file):
        raise UsageError(f"{quoted(path)} is not trusted for {use}: {how_to_trust(path)}")
    return file.content


def trust(files: Iterable[JudgedFile]) -> None:
    """Record files as trusted with the content that was read.

    Raises:
        UsageError: There is no folder for the record, or it cannot be written.
    """
    added = {file.path: file.mark for file in files}
    _change(lambda known: {**known, **added})


def distrust(path: Path) -> bool:
    """Remove the record of a file; return whether there was one.

    Raises:
        UsageError: There is no folder for the record, or it cannot be written.
    """
    names = {_in_folder(path), path.absolute()}
    was = bool(names & trusted_files().keys())
    _change(lambda known: {name: one for name, one in known.items() if name not in names})
    return was


def trusted_files() -> _Records:
    """Return the mark of each recorded file by path; empty if there is no usable record."""
    record = trust_record()
    if record is None:
        return {}
    try:
        read = json.loads(read_judged(record).content)
        return {Path(path): (str(one["sha256"]), int(one["uid"])) for path, one in read["files"].items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}


def trust_record() -> Path | None:
    """Return the file with the record of trusted files; None if this user has no folder for it.

    A configuration file could name another state folder, but has no effect before it is trusted. A relative
    `RUNNER_STATE_DIR` would be read from the current folder.
    """
    state_dir = os.path.expanduser(os.environ.get("RUNNER_STATE_DIR", ""))
    if state_dir.startswith("/"):
        return Path(os.path.normpath(state_dir)) / _RECORD
    with contextlib.suppress(UsageError):
        return default_state_dir() / _RECORD
    return None


def _change(change: Callable[[_Records], _Records]) -> None:
    record = trust_record()
    if record is None:
        raise UsageError("there is no folder for the record of trusted files; set RUNNER_STATE_DIR")
    try:
        make_folder(record.parent)
        with holding(record.parent):
            files = change(trusted_files())
            table = {str(path): {"sha256": mark[0], "uid": mark[1]} for path, mark in sorted(files.items())}
            write_whole(record, json.dumps({"files": table}, indent=2).encode())
        # A record that others could change would not count.
        read_judged(record)
    except UnsafeFile as error:
        raise UsageError(f"{record} does not count: {error}; set RUNNER_STATE_DIR") from None
    except OSError as error:
        raise UsageError(f"{record} cannot be written: {error.strerror}; set RUNNER_STATE_DIR") from error


def _named_by_variable() -> Path | None:
    named = os.environ.get(CONFIG_VARIABLE)
    if not named:
        return None
    path = Path(os.path.expanduser(named))
    if not path.is_absolute():
        # An exported relative path would name a different file in each folder that the caller enters.
        raise UsageError(f"variable {CONFIG_VARIABLE}: {named!r} is relative; give the whole path")
    return path


def _configured() -> Iterator[Path]:
    """Yield the configuration files of the caller and of this machine, the caller's first."""
    with contextlib.suppress(UsageError):
        yield default_config_dir() / CONFIG_FILE
    yield _SYSTEM_FOLDER / CONFIG_FILE


def _named(path: Path, label: str) -> ConfigFile:
    file = read_named(path, f"configuration file {path}", refusal="is not read", check="--config")
    return ConfigFile(path=path.absolute(), label=label, is_named=True, content=file.content, is_trusted=True)


def _of_folder(path: Path) -> ConfigFile:
    """Read the file of the current folder, or of the folder in which the process was started."""
    try:
        file = read_judged(path)
    except UnsafeFile as error:
        return ConfigFile(path=path, notes=(f"{quoted(path)} is not read: {error}",))
    except OSError as error:
        # The folder's owner may put anything there; commands must not fail because of it.
        return ConfigFile(path=path, notes=(f"{quoted(path)} is not read: {error.strerror}",))
    return ConfigFile(path=path, content=file.content, is_trusted=is_trusted(file))


def how_to_trust(path: Path) -> str:
    """Return the end of a sentence about a file that is not trusted."""
    named = path.parent if path.name == CONFIG_FILE else path
    return f"read it, then run `runner trust {quoted(named)}`"


def _in_folder(path: Path) -> Path:
    """Return a path with links in its folders resolved; the file itself may be a link."""
    whole = path.absolute()
    return Path(os.path.realpath(whole.parent), whole.name)


def _on_the_way(path: Path) -> Iterator[Path]:
    """Yield each folder in which the kernel looks up a name while it follows a path and all its links.

    Raises:
        UnsafeFile: One of the links belongs neither to root nor to the caller.
        OSError: There are too many links.
    """
    here, left, links = Path("/"), list(path.absolute().parts[1:]), 0
    while left:
        name = left.pop(0)
        if name == "..":
            here = here.parent
            continue
        yield here
        here = here / name
        if not here.is_symlink():
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        owner = os.lstat(here).st_uid
        if owner not in (0, os.geteuid()):
            raise UnsafeFile(f"the link {quoted(here)} belongs to user id {owner}; name the file itself")
        target = Path(os.readlink(here))
        left = [*target.parts[target.is_absolute() :], *left]
        here = Path("/") if target.is_absolute() else here.parent


def _place(fd: int, path: Path) -> Path:
    """Return the current path of an open file; its name may lead elsewhere by now."""
    try:
        return Path(os.readlink(f"/proc/self/fd/{fd}"))
    except OSError:
        return Path(os.path.realpath(path))


def _check_folder(folder: Path) -> None:
    facts = folder.stat()
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        return
    # In a sticky folder, only the owner of a file can rename or remove it.
    _check_writers(facts, f"its folder {quoted(folder)}", folder)
    for name in HOME_ATTRIBUTES:
        # macOS lacks the call, and has no homes of tools.
        with contextlib.suppress(OSError, AttributeError):
            os.getxattr(folder, name)
            raise UnsafeFile(f"{quoted(folder)} is the home of a user of tools; move it elsewhere")


def _check_writers(facts: os.stat_result, what: str, place: int | Path) -> None:
    """Refuse a file or folder that users other than root and the caller can write."""
    if facts.st_uid not in (0, os.geteuid()):
        raise UnsafeFile(f"{what} belongs to user id {facts.st_uid}; chown it to the user of the runner")
    if stat.S_ISDIR(facts.st_mode) and facts.st_mode & stat.S_ISVTX:
        return
    others = facts.st_mode & _OTHERS
    # With an access control list, the group bits are the mask of all its entries: acl(5).
    is_mine = _is_private_group(facts.st_gid) and not _has_acl(place)
    if others & stat.S_IWOTH or (others and not is_mine):
        raise UnsafeFile(f"{what} can be written by other users; run chmod go-w on it")


def _has_acl(place: int | Path) -> bool:
    try:
        os.getxattr(place, "system.posix_acl_access")
    except OSError:
        return False
    except AttributeError:
        # macOS has lists of its own, which cannot be read here.
        return True
    return True


@functools.cache
def _is_private_group(gid: int) -> bool:
    """Return whether a group is the caller's user private group, as used with umask 002."""
    try:
        me, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return me.pw_gid == gid and group.gr_name == me.pw_name and not {*group.gr_mem} - {me.pw_name}


def _line_of(text: str, leaf: tuple[str, ...]) -> int | None:
    """Return the line number of a key, a table header or an inline table, which `tomllib` does not record.

    Args:
        text: Valid TOML.
        leaf: The parts of the key; of an array of tables also the index, as text.
    """
    table: tuple[str, ...] = ()
    arrays: dict[tuple[str, ...], int] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if header := _HEADER.match(line):
            table = ()
            parts = _parts(header[2])
            for at, part in enumerate(parts, start=1):
                table = (*table, part)
                if header[1] == "[[" and at == len(parts):
                    arrays[table] = arrays.get(table, -1) + 1
                if table in arrays:
                    table = (*table, str(arrays[table]))
            found = table
        elif entry := _ENTRY.match(line):
            found = (*table, *_parts(entry[1]))
            if leaf[: len(found)] == found:
                return number
        else:
            continue
        if found[: len(leaf)] == leaf:
            return number
    return None


def _parts(keys: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in re.findall(_PART, keys))
