"""The bytes of My Files on disk, by user and content: `users/<segment>/objects/<ab>/<sha256>`.

A file comes in under a name of its own, is written to the disk's surface, and only then gets its place
by a rename, so what is found at a place is whole. Equal content of one user is stored once; between
users nothing is shared, not even the knowledge that somebody has the same file.

Source: fsync(2), rename(2).
"""

import contextlib
import hashlib
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from runner.openat import ficlone

__all__ = ["Incoming", "Objects"]

_CHUNK_BYTES = 1024 * 1024
# No writer needs a day, so what is older was left by one that died.
_STALE_S = 24 * 3600.0


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
    def receive(self, segment: str, source: int | bytes) -> Iterator[Incoming]:
        """Take a file in; unless it is given a place within the block, it is gone afterwards.

        Args:
            segment: The user's segment.
            source: The bytes, or a descriptor of a regular file, read from its start wherever it stands.

        Raises:
            OSError: The file cannot be read or written.
        """
        folder = self.root / "users" / segment / "incoming"
        _make_folder(folder)
        path = folder / secrets.token_hex(16)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            try:
                digest, size = _fill(fd, source)
                os.fsync(fd)
            finally:
                os.close(fd)
            yield Incoming(path=path, sha256=digest, size=size)
        finally:
            path.unlink(missing_ok=True)

    def place(self, segment: str, incoming: Incoming) -> None:
        """Give a file that came in its place."""
        target = self._path(segment, incoming.sha256)
        _make_folder(target.parent)
        incoming.path.rename(target)
        _sync_folder(target.parent)

    def open(self, segment: str, sha256: str) -> int:
        """Return a descriptor of a stored file, open for reading.

        Raises:
            OSError: It is not there, or cannot be read.
        """
        return os.open(self._path(segment, sha256), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def delete(self, segment: str, sha256: str) -> None:
        """Delete a stored file, if it is there."""
        self._path(segment, sha256).unlink(missing_ok=True)

    def stored(self) -> Iterator[tuple[str, str]]:
        """Yield segment and digest of each stored file."""
        for path in self.root.glob("users/*/objects/??/*"):
            yield path.parents[2].name, path.name

    def sweep(self) -> int:
        """Delete what writers that died left behind; return how many files it was."""
        swept = 0
        for path in self.root.glob("users/*/incoming/*"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.lstat().st_mtime > _STALE_S:
                    path.unlink()
                    swept += 1
        return swept

    def _path(self, segment: str, sha256: str) -> Path:
        return self.root / "users" / segment / "objects" / sha256[:2] / sha256


def _fill(target: int, source: int | bytes) -> tuple[str, int]:
    """Copy the source; return digest and length of what was written."""
    digest = hashlib.sha256()
    # A clone is hashed, not its source: that one may change while it is read.
    shared = isinstance(source, int) and ficlone(source, target)
    chunks = _chunks(target if shared else source)
    size = 0
    for chunk in chunks:
        digest.update(chunk)
        size += len(chunk)
        if not shared:
            _write(target, chunk)
    return digest.hexdigest(), size


def _chunks(source: int | bytes) -> Iterator[bytes | memoryview]:
    if isinstance(source, bytes):
        yield memoryview(source)
        return
    position = 0
    while chunk := os.pread(source, _CHUNK_BYTES, position):
        yield chunk
        position += len(chunk)


def _write(fd: int, chunk: bytes | memoryview) -> None:
    left = memoryview(chunk)
    while left:
        left = left[os.write(fd, left) :]


def _make_folder(folder: Path) -> None:
    """Make a folder and those above it, ours alone, so that they survive a power cut."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
