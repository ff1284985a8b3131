"""What is written down about an artifact in a bucket, as JSON: everything a host needs to know of it.

Source: document 004, section 5.4; rules ST1 and DF1 of the conformance cases.
"""

from dataclasses import dataclass, replace
from datetime import datetime

from pydantic import TypeAdapter, ValidationError

from runner.errors import CallError, Code
from runner.store.protocol import Put, Record, Retention

__all__ = ["BucketEntry", "DamagedRecord", "read_entry", "renewed", "written"]


class DamagedRecord(CallError):
    """What is written down about an artifact cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketEntry:
    """One artifact by one name.

    Attributes:
        record: The record; its `said.name` is the name that was asked for, made safe.
        token: Token of its upload.
        put: When it was last put, in nanoseconds, growing with each put of a host.
        used: When it was last put or read, likewise.
        at: Key of the record in the bucket; not written down.
    """

    record: Record
    token: str
    put: int
    used: int
    at: str = ""

    @property
    def full_id(self) -> str:
        """Return namespace and full digest."""
        return self.record.said.id_prefix + self.record.sha256

    def is_again(self, about: Put, wanted: str | None) -> bool:
        """Say whether a put of the same content by the same owner is this artifact again."""
        said = self.record.said
        if about.retention is not said.retention or about.id_prefix != said.id_prefix:
            return False
        return about.retention is Retention.OBSERVATIONS or wanted in (said.name, self.record.name)

    def until(self, expires_at: datetime | None, *, said: Put) -> "BucketEntry":
        """Return it with another end."""
        return replace(self, record=replace(self.record, expires_at=expires_at, said=said))


_ENTRY = TypeAdapter(BucketEntry)


def written(entry: BucketEntry) -> bytes:
    """Return an entry as JSON."""
    return _ENTRY.dump_json(entry, exclude={"at"})


def read_entry(content: bytes, at: str) -> BucketEntry:
    """Return the entry that JSON stands for.

    Raises:
        DamagedRecord: `E_STORE`: it is no entry.
    """
    try:
        return replace(_ENTRY.validate_json(content), at=at)
    except ValidationError:
        raise DamagedRecord(
            Code.E_STORE, "a record in the object store is damaged; ask your operator", retryable=False
        ) from None


def renewed(about: Put, before: Put) -> Put:
    """Return what holds of an artifact that is put again."""
    if about.retention is Retention.OBSERVATIONS or (before.expires_at and not about.expires_at):
        return about
    kept = replace(about, origin=before.origin, facts=about.facts or before.facts)
    # What stays for good does so although a tool defers the same file.
    return kept if before.expires_at else replace(kept, reason=before.reason, expires_at=None)
