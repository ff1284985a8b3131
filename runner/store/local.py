"""My Files on the local disk: every user's files, by name, found again whole or not at all.

The bytes are in `runner.store.objects`, their names in `runner.store.index`. A file gets its place and
its row in one transaction of the index, whose lock also keeps a removal from deleting bytes that
another process is just about to refer to. Whatever is interrupted leaves at most bytes without a row.

Source: requirements S1-9, S1-20, S1-27, S1-74; architecture, decision "Retention".
"""

import contextlib
import difflib
import enum
import errno
import os
import sqlite3
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from runner.errors import CallError, Code
from runner.filenames import safe_name
from runner.mime import guess
from runner.store.index import Index, Row
from runner.store.objects import Objects
from runner.usernames import home_segment

__all__ = ["LocalStore", "Origin", "StoredFile"]

_NEAREST = 3


class Origin(enum.Enum):
    """Where a file came from."""

    UPLOADED = "uploaded"
    GENERATED = "generated"
    DEFERRED = "deferred"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """One file of a user.

    Attributes:
        user: The user's name.
        name: Its name, safe and unique among the user's files.
        id: `art_` and the first digits of its digest; equal content of one user has one id.
        size: Its length in bytes.
        sha256: Hex digest of its bytes.
        mime: MIME type, as given or as its name suggests.
        origin: Where it came from.
        created: When it was last put.
    """

    user: str
    name: str
    id: str
    size: int
    sha256: str
    mime: str
    origin: Origin
    created: datetime

    @property
    def s3_key(self) -> str:
        """Return its key in an object store: `{user}/artifacts/{YYYYMMDD}/{name}`."""
        return f"{home_segment(self.user)}/artifacts/{self.created:%Y%m%d}/{self.name}"


@dataclass(frozen=True, slots=True)
class LocalStore:
    """The files of all users. Any number of processes and threads may have the same.

    Attributes:
        root: The folder of the store; made on first use.
    """

    root: Path

    def put_file(
        self,
        user: str,
        source: int | Path,
        *,
        name: str,
        mime: str | None = None,
        origin: Origin,
        now: datetime | None = None,
    ) -> StoredFile:
        """Keep a file under the safe form of `name`, with a number where other content has that name.

        Args:
            user: Whose file it is.
            source: The file, or a descriptor of it, which is read from its start and stays the caller's.
            name: Its name, as anyone may have written it.
            mime: Its MIME type; by default what the name suggests.
            origin: Where it comes from.
            now: The present time; by default the clock's.

        Raises:
            OSError: The source is no regular file or cannot be opened.
            CallError: `E_STORE` or `E_QUOTA`; nothing was kept.
        """
        with _opened(source) as fd:
            return self._put(user, fd, name=name, mime=mime, origin=origin, now=now)

    def put_bytes(
        self,
        user: str,
        content: bytes,
        *,
        name: str,
        mime: str | None = None,
        origin: Origin,
        now: datetime | None = None,
    ) -> StoredFile:
        """Keep bytes as a file; all else as `put_file`.

        Raises:
            CallError: `E_STORE` or `E_QUOTA`; nothing was kept.
        """
        return self._put(user, content, name=name, mime=mime, origin=origin, now=now)

    def put_artifact(self, user: str, fd: int, *, name: str, mime: str | None, now: datetime) -> StoredFile:
        """Keep a file that a tool made; all else as `put_file`.

        Raises:
            CallError: `E_STORE` or `E_QUOTA`; nothing was kept.
        """
        return self._put(user, fd, name=name, mime=mime, origin=Origin.GENERATED, now=now)

    def find(self, user: str, name: str) -> StoredFile | None:
        """Return the user's file of that name or, since every stored name is safe, of its safe form."""
        safe = safe_name(name)
        # The safe form of what holds no letter and no digit is made up: nobody asked for that name.
        if safe != name and not any(map(str.isalnum, name)):
            return None
        with _as_call_errors(), self._index.read() as rows:
            row = rows.named(home_segment(user), safe)
        return None if row is None else _file(user, row)

    def by_id(self, user: str, artifact_id: str) -> StoredFile | None:
        """Return the user's file of that id."""
        if not artifact_id.isascii():
            return None
        with _as_call_errors(), self._index.read() as rows:
            row = rows.with_id(home_segment(user), artifact_id)
        return None if row is None else _file(user, row)

    def list_files(self, user: str) -> tuple[StoredFile, ...]:
        """Return all files of a user, by name."""
        with _as_call_errors(), self._index.read() as rows:
            return tuple(_file(user, row) for row in rows.of(home_segment(user)))

    def nearest(self, user: str, name: str) -> list[str]:
        """Return the user's file names most like `name`, the best first."""
        names = [file.name for file in self.list_files(user)]
        return difflib.get_close_matches(safe_name(name), names, _NEAREST)

    def open(self, file: StoredFile) -> int:
        """Return a descriptor of a file's bytes, open for reading.

        Raises:
            CallError: `E_STORE`: the bytes are gone or damaged.
        """
        try:
            fd = self._objects.open(home_segment(file.user), file.sha256)
        except FileNotFoundError as error:
            raise _damaged(file, "its bytes are missing from the store") from error
        except OSError as error:
            raise _damaged(file, f"its bytes cannot be read: {error.strerror}") from error
        size = os.fstat(fd).st_size
        if size != file.size:
            os.close(fd)
            raise _damaged(file, f"the store holds {size} bytes of its {file.size}")
        return fd

    def remove(self, user: str, name: str) -> bool:
        """Remove a file by its exact name; say whether there was one."""
        if safe_name(name) != name:
            return False
        segment = home_segment(user)
        with _as_call_errors():
            with self._index.change() as rows:
                row = rows.remove(segment, name)
            if row is None:
                return False
            # Only when the row is gone for good. Interrupted here, bytes stay that nothing refers to.
            self._drop(segment, row.sha256)
        return True

    def sweep(self) -> int:
        """Delete what interrupted operations left behind; return how many files it was."""
        with _as_call_errors():
            dropped = sum(self._drop(segment, sha256) for segment, sha256 in self._objects.stored())
            return dropped + self._objects.sweep()

    def _put(
        self,
        user: str,
        source: int | bytes,
        *,
        name: str,
        mime: str | None,
        origin: Origin,
        now: datetime | None,
    ) -> StoredFile:
        segment = home_segment(user)
        safe = safe_name(name)
        with (
            _as_call_errors(),
            self._objects.receive(segment, source) as incoming,
            self._index.change() as rows,
        ):
            row = rows.add(
                segment,
                safe,
                size=incoming.size,
                sha256=incoming.sha256,
                mime=mime or guess(safe),
                origin=origin.value,
                created=(now or datetime.now(UTC)).timestamp(),
            )
            self._objects.place(segment, incoming)
        return _file(user, row)

    def _drop(self, segment: str, sha256: str) -> bool:
        """Delete bytes unless a row refers to them. Within a change, so that none can come to do so."""
        with self._index.change() as rows:
            if rows.refers_to(segment, sha256):
                return False
            self._objects.delete(segment, sha256)
        return True

    @property
    def _index(self) -> Index:
        return Index(self.root / "index.sqlite")

    @property
    def _objects(self) -> Objects:
        return Objects(self.root)


def _file(user: str, row: Row) -> StoredFile:
    return StoredFile(
        user=user,
        name=row.name,
        id=row.id,
        size=row.size,
        sha256=row.sha256,
        mime=row.mime,
        origin=Origin(row.origin),
        created=datetime.fromtimestamp(row.created, UTC),
    )


def _damaged(file: StoredFile, why: str) -> CallError:
    message = f"the file {file.name!r} is listed but {why}; remove it and put it again"
    return CallError(Code.E_STORE, message, details={"name": file.name, "id": file.id}, retryable=False)


@contextlib.contextmanager
def _opened(source: int | Path) -> Iterator[int]:
    if isinstance(source, int):
        yield _regular(source)
        return
    # Not blocking: a FIFO would wait for a writer before we could see that it is one.
    fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        yield _regular(fd)
    finally:
        os.close(fd)


def _regular(fd: int) -> int:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    return fd


@contextlib.contextmanager
def _as_call_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise CallError(Code.E_STORE, f"the index of My Files cannot be used: {error}") from error
    except OSError as error:
        if error.errno == errno.EDQUOT:
            raise CallError(Code.E_QUOTA, "the disk quota is used up; remove files and try again") from error
        raise CallError(Code.E_STORE, f"My Files cannot be used: {error.strerror}") from error
