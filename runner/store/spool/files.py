"""Files that a store could not take, kept on this machine until it can.

Each is two files: the bytes, and beside them a note of what they are, whose, and when to try again. The
note is what makes it one, and is written when the bytes are on the disk's surface. Any number of
processes may share the folder; who sends a file on holds a lock on its bytes, and who changes a note
holds one on the folder. Of a file that was deleted the note stays until the store has let it go too.

Source: fsync(2), rename(2), flock(2).
"""

import contextlib
import errno
import logging
import os
import random
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from runner.formats.filenames import safe_name, unique_name
from runner.formats.mime import DEFAULT_MIME, guess
from runner.store.areas import place_of
from runner.store.damage import NOT_WHAT_WAS_PUT
from runner.store.protocol import Put, Record, Retention, Scope
from runner.store.retention import Quota, check_quota
from runner.store.sources import digest_of, write_all
from runner.system import locks
from runner.system.backoff import doubled_s
from runner.system.openat import ficlone
from runner.system.state_files import Damaged, holding, make_folder, open_regular, read_whole, sync_folder

__all__ = ["Spool", "SpooledFile", "delay_s", "is_same"]

_log = logging.getLogger(__name__)

_CHUNK_BYTES = 1024 * 1024
_FIRST_S = 2.0
_LONGEST_S = 600.0
_ID_DIGITS = 12
# No writer needs a day, so what is older was left by one that died.
_STALE_S = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpooledFile:
    """One file of the spool.

    Attributes:
        record: Its record, pending; its name may change when the store takes it.
        token: What it is known by.
        attempts: How often it was tried.
        due: When to try again.
        deleted: When its owner deleted it: what the store has of it is to go as well.
    """

    record: Record
    token: str
    attempts: int
    due: datetime
    deleted: datetime | None = None


_KEPT = TypeAdapter(SpooledFile)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Note:
    """What a note says; None where it is damaged, or may not be read.

    Attributes:
        mark: What tells it from another of its name: inode, time and length.
        says: What is kept.
    """

    mark: tuple[int, int, int]
    says: SpooledFile | None


def delay_s(attempts: int, chance: float) -> float:
    """Return how long to wait after so many attempts, in seconds.

    Args:
        attempts: How often it was tried, from 1.
        chance: From 0 to 1, so that hosts which failed together do not come back together.
    """
    return doubled_s(attempts, first_s=_FIRST_S, most_s=_LONGEST_S) * (0.5 + chance / 2)


@dataclass(frozen=True, slots=True)
class Spool:
    """The folder. All methods block.

    Attributes:
        folder: Where it is; made on first use, ours alone.
    """

    folder: Path
    # Notes as last read: after an hour without a store there are thousands, and each call looks at them.
    _known: dict[str, "_Note"] = field(default_factory=dict, init=False, repr=False, compare=False)

    def keep(
        self, source: int | bytes, about: Put, *, scope: Scope, now: datetime, quota: Quota | None = None
    ) -> Record:
        """Keep bytes, or a file from its start; return the pending record.

        The same content of the same owner under the same name is kept once.

        What the user's other files here take up counts against the quota.

        Raises:
            CallError: `E_QUOTA` or `E_FILE_TOO_LARGE`; nothing was kept.
            OSError: The disk failed or is full; nothing was kept.
        """
        make_folder(self.folder.parent, self.folder.name)
        named = about.retention is Retention.FILES or about.name is not None
        said = replace(about, name=safe_name(about.name or "") if named else None)
        token = secrets.token_hex(16)
        path = self.folder / f"{token}.new"
        try:
            _fill(path, source)
            with path.open("rb") as file:
                sha256, size = digest_of(file.fileno())
            with holding(self.folder):
                for each in self.all():
                    if _again(each.record, said, scope, sha256):
                        return each.record
                if said.retention is Retention.FILES:
                    check_quota(size, sum(self.sizes(scope, without=sha256).values()), quota or Quota())
                record = self._record(said, scope, now, sha256=sha256, size=size)
                path.rename(self._bytes(token))
                self._note(SpooledFile(record=record, token=token, attempts=0, due=now))
        finally:
            path.unlink(missing_ok=True)
        return record

    def sizes(self, scope: Scope, *, without: str = "") -> dict[str, int]:
        """Return the length of each content of a user's files that wait, by digest, but for one digest."""
        area = place_of(scope).area
        mine = (each.record for each in self.all() if place_of(each.record.scope).area == area)
        files = (record for record in mine if record.said.retention is Retention.FILES)
        return {record.sha256: record.size for record in files if record.sha256 != without}

    def all(self) -> list[SpooledFile]:
        """Return everything that is kept, the oldest first."""
        noted, names = self._noted()
        return [each for each in noted if each.deleted is None and self._bytes(each.token).name in names]

    def deleted(self) -> list[SpooledFile]:
        """Return what was deleted here and may still be in the store."""
        return [each for each in self._noted()[0] if each.deleted is not None]

    def open(self, kept: SpooledFile) -> int:
        """Return a descriptor of a kept file's bytes.

        Raises:
            FileNotFoundError: It is kept no longer.
        """
        try:
            return open_regular(self._bytes(kept.token))
        except Damaged as damage:
            raise FileNotFoundError(errno.ENOENT, str(damage)) from damage

    def problem(self, kept: SpooledFile) -> str | None:
        """Read a kept file; return what is wrong with it, as a clause, or None."""
        try:
            with open(self.open(kept), "rb") as file:
                found = digest_of(file.fileno())
        except FileNotFoundError:
            return "its bytes are missing" if self._is_kept(kept) else None
        except OSError as error:
            return f"its bytes cannot be read: {error.strerror}"
        return None if found == (kept.record.sha256, kept.record.size) else NOT_WHAT_WAS_PUT

    @contextmanager
    def sending(self, kept: SpooledFile) -> Iterator[int | None]:
        """Hold a kept file while it is sent; None where another process does, or it is gone."""
        try:
            fd = self.open(kept)
        except FileNotFoundError:
            yield None
            return
        try:
            # Whoever held it before may have sent it and let it go.
            yield fd if locks.try_lock(fd) and self._is_kept(kept) else None
        finally:
            os.close(fd)

    def failed(self, kept: SpooledFile, *, now: datetime) -> SpooledFile:
        """Note that sending or deleting a file failed, and when to try again."""
        wait_s = delay_s(kept.attempts + 1, random.random())  # noqa: S311 - no secret
        later = replace(kept, attempts=kept.attempts + 1, due=now + timedelta(seconds=wait_s))
        self.change(later)
        return later

    def change(self, kept: SpooledFile) -> None:
        """Note a change of what is said of a file, unless it is gone or was deleted meanwhile."""
        with holding(self.folder):
            present = self._read(self._json(kept.token))
            if present is not None and present.deleted == kept.deleted:
                self._note(kept)

    def sent(self, kept: SpooledFile) -> bool:
        """Let a file go that the store has now; say whether it was still wanted."""
        with holding(self.folder):
            # A note that is damaged does not say that the file was deleted.
            if not self._is_kept(kept) and not self._is_damaged(kept):
                return False
            self.forget(kept)
            return True

    def delete(self, kept: SpooledFile, *, now: datetime) -> SpooledFile:
        """Delete a file here, and note that the store has to let it go too."""
        gone = replace(kept, attempts=0, due=now, deleted=now)
        with holding(self.folder):
            self._note(gone)
            self._bytes(kept.token).unlink(missing_ok=True)
        return gone

    def forget(self, kept: SpooledFile) -> None:
        """Let a file go. The bytes first: without a note they would be kept for ever."""
        self._bytes(kept.token).unlink(missing_ok=True)
        if _is_file(self._json(kept.token)):
            self._json(kept.token).unlink(missing_ok=True)

    def sweep(self) -> list[tuple[str, int]]:
        """Delete what writers that died had half written; return the names and lengths.

        Whole bytes without a note are never deleted: the note of a file somebody counts on may be lost.
        """
        swept = []
        with holding(self.folder) if self.folder.exists() else contextlib.nullcontext():
            for each in self._noted()[0]:
                # Interrupted between the two when it was let go.
                if each.deleted is None and not os.path.lexists(self._bytes(each.token)):
                    self._json(each.token).unlink(missing_ok=True)
        for path in self.folder.glob("*.new"):
            with contextlib.suppress(FileNotFoundError):
                found = path.stat()
                if time.time() - found.st_mtime > _STALE_S:
                    path.unlink()
                    swept.append((path.name, found.st_size))
        unsure = self.unsure()
        if unsure:
            _log.error("waiting files without a note that can be read", extra={"files": unsure})
        return swept

    def unsure(self) -> list[str]:
        """Return the names of whole files that wait for nothing, since their notes are lost or damaged."""
        found = [path for path in sorted(self.folder.glob("*.bytes")) if self._is_unsure(path)]
        return [path.name for path in found]

    def _is_unsure(self, path: Path) -> bool:
        # A moment old, it may be one whose note is being written, or was just let go.
        try:
            fresh = time.time() - path.stat().st_mtime < _STALE_S and not self._json(path.stem).exists()
        except FileNotFoundError:
            return False
        return not fresh and self._read(self._json(path.stem)) is None

    def _record(self, said: Put, scope: Scope, now: datetime, *, sha256: str, size: int) -> Record:
        name = said.name
        if name is not None and said.retention is Retention.FILES:
            mine = (each.record for each in self.all() if each.record.scope.owner == scope.owner)
            name = unique_name(name, {str(record.name) for record in mine})
        return Record(
            id=f"{said.namespace.replace('.', '_')}_{sha256[:_ID_DIGITS]}",
            name=name,
            mime=said.mime or (DEFAULT_MIME if name is None else guess(name)),
            size=size,
            sha256=sha256,
            scope=scope,
            said=said,
            created=now,
            expires_at=said.expires_at,
            pending=True,
        )

    def _noted(self) -> tuple[list[SpooledFile], set[str]]:
        """Return what the notes say, the oldest first, and the names of all regular files."""
        names: set[str] = set()
        noted: dict[str, _Note] = {}
        # A folder that cannot be used is told of by `SpoolingStore.fault`.
        unusable = (FileNotFoundError, NotADirectoryError, PermissionError)
        with contextlib.suppress(*unusable), os.scandir(self.folder) as entries:
            for entry in entries:
                if not entry.is_file(follow_symlinks=False):
                    continue
                names.add(entry.name)
                if entry.name.endswith(".json"):
                    # It may be gone by now.
                    with contextlib.suppress(FileNotFoundError):
                        noted[entry.name] = self._note_in(entry)
        self._known.clear()
        self._known.update(noted)
        found = [note.says for note in noted.values() if note.says is not None]
        return sorted(found, key=lambda each: each.record.created), names

    def _note_in(self, entry: "os.DirEntry[str]") -> "_Note":
        # A note is never written twice: another one is put in its place.
        now = entry.stat(follow_symlinks=False)
        mark = (now.st_ino, now.st_ctime_ns, now.st_size)
        known = self._known.get(entry.name)
        if known is not None and known.mark == mark and known.says is not None:
            return known
        return _Note(mark=mark, says=self._read(Path(entry.path)))

    def _is_kept(self, kept: SpooledFile) -> bool:
        present = self._read(self._json(kept.token))
        return present is not None and present.deleted is None

    def _is_damaged(self, kept: SpooledFile) -> bool:
        path = self._json(kept.token)
        return os.path.lexists(path) and self._read(path) is None

    def _note(self, kept: SpooledFile) -> None:
        new = self._json(kept.token).with_suffix(f".{secrets.token_hex(4)}")
        _fill(new, _KEPT.dump_json(kept))
        new.rename(self._json(kept.token))
        sync_folder(self.folder)

    def _read(self, path: Path) -> SpooledFile | None:
        # One note that is damaged, or may not be read, is not to keep anybody from all the others; `unsure`
        # names it.
        with contextlib.suppress(FileNotFoundError, PermissionError, Damaged, ValidationError):
            return _KEPT.validate_json(read_whole(path))
        return None

    def _json(self, token: str) -> Path:
        return self.folder / f"{token}.json"

    def _bytes(self, token: str) -> Path:
        return self.folder / f"{token}.bytes"


def is_same(stored: Record, kept: Record) -> bool:
    """Say whether what a store has is what is kept here: sent again, it would become no second one."""
    said = kept.said
    if said.retention is Retention.OBSERVATIONS:
        said = replace(said, name=stored.name)
    return _again(stored, said, kept.scope, kept.sha256)


def _again(record: Record, said: Put, scope: Scope, sha256: str) -> bool:
    same_content = (record.sha256, record.scope.owner) == (sha256, scope.owner)
    kind = (record.said.retention, record.said.namespace) == (said.retention, said.namespace)
    return same_content and kind and said.name in (record.said.name, record.name)


def _fill(path: Path, source: int | bytes) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "wb", buffering=0) as target:
        if isinstance(source, bytes):
            write_all(fd, source)
        elif not ficlone(source, fd):
            position = 0
            while chunk := os.pread(source, _CHUNK_BYTES, position):
                write_all(fd, chunk)
                position += len(chunk)
        os.fsync(target.fileno())


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()
