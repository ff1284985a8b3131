"""Questions to a store in S3: can it be used, what to do where it cannot, and are records lost."""

import math
import re
import time
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta

from runner.errors import CallError, UsageError
from runner.settings.execution import LibrarySettings
from runner.store.opening import s3_address
from runner.store.s3.faults import StoreFault, fault_in

__all__ = ["LISTED_OBJECTS", "LISTED_S", "SETTLED_AFTER", "Lost", "StoreFault", "fault_of", "lost_records"]

LISTED_OBJECTS = 50_000
"""After how many objects a look at a bucket ends: some fifty requests."""

LISTED_S = 10.0
"""After how many seconds it ends, whatever it has seen."""

SETTLED_AFTER = timedelta(minutes=5)
"""Age at which bytes without a record count: a put writes it within moments of them."""

# The records of earlier versions, not converted yet, count as well.
_KEY = re.compile(
    r"[^/]+/(?:(?P<bytes>artifacts/\d+/[^/]+/|observations/\d+/)"
    r"|(?P<record>records/[^/]+/(?:files|observations)/|index/[^/]+/(?:names/[^/]+/|notes/)))[^/]+"
)


def fault_of(settings: LibrarySettings) -> StoreFault | None:
    """Probe the S3 server of `settings.store`; return its fault, or None."""
    try:
        address = s3_address(settings)
        # Only here: boto3 takes a while to import.
        from runner.store.s3.bucket import Bucket  # noqa: PLC0415

        bucket = Bucket(address)
        try:
            bucket.ask(address.prefix)
        finally:
            bucket.close()
    except CallError as error:
        return fault_in(error)
    except UsageError as error:
        reason, _, cure = str(error).rpartition("; ")
        return StoreFault(reason=reason, cure=cure)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The lost records that a listing found.

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


def lost_records(settings: LibrarySettings, *, in_all: bool) -> Lost:
    """Count the artifacts of `settings.store`, which is in S3, that have lost their record.

    It takes a request for each thousand objects. Keys come in order, a user's one after the other, so only of
    the user at whom the listing is cut nothing can be told.

    Args:
        settings: The effective settings.
        in_all: Whether all objects are listed, however many there are, and not just the first of them.

    Raises:
        CallError: `E_STORE`: the server cannot be reached.
    """
    address = s3_address(settings)
    # Only here: see above.
    from runner.store.s3.bucket import Bucket  # noqa: PLC0415

    bucket = Bucket(address)
    users, records, content = set[str](), Counter[str](), Counter[str]()
    listed, cut_at = 0, None
    try:
        settled = bucket.now() - SETTLED_AFTER
        ends = math.inf if in_all else time.monotonic() + LISTED_S
        for item in bucket.list(address.prefix):
            key = item.key.removeprefix(address.prefix)
            user = key.partition("/")[0]
            if not in_all and (listed >= LISTED_OBJECTS or time.monotonic() > ends):
                cut_at = user
                break
            listed += 1
            match = _KEY.fullmatch(key)
            if match is None:
                continue
            users.add(user)
            if match["bytes"] and item.modified < settled:
                content[user] += 1
            elif match["record"] and item.size:
                records[user] += 1
    finally:
        bucket.close()
    del content[str(cut_at)]
    # A key of a record does not tell which bytes it is of.
    lost = (content - records).total()
    return Lost(files=lost, users=len(users - {cut_at}), objects=listed, is_cut=cut_at is not None)
