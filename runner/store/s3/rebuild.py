"""Records of a bucket that are lost, made anew from what lies beside the bytes.

Beside each artifact lies a marker, which leads from its content to its record. It holds the record as it was
when the artifact was put, so each of the two stands in for the other. Markers of earlier versions are empty:
then the marker's key says digest and name, and the bytes themselves their type, their length and their day.

What cannot be attributed, to a user whose name is written nowhere say, stays where it is and is reported.
What somebody removed is not brought back: that is noted before anything of it goes.

Source: `docs/decisions/0026-markers-hold-the-record.md`.
"""

import logging
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from runner.errors import CallError
from runner.formats.filenames import unique_name
from runner.store.protocol import Put, Record, Retention, Scope
from runner.store.retention import RetentionRules, ends_at
from runner.store.s3.bucket import Listed
from runner.store.s3.entry import BucketEntry, DamagedRecord, read_entry, written
from runner.store.s3.index import S3Index
from runner.store.s3.keys import keys_of
from runner.store.s3.names import records_in, take_name
from runner.users.usernames import home_segment

__all__ = ["SETTLED_AFTER", "BucketContents", "rebuild", "write_markers"]

SETTLED_AFTER = timedelta(minutes=5)
"""A put writes marker and record within a minute; what has no record after this time has lost it."""

_log = logging.getLogger(__name__)

_MARKERS_AT_ONCE = 1000
_NAMES = 20
_FILE_MARKER = re.compile(
    r"(?P<user>[^/]+)/ids/all/(?P<space>[^/]+)_(?P<sha256>[0-9a-f]{64})/[^/]+/f/(?P<name>.+)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketContents:
    """What a bucket holds, as far as records can be made from it.

    Attributes:
        content: The bytes, by token.
        markers: The markers, by token; of several of one token the last.
        lives: Later states of records, by token.
        without: Tokens that have no record and were not removed.
        unread: Keys of records that are there and damaged.
    """

    content: Mapping[str, Listed]
    markers: Mapping[str, Listed]
    lives: Mapping[str, Listed]
    without: Collection[str]
    unread: Collection[str]


def rebuild(
    index: S3Index, left: BucketContents, rules: RetentionRules, *, now: datetime, settled_after: timedelta
) -> list[BucketEntry]:
    """Write down anew the artifacts whose records are lost; return them.

    Args:
        index: The records.
        left: What is there.
        rules: What may be kept.
        now: The present time.
        settled_after: Age of a marker at which its record is no more about to be written.

    Raises:
        CallError: `E_STORE`: the server cannot be reached.
    """
    made = []
    for token in left.without:
        marker = left.markers.get(token)
        if marker is None or index.bucket.now() - marker.modified < settled_after:
            continue
        try:
            entry = _entry(index, left, token, marker, rules, now=now)
            can_be = entry is not None and not _is_unread(index, entry, left) and _is_there(index, entry)
            new = _restored(index, entry) if entry is not None and can_be else None
        except CallError as error:
            _log.warning(
                "a record could not be made anew", extra={"key": marker.key, "reason": error.message}
            )
            continue
        if new is not None:
            made.append(new)
            if index.marker_key(new) != marker.key:
                index.bucket.delete(marker.key)
    if made:
        _log.warning("lost records were made anew", extra={"artifacts": len(made)})
    return made


def write_markers(index: S3Index, entries: list[BucketEntry], markers: Mapping[str, Listed]) -> None:
    """Write records into markers of earlier versions, which are empty; so many at a time."""
    empty = [entry for entry in entries if entry.token in markers and not markers[entry.token].size]
    for entry in empty[:_MARKERS_AT_ONCE]:
        index.bucket.put(markers[entry.token].key, written(entry))


def _entry(
    index: S3Index, left: BucketContents, token: str, marker: Listed, rules: RetentionRules, *, now: datetime
) -> BucketEntry | None:
    """Return what is known of an artifact, or None if that is too little."""
    content = left.content[token]
    later = _read(index, left.lives.get(token), token, content)
    entry = later or _read(index, marker, token, content) or _from_keys(index, token, marker, content)
    if entry is None or later is not None:
        return entry
    # Its life may have been prolonged, nobody knows until when: it is not taken for ended.
    said = replace(entry.record.said, expires_at=None, reason=None)
    return entry.until(ends_at(said, now=now, rules=rules), said=said)


def _read(index: S3Index, known: Listed | None, token: str, content: Listed) -> BucketEntry | None:
    """Return what an object says of an artifact; None if it is none of these bytes."""
    if known is None or not known.size:
        return None
    try:
        entry = read_entry(index.bucket.get(known.key) or b"", known.key)
    except DamagedRecord:
        return None
    said = (entry.token, entry.record.key, entry.record.size)
    return entry if said == (token, content.key, content.size) else None


def _from_keys(index: S3Index, token: str, marker: Listed, content: Listed) -> BucketEntry | None:
    """Return what the keys say of a user's file that belongs to no session."""
    said = _FILE_MARKER.fullmatch(marker.key.removeprefix(index.prefix))
    # Other segments are quoted or digested, and belong to users and sessions whose names they do not tell.
    if said is None or not _names_its_user(said["user"]):
        return None
    scope = Scope(user_id=said["user"])
    about = Put(name=said["name"], namespace=said["space"], mime=index.bucket.mime(content.key))
    count = int(content.modified.timestamp() * 1e9)
    record = Record(
        id=index.free_id(keys_of(index.prefix, scope), about.id_prefix + said["sha256"]),
        name=said["name"],
        mime=about.mime or "",
        size=content.size,
        sha256=said["sha256"],
        scope=scope,
        said=about,
        created=content.modified,
        key=content.key,
    )
    return BucketEntry(record=record, token=token, put=count, used=count)


def _names_its_user(segment: str) -> bool:
    return not segment.startswith("=") and home_segment(segment) == segment


def _is_unread(index: S3Index, entry: BucketEntry, left: BucketContents) -> bool:
    """Say whether the record may be there, and damaged: whoever mends it finds its place taken otherwise."""
    keys = keys_of(index.prefix, entry.record.scope)
    places = [keys.note(entry.token)]
    if entry.record.name is not None:
        places.append(keys.name(entry.record.name))
    return any(key.startswith(place) for key in left.unread for place in places)


def _is_there(index: S3Index, entry: BucketEntry) -> bool:
    """Say whether an artifact was not removed since the bucket was listed.

    A removal notes that it has begun, and that note goes last.
    """
    life = keys_of(index.prefix, entry.record.scope).life(entry.token)
    return index.bucket.get(life) != b"" and index.bucket.size(str(entry.record.key)) == entry.record.size


def _restored(index: S3Index, entry: BucketEntry) -> BucketEntry | None:
    """Write an artifact down under its name; under the next that is free, if another has it by now."""
    if entry.record.said.retention is Retention.OBSERVATIONS:
        return index.add(entry)
    keys = keys_of(index.prefix, entry.record.scope)
    for name in _names(str(entry.record.name)):
        new = replace(entry, record=replace(entry.record, name=name))
        index.bucket.put(index.marker_key(new), written(new))
        conditions = index.bucket.has_conditions(index.probe)
        if take_name(index.bucket, keys, name, token=entry.token, record=written(new), conditions=conditions):
            return new
        holders = index.load(records_in(list(index.bucket.list(keys.name(name)))))
        if any(holder.token == entry.token for holder in holders):
            # Another host was faster, and took the same way.
            return None
        index.bucket.delete(index.marker_key(new))
        if any(_is_same(holder, entry) for holder in holders):
            # It was put again since: there is nothing to bring back.
            return None
    return None


def _names(name: str) -> Iterator[str]:
    """Yield the name and what follows where it is taken, in the order that every host takes."""
    taken: set[str] = set()
    for _ in range(_NAMES):
        new = unique_name(name, taken)
        taken.add(new)
        yield new


def _is_same(holder: BucketEntry, entry: BucketEntry) -> bool:
    return (
        holder.record.sha256 == entry.record.sha256 and holder.record.scope.owner == entry.record.scope.owner
    )
