"""The bytes of a local store, by area and content: `<area>/objects/<ab>/<sha256>`.

A file comes in under a name of its own, is written to the disk's surface, and only then gets its place
by a rename, so what is found at a place is whole. Equal content of one area is stored once; between
areas nothing is shared, not even the knowledge that somebody has the same file.

Who writes a file that comes in holds a lock on it. The kernel drops the lock with the process, so what
a killed writer left is told from what is still being written, at once and whatever its age.

Source: fsync(2), rename(2), flock(2).
"""

import contextlib
import errno
import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from runner.store.content import chunks
from runner.store.damage import NOT_WHAT_WAS_PUT
from runner.store.local.row import Bytes
from runner.store.sources import digest_of
from runner.system import locks
from runner.system.openat import ficlone
from runner.system.state_files import sync_folder

__all__ = ["Incoming", "Objects"]

_ATTEMPTS = 8
# No file system in use has smaller holes.
_BLOCK_BYTES = 4096
_NOTHING = bytes(_BLOCK_BYTES)
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """A file that has come in and has no place yet.

    Attributes:
        path: Where it is.
        sha256: Hex digest of its bytes.
        size: Its length in bytes.
    """

    path: Path
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Objects:
    """All stored bytes.

    Attributes:
        root: The folder of the store.
    """

    root: Path

    @contextmanager
    def receive(self, area: str, source: int | bytes) -> Iterator[Incoming]:
        """Take a file in; unless it is given a place within the block, it is gone afterwards.

        Args:
            area: Where it will belong.
            source: The bytes, or a descriptor of a regular file, read from its start wherever it stands.

        Raises:
            OSError: The file cannot be read or written.
        """
        folder = self.root / area / "incoming"
        _make_folder(folder)
        path, fd = _locked_file(folder)
        try:
            digest, size = _fill(fd, source)
            os.fsync(fd)
            yield Incoming(path=path, sha256=digest, size=size)
        finally:
            # Before the lock goes with the descriptor: nobody else is to wonder what this is.
            path.unlink(missing_ok=True)
            os.close(fd)

    def place(self, area: str, incoming: Incoming) -> None:
        """Give a file that came in its place."""
        target = self._path(area, incoming.sha256)
        _make_folder(target.parent)
        incoming.path.rename(target)
        sync_folder(target.parent)

    def open(self, area: str, sha256: str) -> int:
        """Return a descriptor of a stored file, open for reading.

        Raises:
            OSError: It is not there, or cannot be read.
        """
        return os.open(self._path(area, sha256), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def delete(self, area: str, sha256: str) -> None:
        """Delete a stored file, if it is there."""
        self._path(area, sha256).unlink(missing_ok=True)

    def problem(self, content: Bytes) -> str | None:
        """Read a stored file; return what is wrong with it, as a clause, or None."""
        try:
            fd = self.open(content.area, content.sha256)
        except FileNotFoundError:
            return "its bytes are missing"
        except OSError as error:
            return f"its bytes cannot be read: {error.strerror}"
        try:
            digest, size = digest_of(fd)
        except OSError as error:
            return f"its bytes cannot be read: {error.strerror}"
        finally:
            os.close(fd)
        if size != content.size:
            return f"{size} of its {content.size} bytes are there"
        return None if digest == content.sha256 else NOT_WHAT_WAS_PUT

    def stored(self, area: str | None = None) -> Iterator[Bytes]:
        """Yield each stored file, or those of one area."""
        folder, below = (self.root, "*/*/") if area is None else (self.root / area, "")
        for path in folder.glob(f"{below}objects/??/*"):
            with contextlib.suppress(FileNotFoundError):
                found = str(path.parents[2].relative_to(self.root))
                yield Bytes(area=found, sha256=path.name, size=path.lstat().st_size)

    def areas(self) -> Iterator[str]:
        """Yield each area that there is."""
        for path in sorted(self.root.glob("*/*")):
            if path.is_dir() and not path.is_symlink():
                yield str(path.relative_to(self.root))

    def has(self, area: str, sha256: str, *, apart: bool = False) -> bool:
        """Say whether a file is stored; `apart`: or in quarantine."""
        return self._path(area, sha256).exists() or (apart and self._apart(area, sha256).exists())

    def set_apart(self, area: str, sha256: str) -> None:
        """Move a stored file to the quarantine of its area: nobody knows any more what it is.

        Raises:
            OSError: It cannot be moved.
        """
        target = self._apart(area, sha256)
        _make_folder(target.parent)
        source = self._path(area, sha256)
        # Named twice for a moment, and never by no name.
        with contextlib.suppress(FileExistsError):
            target.hardlink_to(source)
        sync_folder(target.parent)
        source.unlink()

    def bring_back(self, area: str, sha256: str) -> bool:
        """Give a file of the quarantine its place again; say whether it was there.

        Raises:
            OSError: It cannot be moved.
        """
        source, target = self._apart(area, sha256), self._path(area, sha256)
        if not source.exists():
            return False
        _make_folder(target.parent)
        source.rename(target)
        sync_folder(target.parent)
        return True

    def apart(self) -> Iterator[Bytes]:
        """Yield each file in quarantine."""
        for path in sorted(self.root.glob("*/*/quarantine/*")):
            with contextlib.suppress(FileNotFoundError):
                area = str(path.parents[1].relative_to(self.root))
                yield Bytes(area=area, sha256=path.name, size=path.lstat().st_size)

    def sweep(self) -> Iterator[tuple[Path, int]]:
        """Delete what writers that died left behind; yield where each was and its length."""
        for path in self.root.glob("*/*/incoming/*"):
            with contextlib.suppress(OSError):
                fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                try:
                    if locks.try_lock(fd):
                        path.unlink()
                        yield path, os.fstat(fd).st_size
                finally:
                    os.close(fd)

    def _apart(self, area: str, sha256: str) -> Path:
        return self.root / area / "quarantine" / sha256

    def _path(self, area: str, sha256: str) -> Path:
        return self.root / area / "objects" / sha256[:2] / sha256


def _locked_file(folder: Path) -> tuple[Path, int]:
    """Make a file that no sweep takes for a left-over."""
    for _attempt in range(_ATTEMPTS):
        path = folder / secrets.token_hex(16)
        fd = os.open(path, _NEW, 0o600)
        # A sweep may lock it and remove it between our open and our lock.
        locks.wait_for(fd)
        if locks.is_linked(fd):
            return path, fd
        os.close(fd)
    raise OSError(f"something keeps removing new files from {folder}")


def _fill(target: int, source: int | bytes) -> tuple[str, int]:
    """Copy the source; return digest and length of what was written."""
    digest = hashlib.sha256()
    # A clone is hashed, not its source: that one may change while it is read.
    shared = isinstance(source, int) and ficlone(source, target)
    if isinstance(source, int) and not shared:
        _check_room(source, target)
    read = chunks(target if shared else source) if isinstance(source, int) else iter([source])
    write = _write_with_holes if isinstance(source, int) and _has_holes(source) else _write
    size = 0
    for chunk in read:
        digest.update(chunk)
        size += len(chunk)
        if not shared:
            write(target, chunk)
    if not shared:
        os.ftruncate(target, size)
    return digest.hexdigest(), size


def _check_room(source: int, target: int) -> None:
    """Refuse a copy that does not fit, before it has taken from everybody what is left of the disk."""
    status, disk = os.fstat(source), os.fstatvfs(target)
    if min(status.st_size, status.st_blocks * 512) > disk.f_bavail * disk.f_frsize:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _has_holes(fd: int) -> bool:
    status = os.fstat(fd)
    return status.st_blocks * 512 < status.st_size


def _write_with_holes(fd: int, chunk: bytes) -> None:
    """Write a chunk, with holes where it is zero: a file takes no more of the disk than where it was made.

    Whoever makes a file of terabytes in which nothing is would else fill the disk for everybody.
    """
    if chunk == bytes(len(chunk)):
        os.lseek(fd, len(chunk), os.SEEK_CUR)
        return
    for start in range(0, len(chunk), _BLOCK_BYTES):
        block = chunk[start : start + _BLOCK_BYTES]
        if block == _NOTHING[: len(block)]:
            os.lseek(fd, len(block), os.SEEK_CUR)
        else:
            _write(fd, block)


def _write(fd: int, chunk: bytes) -> None:
    left = memoryview(chunk)
    while left:
        left = left[os.write(fd, left) :]


def _make_folder(folder: Path) -> None:
    """Make a folder and those above it, ours alone, so that they survive a power cut."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    sync_folder(folder.parent)
