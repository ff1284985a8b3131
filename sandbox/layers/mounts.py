"""Layer `namespaces`, its files: a zygote's view of the file system.

System folders stay in place, read-only. Each folder that holds homes, state or other users' files is covered
by an empty one, in which only paths named by the policy are mounted back: the home, the scratch folder and
lent folders writable, the rest read-only. So the parent folders are new too, and their restrictive modes do
not keep a zygote with another user id from readable paths below them.

Others may be writing in a lent folder, and may create links anywhere in it. So sources, mount points and
writable mounts are identified by descriptors, opened without following any link.

Call it in a new mount namespace, in the first process of a new pid namespace.

Source: mount_namespaces(7), mount(2), mount_setattr(2), open_tree(2), move_mount(2); bubblewrap's way.
"""

import contextlib
import errno
import itertools
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sandbox.layers import proc
from sandbox.policy import Policy
from sandbox.readable import OF_OTHERS
from sandbox.syscalls import (
    AT_FDCWD,
    MS_BIND,
    MS_NODEV,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
    MountAttribute,
    Resolve,
    mount,
    mount_setattr,
    move_mount,
    open_tree,
    openat2,
)

__all__ = ["SHARED_MEMORY", "MountView", "apply", "view_of"]

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - its place, in a view of its own
"""Folder of POSIX semaphores and shared memory."""

_HANDLE = os.O_PATH | os.O_CLOEXEC
_CLOSED = MountAttribute.READ_ONLY | MountAttribute.NO_SUID
_HARMLESS = MountAttribute.NO_SUID | MountAttribute.NO_DEVICES
_MOST_LINKS = 40
_MOST_ENTRIES = 4096
_MOST_SHARED_NAMES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class MountView:
    """Plan of the file system, by paths without links.

    Attributes:
        covered: Folders to cover with an empty one.
        blanked: Files to hide.
        mounted_back: Paths to mount again beneath the covered folders.
        made: Folders to create there, for listings.
        links: Symbolic links to create there, with their targets.
    """

    covered: tuple[Path, ...]
    blanked: tuple[Path, ...]
    mounted_back: tuple[Path, ...]
    made: tuple[Path, ...]
    links: tuple[tuple[Path, str], ...]


def apply(policy: Policy, *, home: int | None) -> int | None:
    """Set up the file system view of the policy.

    Args:
        policy: What may be touched.
        home: Descriptor of the home, from outside; closed here, since its parent is outside.

    Returns:
        A descriptor of the home as it is mounted here.

    Raises:
        OSError: A mount failed, or the path of the home leads to another folder by now.
    """
    view = view_of(policy)
    lent = _writable_beneath(policy.lent_write)
    mount(None, "/", flags=MS_REC | MS_PRIVATE)
    sources = list(_handles(view.mounted_back))
    for path in view.covered:
        mount("tmpfs", str(path), kind="tmpfs", flags=MS_NOSUID | MS_NODEV, data=_tmpfs_options(path, policy))
    for path in view.made:
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
    mounted = {path: tree for path, source in sources if (tree := _mount_back(path, source)) is not None}
    for path, text in view.links:
        _link(path, text)
    for path in view.blanked:
        mount("/dev/null", str(path), flags=MS_BIND)
    proc.mount_own()
    mount_setattr("/", add=_CLOSED, recursive=True)
    for writable in policy.own_folders:
        mount_setattr(
            os.path.realpath(writable),
            add=_HARMLESS,
            remove=MountAttribute.READ_ONLY,
        )
    if policy.shared_memory_bytes and SHARED_MEMORY in view.covered:
        # Workers of this zygote write only data there.
        add = _HARMLESS | MountAttribute.NO_EXECUTION
        mount_setattr(str(SHARED_MEMORY), add=add, remove=MountAttribute.READ_ONLY)
    _open_lent(lent, mounted)
    for tree in mounted.values():
        os.close(tree)
    return None if home is None else _entered(policy, home)


def view_of(policy: Policy) -> MountView:
    """Compute the view; reads the file system and changes nothing."""
    # Lent paths are not resolved: if a component is a link by now, its target was not granted.
    visible = {*policy.read, *map(_real, policy.own_folders)}
    lent = {*policy.lent_read, *policy.lent_write}
    # Paths beneath a writable one need no read-only mount, since they are readable already.
    visible = {path for path in visible if not _beneath(path, policy.lent_write)}
    visible = {path for path in visible | lent if _is_there(path)}
    covers = {_real(path) for path in (*map(Path, OF_OTHERS), *policy.homes, *policy.hidden)}
    if policy.uid is not None:
        covers |= {folder for path in visible for folder in _closed_above(path, policy.uid)}
    covered = _topmost(path for path in covers if path.is_dir() and path not in visible)
    shown = {path for path in visible if _beneath(path, covered)}
    for path in policy.own_folders:
        # Mounted separately too, since it needs its own mount to be writable within the read-only rest.
        shown.add(_real(path))
    shown |= visible & set(policy.lent_write)
    return MountView(
        covered=covered,
        blanked=tuple(sorted(p for p in covers if p.is_file() and not _beneath(p, covered))),
        mounted_back=tuple(sorted(shown)),
        made=tuple(sorted(path for path in policy.list_only if _beneath(path, covered) and path.is_dir())),
        links=tuple(sorted({*_links_beneath(policy, covered, visible), *_aliases(policy, covered)})),
    )


def _tmpfs_options(path: Path, policy: Policy) -> str:
    """Return the tmpfs options of a covered folder: tiny, except for shared memory."""
    if path == SHARED_MEMORY and policy.shared_memory_bytes:
        # An empty file takes memory too, which `size` does not count.
        return f"size={policy.shared_memory_bytes},nr_inodes={_MOST_SHARED_NAMES},mode=1777"
    return "size=64k,mode=0755"


def _handles(paths: Iterable[Path]) -> Iterator[tuple[Path, int]]:
    """Open paths; skip those removed meanwhile, since a missing path need not be mounted.

    Home and scratch folder are checked again once everything is mounted.
    """
    for path in paths:
        handle = _opened(path)
        if handle is not None:
            yield path, handle


def _opened(path: Path, *, below: int = AT_FDCWD) -> int | None:
    """Open a path without following links; None if it does not exist or a component is a link.

    A process that may write in a lent folder can replace a component of a path lent below it by a link.
    """
    try:
        return openat2(str(path), _HANDLE, directory=below, resolve=Resolve.NO_SYMLINKS)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR):
            return None
        raise


def _writable_beneath(folders: Iterable[Path]) -> tuple[Path, ...]:
    """Return the writable mounts of lent folders and beneath them. Call it before any changes.

    Mounts that the operator made read-only stay read-only, even if lent.
    """
    found: dict[Path, None] = {}
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
        points = [line.split()[4:6] for line in mounts]
    named = [(Path(_unescaped(point)), options.split(",")) for point, options in points]
    for folder in folders:
        with contextlib.suppress(OSError):
            if not os.statvfs(folder).f_flag & os.ST_RDONLY:
                found[folder] = None
        found |= {point: None for point, options in named if folder in point.parents and "rw" in options}
    return tuple(found)


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), text)


def _open_lent(writable: Iterable[Path], mounted: Mapping[Path, int]) -> None:
    """Make lent folders writable, with the mounts beneath them."""
    for path in writable:
        above = next((one for one in (path, *path.parents) if one in mounted), None)
        if above is not None:
            _open_mount(mounted[above], path.relative_to(above))


def _open_mount(tree: int, below: Path) -> None:
    """Make a mount writable, if it is still at that path below another."""
    handle = tree if below == Path() else _opened(below, below=tree)
    if handle is None:
        return
    try:
        mount_setattr(handle, add=_HARMLESS, remove=MountAttribute.READ_ONLY)
    except OSError as error:
        # EINVAL: that path is not a mount point any more.
        if error.errno != errno.EINVAL:
            raise
    finally:
        if handle != tree:
            os.close(handle)


def _mount_back(path: Path, source: int) -> int | None:
    """Mount a source at its path again; return the mount, or None if a component is a link by now."""
    target = _place(path, is_folder=stat.S_ISDIR(os.fstat(source).st_mode))
    try:
        if target is None:
            return None
        # Includes all mounts below: an unprivileged namespace may not separate them.
        tree = open_tree(source)
        # Before the move, so that mount points created for other paths cannot end up in the folder itself.
        mount_setattr(tree, add=_CLOSED, recursive=True)
        move_mount(tree, target)
        return tree
    finally:
        os.close(source)
        if target is not None:
            os.close(target)


def _place(path: Path, *, is_folder: bool) -> int | None:
    """Return a descriptor of a mount point, which is created if it does not exist; None if it cannot be."""
    try:
        if is_folder:
            path.mkdir(mode=0o755, parents=True, exist_ok=True)
        elif not path.exists():
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            path.touch(mode=0o644)
    except FileExistsError:
        # The path is a dangling link, or a file.
        return None
    return _opened(path)


def _link(path: Path, text: str) -> None:
    # It exists already if its folder was mounted back as a whole.
    if not os.path.lexists(path):
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.symlink_to(text)


def _entered(policy: Policy, outside: int) -> int:
    inside = os.open(os.path.realpath(str(policy.home)), _HANDLE | os.O_DIRECTORY | os.O_NOFOLLOW)
    if not os.path.samestat(os.fstat(inside), os.fstat(outside)):
        raise OSError(errno.ESTALE, f"{policy.home} is another folder than the one that was made for it")
    os.close(outside)
    return inside


def _links_beneath(policy: Policy, covered: tuple[Path, ...], shown: set[Path]) -> Iterator[tuple[Path, str]]:
    named = (*policy.names, *policy.own_folders)
    beside = (link for folder in {path.parent for path in policy.names} for link in _links_in(folder))
    # As in a Kubernetes ConfigMap: the files beside a tool file are links, like the tool file itself.
    named += tuple(link for link in beside if (real := _real(link)) in shown or _beneath(real, tuple(shown)))
    interpreter = (sys.executable, sys.prefix, sys.base_prefix, *filter(None, sys.path))
    for path in (*named, *map(Path, interpreter)):
        yield from (link for link in _links(path) if _beneath(link[0], covered))


def _links_in(folder: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in itertools.islice(entries, _MOST_ENTRIES):
            if entry.is_symlink():
                yield Path(entry.path)


def _aliases(policy: Policy, covered: tuple[Path, ...]) -> Iterator[tuple[Path, str]]:
    """Yield links from other names of the home, within covered folders."""
    for alias in policy.aliases:
        if _beneath(alias, covered):
            yield alias, str(policy.home)


def _links(path: Path) -> Iterator[tuple[Path, str]]:
    """Yield each symbolic link in a path, with its target."""
    at, ahead = "/", list(path.absolute().parts[1:])
    for _step in range(_MOST_LINKS * len(ahead) + 1):
        if not ahead:
            return
        here = os.path.normpath(os.path.join(at, ahead.pop(0)))
        if not os.path.islink(here):
            at = here
            continue
        text = os.readlink(here)
        yield Path(here), text
        at = "/" if text.startswith("/") else at
        ahead = [part for part in text.split("/") if part] + ahead


def _closed_above(path: Path, uid: int) -> Iterator[Path]:
    """Yield the parent folders of a path that this user and group id may not search."""
    for folder in path.parents:
        try:
            found = folder.stat()
        except FileNotFoundError:
            # Removed meanwhile.
            continue
        others = stat.S_IXGRP if found.st_gid == uid else stat.S_IXOTH
        if not found.st_mode & (stat.S_IXUSR if found.st_uid == uid else others):
            yield folder


def _topmost(paths: Iterable[Path]) -> tuple[Path, ...]:
    found = set(paths)
    return tuple(sorted(path for path in found if not found.intersection(path.parents)))


def _beneath(path: Path, tops: tuple[Path, ...]) -> bool:
    return any(top in path.parents for top in tops)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except PermissionError:
        # An inaccessible path could not be read either, so it is treated as missing.
        return False


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))
