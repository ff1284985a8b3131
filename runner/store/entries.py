"""Records as a store writes them: small JSON objects beside the bytes, and their keys.

Each combination of tenant and user has an area, with a part for each session. Bytes are shared only within
an area.

    {area}records/{session}/files/{name}             a file; the key keeps its name unique
    {area}records/{session}/observations/{digest}    an observation; the key is made of namespace and content

Names are sanitised, and sessions and namespaces are digests, so no key leaves the prefix of its owner. Pure.

Source: document 004, section 5.4; rules ST1, SC1, SC2 and DF1 of the conformance cases; architecture,
decision "Usernames".
"""

import hashlib
import itertools
import json
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

from pydantic import Field, TypeAdapter

from runner.formats.filenames import safe_name
from runner.formats.mime import DEFAULT_MIME, guess
from runner.store.protocol import Count, Put, Record, Retention, Scope
from runner.users.usernames import home_segment

__all__ = [
    "DamagedEntry",
    "Entry",
    "OwnerPlace",
    "PutKey",
    "is_again",
    "key_of",
    "mime_of",
    "place_of",
    "places_for",
    "put_key",
    "put_keys",
    "records_of",
    "renewed",
    "with_safe_name",
]


PutKey = tuple[Scope, str, Retention, str, str | None]
"""Owner, digest, retention, namespace and, for a file, name."""


class DamagedEntry(ValueError):
    """A record that cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One record, with the facts that its store needs.

    Attributes:
        record: The artifact; its `metadata.name` is the requested name, sanitised.
        blob: Key of its bytes.
        put: Number of its last put; grows with each put.
        is_gone: Whether it was removed, and only its bytes remain to be deleted.
        key: Key of the record; not written.
        etag: Etag of the record when it was read; not written.
    """

    record: Record
    blob: str
    put: Count
    is_gone: Annotated[bool, Field(alias="gone")] = False
    key: str = ""
    etag: str = ""

    @property
    def area(self) -> str:
        """Return the prefix of its area."""
        return self.key.partition("records/")[0]

    def written(self) -> bytes:
        """Return the record as JSON."""
        unwritten = {"key", "etag"} if self.is_gone else {"key", "etag", "is_gone"}
        content = _ENTRY.dump_python(self, mode="json", by_alias=True, exclude=unwritten)
        return json.dumps(content, separators=(",", ":")).encode()

    @classmethod
    def read(cls, content: bytes, *, key: str = "", etag: str = "") -> "Entry":
        """Parse a record from JSON; earlier versions had the key of the bytes only in `record.key`.

        Raises:
            DamagedEntry: It is not a valid record.
        """
        try:
            data = json.loads(content)
            made = _ENTRY.validate_python({"blob": data["record"]["key"], **data, "key": key, "etag": etag})
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise DamagedEntry("it is not a record") from error
        if made.record.name is None and made.record.metadata.is_file:
            raise DamagedEntry("it is a file without a name")
        return made


_ENTRY = TypeAdapter(Entry)


class OwnerPlace(NamedTuple):
    """The place of an owner's artifacts.

    Attributes:
        area: Folder of the bytes, relative to the store's: `users/{segment}` or `scopes/{digest}`.
        session: The session, after a `:`; empty if the artifacts are bound to none.
    """

    area: str
    session: str


def place_of(scope: Scope) -> OwnerPlace:
    """Return the place of artifacts of exactly this owner.

    Raises:
        ValueError: The user's name cannot name a folder.
    """
    session = "" if scope.session_id is None else f":{scope.session_id}"
    if scope.user_id is not None and scope.tenant_id is None:
        return OwnerPlace(f"users/{home_segment(scope.user_id)}", session)
    # Without a user each session has its own area: two sessions may belong to two people.
    owner = [scope.tenant_id, scope.user_id, scope.session_id if scope.user_id is None else None]
    return OwnerPlace(f"scopes/{hashlib.sha256(json.dumps(owner).encode()).hexdigest()}", session)


def places_for(caller: Scope) -> dict[OwnerPlace, Scope]:
    """Return every place whose artifacts a caller may access, with its owner; the caller's own comes first.

    Each tenant, user or session that an owner names must be the caller's: the rule of `Scope.admits`.

    Raises:
        ValueError: The user's name cannot name a folder.
    """
    if caller.is_nobodys:
        return {place_of(Scope()): Scope()}
    tenants = dict.fromkeys((caller.tenant_id, None))
    users = dict.fromkeys((caller.user_id, None))
    sessions = dict.fromkeys((caller.session_id, None))
    owners = (
        Scope(tenant_id=tenant, user_id=user, session_id=session)
        for tenant, user, session in itertools.product(tenants, users, sessions)
    )
    return {place_of(owner): owner for owner in owners if not owner.is_nobodys}


def records_of(area: str, place: OwnerPlace) -> str:
    """Return the prefix of the records of one owner; `area` is the prefix of the owner's area."""
    if not place.session:
        return f"{area}records/all/"
    digest = hashlib.sha256(place.session.encode(errors="surrogatepass")).hexdigest()
    return f"{area}records/s{digest[:32]}/"


def key_of(area: str, place: OwnerPlace, record: Record) -> str:
    """Return the key of a record: a file's by its name, an observation's by namespace and content."""
    prefix = records_of(area, place)
    if record.metadata.is_file:
        return f"{prefix}files/{record.name}"
    content = f"{record.metadata.id_prefix}{record.sha256}".encode(errors="surrogatepass")
    return f"{prefix}observations/{hashlib.sha256(content).hexdigest()}"


def with_safe_name(about: Put) -> Put:
    """Return the metadata of a put with its name made safe; a file always has one."""
    named = about.is_file or about.name is not None
    return replace(about, name=safe_name(about.name or "") if named else None)


def mime_of(about: Put) -> str:
    """Return the type of an artifact: the given one, or the one that its name suggests."""
    return about.mime or (DEFAULT_MIME if about.name is None else guess(about.name))


def put_key(record: Record) -> PutKey:
    """Return the key of the put of a record: it renews an artifact that has it in `put_keys`.

    A user may have equal content under many names, but only one observation of it in a namespace.
    """
    about = record.metadata
    name = about.name if about.is_file else None
    return record.scope.owner, record.sha256, about.retention, about.id_prefix, name


def put_keys(record: Record) -> set[PutKey]:
    """Return the keys of the puts that renew an artifact; a file may have got another name than requested."""
    key = put_key(record)
    return {key, (*key[:4], record.name)} if record.metadata.is_file else {key}


def is_again(record: Record, about: Put, sha256: str) -> bool:
    """Return whether a put of this content by the same owner renews that artifact."""
    return record.sha256 == sha256 and put_key(replace(record, metadata=about)) in put_keys(record)


def renewed(about: Put, before: Put) -> Put:
    """Return the metadata of an artifact that is put again."""
    if not about.is_file:
        return about
    about = replace(about, name=before.name)
    if before.expires_at and not about.expires_at:
        return about
    renewal = replace(about, origin=before.origin, facts=about.facts or before.facts)
    # An artifact that never expires stays so, even if a tool defers the same file.
    return renewal if before.expires_at else replace(renewal, reason=before.reason, expires_at=None)
