"""Asking a store in S3 whether it can be used, what to do where it cannot, and whether records are lost."""

from runner.errors import CallError
from runner.settings import Settings
from runner.store.opening import s3_address
from runner.store.s3_faults import Fault, fault_in

__all__ = ["Fault", "fault_of", "lost_records"]


def fault_of(settings: Settings) -> Fault | None:
    """Ask the server of `settings.store`, which is in S3; return what is wrong, or None."""
    try:
        address = s3_address(settings)
        # Only here: boto3 takes a while to import.
        from runner.store.s3_bucket import Bucket  # noqa: PLC0415

        bucket = Bucket(address)
        try:
            bucket.ask(address.prefix)
        finally:
            bucket.close()
    except CallError as error:
        return fault_in(error)
    return None


def lost_records(settings: Settings) -> int:
    """Return how many files and observations of `settings.store`, which is in S3, have lost their record.

    It takes a request for each thousand objects.

    Raises:
        CallError: `E_STORE`: the server cannot be reached.
    """
    address = s3_address(settings)
    # Only here: see above.
    from runner.store.s3_bucket import Bucket  # noqa: PLC0415
    from runner.store.s3_sweep import count_lost  # noqa: PLC0415

    bucket = Bucket(address)
    try:
        return count_lost(bucket, address.prefix)
    finally:
        bucket.close()
