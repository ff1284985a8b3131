"""The conversion of a user's records in a bucket from the layout of earlier versions.

    {area}index/{session}/names/{name}/{ticket}     record of a file
    {area}index/{session}/notes/{token}             record of an observation
    {area}index/{session}/lives/{token}             a record's later state; empty: it is being removed
    {area}ids/{session}/{id}/{token}/…              a copy of the record, made when it was put

Bytes stay where they are. The old records are deleted last, so an interrupted conversion starts over, and a
concurrent one on another host results in the same records.

Kept for one minor version.
"""

import contextlib
import logging
import re
from dataclasses import replace

from runner.formats.filenames import unique_name
from runner.store.blobs import Blobs
from runner.store.entries import DamagedEntry, Entry, key_of, place_of
from runner.store.s3.bucket import Bucket

__all__ = ["convert"]

_log = logging.getLogger(__name__)

# The token in a key: `…/artifacts/{day}/{token}/{name}`, `…/observations/{day}/{token}`.
_TOKEN = re.compile(r"/(?:artifacts|observations)/[^/]*/([^/]*)")


def convert(bucket: Bucket, blobs: Blobs, area: str) -> None:
    """Convert the old records of an area to new ones.

    Raises:
        CallError: `E_STORE`: the server failed; the rest is converted the next time.
    """
    old = list(bucket.list(f"{area}index/"))
    if not old:
        return
    lives = {item.key.rpartition("/")[2]: item for item in old if "/lives/" in item.key.removeprefix(area)}
    records = [item.key for item in old if item.size and "/lives/" not in item.key.removeprefix(area)]
    markers = list(bucket.list(f"{area}ids/"))
    # The copies come second: they are for artifacts whose record is lost.
    tokens, unread, written = set[str](), 0, 0
    for key in [*records, *(item.key for item in markers if item.size)]:
        found = bucket.get(key)
        if found is None:
            continue
        is_copy = key.startswith(f"{area}ids/")
        try:
            entry = Entry.read(found[0])
            token = _TOKEN.findall(entry.blob)[0]
        except (DamagedEntry, IndexError):
            unread += not is_copy
            continue
        life = lives.get(token)
        if token in tokens or (is_copy and life is not None and not life.size):
            continue
        tokens.add(token)
        later = bucket.get(life.key) if life is not None and life.size else None
        if later is not None:
            try:
                entry = Entry.read(later[0])
            except DamagedEntry:
                # No expiry is better than a wrong one.
                entry = replace(entry, record=replace(entry.record, expires_at=None))
        written += _write(blobs, area, entry)
    if unread:
        _log.error("unreadable records left unconverted", extra={"records": unread})
    for item in (*markers, *lives.values()):
        bucket.delete(item.key)
    for key in records if not unread else ():
        bucket.delete(key)
    for item in old:
        # Leftovers of hosts that died while they claimed a name.
        if not item.size:
            bucket.delete(item.key)
    _log.warning("records converted", extra={"records": written})


def _write(blobs: Blobs, area: str, entry: Entry) -> bool:
    if blobs.stat(entry.blob) is None and entry.record.size:
        # Its bytes no longer exist.
        _log.warning("record without bytes skipped", extra={"artifact": entry.record.id})
        return False
    taken: set[str] = set()
    while True:
        record = entry.record
        if record.metadata.is_file:
            record = replace(record, name=unique_name(str(record.name), taken))
        new = replace(entry, record=record)
        key = key_of(area, place_of(record.scope), record)
        if blobs.put(key, new.written(), if_absent=True):
            return True
        there = blobs.get(key)
        with contextlib.suppress(DamagedEntry):
            if there is not None and Entry.read(there[0]).blob == entry.blob:
                return False
        if not record.metadata.is_file:
            return False
        taken.add(str(record.name))
