"""Asking a store in S3 whether it can be used, what to do where it cannot, and whether records are lost."""

from typing import TYPE_CHECKING

from runner.errors import CallError
from runner.settings.settings import Settings
from runner.store.opening import s3_address
from runner.store.s3.faults import StoreFault, fault_in

if TYPE_CHECKING:
    from runner.store.s3.sweep import Lost

__all__ = ["LISTED_OBJECTS", "LISTED_S", "StoreFault", "fault_of", "lost_records"]

LISTED_OBJECTS = 50_000
"""After how many objects a look at a bucket ends: some fifty requests."""

LISTED_S = 10.0
"""After how many seconds it ends, whatever it has seen."""


def fault_of(settings: Settings) -> StoreFault | None:
    """Ask the server of `settings.store`, which is in S3; return what is wrong, or None."""
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
    return None


def lost_records(settings: Settings, *, in_all: bool) -> "Lost":
    """Return how many files and observations of `settings.store`, which is in S3, have lost their record.

    It takes a request for each thousand objects.

    Args:
        settings: The effective settings.
        in_all: Whether all objects are listed, however many there are, and not just the first of them.

    Raises:
        CallError: `E_STORE`: the server cannot be reached.
    """
    address = s3_address(settings)
    # Only here: see above.
    from runner.store.s3.bucket import Bucket  # noqa: PLC0415
    from runner.store.s3.sweep import ListingLimits, count_lost  # noqa: PLC0415

    bucket = Bucket(address)
    try:
        bounds = None if in_all else ListingLimits(objects=LISTED_OBJECTS, seconds=LISTED_S)
        return count_lost(bucket, address.prefix, bounds=bounds)
    finally:
        bucket.close()
