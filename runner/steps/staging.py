"""Staging of a call's input files in `input_files/` of its home, and their removal afterwards.

A call gets copies, never the stored files: reflinks if the file system supports them, else plain copies,
never hard links. Changes by a tool affect only its copy.

Several calls of one user may need one name at once. A lock in the claims folder records the call that owns
`input_files/<name>`; until it is released, the next call gets `input_files/2/<name>`, and so on. A runner
with another state folder has other claims, so the copy itself is locked too while its call runs, and a locked
file is never replaced. A tool can also lock a file; then its user's next call gets the next place.

The home, and so `input_files` itself, is controlled by untrusted code. It is opened with `openat2`; any other
file where a folder should be is replaced by a folder.

Source: requirements S1-35 to S1-37 and S1-107; architecture, decision "Input copies"; sandbox notes,
finding 7.
"""

import contextlib
import errno
import hashlib
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from runner.errors import CallError, Code
from runner.files.my_files import MyFiles
from runner.homes.emptying import remove
from runner.homes.homes import INPUT_FOLDER, HomeLease
from runner.store.protocol import Content, Record
from runner.system import locks
from runner.system.openat import CONFINED, open_folder, openat2, reopen_folder
from runner.system.state_files import make_folder, open_lock
from runner.system.threads import in_thread, run_in_thread
from sandbox.syscalls import rename_noreplace

__all__ = ["stage"]

_MAX_PLACES = 1000
_ATTEMPTS = 8


@asynccontextmanager
async def stage(
    lease: HomeLease, files: MyFiles, records: Sequence[Record], *, claims: Path
) -> AsyncIterator[dict[str, Path]]:
    """Yield the path of each file, by name; the copies are removed when the block ends.

    Args:
        lease: The home of the call.
        files: My Files of the user.
        records: The files, with distinct names.
        claims: Folder of the locks that record which call owns a place; one for each state folder.

    Raises:
        CallError: `E_STORE` or `E_QUOTA`: a file cannot be staged. None is left behind.
    """
    async with AsyncExitStack() as stack:
        staged: dict[str, Path] = {}
        for record in records:
            with _as_call_errors(record):
                folders = await _staged(stack, lease, files, record, claims)
            staged[record.shown] = lease.path.joinpath(*folders, record.shown)
        yield staged


async def _staged(
    stack: AsyncExitStack, lease: HomeLease, files: MyFiles, record: Record, claims: Path
) -> tuple[str, ...]:
    """Put a file into the first free place, until the stack is closed; return the folders of its path."""
    name = record.shown
    # In the input folder itself, a name of digits only would collide with a numbered folder.
    place = 2 if name.isdecimal() else 1
    while place < _MAX_PLACES:
        async with AsyncExitStack() as mine:
            place = await mine.enter_async_context(in_thread(_claimed(claims, lease, name, first=place)))
            folders = _folders(place)
            try:
                async with files.open(record) as content:
                    locked = await _fill(lease.fd, folders, content, name)
            except FileExistsError:
                # A runner with other claims has taken the place first.
                place += 1
                continue
            mine.callback(os.close, locked)
            mine.push_async_callback(run_in_thread, _take_away, lease.fd, folders, name)
            stack.push_async_exit(mine.pop_all())
            return folders
    raise OSError(errno.EBUSY, f"{_MAX_PLACES} calls use a file of this name at once")


def _folders(place: int) -> tuple[str, ...]:
    return (INPUT_FOLDER,) if place == 1 else (INPUT_FOLDER, str(place))


def _take_away(home_fd: int, folders: Sequence[str], name: str) -> None:
    # A file that a tool has moved elsewhere is removed with the home.
    with contextlib.suppress(OSError), _folder(home_fd, folders, open_folder) as folder:
        remove(folder, name)


@contextmanager
def _claimed(claims: Path, lease: HomeLease, name: str, *, first: int) -> Iterator[int]:
    """Claim a place for a name: 1 is the input folder itself, n its folder `n`."""
    make_folder(claims.parent, claims.name)
    for place in range(first, _MAX_PLACES):
        key = hashlib.sha256(f"{lease.segment}/{place}/{name}".encode()).hexdigest()
        path = claims / f"{key}.lock"
        claim = None if _is_locked(lease.fd, _folders(place), name) else _lock(path)
        if claim is None:
            continue
        try:
            yield place
        finally:
            path.unlink(missing_ok=True)
            locks.let_go(claim)
        return
    raise OSError(errno.EBUSY, f"{_MAX_PLACES} calls use a file of this name at once")


def _is_locked(home_fd: int, folders: Sequence[str], name: str) -> bool:
    """Return whether a staged file is locked."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        with _folder(home_fd, folders, open_folder) as folder:
            there = openat2(folder, name, flags, resolve=CONFINED)
    except OSError:
        return False
    try:
        return not locks.try_lock(there, shared=True)
    except OSError:
        return True
    finally:
        os.close(there)


def _lock(path: Path) -> int | None:
    """Lock the file at `path`, making it; None if another call has it."""
    for _attempt in range(_ATTEMPTS):
        fd = open_lock(path)
        if not locks.try_lock(fd):
            os.close(fd)
            return None
        # Its owner may have unlinked it between our open and our lock: then the lock is ineffective.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(fd), path.lstat()):
                return fd
        os.close(fd)
    return None


async def _fill(home_fd: int, folders: Sequence[str], content: Content, name: str) -> int:
    """Put a file into its place; return a descriptor that holds its lock as long as it is open.

    Raises:
        FileExistsError: Another process has created the name.
    """
    for attempt in range(_ATTEMPTS):
        try:
            async with in_thread(_coming(home_fd, folders, name)) as target:
                await content.copy_to(target)
        except FileNotFoundError:
            # A tool removed the folder meanwhile.
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            return target
    raise AssertionError("the last attempt returns or raises")


@contextmanager
def _folder(home_fd: int, names: Sequence[str], step: Callable[[int, str], int]) -> Iterator[int]:
    """Open a folder below the home, step by step."""
    with ExitStack() as stack:
        fd = reopen_folder(home_fd)
        stack.callback(os.close, fd)
        for name in names:
            fd = step(fd, name)
            stack.callback(os.close, fd)
        yield fd


def _open_or_make(parent: int, name: str) -> int:
    for _attempt in range(_ATTEMPTS):
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent)
        try:
            fd = open_folder(parent, name)
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP, errno.ENOENT):
                raise
            remove(parent, name)
        else:
            _give(fd, parent)
            return fd
    raise NotADirectoryError(errno.ENOTDIR, "a tool keeps replacing the folder", name)


def _give(fd: int, above: int) -> None:
    """Give a created file the owner of its folder, who may differ if this process is root."""
    owner = os.fstat(above).st_uid
    if os.fstat(fd).st_uid != owner:
        os.fchown(fd, owner, owner)


@contextmanager
def _coming(home_fd: int, folders: Sequence[str], name: str) -> Iterator[int]:
    """Yield a new locked file to write to, which is renamed to `name` when the block ends.

    It stays open, and so locked, except on failure.
    """
    hidden = f".{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with _folder(home_fd, folders, _open_or_make) as folder:
        target = os.open(hidden, flags, 0o600, dir_fd=folder)
        try:
            with contextlib.suppress(OSError):
                locks.try_lock(target)
            yield target
            _give(target, home_fd)
            os.fchmod(target, 0o444)
            if not _is_locked(folder, (), name):
                remove(folder, name)
            rename_noreplace(hidden, name, directory=folder)
        except BaseException:
            os.close(target)
            remove(folder, hidden)
            raise


@contextmanager
def _as_call_errors(file: Record) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise CallError(
            Code.E_QUOTA if full else Code.E_STORE,
            f"the file {file.shown!r} cannot be put into {INPUT_FOLDER}: {error.strerror}",
            details={"name": file.shown, "size": file.size},
        ) from error
