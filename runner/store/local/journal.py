"""The journal of one area of a local store: every change of its rows, beside the bytes that they are about.

It is the truth, and the index is what makes it quick to ask: a change is on disk here before the index
has it, so whatever becomes of the index, the rows are found again. One line is one change, with a checksum
of its own: what is torn or damaged costs that line and no other.

    {crc32} {"journal": 1, "generation": 3, "id": "…"}       the first line; each rewriting is a generation
    {crc32} {"row": {…}}                                     an artifact was put or changed
    {crc32} {"gone": ["", "files", "a.txt"], "sha256": "…"}  one was removed
    {crc32} {"coming": "…"}                                  bytes are about to get their place; no row yet

Who writes holds the lock of the index's writer. A place in a journal is an offset behind a line.

Source: fdatasync(2), rename(2); `docs/decisions/0023-a-journal-beside-the-bytes.md`.
"""

import contextlib
import json
import os
import re
import secrets
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any

from runner.store.local.row import Row, said_of
from runner.store.protocol import Retention
from runner.store.sources import write_all
from runner.system.state_files import sync_folder

__all__ = ["Journal", "JournalLine", "Key", "Mark", "NewerJournal", "key_of"]

_VERSION = 1
_HEAD_BYTES = 4096
_DIGEST = re.compile(r"[0-9a-f]{64}")
# A row without what the index alone counts, and without what the journal's place says.
_KINDS: dict[str, type | UnionType] = {
    "session": str,
    "trace": str | None,
    "retention": str,
    "id": str,
    "name": str | None,
    "wanted": str | None,
    "size": int,
    "sha256": str,
    "mime": str,
    "said": str,
    "created": int | float,
    "expires": int | float | None,
    "put": int,
}

Key = tuple[str, str, str]


class NewerJournal(OSError):
    """A later version of this program wrote a journal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Which journal it is, and how far it reaches.

    Attributes:
        generation: How often it was written anew; 0 where its first line cannot be read.
        id: What tells it from any other journal of that generation.
        end: Its length in bytes.
    """

    generation: int
    id: str
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalLine:
    """One line. One that says nothing at all could not be read.

    Attributes:
        row: The artifact that was put or changed.
        gone: The key of one that was removed.
        sha256: The digest that it speaks of.
    """

    row: Row | None = None
    gone: Key | None = None
    sha256: str | None = None


def key_of(row: Row) -> Key:
    """Return what a row is known by within its area: session, class, and name or id."""
    named = row.retention == Retention.FILES.value
    return row.session, row.retention, str(row.name if named else row.id)


@dataclass(frozen=True, slots=True)
class Journal:
    """The journal of one area.

    Attributes:
        root: The folder of the store.
        area: The area, relative to it.
    """

    root: Path
    area: str

    @property
    def path(self) -> Path:
        """Return where it is."""
        return self.root / self.area / "journal"

    def mark(self) -> Mark | None:
        """Return which journal there is; None: none.

        Raises:
            OSError: It cannot be read, or is one of a later version.
        """
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            first, end = os.pread(fd, _HEAD_BYTES, 0).partition(b"\n")[0], os.fstat(fd).st_size
        finally:
            os.close(fd)
        said = _parsed(first) or {}
        if said.get("journal", _VERSION) != _VERSION:
            found = said["journal"]
            raise NewerJournal(0, f"a journal has version {found}, and this program knows up to {_VERSION}")
        generation, id_ = said.get("generation"), said.get("id")
        if isinstance(generation, int) and isinstance(id_, str):
            return Mark(generation=generation, id=id_, end=end)
        return Mark(generation=0, id="", end=end)

    def lines(self, start: int = 0) -> Iterator[JournalLine]:
        """Yield what it says from a place on.

        Raises:
            OSError: It cannot be read.
        """
        with open(self.path, "rb", opener=_opener) as file:
            file.seek(start)
            for number, raw in enumerate(file):
                said = _parsed(raw.removesuffix(b"\n"))
                if said is not None and number == 0 and start == 0 and "journal" in said:
                    continue
                yield _line(said, self.area)

    def announce(self, sha256: str) -> None:
        """Note that bytes are about to get their place: if nothing comes of it, they are ours to remove."""
        self._append([{"coming": sha256}])

    def append(self, changes: Iterable[tuple[Row, bool]]) -> int:
        """Add changes, each a row and whether it is gone, and wait until they are on disk.

        Returns:
            Where it ends now.

        Raises:
            OSError: They could not be added, and none of them was.
        """
        return self._append([_said(row, gone=gone) for row, gone in changes], synced=True)

    def cut(self, end: int) -> None:
        """Take back what was added behind a place."""
        with contextlib.suppress(OSError):
            os.truncate(self.path, end)

    def settle(self) -> None:
        """Wait until all of it is on disk, with its last line ended."""
        fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            end = os.fstat(fd).st_size
            if end and os.pread(fd, 1, end - 1) != b"\n":
                # What was torn ends here, and takes no other line along.
                os.write(fd, b"\n")
            os.fdatasync(fd)
        finally:
            os.close(fd)

    def write(self, rows: Iterable[Row], *, generation: int) -> Mark:
        """Write it anew: these rows and nothing else. On disk when this returns, or unchanged.

        Raises:
            OSError: It could not be written.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # One writer at a time, so one name is enough.
        new = self.path.with_name("journal.new")
        head = {"journal": _VERSION, "generation": generation, "id": secrets.token_hex(8)}
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with open(os.open(new, flags, 0o600), "wb") as file:
                file.write(_written(head))
                file.writelines(_written(_said(row, gone=False)) for row in rows)
                file.flush()
                os.fsync(file.fileno())
                end = file.tell()
            new.replace(self.path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
        sync_folder(self.path.parent)
        return Mark(generation=generation, id=str(head["id"]), end=end)

    def keep_copy(self) -> str:
        """Give it a second name, by which it outlives being written anew; return that."""
        copy = self.path.with_name(f"journal.damaged-{secrets.token_hex(4)}")
        copy.hardlink_to(self.path)
        return copy.name

    def _append(self, said: Iterable[dict[str, Any]], *, synced: bool = False) -> int:
        added = b"".join(map(_written, said))
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            before = os.fstat(fd).st_size
            try:
                write_all(fd, added)
                if synced:
                    os.fdatasync(fd)
            except OSError:
                self.cut(before)
                raise
        finally:
            os.close(fd)
        return before + len(added)


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)


def _written(said: dict[str, Any]) -> bytes:
    text = json.dumps(said).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _parsed(raw: bytes) -> dict[str, Any] | None:
    sum_, _, text = raw.partition(b" ")
    if sum_ != b"%08x" % zlib.crc32(text):
        return None
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) else None


def _said(row: Row, *, gone: bool) -> dict[str, Any]:
    if gone:
        return {"gone": key_of(row), "sha256": row.sha256}
    return {"row": {name: getattr(row, name) for name in _KINDS}}


def _line(said: dict[str, Any] | None, area: str) -> JournalLine:
    match said:
        case {"row": dict(row)}:
            found = _row(row, area)
            return JournalLine(row=found, sha256=found.sha256) if found else JournalLine()
        case {"gone": [str(session), str(retention), str(shown)], "sha256": str(sha256)}:
            return JournalLine(gone=(session, retention, shown), sha256=sha256)
        case {"coming": str(sha256)}:
            return JournalLine(sha256=sha256)
    return JournalLine()


def _row(said: dict[str, Any], area: str) -> Row | None:
    """Return the row that a line says; None where no program of ours can have written it."""
    if said.keys() != _KINDS.keys() or not all(isinstance(said[key], kind) for key, kind in _KINDS.items()):
        return None
    row = Row(number=None, area=area, used=said["put"], **said)
    if not (_DIGEST.fullmatch(row.sha256) and row.size >= 0):
        return None
    try:
        files = said_of(row).retention is Retention.FILES
    except (TypeError, ValueError, LookupError, OverflowError, RecursionError):
        return None
    named = bool(row.name) and not {"/", "\0"} & set(row.name or "")
    return row if named or (row.name is None and not files) else None
