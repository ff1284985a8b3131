"""Records as a store writes them: small JSON objects beside the bytes, and the keys under which they are.

    {area}records/{session}/files/{name}             a file; the key keeps its name unique
    {area}records/{session}/observations/{digest}    an observation; the key is made of namespace and content

Names are safe ones, sessions and namespaces digests, so no key leaves the prefix of its owner. Pure.

Source: document 004, section 5.4; rules ST1, SC1 and DF1 of the conformance cases.
"""

import enum
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter

from runner.formats.filenames import safe_name
from runner.formats.mime import DEFAULT_MIME, guess
from runner.store.areas import OwnerPlace
from runner.store.protocol import Count, Put, Record

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
    put: Count
    is_gone: bool = False
    key: str = ""
    etag: str = ""

    @property
    def area(self) -> str:
        """Return the prefix of the area that it lies in."""
        return self.key.partition("records/")[0]

    def written(self) -> bytes:
        """Return it as JSON."""
        record = {"said" if name == "metadata" else name: v for name, v in _fields(self.record).items()}
        content = {"record": record, "blob": self.blob, "put": self.put}
        if self.is_gone:
            content["gone"] = True
        return json.dumps(content, separators=(",", ":"), default=_plain).encode()

    @classmethod
    def read(cls, content: bytes, *, key: str = "", etag: str = "") -> "Entry":
        """Return the record that JSON stands for; earlier versions named the bytes in `record.key` only.

        Raises:
            DamagedEntry: It is not one.
        """
        try:
            given = json.loads(content)
            record = given["record"]
            own = {"key": key, "etag": etag, "is_gone": given.get("gone") is True}
            made = _ENTRY.validate_python(
                {"blob": record["key"], **given, "record": {**record, "metadata": record["said"]}, **own}
            )
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise DamagedEntry("it is not a record") from error
        if made.record.name is None and made.record.metadata.is_file:
            raise DamagedEntry("it is a file without a name")
        return made


_ENTRY = TypeAdapter(Entry)


def records_of(area: str, place: OwnerPlace) -> str:
    """Return the prefix of the records of one owner; `area` is the prefix of all that its user has."""
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


def is_again(record: Record, about: Put, sha256: str) -> bool:
    """Return whether a put of this content by the same owner is that artifact again.

    A user may have one content by many names, but an observation of it once in a namespace.
    """
    metadata = record.metadata
    if (record.sha256, metadata.retention) != (sha256, about.retention):
        return False
    named = not about.is_file or about.name in (metadata.name, record.name)
    return named and metadata.id_prefix == about.id_prefix


def renewed(about: Put, before: Put) -> Put:
    """Return the metadata of an artifact that is put again."""
    if not about.is_file:
        return about
    about = replace(about, name=before.name)
    if before.expires_at and not about.expires_at:
        return about
    renewal = replace(about, origin=before.origin, facts=about.facts or before.facts)
    # An artifact without an end keeps none although a tool defers the same file.
    return renewal if before.expires_at else replace(renewal, reason=before.reason, expires_at=None)


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, enum.Enum):
        return value.value
    return dict(value) if isinstance(value, Mapping) else _fields(value)
