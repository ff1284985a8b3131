"""A bucket of an S3 server: the few operations that the store needs, and nothing that tells secrets.

What the server or the library says of a failure is not passed on, since it names buckets, addresses and
keys: an error carries the operation and the server's error code. Bytes on their way are checked by the
server, on AWS by the checksums that boto3 adds, elsewhere by the signed digest of each request's body.

Source: Amazon S3 API Reference; botocore, `Config`; requirement S1-11.
"""

import contextlib
import email.utils
import functools
import logging
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ProfileNotFound
from pydantic import SecretStr
from urllib3.exceptions import HTTPError

from runner.errors import CallError, Code, UsageError
from runner.store.blobs import Blob
from runner.store.s3.faults import failed
from runner.store.s3.waiting import check_wanted

__all__ = ["Bucket", "BucketAddress", "NoSuchObject", "Stream", "configured_endpoint", "failed"]

_ABSENT = frozenset({"404", "NoSuchKey", "NotFound", "NoSuchUpload"})
_TAKEN = frozenset({"412", "PreconditionFailed", "409", "ConditionalRequestConflict"})
_UNKNOWN_CONDITION = frozenset({"501", "NotImplemented"})
_PLAIN_CODE = re.compile(r"[A-Za-z0-9.]{1,64}")
_CONNECTIONS = 64
_CONNECT_S = 4.0
# How long a server may be silent: before it answers a question, or has taken contents or put parts together.
_ANSWER_S = 5.0
_CONTENT_S = 60.0
# The Date header has whole seconds; below this difference our own clock is the better one.
_SKEW_S = 2.0


class NoSuchObject(Exception):
    """There is no such object or upload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketAddress:
    """The address of a bucket, with credentials.

    Attributes:
        bucket: Its name.
        prefix: What all keys begin with; empty, or ending in a slash.
        endpoint: URL of the server; None: AWS.
        access_key: Key id; None: the chain of AWS (environment, files, the machine's role).
        secret_key: The key.
    """

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    access_key: SecretStr | None = None
    secret_key: SecretStr | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """The bytes of an object on their way; close it.

    Attributes:
        body: What to read from.
        etag: The server's mark of the whole object's content.
    """

    body: Any
    etag: str


class Bucket:
    """A bucket. All methods block and may be called from any thread; they raise `CallError` `E_STORE`."""

    def __init__(self, at: BucketAddress) -> None:
        self._name = at.bucket
        # What carries contents, and what people wait for.
        self._client = _client(at, read_s=_CONTENT_S, attempts=4)
        self._quick = _client(at, read_s=_ANSWER_S, attempts=2)
        self._skew = timedelta()
        self._lock = threading.Lock()
        self._form: str | None = None
        for client in (self._client, self._quick):
            client.meta.events.register("after-call.s3", self._note_time)
            client.meta.events.register("before-send.s3", check_wanted)

    def now(self) -> datetime:
        """Return the time by the server's clock: hosts that share a bucket need not agree on theirs."""
        return datetime.now(UTC) + self._skew

    def ask(self, prefix: str) -> None:
        """Find out whether the bucket is there and may be listed; what is in it does not matter."""
        with _translated_errors("list"):
            self._quick.list_objects_v2(Bucket=self._name, Prefix=prefix, MaxKeys=1)

    def put(
        self,
        key: str,
        body: bytes | bytearray,
        *,
        mime: str = "application/json",
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Put an object, whatever was there."""
        with _translated_errors("put"):
            self._client.put_object(
                Bucket=self._name, Key=key, Body=body, ContentType=mime, Metadata=dict(metadata or {})
            )

    def put_if(self, key: str, body: bytes, *, absent: bool, match: str | None, probe: str) -> str | None:
        """Put a small object if there is none, if it is that of an etag, or in any case; return its etag.

        Args:
            key: Its key.
            body: Its content.
            absent: Whether there must be none.
            match: Etag that must be that of the present one.
            probe: A key to find out with, once, which conditions the server honours.

        Returns:
            Its etag; None: the condition did not hold.
        """
        condition: dict[str, str] = {"IfNoneMatch": "*"} if absent else {}
        if match is not None:
            condition["IfMatch"] = self._match_form(probe).format(match)
        elif absent:
            self._match_form(probe)
        return self._put_if(key, body, condition)

    def _put_if(self, key: str, body: bytes, condition: Mapping[str, str]) -> str | None:
        try:
            with _translated_errors("put"):
                answer = self._client.put_object(
                    Bucket=self._name, Key=key, Body=body, ContentType="application/json", **condition
                )
        except (_Taken, NoSuchObject):
            return None
        return _plain(answer["ETag"])

    def _match_form(self, probe: str) -> str:
        """Return an etag as the server wants it in If-Match: quoted as in RFC 9110, or, for Ceph, plain.

        Raises:
            CallError: `E_STORE`: it takes no notice of conditions, so two hosts could have one name.
        """
        with self._lock:
            if self._form is None:
                try:
                    etag = self._put_if(probe, b"1", {})
                    honours = self._put_if(probe, b"2", {"IfNoneMatch": "*"}) is None
                    honours = honours and self._put_if(probe, b"3", {"IfMatch": '"0"'}) is None
                    forms = ('"{}"', "{}") if honours else ()
                    # A form that is not understood is a condition that does not hold.
                    matched = (
                        form for form in forms if self._put_if(probe, b"1", {"IfMatch": form.format(etag)})
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
        """Return the bytes of a small object and its etag, or None where there is none."""
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
        """Return the length of an object in bytes, or None where there is none."""
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
        self, key: str, source: Any, parts: TransferConfig, *, mime: str, metadata: Mapping[str, str]
    ) -> None:
        """Put an object in parts of what `source.read` returns; throw them away if that fails."""
        extra = {"ContentType": mime, "Metadata": dict(metadata)}
        try:
            with _translated_errors("put part"):
                self._client.upload_fileobj(source, self._name, key, ExtraArgs=extra, Config=parts)
        except NoSuchObject:
            raise failed("put part", "NoSuchUpload") from None

    def abort(self, key: str, upload: str) -> None:
        """Throw the parts of an upload away."""
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


def _plain(etag: str) -> str:
    return etag.strip('"')


class _Taken(Exception):
    """A condition did not hold."""


class _UnknownCondition(Exception):
    """The server does not know conditions."""


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
    # They say where they found credentials, and at level debug they print signatures.
    for name in ("boto3", "botocore", "urllib3"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # Reading its description of S3 takes a third of a second.
    return boto3.session.Session()


def configured_endpoint() -> str | None:
    """Return the address that AWS's variables and files name; None: AWS.

    Raises:
        UsageError: It is malformed, or the profile does not exist.
    """
    usual = Config(ignore_configured_endpoint_urls=True)
    # No credentials are looked for yet.
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


def _client(at: BucketAddress, *, read_s: float, attempts: int) -> Any:
    config = Config(
        connect_timeout=_CONNECT_S,
        read_timeout=read_s,
        retries={"mode": "standard", "max_attempts": attempts},
        max_pool_connections=_CONNECTIONS,
        s3={"addressing_style": "path", "payload_signing_enabled": True} if at.endpoint else {},
        # Servers that are not AWS may know none of the newer checksums.
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
