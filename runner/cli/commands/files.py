"""`runner files`: My Files from a shell. It prints names and metadata of files, never a store's keys.

Source: `docs/cli.md`; `docs/guide.md`.
"""

import asyncio
import contextlib
import os
import secrets
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from runner.cli.exits import Report
from runner.cli.options import LOGS, WHOSE, AsJson, Config, Flags, takes
from runner.cli.start import load_and_warn
from runner.contract.available_files import available_files, files_block, human_facts
from runner.contract.error_messages import file_not_found
from runner.errors import CallError, UsageError
from runner.files.my_files import MyFiles, open_library
from runner.files.paging import MOST, CursorError, page
from runner.formats.human_numbers import human_size
from runner.formats.terminal_text import table
from runner.settings.settings import Settings
from runner.store.protocol import Origin, Record
from runner.system.logging_setup import set_up
from runner.users.identity import resolve

__all__ = ["files", "writable"]

_WORDS = {
    "ls": (0, 0, "no names"),
    "put": (1, sys.maxsize, "one or more paths of local files"),
    "get": (1, 1, "the name of one file"),
    "rm": (1, sys.maxsize, "one or more names of files"),
    "context": (0, 0, "no names"),
    "end-session": (0, 0, "no names"),
}
"""The actions, each with the least and most words that it takes, and their meaning."""


@takes(*WHOSE, *LOGS)
def files(
    action: Annotated[str, typer.Argument(metavar="ls|put|get|rm|context|end-session")],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[PATH... | NAME...]", help="Paths to put; else names.")
    ] = None,
    *,
    session: Annotated[str, typer.Option(metavar="NAME", help="Session the files are used in.")] = "cli",
    as_json: AsJson = False,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="put: keep the file by this name.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="PATH", help="get: file or folder to write.")] = None,
    force: Annotated[bool, typer.Option("--force", help="get: overwrite.")] = False,
    limit: Annotated[int | None, typer.Option(metavar="N", help="ls: files in a page.")] = None,
    cursor: Annotated[str | None, typer.Option(metavar="TEXT", help="ls: the next page.")] = None,
    config: Config = None,
    flags: Flags,
) -> Report:
    """Work with the files of a user."""
    names = tuple(words or ())
    if action not in _WORDS:
        raise UsageError(f"there is no `runner files {action}`; it is one of {', '.join(_WORDS)}")
    least, most, wanted = _WORDS[action]
    if not least <= len(names) <= most:
        raise UsageError(
            f"`runner files {action}` takes {wanted}, and was given: {' '.join(names) or 'nothing'}"
        )
    if name is not None and (action != "put" or len(names) > 1):
        raise UsageError("--name belongs to `runner files put` with one path")
    if action != "get" and (out is not None or force):
        raise UsageError("--out and --force belong to `runner files get`")
    if action != "ls" and (limit is not None or cursor is not None):
        raise UsageError("--limit and --cursor belong to `runner files ls`")
    if limit is not None and not 1 <= limit <= MOST:
        raise UsageError(f"--limit is how many files are listed at most, from 1 to {MOST}")
    settings = load_and_warn({"log_level": "warning", **flags}, config, whole=True)
    set_up(settings.log_level, settings.log_format)
    if settings.store_scheme in ("memory", "none"):
        raise UsageError(
            f"store = {settings.store} keeps no file beyond its process, so a shell has nothing to work "
            "with; set store (RUNNER_STORE) to a file:// or s3:// URL"
        )
    user = resolve(settings, transport="stdio", claims=None, host=settings.host)
    mine = open_library(settings).of(user.name, session)
    actions: dict[str, Callable[[], Coroutine[Any, Any, Report]]] = {
        "ls": lambda: _list(mine, limit, cursor),
        "put": lambda: _put(mine, [Path(word) for word in names], name),
        "get": lambda: _get(mine, names[0], out, force=force),
        "rm": lambda: _remove(mine, names),
        "context": lambda: _context(mine),
        "end-session": lambda: _end_session(mine, settings),
    }
    return asyncio.run(actions[action]())


async def _list(files: MyFiles, limit: int | None, cursor: str | None) -> Report:
    records = await files.all()
    if limit is None and cursor is None:
        document = {"files": [_described(record) for record in records]}
        return Report(document, "\n".join(table(map(_row, records))))
    try:
        part = page(records, limit=limit, cursor=cursor)
    except CursorError as error:
        raise UsageError(f"--cursor: {error}; leave it out for the first page") from error
    paged = {"files": [_described(record) for record in part.files], "next": part.next}
    more = [] if part.next is None else [f"more: --cursor {part.next}"]
    return Report(paged, "\n".join([*table(map(_row, part.files)), *more]))


async def _put(files: MyFiles, paths: Sequence[Path], name: str | None) -> Report:
    stored: list[Record] = []
    # All are opened before the first is stored, so that a wrong path changes nothing.
    with contextlib.ExitStack() as stack:
        sources = [stack.enter_context(_readable(path)) for path in paths]
        for path, source in zip(paths, sources, strict=True):
            try:
                stored.append(await files.put(source, name=name or path.name, origin=Origin.UPLOADED))
            except CallError as error:
                error.details["stored"] = [record.name for record in stored]
                raise
            except OSError as error:
                raise _unreadable(path, error) from error
    names = [str(record.name) for record in stored]
    return Report({"files": [_described(record) for record in stored]}, "\n".join(names))


async def _get(files: MyFiles, name: str, out: Path | None, *, force: bool) -> Report:
    record = await _found(files, name)
    target = out or Path(str(record.name))
    if target.is_dir():
        target /= str(record.name)
    try:
        with writable(target, force=force) as fd:
            async with files.open(record) as content:
                await content.copy_to(fd)
    except FileExistsError as error:
        raise UsageError(f"{target} exists; --force overwrites it, --out PATH writes elsewhere") from error
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror}") from error
    return Report({"name": record.name, "path": str(target), "size": record.size}, str(target))


async def _remove(files: MyFiles, names: Sequence[str]) -> Report:
    # All are found before the first is removed, so that a wrong name changes nothing.
    records = {record.name: record for record in [await _found(files, name) for name in names]}
    for record in records.values():
        await files.remove(record.shown)
    return Report({"removed": list(records)}, "\n".join(map(str, records)))


async def _context(files: MyFiles) -> Report:
    records = await files.all()
    block = files_block(available_files(records))
    return Report({"context": block, "files": [_described(record) for record in records]}, block)


async def _end_session(files: MyFiles, settings: Settings) -> Report:
    removed, emptied = await files.end_session(), False
    if sys.platform == "linux":
        # On other systems no calls run, so there are no homes.
        from runner.homes.homes import Homes  # noqa: PLC0415

        emptied = await asyncio.to_thread(Homes.of(settings).end, files.user)
    ended = {"session": files.session, "files_removed": len(removed or ()), "home_emptied": emptied}
    return Report(ended, "\n".join(f"{key}: {value}" for key, value in ended.items()))


async def _found(files: MyFiles, name: str) -> Record:
    record = await files.find(name)
    if record is None:
        raise file_not_found(name, await files.nearest(name))
    return record


def _described(record: Record) -> dict[str, Any]:
    """Return the facts of a file as JSON."""
    more = {
        "reason": record.metadata.reason,
        "expires_at": record.expires_at.isoformat(timespec="seconds") if record.expires_at else None,
    }
    return {
        "name": record.name,
        "size": record.size,
        "mime": record.mime,
        "source": record.metadata.origin.value,
        "date": record.created.date().isoformat(),
        "facts": dict(record.metadata.facts),
        **{key: value for key, value in more.items() if value is not None},
    }


def _row(record: Record) -> tuple[str, ...]:
    details = list(human_facts(record.metadata.facts))
    if record.metadata.origin is Origin.DEFERRED and record.metadata.reason:
        details.append(record.metadata.reason.replace("_", " "))
    if record.expires_at is not None:
        details.append(f"until {record.expires_at:%Y-%m-%d %H:%M %Z}")
    source = f"{record.metadata.origin.value} {record.created:%Y-%m-%d}"
    return (str(record.name), human_size(record.size), source, ", ".join(details))


@contextmanager
def _readable(path: Path) -> Iterator[int]:
    try:
        # Opening a pipe without a writer would block; the store refuses anything but a regular file.
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
def writable(target: Path, *, force: bool) -> Iterator[int]:
    """Open a new file that gets its name when it is complete.

    Args:
        target: The name.
        force: Whether to replace a file of that name.

    Raises:
        FileExistsError: The name is taken, and `force` is false.
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
    """Rename a file, unless the name is taken; no concurrently created file is replaced."""
    try:
        target.hardlink_to(source)
    except OSError as error:
        # On a file system without hard links, such as FAT, only a check before the rename is possible.
        if os.path.lexists(target):
            raise FileExistsError(target) from error
        source.rename(target)
