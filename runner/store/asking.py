"""Asking a store in S3 whether it can be used, and what to do where it cannot: one request for one key.

Source: Amazon S3 API Reference, "Error responses".
"""

from dataclasses import dataclass

from runner.errors import CallError, StartError
from runner.settings import Settings
from runner.store.opening import s3_address

__all__ = ["Fault", "fault_of"]

_KEYS = (
    "check RUNNER_S3_ACCESS_KEY and RUNNER_S3_SECRET_KEY, or what the chain of AWS finds without them; "
    "docs/s3.md lists what they must be allowed to do"
)
_SERVER = "check RUNNER_S3_ENDPOINT, and that the server runs and can be reached from here"
_BUCKET = "make the bucket, or correct RUNNER_STORE"
_CURES = {
    "NoSuchBucket": _BUCKET,
    "PermanentRedirect": "set RUNNER_S3_REGION to the bucket's region",
    "AuthorizationHeaderMalformed": "set RUNNER_S3_REGION to the bucket's region",
    "NoRegionError": "set RUNNER_S3_REGION",
    "RequestTimeTooSkewed": "set the clock of this machine",
    "AccessDenied": _KEYS,
    "InvalidAccessKeyId": _KEYS,
    "SignatureDoesNotMatch": _KEYS,
    "NoCredentialsError": _KEYS,
    "PartialCredentialsError": _KEYS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why a store cannot be used.

    Attributes:
        reason: A sentence without keys or addresses.
        cure: What to do.
    """

    reason: str
    cure: str


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
        reason = str(error.details.get("reason", ""))
        said = f"{error.details.get('operation', 'connect')} failed with {reason}"
        return Fault(reason=said, cure=_CURES.get(reason, _SERVER))
    return None
