"""The protocol of an artifact store: bytes of a scope, with names, retention and quotas.

Every operation carries a scope and is refused outside it. Two classes of retention share a store:
`files` (uploads, artifacts, deferred artifacts), which are never evicted silently, and `observations`
(content that the output guard removed from a model's text), which have a lifetime and budgets.

The owner of an artifact is its tenant, user and session, exactly as put; the trace is only recorded. Equal
content that the same owner puts again is the same artifact: a file if it has the same requested name, an
observation under any name. Artifacts without an owner form a scope of their own, for callers without one. A
host that serves people checks `Scope.admits` first, which refuses such artifacts and such callers.

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
"""A non-negative integer, parsed without conversion."""


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
    """The reason for an automatic removal."""

    EXPIRED = "expired"
    SESSION_BUDGET = "session budget"
    TRACE_BUDGET = "trace budget"
    SESSION_ENDED = "session ended"
    LEFT_BEHIND = "left behind by an interrupted operation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """One automatic removal by a store; always logged.

    Attributes:
        what: Id of the artifact, or location of the left-over bytes.
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
    """The owner of an artifact, or the caller that requests one. None: not bound, or not known.

    Attributes:
        tenant_id: The tenant.
        user_id: The user's name, as the identity gives it.
        session_id: The session.
        trace_id: The call; recorded and counted, never compared.
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
        """Return the scope without its trace: artifacts with equal owners share a scope."""
        return replace(self, trace_id=None)

    @property
    def is_nobodys(self) -> bool:
        """Return whether it names neither tenant nor user nor session."""
        return self.owner == Scope()


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """Metadata supplied with a put.

    Attributes:
        name: The requested file name, sanitised. A file's name is made unique within the scope; an
            observation, found by id only, keeps its name. None: an observation without a name.
        mime: MIME type; None: derived from the name.
        origin: Its origin.
        retention: How long it is kept.
        namespace: First part of the id; dots become `_`.
        source: Where it came from, small and JSON-safe.
        facts: Facts about the content found on arrival, such as `rows`; small and JSON-safe.
        reason: Why it is deferred, if it is.
        expires_at: The last moment at which it is found; None: no expiry of its own.
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
        """Return the prefix of its artifact's id."""
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

    Its field names are stored in buckets and spools that other releases read, so they must not change.

    Attributes:
        id: `{namespace}_{sha256[:12]}`, longer only if other content has the same digits.
        name: Its name, safe and unique within the scope; None only for observations.
        mime: MIME type.
        size: Length in bytes.
        sha256: Hex digest.
        scope: Its owner.
        metadata: The metadata supplied with its put.
        created: When it was last put.
        expires_at: The last moment at which it is found, by its own time or its class's lifetime;
            None: it never expires.
        pending: Whether the bytes are in the local spool, not in the store yet.
        key: Its key in an object store, if it is in one. Never shown to users or models.
    """

    id: str
    name: str | None
    mime: str
    size: Count
    sha256: str
    scope: Scope
    metadata: Annotated[Put, Field(alias="said")]
    created: datetime
    expires_at: datetime | None = None
    pending: bool = False
    key: str | None = None

    @property
    def shown(self) -> str:
        """Return its name, or its id if it has none."""
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
    """A reader of stored bytes.

    Attributes:
        size: Number of bytes to read.
    """

    @property
    def size(self) -> int:
        """Return the number of bytes to read."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the bytes in chunks of at most 1 MiB."""

    async def copy_to(self, fd: int) -> None:
        """Write the bytes to an open file, by sharing its blocks where the file system can."""


class ArtifactStore(Protocol):
    """A store of artifacts. What it has acknowledged is complete, and available to all who may access it.

    All methods raise `CallError`: `E_STORE` if the store fails (nothing was changed), `E_QUOTA` or
    `E_FILE_TOO_LARGE` if a limit is reached (the message names it and contains the word `limit`).
    An artifact that a scope may not access appears not to exist: None, False, and `E_FILE_NOT_FOUND` from
    `open`.
    """

    async def put_bytes(self, content: bytes, about: Put, *, scope: Scope) -> Record:
        """Store bytes."""

    async def put_text(self, text: str, about: Put, *, scope: Scope) -> Record:
        """Store text as UTF-8; `text/plain` unless `about` has another type."""

    async def put_file(self, source: int | Path, about: Put, *, scope: Scope) -> Record:
        """Store a regular file, given by its path or by a descriptor, which is read from its start.

        Raises:
            OSError: The source is not a regular file or cannot be opened.
        """

    def open(
        self, record: Record, *, scope: Scope, offset: int = 0, length: int | None = None
    ) -> AbstractAsyncContextManager[Content]:
        """Open the bytes of a record, or a range of them, for reading; counts as a use of it.

        Raises:
            CallError: As above; `E_FILE_NOT_FOUND` if it is no longer stored, `E_STORE` if its
                bytes are missing or damaged.
        """

    async def stat(self, id_: str, *, scope: Scope) -> Record | None:
        """Return the artifact of that id: a file rather than an observation; of several, the one put last."""

    async def find(self, name: str, *, scope: Scope) -> Record | None:
        """Return the file of exactly that name."""

    async def list(self, *, scope: Scope) -> Sequence[Record]:
        """Return all artifacts that the scope may access, by name."""

    async def sizes(self, *, scope: Scope) -> Sequence[int]:
        """Return the length of each content that counts against the quota of the user of `scope`.

        This covers every session of the user. The result may be some seconds old.
        """

    async def delete(self, id_: str, *, scope: Scope, name: str | None = None) -> bool:
        """Delete an artifact, or only one name of it; return whether there was one."""

    async def sweep(self) -> Sequence[Removal]:
        """Remove expired artifacts and leftovers of interrupted operations; return the removals."""

    async def fault(self) -> str | None:
        """Return None if files can be put and read now, else a sentence with the fault and its remedy.

        It names no user, file, key or address, takes at most some seconds, and may be called at any rate:
        its result may be some seconds old. It raises no error of the store.
        """
