"""Names that are unique among any number of hosts, with a server that can refuse to overwrite and without.

With one, the record itself is put where the name leads to, unless there is one. Without one, a host puts
an empty ticket of its own beside whatever there is, and only then looks. Whoever sees nobody else's has
the name: of two, the one whose ticket came second sees the other's. Whoever sees another's withdraws and
tries again a little later, so both may lose but never may both win.

Source: Amazon S3 User Guide, "Conditional writes", "data consistency model"; L. Lamport, "A new solution
of Dijkstra's concurrent programming problem", 1974.
"""

import random
import time
from datetime import timedelta

from runner.store.s3.bucket import Bucket, Listed
from runner.store.s3.keys import OwnerKeys

__all__ = ["TICKETS_END_AFTER", "records_in", "take_name"]

TICKETS_END_AFTER = timedelta(minutes=15)
"""A ticket lives for milliseconds; what is older, by the server's clock, was left by a host that died."""

_ATTEMPTS = 8
_LONGEST_S = 60.0


def take_name(
    bucket: Bucket, keys: OwnerKeys, name: str, *, token: str, record: bytes, conditions: bool
) -> bool:
    """Put the record where `name` leads to, unless the name is taken; say whether it was put."""
    if conditions:
        return bucket.put_new(f"{keys.name(name)}0", record)
    for attempt in range(_ATTEMPTS):
        if _others(bucket, keys, name, token):
            # Records stay; tickets of others are gone in a moment, one way or the other.
            if records_in(_others(bucket, keys, name, token)):
                return False
        elif _win(bucket, keys, name, token, record):
            return True
        time.sleep(random.uniform(0, 0.05 * 2**attempt))  # noqa: S311 - no secret
    return False


def records_in(listed: list[Listed]) -> list[Listed]:
    """Return those that are records, not tickets."""
    return [item for item in listed if item.size]


def _win(bucket: Bucket, keys: OwnerKeys, name: str, token: str, record: bytes) -> bool:
    ticket = keys.name(name) + token
    began = time.monotonic()
    bucket.put(ticket, b"")
    # A host that slept for long may have lost its ticket to a sweep.
    if _others(bucket, keys, name, token) or time.monotonic() - began > _LONGEST_S:
        bucket.delete(ticket)
        return False
    bucket.put(ticket, record)
    return True


def _others(bucket: Bucket, keys: OwnerKeys, name: str, token: str) -> list[Listed]:
    limit = bucket.now() - TICKETS_END_AFTER
    listed = bucket.list(keys.name(name))
    return [i for i in listed if not i.key.endswith(f"/{token}") and (i.size or i.modified > limit)]
