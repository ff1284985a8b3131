"""A bucket of an S3 server: the few operations that the store needs, with errors that reveal no secrets.

Error texts of the server and the library are not passed on, since they name buckets, addresses and keys: an
error carries the operation and the server's error code. The server verifies uploaded bytes, on AWS by the
checksums that boto3 adds, elsewhere by the signed digest of each request's body.

Small contents are sent in one request, others in parts, four at a time. A failed part is sent again, so a
broken connection costs one part. An upload that finally fails leaves nothing behind, unless the server can
no longer be reached; a sweep then finds it.

Source: Amazon S3 API Reference; botocore, `Config`; boto3, "File transfer configuration"; requirement S1-11.
"""

import contextlib
import email.utils
import functools
import hashlib
import logging
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ProfileNotFound
from pydantic import SecretStr
from urllib3.exceptions import HTTPError

from runner.errors import CallError, Code, UsageError
from runner.settings.execution import LibrarySettings
from runner.store.blobs import Blob
from runner.store.sources import chunks

__all__ = [
    "PART_BYTES",
    "Bucket",
    "BucketAddress",
    "NoSuchObject",
    "Stopped",
    "StoreFault",
    "Stream",
    "configured_endpoint",
    "failed",
    "fault_in",
    "give_up_at",
    "s3_address",
]

# At most 10000 parts: this is enough for 78 GiB.
PART_BYTES = 8 * 1024 * 1024
_AT_ONCE = 4
_PARTS = TransferConfig(
    multipart_threshold=PART_BYTES,
    multipart_chunksize=PART_BYTES,
    max_concurrency=_AT_ONCE,
    # The client of awscrt, if installed, supports none of these limits.
    preferred_transfer_client="classic",
)
# Besides these parts, an upload only needs memory for the part being read.
_PARTS.max_in_memory_upload_chunks = _AT_ONCE

_ABSENT = frozenset({"404", "NoSuchKey", "NotFound", "NoSuchUpload"})
_TAKEN = frozenset({"412", "PreconditionFailed", "409", "ConditionalRequestConflict"})
_UNKNOWN_CONDITION = frozenset({"501", "NotImplemented"})
_PLAIN_CODE = re.compile(r"[A-Za-z0-9.]{1,64}")
_CONNECTIONS = 64
_CONNECT_S = 4.0
# Read timeouts: for a small request, and for receiving contents or completing a multipart upload.
_ANSWER_S = 5.0
_CONTENT_S = 60.0
# The Date header has whole seconds; below this difference our own clock is more precise.
_SKEW_S = 2.0

_KEYS = (
    "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or what the chain of AWS finds without them; "
    "docs/operating.md lists what they must be allowed to do"
)
_SERVER = "check AWS_ENDPOINT_URL_S3, and that the server runs and can be reached from here"
_CURES = {
    "NoSuchBucket": "make the bucket, or correct RUNNER_STORE",
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

give_up_at: ContextVar[float | None] = ContextVar("give_up_at", default=None)
"""Time, by the monotonic clock, after which no caller waits any longer: no request is sent then."""


class NoSuchObject(Exception):
    """There is no such object or upload."""


class Stopped(Exception):
    """The upload was stopped."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketAddress:
    """The address of a bucket, with credentials.

    Attributes:
        bucket: Its name.
        prefix: Prefix of all keys; empty, or ending in a slash.
        endpoint: URL of the server; None: AWS.
        access_key: Key id; None: AWS's credential chain (environment, files, the machine's role).
        secret_key: The key.
    """

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    access_key: SecretStr | None = None
    secret_key: SecretStr | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """The bytes of an object being received; must be closed.

    Attributes:
        body: The readable body.
        etag: The etag of the whole object.
    """

    body: Any
    etag: str


class Bucket:
    """A bucket. All methods block and may be called from any thread; they raise `CallError` `E_STORE`."""

    def __init__(self, at: BucketAddress) -> None:
        self._name = at.bucket
        # One client for contents, one for requests that people wait for.
        self._client = _client(at, read_s=_CONTENT_S, attempts=4)
        self._quick = _client(at, read_s=_ANSWER_S, attempts=2)
        self._skew = timedelta()
        self._lock = threading.Lock()
        self._form: str | None = None
        for client in (self._client, self._quick):
            client.meta.events.register("after-call.s3", self._note_time)
            client.meta.events.register("before-send.s3", _check_wanted)

    def now(self) -> datetime:
        """Return the time by the server's clock: hosts that share a bucket need not agree on theirs."""
        return datetime.now(UTC) + self._skew

    def ask(self, prefix: str) -> None:
        """Check that the bucket exists and may be listed, whatever it contains."""
        with _translated_errors("list"):
            self._quick.list_objects_v2(Bucket=self._name, Prefix=prefix, MaxKeys=1)

    def put(
        self,
        key: str,
        body: bytes | bytearray,
        *,
        mime: str = "application/json",
        metadata: Mapping[str, str] | None = None,
        condition: Mapping[str, str] | None = None,
    ) -> str | None:
        """Put an object, whatever was there, and return its etag; None: a condition did not hold."""
        try:
            with _translated_errors("put"):
                answer = self._client.put_object(
                    Bucket=self._name,
                    Key=key,
                    Body=body,
                    ContentType=mime,
                    Metadata=dict(metadata or {}),
                    **(condition or {}),
                )
        except (_Taken, NoSuchObject):
            if not condition:
                raise failed("put", "refused as if it had a condition") from None
            return None
        return _plain(answer.get("ETag", ""))

    def put_if(self, key: str, body: bytes, *, absent: bool, match: str | None, probe: str) -> str | None:
        """Put a small object if there is none, if the present one has an etag, or in any case.

        Args:
            key: Its key.
            body: Its content.
            absent: Whether there must be none.
            match: Etag that the present one must have.
            probe: A key for testing, once, which conditions the server honours.

        Returns:
            Its etag; None: the condition did not hold.
        """
        condition: dict[str, str] = {"IfNoneMatch": "*"} if absent else {}
        if match is not None:
            condition["IfMatch"] = self._match_form(probe).format(match)
        elif absent:
            self._match_form(probe)
        return self.put(key, body, condition=condition)

    def _match_form(self, probe: str) -> str:
        """Return the format of an etag in If-Match: quoted as in RFC 9110, or, for Ceph, plain.

        Raises:
            CallError: `E_STORE`: the server ignores conditions, so two hosts could use one name.
        """
        with self._lock:
            if self._form is None:
                try:
                    etag = self.put(probe, b"1")
                    honours = self.put(probe, b"2", condition={"IfNoneMatch": "*"}) is None
                    honours = honours and self.put(probe, b"3", condition={"IfMatch": '"0"'}) is None
                    forms = ('"{}"', "{}") if honours else ()
                    # If the server does not understand a form, the condition does not hold.
                    matched = (
                        form
                        for form in forms
                        if self.put(probe, b"1", condition={"IfMatch": form.format(etag)})
                    )
                    self._form = next(matched, "")
                except _UnknownCondition:
                    self._form = ""
            if not self._form:
                raise CallError(
                    Code.E_STORE,
                    "the object store takes no notice of If-None-Match and If-Match, without which two hosts "
                    "could give one name to two files; docs/operating.md lists servers that do",
                    details={"operation": "put", "reason": "NoConditionalWrites"},
                    retryable=False,
                )
            return self._form

    def get(self, key: str) -> tuple[bytes, str] | None:
        """Return the bytes of a small object and its etag, or None if there is none."""
        try:
            stream = self.stream(key)
            with contextlib.closing(stream.body), _translated_errors("get"):
                return bytes(stream.body.read()), stream.etag
        except NoSuchObject:
            return None

    def stream(
        self, key: str, *, offset: int = 0, length: int | None = None, etag: str | None = None
    ) -> Stream:
        """Begin to read an object or a range of it, which may not be empty.

        Raises:
            NoSuchObject: There is no such object, or it is no longer the one of `etag`.
        """
        condition: dict[str, str] = {} if etag is None else {"IfMatch": f'"{etag}"'}
        if offset or length is not None:
            end = "" if length is None else str(offset + length - 1)
            condition["Range"] = f"bytes={offset}-{end}"
        try:
            with _translated_errors("get"):
                answer = self._quick.get_object(Bucket=self._name, Key=key, **condition)
        except _Taken:
            raise NoSuchObject from None
        return Stream(body=answer["Body"], etag=_plain(answer["ETag"]))

    def size(self, key: str) -> int | None:
        """Return the length of an object in bytes, or None if there is none."""
        try:
            with _translated_errors("head"):
                return int(self._quick.head_object(Bucket=self._name, Key=key)["ContentLength"])
        except NoSuchObject:
            return None

    def delete(self, key: str) -> None:
        """Delete an object, if there is one."""
        with contextlib.suppress(NoSuchObject), _translated_errors("delete"):
            self._quick.delete_object(Bucket=self._name, Key=key)

    def list(self, prefix: str) -> Iterator[Blob]:
        """Yield the objects whose keys begin with `prefix`, by key, page by page."""
        for page in self._pages("list_objects_v2", Prefix=prefix):
            for item in page.get("Contents", ()):
                etag = _plain(item["ETag"])
                yield Blob(key=item["Key"], size=item["Size"], etag=etag, modified=item["LastModified"])

    def folders(self, prefix: str) -> Iterator[str]:
        """Yield the common prefixes of keys below a prefix, up to their next slash."""
        for page in self._pages("list_objects_v2", Prefix=prefix, Delimiter="/"):
            yield from (item["Prefix"] for item in page.get("CommonPrefixes", ()))

    def upload(
        self,
        key: str,
        source: int | bytes,
        size: int,
        *,
        mime: str,
        metadata: Mapping[str, str],
        stop: threading.Event,
    ) -> str:
        """Upload bytes, or a file from its start; return the digest of what was sent.

        Args:
            key: Key of the object.
            source: The bytes, or a descriptor of the file.
            size: Their length.
            mime: MIME type.
            metadata: Metadata of the object; ASCII.
            stop: Ends the upload when set.

        Raises:
            CallError: `E_STORE`: the server failed, or the file could not be read or became shorter.
            Stopped: `stop` was set.
        """
        reading = _Reading(source, size, stop)
        if size <= PART_BYTES:
            self.put(key, reading.read(size), mime=mime, metadata=metadata)
            return reading.digest.hexdigest()
        extra = {"ContentType": mime, "Metadata": dict(metadata)}
        try:
            with _translated_errors("put part"):
                self._client.upload_fileobj(reading, self._name, key, ExtraArgs=extra, Config=_PARTS)
        except (NoSuchObject, CallError) as error:
            # If only the last answer was lost, the upload is complete.
            if self.size(key) != size:
                if isinstance(error, CallError):
                    raise
                raise failed("put part", "NoSuchUpload") from None
        return reading.digest.hexdigest()

    def abort(self, key: str, upload: str) -> None:
        """Discard the parts of an upload."""
        with contextlib.suppress(NoSuchObject), _translated_errors("abort upload"):
            self._client.abort_multipart_upload(Bucket=self._name, Key=key, UploadId=upload)

    def uploads(self, prefix: str) -> Iterator[tuple[str, str, datetime]]:
        """Yield key, id and beginning of each upload that was neither completed nor aborted."""
        for page in self._pages("list_multipart_uploads", Prefix=prefix):
            for item in page.get("Uploads", ()):
                yield item["Key"], item["UploadId"], item["Initiated"]

    def _pages(self, operation: str, **which: str) -> Iterator[Any]:
        with _translated_errors("list"):
            yield from self._quick.get_paginator(operation).paginate(Bucket=self._name, **which)

    def close(self) -> None:
        """Close all connections."""
        self._client.close()
        self._quick.close()

    def _note_time(self, http_response: Any, **_: object) -> None:
        stated = http_response.headers.get("date")
        with contextlib.suppress(TypeError, ValueError):
            skew = email.utils.parsedate_to_datetime(stated).astimezone(UTC) - datetime.now(UTC)
            self._skew = skew if abs(skew.total_seconds()) > _SKEW_S else timedelta()


class _Reading:
    """The bytes of an upload, read once, so that the digest is of exactly the bytes that are sent."""

    def __init__(self, source: int | bytes, size: int, stop: threading.Event) -> None:
        self.digest = hashlib.sha256()
        self._source, self._size, self._stop = source, size, stop
        self._at = 0

    def read(self, count: int) -> bytes:
        """Return the next `count` bytes, or fewer at the end."""
        if self._stop.is_set():
            raise Stopped
        end = min(self._at + count, self._size)
        if isinstance(self._source, bytes):
            piece = self._source[self._at : end]
        else:
            try:
                piece = b"".join(chunks(self._source, self._at, end))
            except OSError as error:
                # A fault of the disk: treated as a fault of the server, it would be retried.
                message = f"a file could not be read while it was being stored: {error.strerror}"
                raise CallError(Code.E_STORE, message, retryable=False) from error
            if len(piece) != end - self._at:
                message = "a file became shorter while it was being stored"
                raise CallError(Code.E_STORE, message, retryable=False)
        self._at = end
        self.digest.update(piece)
        return piece


def _check_wanted(**_: object) -> None:
    """Prevent requests for a caller that has gone; called before each request, and each attempt at one.

    Raises:
        CallError: `E_STORE`: the caller no longer waits.
    """
    moment = give_up_at.get()
    if moment is not None and time.monotonic() > moment:
        raise failed("wait", "timeout")


def _plain(etag: str) -> str:
    return etag.strip('"')


class _Taken(Exception):
    """A condition did not hold."""


class _UnknownCondition(Exception):
    """The server does not support conditions."""


@contextlib.contextmanager
def _translated_errors(operation: str) -> Iterator[None]:
    # `from None` throughout: the texts of these exceptions name addresses, buckets and keys.
    try:
        yield
    except ClientError as error:
        raise _translated(operation, error) from None
    except (BotoCoreError, HTTPError, OSError) as error:
        raise failed(operation, type(error).__name__) from None


def _translated(operation: str, error: ClientError) -> Exception:
    stated = str(error.response.get("Error", {}).get("Code", ""))
    status = str(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))
    codes = {stated, status}
    if stated in _ABSENT or (status == "404" and stated != "NoSuchBucket"):
        return NoSuchObject()
    if codes & _TAKEN:
        return _Taken()
    if codes & _UNKNOWN_CONDITION:
        return _UnknownCondition()
    return failed(operation, stated if _PLAIN_CODE.fullmatch(stated) else f"status {status}")


@functools.cache
def _session() -> Any:
    # These loggers reveal where credentials were found, and at level debug also signatures.
    for name in ("boto3", "botocore", "urllib3"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # Cached: loading the description of S3 takes a third of a second.
    return boto3.session.Session()


def configured_endpoint() -> str | None:
    """Return the address that AWS's variables and files name; None: AWS.

    Raises:
        UsageError: It is malformed, or the profile does not exist.
    """
    usual = Config(ignore_configured_endpoint_urls=True)
    # Dummy keys, so that no credentials are looked up yet.
    keys = {"aws_access_key_id": "none", "aws_secret_access_key": "none"}
    try:
        session = _session()
        region = session.region_name or "us-east-1"
        url, of_aws = (
            session.client("s3", region_name=region, config=config, **keys).meta.endpoint_url
            for config in (None, usual)
        )
    except ProfileNotFound as error:
        raise UsageError(f"{error}; set AWS_PROFILE to one of ~/.aws/config, or leave it out") from None
    except (BotoCoreError, ValueError) as error:
        raise UsageError(
            "AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL or endpoint_url in ~/.aws/config cannot be used "
            f"({type(error).__name__}); write it as https://HOST:PORT, of letters, digits, hyphens and dots"
        ) from None
    return None if url == of_aws else str(url)


def s3_address(settings: LibrarySettings) -> BucketAddress:
    """Return the address of the bucket that `settings.store` names.

    Raises:
        UsageError: As from `configured_endpoint`.
    """
    parts = urlsplit(settings.store)
    prefix = parts.path.strip("/")
    return BucketAddress(
        bucket=parts.netloc, prefix=f"{prefix}/" if prefix else "", endpoint=configured_endpoint()
    )


def _client(at: BucketAddress, *, read_s: float, attempts: int) -> Any:
    config = Config(
        connect_timeout=_CONNECT_S,
        read_timeout=read_s,
        retries={"mode": "standard", "max_attempts": attempts},
        max_pool_connections=_CONNECTIONS,
        s3={"addressing_style": "path", "payload_signing_enabled": True} if at.endpoint else {},
        # Servers other than AWS may not support the newer checksums.
        request_checksum_calculation="when_required" if at.endpoint else "when_supported",
        response_checksum_validation="when_required" if at.endpoint else "when_supported",
    )
    try:
        session = _session()
        return session.client(
            "s3",
            endpoint_url=at.endpoint,
            region_name=session.region_name or ("us-east-1" if at.endpoint else None),
            aws_access_key_id=at.access_key.get_secret_value() if at.access_key else None,
            aws_secret_access_key=at.secret_key.get_secret_value() if at.secret_key else None,
            config=config,
        )
    except (BotoCoreError, ValueError) as error:
        raise failed("connect", type(error).__name__) from None
