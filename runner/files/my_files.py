"""My Files: the files of one user in the store, by name, as callers write names.

The layer between the store, which has scopes and exact names, and its users: staging, results, resources,
downloads, the command line. A `Library` has the files of all users; `MyFiles` is the view of one user in one
session, and applies that scope to every operation.

If files do not persist, each belongs to the session that put it and is removed with it. A protocol without
sessions has one session for each user, which ends when the user has been idle.

Source: requirements S1-9, S1-12, S1-13, S1-20, S1-84 to S1-86; document 001, section 7; rules DF1 and
DF2 of the conformance cases; architecture, decisions "Session" and "Retention".
"""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from runner.errors import CallError, Code
from runner.files.content_facts import facts
from runner.files.sessions import KnownSessions, Session, Sessions
from runner.formats.content_shape import part
from runner.formats.filenames import safe_name
from runner.formats.mime import guess
from runner.formats.nearest import nearest
from runner.settings.execution import LibrarySettings
from runner.store.blobs import utc_now
from runner.store.opening import open_store
from runner.store.protocol import (
    ArtifactStore,
    Content,
    Origin,
    Put,
    Reason,
    Record,
    Removal,
    Retention,
    Scope,
)
from runner.store.retention import Budgets, Quota, RetentionRules, budgets_of, log_removals
from runner.store.sources import opened
from runner.system.threads import in_thread, run_in_thread
from sandbox.call_value import call_value

__all__ = [
    "SCHEME",
    "Deferral",
    "FileChange",
    "Library",
    "MyFiles",
    "artifact_id",
    "open_library",
    "store_rules",
]

SCHEME = "artifact://"

_URI = re.compile(r"\s*artifact:/{0,2}([^/?#\s]*)", re.IGNORECASE)
_ID = re.compile(r"\w+_[0-9a-f]{12,64}", re.IGNORECASE | re.ASCII)
_WORD = re.compile(r"[^\W_]")
# A name of 255 percent-encoded bytes, and room for characters that a safe name omits.
_MOST_REFERENCE_CHARS = 4096
# Most names that an unknown name is compared with.
_MOST_COMPARED = 10_000
# The session of a user whose protocol has none. No client can name it: session names are never empty.
_UNNAMED = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferral:
    """Metadata of a deferred file.

    Attributes:
        expires_at: The time of its expiry.
        reason: The tool's reason for the deferral, if any.
        next_actions: The tool's proposals for its use.
    """

    expires_at: datetime
    reason: str | None = None
    next_actions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """A file that was added to My Files, or removed.

    Attributes:
        user: Its user.
        session: The session that it belongs to and ends with; None if it belongs to the user alone.
        record: The file.
        gone: Whether it was removed.
    """

    user: str
    session: str | None
    record: Record
    gone: bool = False


def _unheard(_: FileChange) -> None:
    """Ignore a changed file."""


def store_rules(settings: LibrarySettings) -> RetentionRules:
    """Return the store quotas of these settings."""
    largest = max(Quota().max_file_bytes, settings.max_artifact_bytes)
    quota = Quota(
        max_file_bytes=largest, max_user_bytes=settings.max_user_bytes, max_age_s=settings.max_file_age_s
    )
    return RetentionRules(files=quota, observations=budgets_of(settings.output_guard))


def artifact_id(reference: str) -> str | None:
    """Return the id in an `artifact://` URI, of a range of it too; None for any other text."""
    found = _URI.match(reference)
    return None if found is None else found[1]


def open_library(settings: LibrarySettings, store: ArtifactStore | None = None) -> "Library":
    """Return the library for the settings.

    Args:
        settings: The effective settings.
        store: A store to use instead of the one in the settings.
    """
    rules = store_rules(settings)
    return Library(
        store=open_store(settings, rules) if store is None else store,
        sessions=Sessions(settings.state_dir / "sessions"),
        persist=settings.persist_files_across_sessions,
        temporary_s=rules.observations.ttl_seconds,
        quota=rules.files,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """The files of all users.

    Attributes:
        store: The store.
        sessions: The sessions whose files end with them.
        persist: Whether files stay when a session ends.
        temporary_s: Lifetime of a temporary file, in seconds; 0 for that of any other file.
        quota: The store's retention rules for the files of each user.
        clock: Returns the current time.
        changed: Called with each file once it is stored, or removed.
    """

    store: ArtifactStore
    sessions: KnownSessions
    persist: bool = True
    temporary_s: float = Budgets().ttl_seconds
    quota: Quota = field(default_factory=Quota)
    clock: Callable[[], datetime] = utc_now
    changed: Callable[[FileChange], None] = _unheard

    def rebound(self, settings: LibrarySettings) -> None:
        """Apply the limits of new settings from the next file on."""
        self.quota.max_user_bytes = settings.max_user_bytes
        self.quota.max_age_s = settings.max_file_age_s

    def of(self, user: str, session: str | None = None) -> "MyFiles":
        """Return the files of one user in one session, if the protocol has one."""
        return MyFiles(library=self, user=user, session=session or _UNNAMED)

    def held_by(self, holder: str) -> "MyFiles":
        """Return the files for a text from `MyFiles.holder`.

        Raises:
            ValueError: The text is not the `holder` of any user.
        """
        if not holder.startswith("{"):
            return self.of(holder)
        claims = json.loads(holder)
        return self.of(claims["user"], claims["session"])

    async def end_idle_sessions(self, idle_s: float) -> int:
        """End the sessions that have been idle for `idle_s` seconds; return their number."""
        known = await run_in_thread(_known, self.sessions, idle_s)
        ended = [await self.of(session.user, session.name).end_session(idle_s) for session in known]
        return sum(names is not None for names in ended)

    async def end_sessions_named(self, name: str) -> None:
        """End the unused sessions of that name, of all users."""
        for session in await run_in_thread(_known, self.sessions):
            if session.name == name:
                await self.of(session.user, name).end_session()


@call_value
class MyFiles:
    """The files available to one user in one session. Operations raise `CallError` like the store.

    Attributes:
        files: The files of all users.
        user: The user's name.
        session: The session; empty if the protocol has none.
        trace: The call that uses them.
    """

    library: Library
    user: str
    session: str = _UNNAMED
    trace: str | None = None

    @property
    def scope(self) -> Scope:
        """Return the scope of their requests."""
        # Prefixed, since the session without a name needs an id too.
        session_id = f"session:{self.session}"
        return Scope(user_id=self.user, session_id=session_id, trace_id=self.trace)

    @property
    def holder(self) -> str:
        """Return their holder as text for a capability token: the user, perhaps with the session."""
        if self.library.persist and not self.user.startswith("{"):
            return self.user
        return json.dumps({"user": self.user, "session": self.session})

    async def put(
        self,
        source: int | Path | bytes,
        *,
        name: str,
        mime: str | None = None,
        origin: Origin,
        deferral: Deferral | None = None,
        about: Mapping[str, Any] | None = None,
        temporary: bool = False,
    ) -> Record:
        """Store a file under the safe form of `name`, with a number if other content has that name.

        Args:
            source: The file, a descriptor of it, which is read from its start, or its bytes.
            name: Its name, in any form.
            mime: Its MIME type; by default guessed from the name.
            origin: How it arrived.
            deferral: Expiry and reason of a deferred file.
            about: Small metadata on its source, for its reference.
            temporary: Whether to keep it for a while outside My Files: found only by its id, not by name.

        Raises:
            OSError: The source is not a regular file or cannot be opened.
            CallError: `E_STORE`, `E_QUOTA` or `E_FILE_TOO_LARGE`; nothing was stored.
        """
        safe = safe_name(name)
        put = Put(
            name=safe,
            mime=mime,
            origin=origin,
            source={**(about or {}), **_proposed(deferral)},
            facts=await run_in_thread(_facts, source, mime or guess(safe), safe),
            reason=deferral.reason if deferral else None,
            expires_at=deferral.expires_at if deferral else None,
        )
        scope = self.scope if not self.library.persist else replace(self.scope, session_id=None)
        async with self.in_use():
            if temporary:
                return await self._put_temporarily(source, put, scope)
            record = await self._put(source, put, scope)
        self._tell(record)
        return record

    async def _put_temporarily(self, source: int | Path | bytes, put: Put, scope: Scope) -> Record:
        try:
            return await self._put(source, replace(put, retention=Retention.OBSERVATIONS), scope)
        except CallError as error:
            if error.code is not Code.E_QUOTA:
                raise
        # Over the quota of temporary content: stored as a file with that lifetime.
        lifetime_s = self.library.temporary_s
        end = self.library.clock() + timedelta(seconds=lifetime_s) if lifetime_s else None
        return await self._put(source, replace(put, expires_at=end), scope)

    async def _put(self, source: int | Path | bytes, put: Put, scope: Scope) -> Record:
        if isinstance(source, bytes):
            return await self.library.store.put_bytes(source, put, scope=scope)
        return await self.library.store.put_file(source, put, scope=scope)

    async def find(self, name: str) -> Record | None:
        """Return the file of that name or, since every stored name is safe, of its safe form."""
        safe = safe_name(name)
        # The safe form of a name without letters and digits is made up, so it does not match the request.
        if safe != name and not _WORD.search(name):
            return None
        return await self.library.store.find(safe, scope=self.scope)

    async def by_id(self, id_: str) -> Record | None:
        """Return the file of that id, ignoring case: the host of a URI is case-insensitive."""
        found = await self.library.store.stat(id_, scope=self.scope)
        if found is None and id_ != id_.lower():
            found = await self.library.store.stat(id_.lower(), scope=self.scope)
        return found

    async def referenced(self, references: Iterable[str]) -> dict[str, Record]:
        """Return the files that arguments refer to: by name, by id or by `artifact://ID`.

        A name in My Files takes precedence over the name of an observation taken out of a result; of several
        such observations with one name the newest is used.
        """
        found: dict[str, Record] = {}
        # Listed once, and only if needed: one call may name a thousand files, and a user may have more.
        observations: dict[str, Record] | None = None
        for reference in references:
            record = None
            if (id_ := artifact_id(reference)) is not None:
                record = await self.by_id(id_)
            elif len(reference) <= _MOST_REFERENCE_CHARS:
                for name in dict.fromkeys((reference, unquote(reference))):
                    record = await self.find(name)
                    if record is None and _ID.fullmatch(name):
                        record = await self.by_id(name)
                    if record is None and _WORD.search(name):
                        if observations is None:
                            observations = await self._observations()
                        record = observations.get(safe_name(name))
                    if record is not None:
                        break
            if record is not None:
                found[reference] = record
        return found

    async def _observations(self) -> dict[str, Record]:
        """Return the newest observation of each name."""
        listed = await self.library.store.list(scope=self.scope)
        found = [record for record in listed if not record.metadata.is_file]
        return {record.shown: record for record in sorted(found, key=lambda record: record.created)}

    async def all(self) -> Sequence[Record]:
        """Return all files, by name. Observations are not files."""
        found = await self.library.store.list(scope=self.scope)
        return [record for record in found if record.metadata.is_file]

    async def sizes(self) -> Sequence[int]:
        """Return the sizes of all contents that count against the quota of the user."""
        return await self.library.store.sizes(scope=self.scope)

    async def nearest(self, name: str) -> list[str]:
        """Return the names of files most similar to `name`, the best match first."""
        names = [record.shown for record in await self.all()]
        # In a thread: a user may have many files.
        return await asyncio.to_thread(nearest, safe_name(name), names, most_names=_MOST_COMPARED)

    @asynccontextmanager
    async def open(
        self, record: Record, *, offset: int = 0, length: int | None = None
    ) -> AsyncIterator[Content]:
        """Open the bytes of a file, or a range of them; the session does not end while they are read."""
        stored = self.library.store.open(record, scope=self.scope, offset=offset, length=length)
        async with self.in_use(to_read=True), stored as content:
            yield content

    async def remove(self, name: str) -> bool:
        """Remove the file of exactly that name; return whether there was one."""
        record = await self.library.store.find(name, scope=self.scope)
        return record is not None and await self.remove_found(record)

    async def remove_found(self, record: Record) -> bool:
        """Remove a found file, but no other that has its name by now; return whether it existed."""
        if record.metadata.retention is not Retention.FILES:
            return False
        removed = await self.library.store.delete(record.id, scope=self.scope, name=record.name)
        if removed:
            self._tell(record, gone=True)
        return removed

    async def end_session(self, idle_s: float = 0) -> list[str] | None:
        """End the session, and remove its files if files do not persist.

        Args:
            idle_s: Seconds that it must have been unused.

        Returns:
            The names of the removed files; None if it did not end, because it is in use, has not been
            idle for so long, or does not exist.
        """
        session = Session(user=self.user, name=self.session)
        claim = await run_in_thread(self.library.sessions.claim, session, idle_s=idle_s)
        if claim is None:
            return None
        try:
            removed = await self._remove_all()
            claim.forget()
        finally:
            claim.release()
        return removed

    def in_use(self, *, to_read: bool = False) -> AbstractAsyncContextManager[None]:
        """Keep the session from ending meanwhile; its idle time restarts when the block ends.

        Args:
            to_read: Whether to begin no session, and to continue if the use cannot be recorded.
        """
        if self.library.persist:
            return nullcontext()
        session = Session(user=self.user, name=self.session)
        return in_thread(self.library.sessions.using(session, to_read=to_read))

    def _tell(self, record: Record, *, gone: bool = False) -> None:
        owned = record.scope.session_id is not None
        session = self.session or None if owned else None
        self.library.changed(FileChange(user=self.user, session=session, record=record, gone=gone))

    async def _remove_all(self) -> list[str]:
        own = [r for r in await self.library.store.list(scope=self.scope) if r.scope.session_id is not None]
        for record in own:
            await self.library.store.delete(record.id, scope=self.scope, name=record.name)
            self._tell(record, gone=True)
        ended = Reason.SESSION_ENDED
        log_removals(Removal(what=r.id, name=r.name, size=r.size, reason=ended) for r in own)
        return [record.shown for record in own]


def _known(sessions: KnownSessions, idle_s: float = 0) -> list[Session]:
    return list(sessions.known(idle_s=idle_s))


def _proposed(deferral: Deferral | None) -> Mapping[str, Any]:
    return {"next_actions": list(deferral.next_actions)} if deferral and deferral.next_actions else {}


def _facts(source: int | Path | bytes, mime: str, name: str) -> Mapping[str, Any]:
    """Return the facts in a file's header; nothing if it cannot be read, which the store reports."""
    if isinstance(source, bytes):
        return facts(partial(part, source), mime=mime, name=name, size=len(source))
    with opened(source) as fd:
        return facts(partial(os.pread, fd), mime=mime, name=name, size=os.fstat(fd).st_size)
