"""Explanations and remedies for failures of an S3 server, without keys, buckets or addresses.

Source: Amazon S3 API Reference, "Error responses".
"""

import logging
from dataclasses import dataclass

from runner.errors import CallError, Code

__all__ = ["StoreFault", "failed", "fault_in"]

_KEYS = (
    "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or what the chain of AWS finds without them; "
    "docs/operating.md lists what they must be allowed to do"
)
_SERVER = "check AWS_ENDPOINT_URL_S3, and that the server runs and can be reached from here"
_BUCKET = "make the bucket, or correct RUNNER_STORE"
_CURES = {
    "NoSuchBucket": _BUCKET,
    "PermanentRedirect": "set AWS_DEFAULT_REGION to the bucket's region",
    "AuthorizationHeaderMalformed": "set AWS_DEFAULT_REGION to the bucket's region",
    "NoRegionError": "set AWS_DEFAULT_REGION",
    "RequestTimeTooSkewed": "set the clock of this machine",
    "AccessDenied": _KEYS,
    "InvalidAccessKeyId": _KEYS,
    "SignatureDoesNotMatch": _KEYS,
    "NoCredentialsError": _KEYS,
    "PartialCredentialsError": _KEYS,
}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFault:
    """The fault of a store that cannot be used.

    Attributes:
        reason: A sentence without keys or addresses.
        cure: What to do.
    """

    reason: str
    cure: str


def fault_in(error: CallError) -> StoreFault:
    """Return the fault in an error of a bucket operation, and its cure."""
    reason = str(error.details.get("reason", ""))
    message = f"{error.details.get('operation', 'connect')} failed with {reason}"
    return StoreFault(reason=message, cure=_CURES.get(reason, _SERVER))


def failed(operation: str, reason: str) -> CallError:
    """Return the error of a server that fails; `reason` is a code or the name of an exception."""
    _log.warning("object store failed", extra={"operation": operation, "reason": reason})
    return CallError(
        Code.E_STORE,
        f"the object store cannot be used: {operation} failed with {reason}; try again later",
        details={"operation": operation, "reason": reason},
    )
