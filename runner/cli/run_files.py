"""`runner files`: My Files from a shell. Prints names and what is known of files, never a store's keys.

Source: `docs/cli.md`; `docs/guide.md`.
"""

import asyncio
import contextlib
import os
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.contract.available_files import available_files, files_block, human_facts
from runner.contract.error_messages import envelope, file_not_found
from runner.errors import CallError, UsageError
from runner.files.my_files import MyFiles
from runner.files.paging import MOST, CursorError, page
from runner.formats.human_numbers import human_size
from runner.formats.terminal_text import json_text, table
from runner.homes.homes import Homes
from runner.store.protocol import Origin, Record
from sandbox.syscalls import rename_noreplace

__all__ = ["ACTIONS", "FilesOptions", "files_from_shell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesOptions:
    """What one `runner files` was asked to do.

    Attributes:
        action: One of `ACTIONS`.
        words: Local paths for `put`, names for `get` and `rm`.
        as_json: Print exactly one JSON document.
        name: Name to keep one file by, instead of its own.
        out: Where `get` writes to, a file or a folder.
        force: Whether `get` may overwrite.
        limit: Most files that `ls` lists; None: all.
        cursor: Where `ls` goes on, as the page before said.

    Raises:
        UsageError: There is no such action, or something given has no meaning for it.
    """

    action: str
    words: tuple[str, ...] = ()
    as_json: bool = False
    name: str | None = None
    out: Path | None = None
    force: bool = False
    limit: int | None = None
    cursor: str | None = None

    def __post_init__(self) -> None:
        rule = _RULES.get(self.action)
        if rule is None:
            raise UsageError(f"there is no `runner files {self.action}`; it is one of {', '.join(_RULES)}")
        if not rule.least <= len(self.words) <= rule.most:
            given = " ".join(self.words) or "nothing"
            raise UsageError(f"`runner files {self.action}` takes {rule.takes}, and was given: {given}")
        if self.name is not None and (self.action != "put" or len(self.words) > 1):
            raise UsageError("--name belongs to `runner files put` with one path")
        if self.action != "get" and (self.out is not None or self.force):
            raise UsageError("--out and --force belong to `runner files get`")
        if self.action != "ls" and (self.limit is not None or self.cursor is not None):
            raise UsageError("--limit and --cursor belong to `runner files ls`")
        if self.limit is not None and not 1 <= self.limit <= MOST:
            raise UsageError(f"--limit is how many files are listed at most, from 1 to {MOST}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """What may stand behind an action."""

    takes: str
    least: int = 0
    most: int = 0


_RULES = {
    "ls": _Rule(takes="no names"),
    "put": _Rule(takes="one or more paths of local files", least=1, most=sys.maxsize),
    "get": _Rule(takes="the name of one file", least=1, most=1),
    "rm": _Rule(takes="one or more names of files", least=1, most=sys.maxsize),
    "context": _Rule(takes="no names"),
    "end-session": _Rule(takes="no names"),
}

ACTIONS = tuple(_RULES)
"""The commands behind `runner files`."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a command found or did, for programs and for people."""

    document: Mapping[str, Any]
    text: str


async def files_from_shell(files: MyFiles, homes: Homes, options: FilesOptions) -> int:
    """Do what was asked, print the answer, and return the exit status.

    Args:
        files: The files of one user in one session.
        homes: Where the home is that ends with the session.
        options: What was asked.

    Raises:
        UsageError: A local file cannot be read or written.
    """
    try:
        answer = await _answer(files, homes, options)
    except CallError as error:
        hint = error.details.get("suggestion")
        print(f"runner: {error.message}{f'. {hint}' if hint else ''}", file=sys.stderr)  # noqa: T201
        if options.as_json:
            _print_json(envelope(error))
        return error.code.exit_status
    if options.as_json:
        _print_json(answer.document)
    elif answer.text:
        sys.stdout.write(answer.text + "\n")
    sys.stdout.flush()
    return 0


async def _answer(files: MyFiles, homes: Homes, options: FilesOptions) -> _Answer:
    match options.action:
        case "ls":
            return await _list(files, options)
        case "put":
            return await _put(files, options)
        case "get":
            return await _get(files, options)
        case "rm":
            return await _remove(files, options.words)
        case "context":
            return await _context(files)
        case _:
            return await _end_session(files, homes)


async def _list(files: MyFiles, options: FilesOptions) -> _Answer:
    records = await files.all()
    if options.limit is None and options.cursor is None:
        document = {"files": [_described(record) for record in records]}
        return _Answer(document, "\n".join(table(map(_row, records))))
    try:
        part = page(records, limit=options.limit, cursor=options.cursor)
    except CursorError as error:
        raise UsageError(f"--cursor: {error}; leave it out for the first page") from error
    paged = {"files": [_described(record) for record in part.files], "next": part.next}
    more = [] if part.next is None else [f"more: --cursor {part.next}"]
    return _Answer(paged, "\n".join([*table(map(_row, part.files)), *more]))


async def _put(files: MyFiles, options: FilesOptions) -> _Answer:
    paths = [Path(word) for word in options.words]
    stored: list[Record] = []
    # All are opened before one is kept: a wrong path among them changes nothing.
    with contextlib.ExitStack() as stack:
        sources = [stack.enter_context(_readable(path)) for path in paths]
        for path, source in zip(paths, sources, strict=True):
            try:
                stored.append(await files.put(source, name=options.name or path.name, origin=Origin.UPLOADED))
            except CallError as error:
                error.details["stored"] = [record.name for record in stored]
                raise
            except OSError as error:
                raise _unreadable(path, error) from error
    names = [str(record.name) for record in stored]
    return _Answer({"files": [_described(record) for record in stored]}, "\n".join(names))


async def _get(files: MyFiles, options: FilesOptions) -> _Answer:
    record = await _found(files, options.words[0])
    target = options.out or Path(str(record.name))
    if target.is_dir():
        target /= str(record.name)
    try:
        with _writable(target, force=options.force) as fd:
            async with files.open(record) as content:
                await content.copy_to(fd)
    except FileExistsError as error:
        raise UsageError(f"{target} exists; --force overwrites it, --out PATH writes elsewhere") from error
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror}") from error
    return _Answer({"name": record.name, "path": str(target), "size": record.size}, str(target))


async def _remove(files: MyFiles, names: Sequence[str]) -> _Answer:
    # All are found before one is removed: a wrong name among them changes nothing.
    records = {record.name: record for record in [await _found(files, name) for name in names]}
    for record in records.values():
        await files.remove(record.shown)
    return _Answer({"removed": list(records)}, "\n".join(map(str, records)))


async def _context(files: MyFiles) -> _Answer:
    records = await files.all()
    block = files_block(available_files(records))
    return _Answer({"context": block, "files": [_described(record) for record in records]}, block)


async def _end_session(files: MyFiles, homes: Homes) -> _Answer:
    removed = await files.end_session()
    emptied = await asyncio.to_thread(homes.end, files.user)
    ended = {"session": files.session, "files_removed": len(removed or ()), "home_emptied": emptied}
    return _Answer(ended, "\n".join(f"{key}: {value}" for key, value in ended.items()))


async def _found(files: MyFiles, name: str) -> Record:
    record = await files.find(name)
    if record is None:
        raise file_not_found(name, await files.nearest(name))
    return record


def _described(record: Record) -> dict[str, Any]:
    """Return what a program may know of a file."""
    more = {
        "reason": record.said.reason,
        "expires_at": record.expires_at.isoformat(timespec="seconds") if record.expires_at else None,
    }
    return {
        "name": record.name,
        "size": record.size,
        "mime": record.mime,
        "source": record.said.origin.value,
        "date": record.created.date().isoformat(),
        "facts": dict(record.said.facts),
        **{key: value for key, value in more.items() if value is not None},
    }


def _row(record: Record) -> tuple[str, ...]:
    said = list(human_facts(record.said.facts))
    if record.said.origin is Origin.DEFERRED and record.said.reason:
        said.append(record.said.reason.replace("_", " "))
    if record.expires_at is not None:
        said.append(f"until {record.expires_at:%Y-%m-%d %H:%M %Z}")
    source = f"{record.said.origin.value} {record.created:%Y-%m-%d}"
    return (str(record.name), human_size(record.size), source, ", ".join(said))


@contextmanager
def _readable(path: Path) -> Iterator[int]:
    try:
        # A pipe without a writer would be waited for; what is no regular file is refused by the store.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable(path, error) from error
    try:
        yield fd
    finally:
        os.close(fd)


def _unreadable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"{path} cannot be put into My Files: {error.strerror}")


@contextmanager
def _writable(target: Path, *, force: bool) -> Iterator[int]:
    """Open a new file that gets its name when it is complete.

    Raises:
        FileExistsError: There is something of that name, and no force.
        OSError: It cannot be written.
    """
    if not force and os.path.lexists(target):
        raise FileExistsError(target)
    new = target.with_name(f".{secrets.token_hex(8)}.part")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        yield fd
        if force:
            new.replace(target)
        else:
            _rename(new, target)
    finally:
        os.close(fd)
        new.unlink(missing_ok=True)


def _rename(source: Path, target: Path) -> None:
    """Rename within a folder; refused where the name is taken, also by what came this moment."""
    folder = os.open(target.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        rename_noreplace(source.name, target.name, directory=folder)
    finally:
        os.close(folder)


def _print_json(document: Mapping[str, Any]) -> None:
    sys.stdout.write(json_text(document) + "\n")
