"""Records as a store writes them: small JSON objects beside the bytes, and the keys under which they are.

    {area}records/{session}/files/{name}             a file; the key keeps its name unique
    {area}records/{session}/observations/{digest}    an observation; the key is made of namespace and content

Names are safe ones, sessions and namespaces digests, so no key leaves the prefix of its owner. Pure.

Source: document 004, section 5.4; rules ST1, SC1 and DF1 of the conformance cases.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from runner.formats.filenames import safe_name
from runner.formats.mime import DEFAULT_MIME, guess
from runner.store.areas import OwnerPlace
from runner.store.protocol import Origin, Put, Record, Retention, Scope

__all__ = [
    "DamagedEntry",
    "Entry",
    "is_again",
    "key_of",
    "mime_of",
    "records_of",
    "renewed",
    "with_safe_name",
]


class DamagedEntry(ValueError):
    """A record that cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One record and what its store needs to know of it.

    Attributes:
        record: The artifact; its `said.name` is the name that was wanted, made safe.
        blob: Key of its bytes.
        put: Number of its last put, growing.
        is_gone: Whether it was removed, and only its bytes are still to go.
        key: Key of the record; not written.
        etag: Mark of the record as it was read; not written.
    """

    record: Record
    blob: str
    put: int
    is_gone: bool = False
    key: str = ""
    etag: str = ""

    @property
    def area(self) -> str:
        """Return the prefix of the area that it lies in."""
        return self.key.partition("records/")[0]

    def written(self) -> bytes:
        """Return it as JSON."""
        record, metadata, scope = self.record, self.record.metadata, self.record.scope
        fields: dict[str, Any] = {
            "record": {
                "id": record.id,
                "name": record.name,
                "mime": record.mime,
                "size": record.size,
                "sha256": record.sha256,
                "scope": {
                    "tenant_id": scope.tenant_id,
                    "user_id": scope.user_id,
                    "session_id": scope.session_id,
                    "trace_id": scope.trace_id,
                },
                "said": {
                    "name": metadata.name,
                    "mime": metadata.mime,
                    "origin": metadata.origin.value,
                    "retention": metadata.retention.value,
                    "namespace": metadata.namespace,
                    "source": dict(metadata.source),
                    "facts": dict(metadata.facts),
                    "reason": metadata.reason,
                    "expires_at": _text(metadata.expires_at),
                },
                "created": _text(record.created),
                "expires_at": _text(record.expires_at),
                "pending": record.pending,
                "key": record.key,
            },
            "blob": self.blob,
            "put": self.put,
        }
        if self.is_gone:
            fields["gone"] = True
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def read(cls, content: bytes, *, key: str = "", etag: str = "") -> "Entry":
        """Return the record that JSON stands for; earlier versions named the bytes in `record.key` only.

        Raises:
            DamagedEntry: It is not one.
        """
        try:
            fields = json.loads(content)
            record, metadata = fields["record"], fields["record"]["said"]
            made = cls(
                record=Record(
                    id=_checked(str, record["id"]),
                    name=_checked(str | None, record["name"]),
                    mime=_checked(str, record["mime"]),
                    size=_checked(int, record["size"]),
                    sha256=_checked(str, record["sha256"]),
                    scope=Scope(
                        **{name: _checked(str | None, value) for name, value in record["scope"].items()}
                    ),
                    metadata=Put(
                        name=_checked(str | None, metadata["name"]),
                        mime=_checked(str | None, metadata["mime"]),
                        origin=Origin(metadata["origin"]),
                        retention=Retention(metadata["retention"]),
                        namespace=_checked(str, metadata["namespace"]),
                        source=_checked(dict, metadata["source"]),
                        facts=_checked(dict, metadata["facts"]),
                        reason=_checked(str | None, metadata["reason"]),
                        expires_at=_moment(metadata["expires_at"]),
                    ),
                    created=datetime.fromisoformat(record["created"]),
                    expires_at=_moment(record["expires_at"]),
                    pending=_checked(bool, record["pending"]),
                    key=_checked(str | None, record["key"]),
                ),
                blob=_checked(str, fields.get("blob", record["key"])),
                put=_checked(int, fields["put"]),
                is_gone=fields.get("gone") is True,
                key=key,
                etag=etag,
            )
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise DamagedEntry("it is not a record") from error
        if made.record.name is None and made.record.metadata.retention is Retention.FILES:
            raise DamagedEntry("it is a file without a name")
        return made


def records_of(area: str, place: OwnerPlace) -> str:
    """Return the prefix of the records of one owner; `area` is the prefix of all that its user has."""
    if not place.session:
        return f"{area}records/all/"
    digest = hashlib.sha256(place.session.encode(errors="surrogatepass")).hexdigest()
    return f"{area}records/s{digest[:32]}/"


def key_of(area: str, place: OwnerPlace, record: Record) -> str:
    """Return the key of a record: a file's by its name, an observation's by namespace and content."""
    prefix = records_of(area, place)
    if record.metadata.retention is Retention.FILES:
        return f"{prefix}files/{record.name}"
    content = f"{record.metadata.id_prefix}{record.sha256}".encode(errors="surrogatepass")
    return f"{prefix}observations/{hashlib.sha256(content).hexdigest()}"


def with_safe_name(about: Put) -> Put:
    """Return the metadata of a put with its name made safe; a file always has one."""
    named = about.retention is Retention.FILES or about.name is not None
    return replace(about, name=safe_name(about.name or "") if named else None)


def mime_of(about: Put) -> str:
    """Return the type of an artifact: the given one, or the one that its name suggests."""
    return about.mime or (DEFAULT_MIME if about.name is None else guess(about.name))


def is_again(record: Record, about: Put, sha256: str) -> bool:
    """Return whether a put of this content by the same owner is that artifact again.

    A user may have one content by many names, but an observation of it once in a namespace.
    """
    metadata = record.metadata
    if (record.sha256, metadata.retention) != (sha256, about.retention):
        return False
    named = about.retention is Retention.OBSERVATIONS or about.name in (metadata.name, record.name)
    return named and metadata.id_prefix == about.id_prefix


def renewed(about: Put, before: Put) -> Put:
    """Return the metadata of an artifact that is put again."""
    if about.retention is Retention.OBSERVATIONS:
        return about
    about = replace(about, name=before.name)
    if before.expires_at and not about.expires_at:
        return about
    renewal = replace(about, origin=before.origin, facts=about.facts or before.facts)
    # An artifact without an end keeps none although a tool defers the same file.
    return renewal if before.expires_at else replace(renewal, reason=before.reason, expires_at=None)


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _checked(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind) or (kind is int and value < 0):
        raise TypeError(f"{kind} is needed")
    return value
