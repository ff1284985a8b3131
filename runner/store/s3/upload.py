"""Bytes into a bucket: small ones in one request, others in parts, four at a time.

A file is read once, from its start: what is digested are the very bytes that are sent. A part that fails
is put again, so a connection that breaks costs one part. An upload that fails in the end leaves nothing
behind, unless the server can no longer be told; a sweep then finds it.

Source: boto3, "File transfer configuration"; Amazon S3 User Guide, "Uploading and copying objects using
multipart upload".
"""

import hashlib
import threading
from collections.abc import Mapping

from boto3.s3.transfer import TransferConfig

from runner.errors import CallError, Code
from runner.store.s3.bucket import Bucket
from runner.store.sources import chunks

__all__ = ["PART_BYTES", "Stopped", "upload"]

# At most 10000 parts: this is enough for 78 GiB.
PART_BYTES = 8 * 1024 * 1024
_AT_ONCE = 4
_PARTS = TransferConfig(
    multipart_threshold=PART_BYTES,
    multipart_chunksize=PART_BYTES,
    max_concurrency=_AT_ONCE,
    # The client of awscrt, where it is installed, knows none of these bounds.
    preferred_transfer_client="classic",
)
# All the memory that an upload needs, beside a part that is being read.
_PARTS.max_in_memory_upload_chunks = _AT_ONCE


class Stopped(Exception):
    """The upload was told to stop."""


def upload(
    bucket: Bucket,
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
        bucket: Where to.
        key: As what.
        source: The bytes, or a descriptor of the file.
        size: Their length.
        mime: MIME type.
        metadata: What is noted on the object; ASCII.
        stop: Ends the upload when set.

    Raises:
        CallError: `E_STORE`: the server failed, or the file is not what it was.
        Stopped: `stop` was set.
    """
    reading = _Reading(source, size, stop)
    if size <= PART_BYTES:
        bucket.put(key, reading.read(size), mime=mime, metadata=metadata)
    else:
        try:
            bucket.upload(key, reading, _PARTS, mime=mime, metadata=metadata)
        except CallError:
            # The last answer may have been lost on its way, and the upload then is complete.
            if bucket.size(key) != size:
                raise
    return reading.digest.hexdigest()


class _Reading:
    """The bytes of an upload, read once and digested on their way."""

    def __init__(self, source: int | bytes, size: int, stop: threading.Event) -> None:
        self.digest = hashlib.sha256()
        self._source, self._size, self._stop = source, size, stop
        self._at = 0

    def read(self, count: int) -> bytes:
        """Return the next bytes, fewer at the end only."""
        if self._stop.is_set():
            raise Stopped
        end = min(self._at + count, self._size)
        if isinstance(self._source, bytes):
            piece = self._source[self._at : end]
        else:
            try:
                piece = b"".join(chunks(self._source, self._at, end))
            except OSError as error:
                # Of the disk: as an error of the server it would be tried again.
                message = f"a file could not be read while it was being stored: {error.strerror}"
                raise CallError(Code.E_STORE, message, retryable=False) from error
            if len(piece) != end - self._at:
                message = "a file became shorter while it was being stored"
                raise CallError(Code.E_STORE, message, retryable=False)
        self._at = end
        self.digest.update(piece)
        return piece
