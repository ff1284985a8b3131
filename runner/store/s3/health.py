"""Health checks of a store in S3: whether it can be used, the cure if not, and lost records."""

import contextlib
import math
import re
import time
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta

from runner.errors import CallError, UsageError
from runner.settings.execution import LibrarySettings
from runner.store.s3.bucket import Bucket, StoreFault, fault_in, s3_address

__all__ = ["LISTED_OBJECTS", "LISTED_S", "SETTLED_AFTER", "Lost", "fault_of", "lost_records"]

LISTED_OBJECTS = 50_000
"""Number of objects after which the listing of a bucket ends: some fifty requests."""

LISTED_S = 10.0
"""Seconds after which the listing ends, whatever it has seen."""

SETTLED_AFTER = timedelta(minutes=5)
"""Age at which bytes without a record count as lost: a put writes the record moments after them."""

# The records of earlier versions, not converted yet, count as well.
_KEY = re.compile(
    r"[^/]+/(?:(?P<bytes>artifacts/\d+/[^/]+/|observations/\d+/)"
    r"|(?P<record>records/[^/]+/(?:files|observations)/|index/[^/]+/(?:names/[^/]+/|notes/)))[^/]+"
)


def fault_of(settings: LibrarySettings) -> StoreFault | None:
    """Probe the S3 server of `settings.store`; return its fault, or None."""
    try:
        address = s3_address(settings)
        with contextlib.closing(Bucket(address)) as bucket:
            bucket.ask(address.prefix)
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
        files: Minimum number of artifacts that have lost their record.
        users: Number of users that were listed completely.
        objects: Number of objects that were listed.
        is_cut: Whether there are more objects, which were not listed.
    """

    files: int
    users: int
    objects: int
    is_cut: bool


def lost_records(settings: LibrarySettings, *, in_all: bool) -> Lost:
    """Count the artifacts of `settings.store`, which is in S3, that have lost their record.

    It takes a request for each thousand objects. Keys are listed in order, user by user, so only the user at
    whom the listing is cut has no result.

    Args:
        settings: The effective settings.
        in_all: Whether to list all objects, however many there are, and not just the first ones.

    Raises:
        CallError: `E_STORE`: the server cannot be reached.
    """
    address = s3_address(settings)
    users, records, content = set[str](), Counter[str](), Counter[str]()
    listed, cut_at = 0, None
    ends = math.inf if in_all else time.monotonic() + LISTED_S
    with contextlib.closing(Bucket(address)) as bucket:
        settled = bucket.now() - SETTLED_AFTER
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
    del content[str(cut_at)]
    # The key of a record does not identify its bytes, so only the numbers are compared.
    lost = (content - records).total()
    return Lost(files=lost, users=len(users - {cut_at}), objects=listed, is_cut=cut_at is not None)
