"""Blobs below a folder of this machine: one file each, whose name never leads to a partial file.

    users/{user}/records/…        records, see `runner.store.entries`
    users/{user}/objects/{token}  the bytes of artifacts
    users/{user}/incoming/…       bytes and records being written
    users/{user}/removed/{token}  records whose bytes are about to be deleted

A writer of bytes holds a lock on them. The kernel releases it with the process, so a sweep distinguishes the
bytes of a killed writer from those of a slow one at once. Bytes are placed by a second link, and lose the
first when their record is written: an unlocked file in `incoming` was never acknowledged.

Source: fsync(2), link(2), rename(2), flock(2), utimensat(2).
"""

import contextlib
import errno
import hashlib
import os
import secrets
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from runner.store.blobs import Blob, Blobs, Incoming, OrphanNote
from runner.store.content import FileContent, damaged
from runner.store.entries import DamagedEntry, Entry
from runner.store.local.conversion import convert, is_old
from runner.store.protocol import Put, Scope
from runner.store.sources import chunks, write_all, writer_for
from runner.system import locks
from runner.system.openat import ficlone
from runner.system.state_files import sync_folder

__all__ = ["LocalBlobs"]

_ATTEMPTS = 8
_BUSY_S = 30.0
_LOOK_S = 0.01
_TRIAL_BYTES = 64 * 1024
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


class LocalBlobs(Blobs):
    """Blobs below `root`, which is created on first use, accessible to its owner only."""

    shares = True

    def __init__(self, root: Path) -> None:
        self.root = root
        self._is_converted = False

    def areas(self) -> list[str]:
        """Return the prefixes of all areas."""
        if self.root.exists() and not self.root.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        tops = [self.root / top for top in ("users", "scopes")]
        folders = [folder for top in tops if top.is_dir() for folder in sorted(top.iterdir())]
        return [f"{f.parent.name}/{f.name}/" for f in folders if f.is_dir() and not f.is_symlink()]

    @contextmanager
    def exclusive(self, area: str) -> Iterator[None]:
        """Lock out other writers of an area, in this process and others.

        Raises:
            OSError: Another process has held it for half a minute.
        """
        folder = self.root / area
        _make_folder(folder)
        # The folder is the lock, since a separate lock file could be removed by itself.
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            end = time.monotonic() + _BUSY_S
            while not locks.try_lock(fd):
                if time.monotonic() > end:
                    raise OSError(errno.EBUSY, f"another process has held a folder for {_BUSY_S:.0f} s")
                time.sleep(_LOOK_S)
            yield
        finally:
            locks.let_go(fd)

    def version(self, area: str) -> tuple[tuple[str, int], ...]:
        """Return the times of the folders that hold records, in nanoseconds; each change sets one."""
        found: list[tuple[str, int]] = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self._path(f"{area}records")) as sessions:
            for session in sessions:
                for kind in ("files", "observations"):
                    path = f"{session.path}/{kind}"
                    with contextlib.suppress(FileNotFoundError):
                        found.append((path, os.stat(path).st_mtime_ns))
        return tuple(sorted(found))

    @contextmanager
    def receive(self, area: str, source: int | bytes, about: Put, scope: Scope) -> Iterator[Incoming]:
        """Receive bytes, and sync them to disk; they are removed at the end unless they were placed."""
        folder = self.root / area / "incoming"
        _make_folder(folder)
        path, fd = _locked_file(folder)
        placed = self.root / area / "objects" / path.name

        def place() -> None:
            if not incoming.is_placed:
                incoming.is_placed = True
                _make_folder(placed.parent)
                os.link(path, placed)
                sync_folder(placed.parent)

        is_over = False
        try:
            digest, size = _fill(fd, source)
            os.fsync(fd)
            incoming = Incoming(key=f"{area}objects/{path.name}", sha256=digest, size=size, place=place)
            yield incoming
            is_over = True
        finally:
            # Before the descriptor, and so the lock, is closed: no sweep may take the file for a leftover.
            # After a put that failed with its bytes in place, the sweep looks for a record.
            if is_over or not placed.exists():
                path.unlink(missing_ok=True)
            os.close(fd)

    def put(
        self,
        key: str,
        content: bytes,
        *,
        if_absent: bool = False,
        if_match: str | None = None,
        durable: bool = True,
    ) -> Blob | None:
        """Write a small blob atomically and, if `durable`, durably. Call it within `exclusive`."""
        target = self._path(key)
        area = self.root.joinpath(*key.split("/")[:2])
        for folder in (target.parent, area / "incoming"):
            _make_folder(folder)
        new = area / "incoming" / f"{secrets.token_hex(16)}.json"
        fd = os.open(new, _NEW, 0o600)
        try:
            write_all(fd, content)
            if durable:
                os.fsync(fd)
            if if_absent:
                os.link(new, target)
            else:
                new.rename(target)
            found = os.fstat(fd)
        except FileExistsError:
            return None
        finally:
            os.close(fd)
            new.unlink(missing_ok=True)
        _changed(target.parent, durable=durable)
        return _blob(key, found)

    def get(self, key: str) -> tuple[bytes, str] | None:
        """Return a small blob and its etag."""
        try:
            fd = os.open(self._path(key), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            # No blob has a name that is too long.
            if error.errno == errno.ENAMETOOLONG:
                return None
            raise
        with open(fd, "rb", buffering=0) as file:
            return file.readall(), _blob(key, os.fstat(fd)).etag

    @contextmanager
    def content(self, entry: Entry, start: int, end: int) -> Iterator[FileContent]:
        """Open the bytes of a record, or a range of them."""
        record = entry.record
        try:
            fd = os.open(self._path(entry.blob), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise damaged(record, f"its bytes cannot be read: {error.strerror}") from error
        try:
            size = os.fstat(fd).st_size
            if size != record.size:
                raise damaged(record, f"the store holds {size} bytes of its {record.size}")
            yield FileContent(fd=fd, start=start, end=end, record=record)
        finally:
            os.close(fd)

    def stat(self, key: str) -> int | None:
        """Return the length of a blob."""
        try:
            return self._path(key).lstat().st_size
        except FileNotFoundError:
            return None

    def scan(self, prefix: str) -> Iterable[Blob]:
        """Return the blobs of a prefix."""
        found: list[Blob] = []
        folders = [prefix.rstrip("/")]
        while folders:
            folder = folders.pop()
            with contextlib.suppress(FileNotFoundError), os.scandir(self._path(folder)) as entries:
                for each in entries:
                    key = f"{folder}/{each.name}"
                    if each.is_dir(follow_symlinks=False):
                        folders.append(key)
                        continue
                    with contextlib.suppress(FileNotFoundError):
                        found.append(_blob(key, each.stat(follow_symlinks=False)))
        return found

    def delete(self, key: str) -> None:
        """Delete a blob, if it is there."""
        self._path(key).unlink(missing_ok=True)

    def retire(self, entry: Entry) -> str | None:
        """Move a record to `removed`, durably, or delete it if there is no room for that."""
        path = self._path(entry.key)
        area = self.root.joinpath(*entry.key.split("/")[:2])
        note = f"{'/'.join(entry.key.split('/')[:2])}/removed/{secrets.token_hex(16)}"
        try:
            _make_folder(area / "removed")
            path.rename(self._path(note))
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            path.unlink(missing_ok=True)
        _changed(path.parent)
        if path.parent.parent.name != "all":
            # Thousands of sessions begin and end; `rmdir` refuses a folder that is not empty.
            with contextlib.suppress(OSError):
                path.parent.rmdir()
                path.parent.parent.rmdir()
        return note

    def leftovers(self, area: str) -> Iterable[OrphanNote]:
        """Yield leftovers of killed writers and removals."""
        for path in sorted(self._path(f"{area}removed").glob("*")):
            with contextlib.suppress(FileNotFoundError, DamagedEntry):
                yield OrphanNote(note=f"{area}removed/{path.name}", blob=Entry.read(path.read_bytes()).blob)
        for path in sorted(self._path(f"{area}incoming").glob("*")):
            with contextlib.suppress(OSError):
                fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                try:
                    # Records are written within `exclusive`, so their files have no lock of their own.
                    if path.suffix == ".json" or locks.try_lock(fd):
                        yield OrphanNote(
                            note=f"{area}incoming/{path.name}", blob=f"{area}objects/{path.name}"
                        )
                finally:
                    os.close(fd)

    def check(self) -> None:
        """Write a temporary file, and list the areas."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self.root) as file:
            file.write(bytes(_TRIAL_BYTES))
            file.flush()
        self.areas()

    def stored_bytes(self) -> int:
        """Return the length of all bytes of artifacts."""
        return sum(blob.size for area in self.areas() for blob in self.scan(f"{area}objects/"))

    def convert(self, prefix: str) -> None:
        """Convert the whole folder, once: detecting the earlier layout reads every area."""
        if not self._is_converted and is_old(self.root):
            convert(self.root, self, partial(self.put, durable=False))
        self._is_converted = True

    def _path(self, key: str) -> Path:
        # Keys are made of quoted parts; this catches a mistake there.
        if "\0" in key or not {"", ".", ".."}.isdisjoint(key.rstrip("/").split("/")):
            raise ValueError(f"not a key: {key!r}")
        return self.root / key


def _blob(key: str, found: os.stat_result) -> Blob:
    etag = f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"
    modified = datetime.fromtimestamp(found.st_mtime, UTC)
    return Blob(key=key, size=found.st_size, etag=etag, modified=modified)


def _changed(folder: Path, *, durable: bool = True) -> None:
    """Sync a changed folder to disk and give it a modification time that it never had before."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        now = time.time_ns()
        os.utime(fd, ns=(now, now))
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)


def _locked_file(folder: Path) -> tuple[Path, int]:
    """Create a locked file, which no sweep takes for a leftover."""
    for _attempt in range(_ATTEMPTS):
        path = folder / secrets.token_hex(16)
        fd = os.open(path, _NEW, 0o600)
        # A sweep may lock it and remove it between our open and our lock.
        locks.wait_for(fd)
        if locks.is_linked(fd):
            return path, fd
        os.close(fd)
    raise OSError(errno.EAGAIN, f"something keeps removing new files from {folder.name}")


def _fill(target: int, source: int | bytes) -> tuple[str, int]:
    """Copy the source; return digest and length of what was written."""
    digest = hashlib.sha256()
    # A clone is hashed, not its source, which may change while it is read.
    shared = isinstance(source, int) and ficlone(source, target)
    if isinstance(source, int) and not shared:
        _check_room(source, target)
    read = chunks(target if shared else source) if isinstance(source, int) else iter([source])
    write = writer_for(source) if isinstance(source, int) else write_all
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
    """Refuse a copy that does not fit, before it fills the disk for everybody."""
    status, disk = os.fstat(source), os.fstatvfs(target)
    if min(status.st_size, status.st_blocks * 512) > disk.f_bavail * disk.f_frsize:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _make_folder(folder: Path) -> None:
    """Create a folder and its parents, for their owner only, so that they survive a power cut."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    sync_folder(folder.parent)
