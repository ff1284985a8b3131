"""Asking a store in S3 whether it can be used, and what to do where it cannot: one request for one key."""

from runner.errors import CallError, StartError
from runner.settings import Settings
from runner.store.opening import s3_address
from runner.store.s3_faults import Fault, fault_in

__all__ = ["Fault", "fault_of"]


def fault_of(settings: Settings) -> Fault | None:
    """Ask the server of `settings.store`, which is in S3; return what is wrong, or None."""
    try:
        address = s3_address(settings)
        # Only here: boto3 is an extra, and takes a while to import.
        from runner.store.s3_bucket import Bucket  # noqa: PLC0415

        bucket = Bucket(address)
        try:
            bucket.ask(address.prefix)
        finally:
            bucket.close()
    except StartError as error:
        return Fault(reason=str(error), cure="pip install 'toolcell[s3]'")
    except CallError as error:
        return fault_in(error)
    return None
