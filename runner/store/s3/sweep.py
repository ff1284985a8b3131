"""What a bucket holds that it should not: what has ended, and what interrupted operations left behind.

Left behind is what an empty life says was removed. Bytes that merely have no record have lost it: it is made
anew where enough is known of them, and otherwise they stay and are reported. Only what is old is taken away,
by the server's clock: no upload takes a week.
"""

import logging
import math
import re
import time
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from runner.store.protocol import Reason, Removal
from runner.store.retention import RetentionRules, has_ended
from runner.store.s3.bucket import Bucket, Listed
from runner.store.s3.entry import BucketEntry
from runner.store.s3.index import S3Index
from runner.store.s3.names import TICKETS_END_AFTER
from runner.store.s3.rebuild import SETTLED_AFTER, BucketContents, rebuild, write_markers

__all__ = ["STALE_AFTER", "ListingLimits", "Lost", "count_lost", "everything", "removal_of", "sweep"]

STALE_AFTER = timedelta(days=7)

_log = logging.getLogger(__name__)

_KEY = re.compile(
    r"[^/]+/(?:(?P<bytes>artifacts|observations)/\d+/(?P<content>[^/]+)"
    r"|ids/[^/]+/[^/]+/(?P<marked>[^/]+)/.*"
    r"|index/[^/]+/(?:names/[^/]+/(?P<ticket>[^/]+)|notes/(?P<note>[^/]+)|lives/(?P<alive>[^/]+)))"
)


@dataclass(slots=True)
class _Seen:
    """Everything in the bucket, sorted by what it is."""

    records: list[Listed] = field(default_factory=list)
    tickets: list[Listed] = field(default_factory=list)
    lives: dict[str, Listed] = field(default_factory=dict)
    content: list[tuple[str, Listed]] = field(default_factory=list)
    markers: list[tuple[str, Listed]] = field(default_factory=list)

    def add(self, item: Listed, key: str) -> None:
        """Sort an object in; `key` is without the store's prefix. What is not ours is passed over."""
        match = _KEY.match(key)
        if match is None:
            return
        if match["ticket"] or match["note"]:
            (self.records if item.size else self.tickets).append(item)
        elif match["alive"]:
            self.lives[match["alive"]] = item
        elif match["bytes"]:
            self.content.append((match["content"], item))
        else:
            self.markers.append((match["marked"], item))


def sweep(index: S3Index, rules: RetentionRules, *, now: datetime, stale_after: timedelta) -> list[Removal]:
    """Make lost records anew, remove all that has ended or was left behind; return what was removed."""
    seen = _seen(index)
    unread: list[Listed] = []
    entries = index.load(seen.records, unread)
    if unread:
        _log.error("damaged records are passed over", extra={"keys": [item.key for item in unread]})
    settled_after = min(SETTLED_AFTER, stale_after)
    left = _left(seen, {entry.token for entry in entries}, unread)
    made = rebuild(index, left, rules, now=now, settled_after=settled_after)
    write_markers(index, entries, left.markers)
    latest = index.as_they_are(entries, seen.lives)
    ended = [
        e for e, later in zip(entries, latest, strict=True) if has_ended(later.record.expires_at, now=now)
    ]
    for entry in ended:
        index.remove(entry)
    expired = [removal_of(entry, Reason.EXPIRED) for entry in ended]
    return expired + _clear(index, seen, {entry.token for entry in (*entries, *made)}, stale_after)


def _left(seen: _Seen, known: Collection[str], unread: list[Listed]) -> BucketContents:
    content = dict(seen.content)
    return BucketContents(
        content=content,
        # Of several of one artifact the last is under the name that it got.
        markers=dict(sorted(seen.markers, key=lambda marker: marker[1].modified)),
        lives=seen.lives,
        without=[t for t in content if t not in known and (t not in seen.lives or seen.lives[t].size)],
        unread=[item.key for item in unread],
    )


def everything(index: S3Index) -> tuple[list[BucketEntry], list[Listed]]:
    """Return all artifacts of the store, whoever's they are, and the records that are damaged."""
    unread: list[Listed] = []
    return index.load(_seen(index).records, unread), unread


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingLimits:
    """How far a listing goes.

    Attributes:
        objects: After how many objects it is cut.
        seconds: After how many seconds it is cut.
    """

    objects: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """What a listing says of lost records.

    Attributes:
        files: How many artifacts have lost their record, at least.
        users: How many users were listed to the end.
        objects: How many objects were listed.
        is_cut: Whether there are more objects, which were not listed.
    """

    files: int
    users: int
    objects: int
    is_cut: bool


def count_lost(bucket: Bucket, prefix: str, *, bounds: ListingLimits | None = None) -> Lost:
    """Count the artifacts that have lost their record, as far as a listing tells.

    Args:
        bucket: The bucket.
        prefix: What the store's keys begin with.
        bounds: Where the listing is cut; None: nowhere. Keys come in order, a user's one after the other, so
            only of the user at whom it is cut nothing can be said.

    Raises:
        CallError: `E_STORE`: the server cannot be reached.
    """
    users, records, removed = set[str](), Counter[str](), set[str]()
    content: list[tuple[str, str]] = []
    settled = bucket.now() - SETTLED_AFTER
    ends = math.inf if bounds is None else time.monotonic() + bounds.seconds
    listed, cut_at = 0, None
    for item in bucket.list(prefix):
        key = item.key.removeprefix(prefix)
        user = key.partition("/")[0]
        if bounds is not None and (listed >= bounds.objects or time.monotonic() > ends):
            cut_at = user
            break
        listed += 1
        match = _KEY.match(key)
        if match is None:
            continue
        users.add(user)
        if match["bytes"] and item.modified < settled:
            content.append((user, match["content"]))
        elif (match["ticket"] or match["note"]) and item.size:
            records[user] += 1
        elif match["alive"] and not item.size:
            removed.add(match["alive"])
    kept = Counter(user for user, token in content if token not in removed and user != cut_at)
    return Lost(
        # A key of a record does not say which artifact it is of.
        files=(kept - records).total(),
        users=len(users - {cut_at}),
        objects=listed,
        is_cut=cut_at is not None,
    )


def _seen(index: S3Index) -> _Seen:
    seen = _Seen()
    for item in index.bucket.list(index.prefix):
        seen.add(item, item.key.removeprefix(index.prefix))
    return seen


def _report_unknown(index: S3Index, seen: _Seen, known: set[str], stale_after: timedelta) -> None:
    limit = index.bucket.now() - stale_after
    without = [
        item
        for token, item in seen.content
        if token not in known and token not in seen.lives and item.modified < limit
    ]
    if without:
        facts = {"objects": len(without), "bytes": sum(item.size for item in without)}
        _log.warning("objects without a record are kept", extra=facts)


def _clear(index: S3Index, seen: _Seen, known: set[str], stale_after: timedelta) -> list[Removal]:
    _report_unknown(index, seen, known, stale_after)
    bucket, removed = index.bucket, []
    now = bucket.now()
    for item in _left_behind(seen, known):
        if now - item.modified > stale_after:
            bucket.delete(item.key)
            removed.append(_removal(item.key.removeprefix(index.prefix), item.size))
    for item in seen.tickets:
        if now - item.modified > TICKETS_END_AFTER:
            bucket.delete(item.key)
    for key, upload, began in bucket.uploads(index.prefix):
        if now - began > stale_after:
            bucket.abort(key, upload)
            removed.append(_removal(key.removeprefix(index.prefix), 0))
    return removed


def removal_of(entry: BucketEntry, reason: Reason) -> Removal:
    """Return what is said of an artifact that the store removed."""
    return Removal(what=entry.record.id, name=entry.record.name, size=entry.record.size, reason=reason)


def _left_behind(seen: _Seen, known: set[str]) -> Iterator[Listed]:
    """Yield what is left of artifacts that were removed. The mark of that comes last.

    What merely has no record stays: the record may be lost, or a listing may have left it out.
    """
    gone = {token: item for token, item in seen.lives.items() if not item.size and token not in known}
    yield from (item for token, item in seen.content if token in gone)
    yield from (item for token, item in seen.markers if token in gone)
    yield from gone.values()


def _removal(what: str, size: int) -> Removal:
    return Removal(what=what, name=None, size=size, reason=Reason.LEFT_BEHIND)
