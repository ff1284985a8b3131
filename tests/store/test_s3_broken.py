"""Connections that break, servers that are gone: what was promised is there, and nothing else is."""

import asyncio
import hashlib
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from botocore.awsrequest import AWSRequest
from pydantic import SecretStr
from s3_servers import CuttingProxy, raw_client, watching
from suite import ALICE, read
from support import until

from runner.errors import CallError, Code
from runner.store.protocol import Put
from runner.store.s3.bucket import PART_BYTES, Bucket, BucketAddress, Stopped
from runner.store.s3.store import S3Store

pytestmark = [pytest.mark.anyio, pytest.mark.needs_s3]

MIB = 1024 * 1024


def key_of(address: BucketAddress) -> str:
    assert address.access_key is not None
    return address.access_key.get_secret_value()


async def test_an_upload_in_parts_survives_connections_that_are_cut(
    rgw: BucketAddress, tmp_path: Path
) -> None:
    source = tmp_path / "large.bin"
    source.write_bytes(os.urandom(96 * MIB + 1))

    # A part may be sent four times, by connections that have carried others.
    with CuttingProxy(rgw, cut_after=2 * PART_BYTES + MIB) as proxy:
        record = await S3Store(proxy.address).put_file(source, Put(name="large.bin"), scope=ALICE)
        assert proxy.cuts

    assert record.sha256 == hashlib.sha256(source.read_bytes()).hexdigest()
    assert await read(S3Store(rgw), record) == source.read_bytes()


async def test_a_download_goes_on_where_the_connection_was_cut(rgw: BucketAddress) -> None:
    content = os.urandom(20 * MIB + 1)
    record = await S3Store(rgw).put_bytes(content, Put(name="large.bin"), scope=ALICE)

    with CuttingProxy(rgw, cut_after=3 * MIB) as proxy:
        store = S3Store(proxy.address)
        assert await read(store, record) == content
        assert await read(store, record, offset=5, length=10 * MIB) == content[5 : 5 + 10 * MIB]
        assert proxy.cuts > 5


async def test_unreachable_server_is_an_error_without_addresses(rgw: BucketAddress) -> None:
    with CuttingProxy(rgw, cut_after=0) as proxy:
        with pytest.raises(CallError) as refused:
            await S3Store(proxy.address).put_bytes(b"x", Put(name="a.txt"), scope=ALICE)
        assert proxy.accepted

    assert refused.value.code is Code.E_STORE
    assert refused.value.retryable
    message = f"{refused.value.message} {refused.value.details}"
    for secret in (rgw.bucket, "127.0.0.1", "alice", key_of(rgw)):
        assert secret not in message


def test_an_upload_that_fails_leaves_no_part_behind(rgw: BucketAddress) -> None:
    key, stop = f"{rgw.prefix}big", threading.Event()
    sent: list[int] = []

    def refuse_the_third(params: dict[str, object], **_: object) -> None:
        sent.append(int(str(params["PartNumber"])))
        if params["PartNumber"] == 3:
            stop.set()
            raise OSError("no")

    with watching("provide-client-params.s3.UploadPart", refuse_the_third):
        bucket = Bucket(rgw)
    content = b"x" * (4 * PART_BYTES)

    with pytest.raises((CallError, Stopped)):
        bucket.upload(key, content, len(content), mime="text/plain", metadata={}, stop=stop)

    assert 3 in sent
    assert not list(bucket.uploads(key))
    assert bucket.size(key) is None


def test_an_upload_whose_last_answer_was_lost_is_complete(rgw: BucketAddress) -> None:
    def complete_before(params: dict[str, Any], **_: object) -> None:
        raw_client(rgw).complete_multipart_upload(**params)

    with watching("provide-client-params.s3.CompleteMultipartUpload", complete_before):
        bucket = Bucket(rgw)
    key, content = f"{rgw.prefix}big", b"x" * (PART_BYTES + 1)

    bucket.upload(key, content, len(content), mime="text/plain", metadata={}, stop=threading.Event())

    assert bucket.size(key) == PART_BYTES + 1


async def test_a_caller_who_gives_up_ends_the_upload(rgw: BucketAddress, tmp_path: Path) -> None:
    path = tmp_path / "large.bin"
    with path.open("wb") as file:
        file.truncate(400 * MIB)
    started = asyncio.Event()
    loop = asyncio.get_running_loop()
    with watching("before-call.s3.UploadPart", lambda **_: loop.call_soon_threadsafe(started.set)):
        store = S3Store(rgw)
    putting = asyncio.create_task(store.put_file(path, Put(name="large.bin"), scope=ALICE))
    await started.wait()

    putting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await putting
    assert await asyncio.to_thread(until, lambda: not list(Bucket(rgw).uploads(rgw.prefix)))
    assert await S3Store(rgw).find("large.bin", scope=ALICE) is None


@pytest.mark.parametrize("wrong", ["secret_key", "bucket"])
async def test_a_wrong_key_or_bucket_is_an_error_that_tells_no_secret(
    rgw: BucketAddress, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    good = S3Store(rgw)
    assert await good.find("a", scope=ALICE) is None
    value = SecretStr("wrong-secret") if wrong == "secret_key" else "no-such-bucket-here"
    changed: dict[str, Any] = {wrong: value}
    caplog.set_level("DEBUG")

    with pytest.raises(CallError) as refused:
        await S3Store(replace(rgw, **changed)).find("a", scope=ALICE)

    assert refused.value.code is Code.E_STORE
    message = f"{refused.value.message} {refused.value.details} {caplog.text}"
    assert ("SignatureDoesNotMatch" if wrong == "secret_key" else "NoSuchBucket") in message
    for secret in (key_of(rgw), "wrong-secret", "no-such-bucket", "Signature="):
        assert secret not in message


async def test_large_file_for_aws_has_a_checksum_for_each_part(
    rgw: BucketAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", str(rgw.endpoint))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    source = tmp_path / "large.bin"
    source.write_bytes(os.urandom(2 * PART_BYTES + 1))
    checked: list[str] = []

    def note(request: AWSRequest, **_: object) -> None:
        checked.extend(name for name in request.headers if name.lower().startswith("x-amz-checksum-"))

    with watching("before-send.s3.UploadPart", note):
        store = S3Store(replace(rgw, endpoint=None))

    record = await store.put_file(source, Put(name="large.bin"), scope=ALICE)

    assert len(checked) == 3
    assert await read(S3Store(rgw), record) == source.read_bytes()


async def test_a_damaged_body_is_refused_by_the_server(rgw: BucketAddress) -> None:
    client = raw_client(rgw)

    client.put_object(Bucket=rgw.bucket, Key=f"{rgw.prefix}x", Body=b"original")
    client.meta.events.register("before-send.s3.PutObject", lambda request, **_: _damaged(request))

    with pytest.raises(client.exceptions.ClientError, match="XAmzContentSHA256Mismatch"):
        client.put_object(Bucket=rgw.bucket, Key=f"{rgw.prefix}y", Body=b"original")

    assert Bucket(rgw).size(f"{rgw.prefix}y") is None


def _damaged(request: object) -> None:
    request.body = b"damaged!"  # type: ignore[attr-defined]
