"""Bytes into a bucket: small ones in one request, others in parts, four at a time.

A file is read once, from its start: what is digested are the very bytes that are sent. A part that fails
is put again, so a connection that breaks costs one part. An upload that fails in the end leaves nothing
behind, unless the server can no longer be told; a sweep then finds it.

Source: Amazon S3 User Guide, "Uploading and copying objects using multipart upload".
"""

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from runner.errors import CallError, Code
from runner.store.s3.bucket import Bucket, NoSuchObject, failed

__all__ = ["PART_BYTES", "ObjectUpload", "Stopped"]

# At most 10000 parts: this is enough for 78 GiB.
PART_BYTES = 8 * 1024 * 1024
_AT_ONCE = 4
# Four on their way and one that is read meanwhile: all the memory that an upload needs.
_HELD = _AT_ONCE + 1
_WAITS_S = (0.5, 1.0, 2.0, 4.0, 8.0)


_Sent = dict[str, object]


class Stopped(Exception):
    """The upload was told to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectUpload:
    """One upload.

    Attributes:
        bucket: Where to.
        key: As what.
        mime: MIME type.
        metadata: What is noted on the object; ASCII.
        stop: Ends the upload when set.
    """

    bucket: Bucket
    key: str
    mime: str
    metadata: Mapping[str, str]
    stop: threading.Event

    def send(self, source: int | bytes, size: int) -> str:
        """Upload the bytes, or a file from its start; return the digest of what was sent.

        Raises:
            CallError: `E_STORE`: the server failed, or the file is not what it was.
            Stopped: `stop` was set.
        """
        if size <= PART_BYTES:
            body = bytearray(size)
            _fill(body, source, 0)
            self.bucket.put(self.key, body, mime=self.mime, metadata=self.metadata)
            return hashlib.sha256(body).hexdigest()
        digest = hashlib.sha256()
        upload = self.bucket.begin(self.key, mime=self.mime, metadata=self.metadata)
        try:
            self._complete(upload, self._send_parts(upload, source, size, digest.update), size)
        except BaseException:
            with contextlib.suppress(CallError):
                self.bucket.abort(self.key, upload)
            raise
        return digest.hexdigest()

    def _send_parts(
        self, upload: str, source: int | bytes, size: int, note: Callable[[bytearray], object]
    ) -> list[_Sent]:
        sent: list[_Sent] = []
        sending: dict[Future[_Sent], bytearray] = {}
        free: list[bytearray] = []
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="s3-part") as threads:
            try:
                for number, start in enumerate(range(0, size, PART_BYTES), 1):
                    if len(sending) == _HELD:
                        for part in wait(sending, return_when=FIRST_COMPLETED).done:
                            free.append(sending.pop(part))
                            sent.append(part.result())
                    length = min(PART_BYTES, size - start)
                    # New memory costs more than reading into what was used before.
                    body = free.pop() if free and length == PART_BYTES else bytearray(length)
                    _fill(body, source, start)
                    note(body)
                    sending[threads.submit(self._send_part, upload, number, body)] = body
                sent += [part.result() for part in sending]
            except BaseException:
                # The others need not go on trying.
                self.stop.set()
                raise
        return sorted(sent, key=_number)

    def _send_part(self, upload: str, number: int, body: bytearray) -> _Sent:
        waits_s = iter(_WAITS_S)
        while not self.stop.is_set():
            try:
                return self.bucket.put_part(self.key, upload, number, body)
            except NoSuchObject:
                raise failed("put part", "NoSuchUpload") from None
            except CallError:
                wait_s = next(waits_s, None)
                if wait_s is None:
                    raise
            self.stop.wait(wait_s)
        raise Stopped

    def _complete(self, upload: str, parts: list[_Sent], size: int) -> None:
        try:
            self.bucket.complete(self.key, upload, parts)
        except (CallError, NoSuchObject):
            # The answer may have been lost on its way, and the upload then is complete.
            if self.bucket.size(self.key) != size:
                raise failed("complete upload", "NoSuchUpload") from None


def _number(part: _Sent) -> int:
    return int(str(part["PartNumber"]))


def _fill(body: bytearray, source: int | bytes, start: int) -> None:
    if isinstance(source, bytes):
        body[:] = memoryview(source)[start : start + len(body)]
        return
    filled, rest = 0, memoryview(body)
    while filled < len(body):
        count = os.preadv(source, [rest[filled:]], start + filled)
        if not count:
            raise CallError(Code.E_STORE, "a file became shorter while it was being stored", retryable=False)
        filled += count
