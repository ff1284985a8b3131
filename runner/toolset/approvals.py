"""Approvals of calls: requests in files for the operator, and questions to clients in memory.

A request is the file `approvals/KEY.json` of the state folder. Its key is the digest of server, user, tool
and exact arguments, so an approval fits no other call. The operator renames it to `KEY.yes` or `KEY.no`, and
the call that unlinks that file uses it up: of several calls, processes or hosts, only one succeeds. Neither
step writes, so a full disk cannot lose or repeat an answer. Only such a file approves a call.

Source: rename(2), unlink(2) and fsync(2); RFC 8785 on canonical JSON.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from runner.contract.error_messages import approval_busy, approval_store_failed
from runner.system.state_files import Damaged, holding, make_folder, open_regular, sync_folder, write_whole

__all__ = ["ApprovalFiles", "Approvals", "PendingApproval", "key_of"]

_FOLDER = "approvals"
_PENDING, _YES, _NO = ".json", ".yes", ".no"
_MOST_OF_USER = 16
_MOST = 256
_MOST_BYTES = 64 * 1024
_MOST_TOOLS = 10_000
# Tolerance for the clock of a network file system, in seconds.
_CLOCK_S = 5.0


def key_of(place: str, user: str, tool: str, arguments: object) -> str:
    """Return the digest that an approval is bound to: equal for equal JSON, regardless of key order.

    Args:
        place: Targets of the server, so that servers with one state folder do not share approvals.
        user: Name of the user.
        tool: Name of the tool, as clients see it.
        arguments: The arguments, without values that JSON lacks.
    """
    text = json.dumps([place, user, tool, arguments], sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingApproval:
    """A call that the operator may approve.

    Attributes:
        id: Its name for the operator.
        key: The digest that it is bound to.
        user: Name of the user.
        tool: Name of the tool.
        server: Targets of the server, for the operator.
        rule: The rule that holds it.
        arguments: A line for each argument, for the operator.
        expires_s: Lifetime of the request, and again of its approval, in seconds.
    """

    id: str
    key: str
    user: str
    tool: str
    server: str
    rule: str
    arguments: tuple[str, ...]
    expires_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """A request with its file.

    Attributes:
        path: The file.
        pending: Its content.
        left_s: Seconds until it expires.
    """

    path: Path
    pending: PendingApproval
    left_s: float


@dataclass(frozen=True, slots=True)
class ApprovalFiles:
    """The requests of a state folder. Used in threads: each method may wait for the disk.

    Attributes:
        state: The state folder.
    """

    state: Path

    def use(self, key: str) -> bool | None:
        """Use up the answer to a request: True if it was approved, False if refused, None without an answer.

        Raises:
            CallError: `E_STORE`: the answer exists but cannot be used up, so it is ignored.
        """
        for suffix in (_NO, _YES):
            found = self._read(self._path(key, suffix))
            if found is None:
                continue
            try:
                found.path.unlink()
                # Otherwise the name could reappear after a power failure.
                sync_folder(found.path.parent)
            except FileNotFoundError:
                # Another call has used it first.
                continue
            except OSError as error:
                raise approval_store_failed(self.state, str(error.strerror)) from error
            return suffix == _YES
        return None

    def request(self, pending: PendingApproval) -> PendingApproval:
        """Record a request and return it, or return the existing one for an identical call.

        Raises:
            CallError: `E_BUSY`: too many wait. `E_STORE`: it cannot be recorded.
        """
        try:
            make_folder(self.state, _FOLDER)
            folder = self._folder()
            if folder is None:
                raise approval_store_failed(self.state, "others than this user own it or can change it")
            with holding(folder):
                there = list(self._all(folder))
                same = [one for one in there if one.pending.key == pending.key]
                if same:
                    return same[0].pending
                mine = sum(one.pending.user == pending.user for one in there)
                if mine >= _MOST_OF_USER or len(there) >= _MOST:
                    raise approval_busy(_MOST_OF_USER)
                content = json.dumps(asdict(pending)).encode()
                write_whole(self._path(pending.key, _PENDING), content)
        except OSError as error:
            raise approval_store_failed(self.state, str(error.strerror)) from error
        return pending

    def listed(self) -> list[tuple[PendingApproval, str, float]]:
        """Return all requests with their state, `waiting`, `approved` or `refused`, and seconds left."""
        words = {_PENDING: "waiting", _YES: "approved", _NO: "refused"}
        folder = self._folder()
        found = [] if folder is None else self._all(folder)
        return [(one.pending, words[one.path.suffix], one.left_s) for one in found]

    def answer(self, name: str, *, approve: bool) -> PendingApproval | None:
        """Approve or refuse a request; return it, or None if there is none of that name.

        Raises:
            OSError: It cannot be renamed.
        """
        folder = self._folder()
        for one in () if folder is None else self._all(folder):
            if one.pending.id == name:
                # The request may be old: the lifetime of the approval starts now.
                os.utime(one.path, follow_symlinks=False)
                one.path.rename(one.path.with_suffix(_YES if approve else _NO))
                sync_folder(one.path.parent)
                return one.pending
        return None

    def _path(self, key: str, suffix: str) -> Path:
        return self.state / _FOLDER / f"{key}{suffix}"

    def _folder(self) -> Path | None:
        """Return the folder of the requests; None unless only its owner, or root, can write it."""
        folder = self.state / _FOLDER
        try:
            found = folder.stat()
        except OSError:
            return None
        is_ours = found.st_uid == os.geteuid() or os.geteuid() == 0
        return folder if is_ours and stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o022 else None

    def _all(self, folder: Path) -> Iterator[_File]:
        """Yield the requests that have not expired, the oldest first; remove the others."""
        for path in sorted(folder.iterdir(), key=_age):
            if path.suffix not in (_PENDING, _YES, _NO):
                continue
            found = self._read(path)
            if found is not None:
                yield found
            elif not path.is_dir():
                with contextlib.suppress(OSError):
                    path.unlink()

    def _read(self, path: Path) -> _File | None:
        """Return a request; None if it has expired, is not a file of ours or is damaged."""
        try:
            with open(open_regular(path), "rb") as file:
                facts, content = os.fstat(file.fileno()), file.read(_MOST_BYTES)
            folder = path.parent.stat()
            read = json.loads(content)
            pending = PendingApproval(**{**read, "arguments": tuple(map(str, read["arguments"]))})
            left_s = facts.st_mtime + float(pending.expires_s) - time.time()
        except (OSError, Damaged, ValueError, TypeError, LookupError, RecursionError):
            return None
        is_ours = facts.st_uid == folder.st_uid and not (facts.st_mode | folder.st_mode) & 0o022
        is_alive = 0 < left_s <= pending.expires_s + _CLOCK_S
        is_whole = pending.key == path.stem
        return _File(path=path, pending=pending, left_s=left_s) if is_ours and is_alive and is_whole else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    """A call whose client has to send its request again.

    Attributes:
        key: The digest of the call.
        user: Name of its user.
        is_approved: Whether it was approved and its tool waits for input; else the answer is awaited.
        rest: Digest of the questions with whose answers an approved call resumes; with others it starts over.
        until: Expiry, in seconds of the monotonic clock.
    """

    key: str
    user: str
    is_approved: bool
    rest: str
    until: float


@dataclass(slots=True, kw_only=True, eq=False)
class Approvals:
    """Approvals of one server.

    Attributes:
        files: Requests to the operator.
    """

    files: ApprovalFiles
    _waiting: dict[str, _Waiting] = field(default_factory=dict)
    _open: dict[asyncio.Timeout, str] = field(default_factory=dict)
    _destructive: set[tuple[str, str]] = field(default_factory=set)

    def is_destructive(self, server: str, tool: str, *, now: bool) -> bool:
        """Return whether a tool counts as destructive: permanently, once it has been listed as such.

        So a server cannot bypass a rule by withdrawing the annotation. A tool that was never annotated is
        trusted not to be destructive.

        Args:
            server: The server behind this one; empty for a tool file.
            tool: Name of the tool there.
            now: Whether it is currently listed as destructive.
        """
        if now and len(self._destructive) < _MOST_TOOLS:
            self._destructive.add((server, tool))
        is_full = len(self._destructive) >= _MOST_TOOLS
        return now or is_full or (server, tool) in self._destructive

    @contextmanager
    def question(self, user: str, limit: asyncio.Timeout) -> Iterator[None]:
        """Count a question to a client while the block lasts.

        Args:
            user: Name of the user.
            limit: Timeout of the block; expires early if the question is evicted by another one.

        Raises:
            CallError: `E_BUSY`: too many wait.
        """
        self._check_room(user)
        self._open[limit] = user
        try:
            yield
        finally:
            self._open.pop(limit, None)

    def wait(self, key: str, user: str, *, is_approved: bool, expires_s: float, rest: str = "") -> str:
        """Return the state with which the client sends a call again; it is valid once.

        Raises:
            CallError: `E_BUSY`: too many wait.
        """
        self._check_room(user)
        name = secrets.token_urlsafe(24)
        until = time.monotonic() + expires_s
        self._waiting[name] = _Waiting(key=key, user=user, is_approved=is_approved, rest=rest, until=until)
        return name

    def resume(self, state: object, key: str, rest: str = "") -> bool | None:
        """Return whether the call of a state was approved; None unless the state belongs to that call.

        Args:
            state: The state.
            key: The digest of the call.
            rest: Digest of the questions whose answers it has.
        """
        waiting = self._waiting.get(state) if isinstance(state, str) else None
        if waiting is None or waiting.key != key or waiting.until < time.monotonic():
            return None
        if waiting.is_approved and waiting.rest != rest:
            return None
        del self._waiting[str(state)]
        return waiting.is_approved

    def _check_room(self, user: str) -> None:
        now = time.monotonic()
        for name in [name for name, one in self._waiting.items() if one.until < now]:
            del self._waiting[name]
        waiting = [name for name, one in self._waiting.items() if one.user == user]
        questions = [limit for limit, whose in self._open.items() if whose == user and not limit.expired()]
        if len(questions) + len(waiting) >= _MOST_OF_USER:
            # An abandoned question cannot be recognised, so the oldest is evicted. If its client sends the
            # call after all, it gets the question again.
            unanswered = [name for name in waiting if not self._waiting[name].is_approved]
            if unanswered:
                del self._waiting[unanswered[0]]
            elif questions:
                del self._open[questions[0]]
                questions[0].reschedule(0)
            else:
                raise approval_busy(_MOST_OF_USER)
        if len(self._open) + len(self._waiting) >= _MOST:
            raise approval_busy(_MOST_OF_USER)


def _age(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0
