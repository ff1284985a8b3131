"""Default read rights of a worker: the system, the interpreter, the tool file and its folder.

Landlock grants hierarchies and cannot exclude anything beneath them. So a folder that contains a denied
path is not granted, but replaced by its other entries, down to the denied name (`carve`).

This has two consequences. An entry created later in a replaced folder stays denied until the next zygote.
And the right to list is a hierarchy too: a folder above a denied *folder* cannot be listed, since that
would include the names in the denied one; above a denied file it can.

No grant follows a link: paths are resolved before, and `sandbox.layers.landlock` opens them without links. A
link beside the tool file works if its target is readable, and grants no right.

Bytecode beside the tool file is not readable, so Python loads the present source, also in children.
Bytecode of installed packages is readable.

Source: architecture, decision "Reads"; sandbox notes, "Read list"; requirements on other users' names.
"""

import ast
import fnmatch
import os
import re
import stat
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from sandbox.syscalls import AT_FDCWD, Resolve, openat2

__all__ = [
    "MOST_ENTRIES",
    "OF_OTHERS",
    "Readable",
    "carve",
    "default_read",
    "is_hidden_name",
    "parsed_module",
    "sibling_modules",
    "system_secrets",
]

MOST_ENTRIES = 20_000
"""Entries examined beneath one folder before it is considered too large."""

OF_OTHERS = (
    "/boot", "/dev/shm", "/home", "/lost+found", "/media", "/mnt", "/root", "/run", "/srv", "/tmp",  # noqa: S108
    "/var/backups", "/var/crash", "/var/log", "/var/mail", "/var/spool", "/var/tmp",  # noqa: S108
)  # fmt: skip
"""Folders of users and services, not of the system: closed to tools, and empty in a view of the files."""

_NOT_SYSTEM = frozenset({"dev", "proc", "sys", *(path[1:] for path in OF_OTHERS if path.count("/") == 1)})
# Root reads these, and a server may run as root.
_SYSTEM_SECRETS = (
    "/etc/shadow*",
    "/etc/gshadow*",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/security/opasswd",
    "/etc/krb5.keytab",
    "/etc/ssl/private",
    "/etc/ssh/ssh_host_*_key",
    "/etc/wireguard",
    "/etc/letsencrypt",
    "/etc/NetworkManager/system-connections",
    # State and stores of other servers of this machine, at the places of docs/deploying.md.
    "/var/lib/toolcell/*/state",
    "/var/lib/toolcell/*/store",
    "/var/lib/toolcell/up/supervisor",
    "/var/lib/toolcell/up/users",
)
_SECRET_NAME = re.compile("|".join(map(fnmatch.translate, (".*", "runner.toml", "*.pem", "*.key"))))
# Python imports nothing from there, and it is the largest part of a checkout that has one.
_NOT_IMPORTED = frozenset({"node_modules"})
# Their bytecode was written by an installer.
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_BYTECODE = (".pyc", ".pyo")
_MOST_MODULES = 1000
_MOST_NAMED_TWICE = 2000
# No honest source file is longer, and its imports are only a part of the grants.
_MOST_SOURCE_BYTES = 16 << 20
# CPython keeps the recursion depth of the syntax tree in a counter shared by all threads. So two concurrent
# threads can cause SystemError, "AST constructor recursion depth mismatch".
_PARSING = threading.Lock()


class Readable(NamedTuple):
    """Grants, as paths without links.

    Attributes:
        read: Hierarchies to read; a file is one.
        list_only: Hierarchies whose folders may only be listed.
        names: Links beside readable files. They grant no right.
    """

    read: tuple[Path, ...]
    list_only: tuple[Path, ...]
    names: tuple[Path, ...] = ()


class _TooLarge(Exception):
    """Error for a folder with more than `MOST_ENTRIES` entries."""


class _Survey(NamedTuple):
    """Content of a folder: readable and listable parts, and secrets found."""

    readable: Readable
    secrets: tuple[Path, ...]


class _Found(NamedTuple):
    """A `_Survey` in progress, as strings: few of ten thousand names become paths.

    Attributes:
        read: Readable entries.
        listed: Folders that may be listed.
        links: Links, which are not followed.
        secrets: Entries found to be secret.
        whole: Whether nothing was left out, so that the folder itself can be granted as a whole.
    """

    read: list[str]
    listed: list[str]
    links: list[str]
    secrets: list[str]
    whole: bool


class _Denied(NamedTuple):
    """Paths that are denied beneath a folder.

    Attributes:
        paths: The paths, which are hierarchies.
        files: Device and inode of denied files that have several names (hard links).
    """

    paths: Sequence[Path]
    files: frozenset[tuple[int, int]] = frozenset()


def default_read(
    *,
    deny: Sequence[Path],
    never: Sequence[Path] = (),
    beside: Sequence[Path],
    files: Sequence[Path] = (),
    extra: Sequence[Path] = (),
    homes: Sequence[Path] = (),
) -> Readable:
    """Return everything that the workers of one policy may read.

    Args:
        deny: Denied paths, such as the folder of homes. Readable paths may lie beneath them, such as an
            interpreter.
        never: Files and folders that are never granted, for any reason: state, store, keys.
        beside: Tool files, without links, whose whole folders may be read.
        files: Further files and packages, each granted alone; kept separate from their surroundings, so
            that each can be mounted in its place.
        extra: Further readable folders, such as the program's own packages.
        homes: Existing homes of users. A tool file in one of them is granted only with its modules.
    """
    never = _both_forms((*never, *system_secrets()))
    denied = _Denied((*_both_forms(deny), *never), _named_twice(never))
    homes = _both_forms(homes)
    wide = _wide_folders(homes)
    libraries = _libraries(extra)
    surveys = [_tool(file, denied, wide, homes, libraries) for file in dict.fromkeys(beside)]
    secrets = tuple(dict.fromkeys(secret for survey in surveys for secret in survey.secrets))
    closed = _Denied((*denied.paths, *secrets), denied.files)
    # It belongs to other users.
    of_others = _both_forms(map(Path, OF_OTHERS))
    parts = [carve(top, (*closed.paths, *of_others)) for top in _system(denied.paths)]
    parts += [carve(path, denied.paths) for path in libraries]
    # Each once: a checkout that is also the working folder occurs twice in sys.path.
    folders = dict.fromkeys(_import_folders(wide, denied.paths))
    parts += [_beside(folder, closed, left_out=_NOT_IMPORTED).readable for folder in folders]
    parts += [survey.readable for survey in surveys]
    alone = [_alone(file, closed) for file in dict.fromkeys(files)]
    found, named = (_permitted(_joined(some), never, denied.files) for some in ([*parts, *alone], alone))
    return found._replace(read=tuple(dict.fromkeys((*found.read, *named.read))))


def carve(top: Path, deny: Sequence[Path]) -> Readable:
    """Return `top`, or instead those of its parts that contain no path of `deny`."""
    above = f"{str(top).rstrip('/')}/"
    inside = [path for path in deny if f"{path}/".startswith(above)]
    if not inside:
        return Readable((top,), ())
    if top in inside:
        return Readable((), ())
    parts = [carve(child, inside) for child in _children(top)]
    listed = () if any(_may_be_folder(path) for path in inside) else (top,)
    return _joined([*parts, Readable((), listed)])


def is_hidden_name(name: str) -> bool:
    """Return whether a file or folder beside a tool file is hidden from tools, like keys and settings."""
    lower = name.lower()
    if _SECRET_NAME.match(lower):
        return True
    # Matches id_rsa and similar keys, but not a module such as id_card.py.
    return lower.startswith("id_") and not lower.endswith(".py")


def parsed_module(file: Path) -> ast.Module | None:
    """Return the syntax tree of an untrusted file; None if it has none."""
    try:
        text = _source(file)
        with _PARSING:
            return ast.parse(text)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        # Python reports the error itself when it loads the file.
        return None


def sibling_modules(tool_file: Path) -> tuple[Path, ...]:
    """Return the modules beside `tool_file`, files and package folders, that it imports, even indirectly.

    They are found in the source, without running it: imports of computed names are missed.
    """
    folder = tool_file.parent
    found: dict[Path, None] = {}
    todo = [tool_file]
    while todo and len(found) < _MOST_MODULES:
        for name in _imported_names(todo.pop()):
            module = _module(folder, name)
            if module is None or module in found or module == tool_file:
                continue
            found[module] = None
            inner = [module] if module.suffix == ".py" else sorted(module.rglob("*.py"))
            todo += inner[:_MOST_MODULES]
    return tuple(found)


def _permitted(found: Readable, never: Sequence[Path], files: frozenset[tuple[int, int]]) -> Readable:
    """Return the grants without any path of `never`. Every grant must pass through this function."""
    tops = tuple(f"{path}/" for path in never)
    parts: list[Readable] = []
    for path in found.read:
        text = f"{path}/"
        if text.startswith(tops) or (files and _identity(path) in files):
            continue
        is_above = any(top.startswith(text) for top in tops)
        parts.append(carve(path, never) if is_above else Readable((path,), ()))
    listed = tuple(path for path in found.list_only if not f"{path}/".startswith(tops))
    return _joined([*parts, Readable((), listed, found.names)])


def _alone(path: Path, denied: _Denied) -> Readable:
    is_folder = path.is_dir() and not path.is_symlink()
    return _beside(path, denied, own=True).readable if is_folder else Readable((path,), ())


def _named_twice(never: Sequence[Path]) -> frozenset[tuple[int, int]]:
    """Return device and inode of files in `never` with hard links, whose other names are denied as well.

    Only a part of a large folder, such as a store, is examined.
    """
    found: set[tuple[int, int]] = set()
    for top in never:
        todo, budget = [str(top)], iter(range(_MOST_NAMED_TWICE))
        while todo and next(budget, None) is not None:
            path = todo.pop()
            try:
                facts = os.lstat(path)
                if stat.S_ISDIR(facts.st_mode):
                    todo += [f"{path}/{name}" for name in os.listdir(path)[:_MOST_NAMED_TWICE]]
                elif stat.S_ISREG(facts.st_mode) and facts.st_nlink > 1:
                    found.add((facts.st_dev, facts.st_ino))
            except OSError:
                continue
    return frozenset(found)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        facts = path.lstat()
    except OSError:
        return None
    return facts.st_dev, facts.st_ino


def _tool(
    tool: Path, denied: _Denied, wide: frozenset[Path], homes: Sequence[Path], libraries: Sequence[Path]
) -> _Survey:
    """Return the readable entries beside a tool file, and the secrets among them."""
    folder = tool.parent
    own = not _beneath(folder, libraries)
    secrets: tuple[Path, ...] = ()
    if folder not in wide and not _beneath(folder, homes):
        survey = _beside(folder, denied, own=own)
        if survey.readable.read:
            return survey
        secrets = (folder,)
    # Only the program itself: other files there belong to users, or are too many.
    modules = [_alone(module, denied) for module in sibling_modules(tool)]
    return _Survey(_joined([Readable((tool,), ()), *modules]), secrets)


def _beside(
    folder: Path, denied: _Denied, *, left_out: frozenset[str] = frozenset(), own: bool = False
) -> _Survey:
    """Return the entries of a folder except likely secrets; nothing if it is too large.

    Args:
        folder: The folder, as a path without links.
        denied: Denied paths.
        left_out: Names of folders that are neither granted nor examined.
        own: Whether it is the author's own, whose bytecode is not loaded.
    """
    try:
        found = _survey(str(folder), denied, left_out, iter(range(MOST_ENTRIES)), own=own)
    except _TooLarge:
        return _Survey(Readable((), ()), ())
    readable = Readable(_paths(found.read), _paths(found.listed), _paths(found.links))
    return _Survey(readable, _paths(found.secrets))


def _survey(
    folder: str, denied: _Denied, left_out: frozenset[str], budget: Iterator[int], *, own: bool
) -> _Found:
    inside = [path for path in denied.paths if _is_above(folder, path)]
    names = frozenset(map(str, inside))
    listed = [] if any(_may_be_folder(path) for path in inside) else [folder]
    found = _Found([], listed, [], [], whole=False)
    skipped = False
    for child in _entries(folder):
        if next(budget, None) is None:
            raise _TooLarge
        if is_hidden_name(child.name) or child.path in names or (own and _is_bytecode(child.name)):
            found.secrets.append(child.path)
        elif child.is_symlink():
            found.links.append(child.path)
        elif not child.is_dir(follow_symlinks=False):
            is_denied = denied.files and _identity(Path(child.path)) in denied.files
            (found.secrets if is_denied else found.read).append(child.path)
        elif child.name in left_out:
            skipped = True
        else:
            below = _survey(
                child.path,
                denied._replace(paths=inside),
                left_out,
                budget,
                own=own and child.name not in _INSTALLED,
            )
            found.secrets.extend(below.secrets)
            if below.whole:
                found.read.append(child.path)
            else:
                found.read.extend(below.read)
                found.listed.extend(below.listed)
                found.links.extend(below.links)
    return found._replace(whole=not inside and not found.secrets and not skipped)


def _is_above(folder: str, path: Path) -> bool:
    return str(path).startswith(folder.rstrip("/") + "/")


def _paths(names: Iterable[str]) -> tuple[Path, ...]:
    return tuple(map(Path, names))


def _is_bytecode(name: str) -> bool:
    return name == "__pycache__" or name.endswith(_BYTECODE)


def _children(folder: Path) -> tuple[Path, ...]:
    return _paths(entry.path for entry in _entries(str(folder)) if not entry.is_symlink())


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """Return the files, folders and links in `folder`; pipes, sockets and devices are not granted."""
    try:
        with os.scandir(folder) as entries:
            return sorted(filter(_is_plain, entries), key=attrgetter("name"))
    except (PermissionError, FileNotFoundError, NotADirectoryError):
        return []


def _is_plain(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False) or entry.is_symlink()


def _may_be_folder(path: Path) -> bool:
    # A missing path may become a folder.
    return path.is_dir() or not path.exists()


def _system(denied: Sequence[Path]) -> Iterator[Path]:
    with os.scandir("/") as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir() and entry.name not in _NOT_SYSTEM)
    for name in names:
        top = Path("/", name).resolve()
        is_elsewhere = len(top.parts) == 1 or top.parts[1] in _NOT_SYSTEM
        if not is_elsewhere and not _beneath(top, denied):
            yield top


def system_secrets() -> Iterator[Path]:
    """Yield existing paths of the system that no tool may read."""
    root = Path("/")
    for pattern in _SYSTEM_SECRETS:
        yield from root.glob(pattern.lstrip("/"))


def _libraries(extra: Sequence[Path]) -> list[Path]:
    """Return the interpreter's folders, those of installed packages, our own, and `extra`."""
    prefixes = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix]
    packages = [name for name in sys.path if Path(name).name in ("site-packages", "dist-packages")]
    named = [*map(Path, prefixes), *map(Path, packages), Path(__file__).parent, *extra]
    return [path.resolve() for path in named if path.exists()]


def _import_folders(wide: frozenset[Path], denied: Sequence[Path]) -> Iterator[Path]:
    """Yield other entries of sys.path: a checkout, PYTHONPATH, the working folder."""
    libraries = _libraries(())
    for name in filter(None, sys.path):
        path = Path(name).resolve()
        if path.is_dir() and path not in wide and path not in denied and not _beneath(path, libraries):
            yield path


def _wide_folders(homes: Sequence[Path]) -> frozenset[Path]:
    """Return folders too wide to be granted just for containing a tool file, or for being in sys.path."""
    tops = [Path("/"), *(Path("/", name) for name in _NOT_SYSTEM)]
    return frozenset(_both_forms((*tops, *_children(Path("/home")), Path(os.path.expanduser("~")), *homes)))


def _imported_names(file: Path) -> Iterator[str]:
    tree = parsed_module(file)
    if tree is None:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)


def _source(file: Path) -> bytes:
    """Return the content of a file in an untrusted folder.

    Raises:
        OSError: A component of its path is a link, or it is not a regular file.
    """
    descriptor = openat2(
        str(file), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, directory=AT_FDCWD, resolve=Resolve.NO_SYMLINKS
    )
    with open(descriptor, "rb") as opened:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return b""
        return opened.read(_MOST_SOURCE_BYTES)


def _module(folder: Path, name: str) -> Path | None:
    for candidate in (folder / name, folder / f"{name}.py"):
        wanted = candidate / "__init__.py" if candidate.suffix != ".py" else candidate
        if wanted.is_file() and not candidate.is_symlink() and not is_hidden_name(name):
            return candidate
    return None


def _beneath(path: Path, tops: Iterable[Path]) -> bool:
    return any(path == top or top in path.parents for top in tops)


def _both_forms(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Return each path as written and with links resolved."""
    return tuple(dict.fromkeys(form for path in paths for form in (path.absolute(), path.resolve())))


def _joined(parts: Sequence[Readable]) -> Readable:
    """Join the parts; omit paths beneath another granted hierarchy."""
    read = {path for part in parts for path in part.read}
    listed = {path for part in parts for path in part.list_only}
    outer = tuple(sorted(path for path in read if not read.intersection(path.parents)))
    known = read | listed
    return Readable(
        outer,
        tuple(sorted(path for path in listed - read if not known.intersection(path.parents))),
        tuple(sorted({path for part in parts for path in part.names})),
    )
