"""Administration of users: list and show them, revoke their access, delete their data.

Everything is read where it is stored: the store, the homes, the records in the state folder. No separate
counts exist that could be wrong.

Source: `docs/cli.md`, "Users"; `docs/operating.md`.
"""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from runner.errors import UsageError
from runner.files.my_files import Library, open_library
from runner.files.sessions import Session
from runner.homes.call_locks import CallLocks
from runner.homes.homes import Homes
from runner.http.logins import Logins
from runner.observation.audit_log import AuditLog
from runner.settings.settings import Settings
from runner.store.protocol import Record
from runner.store.store import BlobStore
from runner.system.uids import Uids
from runner.users.capability_tokens import Tokens, named_in
from runner.users.tokens_file import users_by_token
from runner.users.usernames import home_segment, user_of

__all__ = ["Account", "Administration", "Revoked"]

_log = logging.getLogger(__name__)

_MOST_ENTRIES = 100_000
_SHOWN_CHARS = 8
# Links made in one millisecond differ only after the dot, in the signature. Two share that many characters of
# it with a probability of 2**-48.
_SIGNED_CHARS = 8
_BEARER = "bearer tokens are in auth.tokens_file, or the issuer's: end them there"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Inventory of one user.

    Attributes:
        user: The name.
        calls_running: Whether a call of the user is in flight at any server with this state folder.
        files: Files in My Files, of all sessions.
        bytes: Their total size; equal content counts once.
        observations: Stored contents that the output guard removed from results; they expire.
        sessions: Sessions that own files, if files do not persist.
        browser_sessions: Valid browser logins.
        home: The home folder, if there is one.
        home_entries: Number of entries in it.
        home_bytes: Their size on disk.
        uid: The user id, in tiers that assign one.
        quarantine: Quarantined contents, which have no record.
        bearer_tokens: Tokens of the user in `auth.tokens_file`.
    """

    user: str
    calls_running: bool
    files: int
    bytes: int
    observations: int
    sessions: int
    browser_sessions: int
    home: str | None
    home_entries: int
    home_bytes: int
    uid: int | None
    quarantine: int
    bearer_tokens: int

    @property
    def is_known(self) -> bool:
        """Return whether anything belongs to the user."""
        stored = self.files + self.observations + self.sessions + self.browser_sessions + self.quarantine
        return bool(stored + self.bearer_tokens) or self.home is not None or self.uid is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoked:
    """Outcome of a revocation.

    Attributes:
        user: The user.
        links: `all` made until now, or the prefix of the revoked token.
        browser_sessions: Number of browser logins that ended.
        left: Remaining access, which this does not revoke.
    """

    user: str
    links: str
    browser_sessions: int
    left: str = _BEARER


@dataclass(frozen=True, slots=True, kw_only=True)
class Administration:
    """The users of one store and one state folder.

    Attributes:
        settings: The effective settings.
        clock: Returns the time in seconds since the epoch.
    """

    settings: Settings
    clock: Callable[[], float] = time.time

    async def accounts(self) -> list[Account]:
        """Return all users to whom anything belongs, by name.

        With a store in S3, only users are found who also have a session, a home or a user id here.

        Raises:
            CallError: The store cannot be read.
        """
        library = open_library(self.settings)
        segments = {home_segment(session.user) for session in library.sessions.known()}
        segments |= set(self._uids.assignments()) | {home.name for home in Homes.of(self.settings).made()}
        if isinstance(library.store, BlobStore):
            segments |= set(await library.store.users())
        names = {home_segment(name) for name in self._bearer_names()} | segments
        return [await self.account(user_of(segment)) for segment in sorted(names)]

    async def account(self, user: str) -> Account:
        """Return the inventory of one user.

        Raises:
            CallError: The store cannot be read.
            ValueError: The name is not a valid username.
        """
        segment = home_segment(user)
        library = open_library(self.settings)
        records = await self._records(library, user)
        files = [record for record in records if record.metadata.is_file]
        home = await asyncio.to_thread(Homes.of(self.settings).usage, user, most_entries=_MOST_ENTRIES)
        return Account(
            user=user,
            calls_running=CallLocks(self.settings.state_dir).is_calling(segment),
            files=len(files),
            bytes=sum({record.sha256: record.size for record in files}.values()),
            observations=len(records) - len(files),
            sessions=len(_sessions(library, user)),
            browser_sessions=Logins(self.settings.state_dir).count(user, now=self.clock()),
            home=None if home is None else str(self.settings.homes / segment),
            home_entries=0 if home is None else home.entries,
            home_bytes=0 if home is None else home.bytes,
            uid=self._uids.assignments().get(segment),
            quarantine=len(self._quarantine(segment)),
            bearer_tokens=sum(name == user for name in self._bearer_names()),
        )

    async def delete(self, user: str, *, now: bool = False) -> Mapping[str, Any]:
        """Remove the user's data; return what was removed, and what is left and why.

        No call of the user starts meanwhile.

        Args:
            user: The name.
            now: Also while a call of the user is in flight.

        Raises:
            UsageError: Nothing belongs to the user, or a call is in flight.
            CallError: The store failed; data removed by then stays removed.
        """
        account = await self.account(user)
        if not account.is_known:
            raise UsageError(f"nothing belongs to the user {user!r}; `runner users list` names everybody")
        with CallLocks(self.settings.state_dir).alone(home_segment(user)) as alone:
            if not (alone or now):
                raise UsageError(
                    f"a call of {user!r} is under way; wait for its end, or give --now: then what the call "
                    "keeps at its end comes after"
                )
            return await self._delete(user, account)

    async def _delete(self, user: str, account: Account) -> Mapping[str, Any]:
        revoked = self.revoke(user)
        library = open_library(self.settings)
        removed = await self._remove_files(library, user)
        for session in _sessions(library, user):
            claim = library.sessions.claim(session)
            if claim is not None:
                claim.forget()
                claim.release()
        is_empty = await asyncio.to_thread(Homes.of(self.settings).end, user)
        quarantined = self._quarantine(home_segment(user))
        for path in quarantined:
            path.unlink(missing_ok=True)
        left = []
        if not is_empty:
            left.append("the home, which a server holds: it goes when the user's session ends there")
        if account.uid is not None:
            left.append(f"the user id {account.uid}, which is recorded so that nobody else is given it")
        if account.bearer_tokens:
            left.append(_BEARER)
        report = {
            "user": user,
            "files": len(removed),
            "bytes": sum({record.sha256: record.size for record in removed}.values()),
            "sessions": account.sessions,
            "browser_sessions": revoked.browser_sessions,
            "quarantine": len(quarantined),
            "home_removed": account.home is not None and is_empty,
            "left": left,
        }
        _log.info("user removed", extra={key: value for key, value in report.items() if key != "left"})
        self._audit("user deleted", {key: report[key] for key in ("user", "files", "bytes", "home_removed")})
        return report

    def revoke(self, user: str, *, prefix: str = "") -> Revoked:
        """Revoke one or all download links of a user; with all of them, also the browser sessions.

        Args:
            user: The name.
            prefix: A token or a unique prefix of it; browser sessions are then kept.

        Raises:
            UsageError: The prefix fits no token, a token of another user or several tokens, or the state
                folder cannot be written.
            ValueError: The name is not a valid username.
        """
        home_segment(user)
        holders = [_holder_of(prefix, user)] if prefix else self._holders(user)
        tokens = Tokens(self.settings.state_dir / "tokens.json")
        try:
            tokens.revoke(holders, prefix=prefix, now=self.clock())
            ended = 0 if prefix else Logins(self.settings.state_dir).end_all(user)
        except OSError as error:
            raise UsageError(f"the revocation cannot be noted in state_dir: {error.strerror}") from error
        revoked = Revoked(
            user=user, links=f"{prefix[:_SHOWN_CHARS]}…" if prefix else "all", browser_sessions=ended
        )
        _log.info("tokens revoked", extra=asdict(revoked))
        facts = {"user": user, "links": "one" if prefix else "all", "browser_sessions": ended}
        self._audit("tokens revoked", facts)
        return revoked

    def _audit(self, act: str, facts: Mapping[str, Any]) -> None:
        """Record an operator's act in the audit log, if there is one."""
        if self.settings.audit_dir is not None:
            with contextlib.closing(AuditLog(self.settings.audit_dir)) as log:
                log.add({"kind": "administration", "act": act, **facts})

    def _holders(self, user: str) -> list[str]:
        """Return the holders of a user's links: the user and, if files do not persist, each session."""
        sessions = [session.name for session in _sessions(open_library(self.settings), user)]
        return [user, *(json.dumps({"user": user, "session": name}) for name in (*sessions, ""))]

    async def _remove_files(self, library: Library, user: str) -> Sequence[Record]:
        return [
            record
            for record in await self._records(library, user)
            if await library.store.delete(record.id, scope=record.scope, name=record.name)
        ]

    async def _records(self, library: Library, user: str) -> Sequence[Record]:
        if isinstance(library.store, BlobStore):
            return await library.store.all_of(user)
        found: dict[tuple[str, str | None, str | None], Record] = {}
        for name in [None, *(session.name for session in _sessions(library, user))]:
            for record in await library.store.list(scope=library.of(user, name).scope):
                found[(record.id, record.name, record.scope.session_id)] = record
        return list(found.values())

    @property
    def _uids(self) -> Uids:
        return Uids(self.settings.state_dir, self.settings.uids)

    def _quarantine(self, segment: str) -> list[Path]:
        folder = self.settings.store_path / "users" / segment / "quarantine"
        return [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []

    def _bearer_names(self) -> list[str]:
        path = self.settings.auth.tokens_file
        return [] if path is None else list(users_by_token(path).values())


def _holder_of(prefix: str, user: str) -> str:
    """Return the holder of a user's token, given its prefix.

    Raises:
        UsageError: It is not a token, it belongs to another user, or other tokens share the prefix.
    """
    signature = prefix.partition(".")[2]
    if len(signature) < _SIGNED_CHARS:
        raise UsageError(
            "--token takes a token, or its beginning up to the dot and "
            f"{_SIGNED_CHARS} or more characters behind it, and was given {len(signature)} of those: what "
            "stands before them, other links of the user begin with too"
        )
    named = named_in(prefix)
    if not named:
        raise UsageError("--token takes the token of a link, which stands behind `token=`; this is not one")
    if _person(named[0]) != user:
        raise UsageError(
            f"this token was made for {_person(named[0])!r}, not for {user!r}; nothing was revoked"
        )
    return named[0]


def _person(holder: str) -> str:
    """Return the user of a holder from `MyFiles.holder`."""
    with contextlib.suppress(ValueError, LookupError, TypeError):
        return str(json.loads(holder)["user"]) if holder.startswith("{") else holder
    return holder


def _sessions(library: Library, user: str) -> list[Session]:
    return [session for session in library.sessions.known() if session.user == user]
