"""The protocol of an artifact store: bytes of a scope, with names, retention and quotas.

Every operation carries a scope and is refused outside it. Two classes of retention share a store:
`files` (uploads, artifacts, deferred artifacts), which are never evicted silently, and `observations`
(what the output guard took out of a model's text), which have a lifetime and budgets.

Who owns an artifact are tenant, user and session, exactly as they were put; the trace is only noted.
Put again, the same content of the same owner is the same artifact: a file under the same wanted name, an
observation under any. What belongs to nobody can be had by a caller who names nobody, as a scope of its
own; a host that serves people asks `Scope.admits` first, which refuses both.

Source: document 004, sections 5.2 to 5.6; rules ST1 to ST4, SC1 and SC2 of the conformance cases;
architecture, decision "Retention"; contradictions C21, C29, C30; requirements S4-62, S4-73 and S4-105.
"""

import enum
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import BaseModel, ConfigDict, Field

from sandbox.call_value import call_value

__all__ = [
    "ArtifactRef",
    "ArtifactStore",
    "Content",
    "Count",
    "Origin",
    "Put",
    "Reason",
    "Record",
    "Removal",
    "Retention",
    "Scope",
]


Count = Annotated[int, Field(strict=True, ge=0)]
"""A number that is read as it was written."""


class ArtifactRef(BaseModel):
    """A small, JSON-safe reference to stored bytes, shown to a model."""

    model_config = ConfigDict(frozen=True)

    id: str = Field(description="`{namespace}_{sha256[:12]}`.")
    mime_type: str | None = Field(None, description="MIME type of the bytes.")
    size_bytes: int | None = Field(None, description="Length in bytes.")
    filename: str | None = Field(None, description="A file name for them.")
    sha256: str | None = Field(None, description="Hex digest of the bytes.")
    source: dict[str, Any] = Field(default_factory=dict, description="Where they came from.")


class Origin(enum.Enum):
    """The origin of a stored file."""

    UPLOADED = "uploaded"
    GENERATED = "generated"
    DEFERRED = "deferred"


class Retention(enum.Enum):
    """A retention class."""

    FILES = "files"
    OBSERVATIONS = "observations"


class Reason(enum.Enum):
    """The reason of a removal that nobody requested."""

    EXPIRED = "expired"
    SESSION_BUDGET = "session budget"
    TRACE_BUDGET = "trace budget"
    SESSION_ENDED = "session ended"
    LEFT_BEHIND = "left behind by an interrupted operation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """One thing that a store removed by itself; logged, never silent.

    Attributes:
        what: Id of the artifact, or where the left-over bytes lay.
        name: Its file name, if it had one.
        size: Length in bytes.
        reason: Why.
    """

    what: str
    name: str | None
    size: int
    reason: Reason


@call_value
class Scope:
    """The owner of an artifact, or the caller that requests one. None: not bound to, or not known.

    Attributes:
        tenant_id: The tenant.
        user_id: The user's name, as the identity gives it.
        session_id: The session.
        trace_id: The call; noted and counted, never compared.
    """

    tenant_id: str | None = None
    user_id: str | None = None
    session_id: str | None = None
    trace_id: str | None = None

    def admits(self, caller: "Scope | None") -> bool:
        """Return whether `caller` may access an artifact of this scope.

        Each of tenant, user and session that the artifact carries must be the caller's. An artifact
        that carries none of them has no owner, and a caller without a scope gets nothing.
        """
        carried = (
            (self.tenant_id, caller and caller.tenant_id),
            (self.user_id, caller and caller.user_id),
            (self.session_id, caller and caller.session_id),
        )
        named = [(own, theirs) for own, theirs in carried if own is not None]
        return caller is not None and bool(named) and all(own == theirs for own, theirs in named)

    @property
    def owner(self) -> "Scope":
        """Return the scope without its trace: two artifacts of equal owners are in one scope."""
        return replace(self, trace_id=None)

    @property
    def is_nobodys(self) -> bool:
        """Return whether it names neither tenant nor user nor session."""
        return self.owner == Scope()


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """Metadata supplied with a put.

    Attributes:
        name: The file name wanted, made safe. Among files it becomes unique within the scope; among
            observations, which are found by id only, it stays as it is. None: an observation without one.
        mime: MIME type; None: what the name suggests.
        origin: How it came.
        retention: How long it is kept.
        namespace: First part of the id; dots become `_`.
        source: Where it came from, small and JSON-safe.
        facts: What was learnt of the content on arrival, such as `rows`; small and JSON-safe.
        reason: Why it is deferred, if it is.
        expires_at: The last moment at which it is found; None: no such time of its own.
    """

    name: str | None = None
    mime: str | None = None
    origin: Origin = Origin.GENERATED
    retention: Retention = Retention.FILES
    namespace: str = "art"
    source: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    reason: str | None = None
    expires_at: datetime | None = None

    @property
    def id_prefix(self) -> str:
        """Return the beginning of its artifact's id."""
        return self.namespace.replace(".", "_") + "_"

    @property
    def is_file(self) -> bool:
        """Return whether it is a file, not an observation."""
        return self.retention is Retention.FILES

    def as_text(self) -> "Put":
        """Return the metadata for text: these, with type `text/plain` unless one is given."""
        return replace(self, mime=self.mime or "text/plain")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One stored artifact.

    The names of its fields stand in buckets and spools, which other releases read: they stay as they are.

    Attributes:
        id: `{namespace}_{sha256[:12]}`, longer only where another content has those digits.
        name: Its name, safe and unique within the scope; None only for observations.
        mime: MIME type.
        size: Length in bytes.
        sha256: Hex digest.
        scope: Whose it is.
        metadata: The metadata supplied with its put.
        created: When it was last put.
        expires_at: The last moment at which it is found, by its own time or its class's lifetime;
            None: it never ends by itself.
        pending: Whether the bytes are kept in the local spool and still on their way.
        key: Its key in an object store, where it lies in one. Never shown to users or models.
    """

    id: str
    name: str | None
    mime: str
    size: Count
    sha256: str
    scope: Scope
    metadata: Put
    created: datetime
    expires_at: datetime | None = None
    pending: bool = False
    key: str | None = None

    @property
    def shown(self) -> str:
        """Return its name, or its id where it has none."""
        return self.id if self.name is None else self.name

    @property
    def ref(self) -> ArtifactRef:
        """Return the facts that a model may see; a MIME type only if one was given or a name suggests it."""
        return ArtifactRef(
            id=self.id,
            mime_type=self.mime if self.name is not None else self.metadata.mime,
            size_bytes=self.size,
            filename=self.name,
            sha256=self.sha256,
            source={**self.metadata.source, **({"pending": True} if self.pending else {})},
        )


class Content(Protocol):
    """Stored bytes, being read.

    Attributes:
        size: Length of what will be read, in bytes.
    """

    @property
    def size(self) -> int:
        """Return the number of bytes to read."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the bytes in chunks of at most 1 MiB."""

    async def copy_to(self, fd: int) -> None:
        """Write the bytes to an open file, by sharing its blocks where the file system can."""


class ArtifactStore(Protocol):
    """Keeps artifacts. Whatever it acknowledged is there, whole, for who may have it.

    All methods raise `CallError`: `E_STORE` where the store fails (nothing was changed), `E_QUOTA` or
    `E_FILE_TOO_LARGE` where a limit is reached (the message names it and contains the word `limit`).
    What a scope may not have is to it as if it were not there: None, False, and `E_FILE_NOT_FOUND` from
    `open`.
    """

    async def put_bytes(self, content: bytes, about: Put, *, scope: Scope) -> Record:
        """Keep bytes."""

    async def put_text(self, text: str, about: Put, *, scope: Scope) -> Record:
        """Keep text as UTF-8; `text/plain` unless `about` says otherwise."""

    async def put_file(self, source: int | Path, about: Put, *, scope: Scope) -> Record:
        """Keep a regular file, given by its path or by a descriptor, which is read from its start.

        Raises:
            OSError: The source is not a regular file or cannot be opened.
        """

    def open(
        self, record: Record, *, scope: Scope, offset: int = 0, length: int | None = None
    ) -> AbstractAsyncContextManager[Content]:
        """Open the bytes of a record, or a range of them, for reading; counts as a use of it.

        Raises:
            CallError: As above; `E_FILE_NOT_FOUND` where it is no longer there, `E_STORE` where its
                bytes are gone or damaged.
        """

    async def stat(self, id_: str, *, scope: Scope) -> Record | None:
        """Return the artifact of that id: a file before an observation, and of several the one put last."""

    async def find(self, name: str, *, scope: Scope) -> Record | None:
        """Return the file of exactly that name."""

    async def last_observation(self, name: str, *, scope: Scope) -> Record | None:
        """Return the newest observation of exactly that name."""

    async def list(self, *, scope: Scope) -> Sequence[Record]:
        """Return all artifacts that the scope may have, by name."""

    async def sizes(self, *, scope: Scope) -> Sequence[int]:
        """Return the length of each content that counts against the quota of the user of `scope`.

        They are those of every session of the user. The answer may be some seconds old.
        """

    async def delete(self, id_: str, *, scope: Scope, name: str | None = None) -> bool:
        """Delete an artifact: that name of it, or all of it; say whether there was one."""

    async def sweep(self) -> Sequence[Removal]:
        """Remove what has expired and what interrupted operations left behind; return what it was."""

    async def fault(self) -> str | None:
        """Return None if files can be put and read now, else a sentence with the fault and its remedy.

        It names no user, file, key or address, takes at most some seconds, and may be asked at any rate:
        its answer may be some seconds old. Raises nothing of a store's.
        """
