"""One byte that is not what was put: told wherever a file is read as a whole, and never given out as good."""

import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from s3_servers import raw_client
from suite import ALICE, Clock, read

from runner.errors import CallError, Code
from runner.store.content import FileContent, Verified
from runner.store.local.blobs import LocalBlobs
from runner.store.protocol import ArtifactStore, Put, Record
from runner.store.s3.bucket import BucketAddress
from runner.store.s3.store import S3Store
from runner.store.spool import Spool, SpoolingStore
from runner.store.store import BlobStore

pytestmark = [pytest.mark.anyio, pytest.mark.needs_s3]

SIZES = [1, 1000, 1024 * 1024, 3 * 1024 * 1024 + 5]

Flip = Callable[[Record, int], None]


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def place_of_bytes(root: Path, record: Record) -> Path:
    digests = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in root.glob("*/*/objects/*")}
    return next(path for path, digest in digests.items() if digest == record.sha256)


def flip_in(path: Path, at: int) -> None:
    """Change one byte, with no trace in the file's times, as a failing disk does."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.fixture(params=["local", "s3"])
def store_and_flip(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[ArtifactStore, Flip]:
    if request.param == "local":
        return BlobStore(LocalBlobs(tmp_path)), lambda record, at: flip_in(
            place_of_bytes(tmp_path, record), at
        )
    address: BucketAddress = request.getfixturevalue("rgw")
    client = raw_client(address)

    def flip(record: Record, at: int) -> None:
        content = client.get_object(Bucket=address.bucket, Key=record.key)["Body"].read()
        client.put_object(Bucket=address.bucket, Key=record.key, Body=flipped(content, at))

    return S3Store(address), flip


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("where", ["first", "last"])
async def test_flipped_byte_is_a_logged_error_and_never_a_whole_file(
    store_and_flip: tuple[ArtifactStore, Flip], size: int, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    store, flip = store_and_flip
    record = await store.put_bytes(os.urandom(size), Put(name="a.bin"), scope=ALICE)
    came: list[bytes] = []
    assert len(await read(store, record)) == size
    flip(record, 0 if where == "first" else size - 1)

    with pytest.raises(CallError) as refused:
        await collect(store, record, came)

    assert refused.value.code is Code.E_STORE
    assert not refused.value.retryable
    assert "not the ones that were put" in refused.value.message
    assert sum(map(len, came)) < size
    (logged,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert (vars(logged)["artifact"], vars(logged)["user"]) == (record.id, "alice")


async def test_without_a_look_at_the_digest_it_comes_whole(
    store_and_flip: tuple[ArtifactStore, Flip],
) -> None:
    store, flip = store_and_flip
    content = os.urandom(1000)
    record = await store.put_bytes(content, Put(name="a.bin"), scope=ALICE)
    flip(record, 500)

    # A range cannot be held against the digest of the whole, and is not.
    assert await read(store, record, offset=1) == flipped(content, 500)[1:]


async def collect(store: ArtifactStore, record: Record, came: list[bytes]) -> None:
    async with store.open(record, scope=ALICE) as content:
        async for chunk in content:
            came.append(chunk)  # noqa: PERF401 - what came before an error counts


@pytest.mark.parametrize("size", SIZES)
async def test_a_copy_of_it_is_an_error_and_empty(
    store_and_flip: tuple[ArtifactStore, Flip], size: int, tmp_path: Path
) -> None:
    store, flip = store_and_flip
    record = await store.put_bytes(os.urandom(size), Put(name="a.bin"), scope=ALICE)
    flip(record, size // 2)

    with (tmp_path / "copy").open("wb") as copy:
        with pytest.raises(CallError, match="not the ones"):
            await copied(store, record, copy.fileno())
        assert os.fstat(copy.fileno()).st_size < size


async def copied(store: ArtifactStore, record: Record, fd: int) -> None:
    async with store.open(record, scope=ALICE) as content:
        await content.copy_to(fd)


async def test_file_changed_after_its_copy_is_verified_again(tmp_path: Path) -> None:
    store = BlobStore(LocalBlobs(tmp_path / "store"))
    content = os.urandom(2_000_000)
    record = await store.put_bytes(content, Put(name="a.bin"), scope=ALICE)
    for name in ("one", "two"):
        with (tmp_path / name).open("wb") as copy:
            await copied(store, record, copy.fileno())
        assert (tmp_path / name).read_bytes() == content
    flip_in(place_of_bytes(tmp_path / "store", record), 7)

    with (tmp_path / "three").open("wb") as copy, pytest.raises(CallError, match="not the ones"):
        await copied(store, record, copy.fileno())


async def test_verified_file_is_trusted_for_a_limited_time(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"a")
    digest = hashlib.sha256(b"a").hexdigest()
    fd = os.open(path, os.O_RDONLY)
    try:
        verified, soon_over = Verified(3600), Verified(0)
        for each in (verified, soon_over):
            assert not each.has(fd, digest)
            each.add(fd, digest)
        assert verified.has(fd, digest)
        assert not verified.has(fd, "another")
        assert not soon_over.has(fd, digest)
        flip_in(path, 0)
        assert not verified.has(fd, digest)
    finally:
        os.close(fd)


async def collected(content: FileContent) -> bytes:
    return b"".join([chunk async for chunk in content])


async def test_a_file_that_ends_too_early_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    record = await BlobStore(LocalBlobs(tmp_path / "store")).put_bytes(b"abcdef", Put(name="a"), scope=ALICE)
    with path.open("rb") as file:
        content = FileContent(fd=file.fileno(), start=0, end=6, record=record)
        with pytest.raises(CallError, match="holds 3 bytes of its 6"):
            await collected(content)


class Away(BlobStore):
    """A store that takes nothing for now."""

    async def put_bytes(self, *_: object, **__: object) -> Record:
        raise CallError(Code.E_STORE, "away")

    put_file = put_bytes


async def test_damaged_pending_file_is_neither_read_nor_sent(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    spool = Spool(tmp_path / "spool")
    waiting = SpoolingStore(Away(), spool, now=clock)
    record = await waiting.put_bytes(b"content", Put(name="a.txt"), scope=ALICE)
    (stored,) = (tmp_path / "spool").rglob("objects/*")
    flip_in(stored, 3)
    there = BlobStore(LocalBlobs(tmp_path / "store"))
    back = SpoolingStore(there, spool, now=clock)

    with pytest.raises(CallError, match="not the ones"):
        await read(back, record)
    assert await back.send() == 0

    assert list(await there.list(scope=ALICE)) == []
    assert stored.exists()
    assert "stored file damaged" in caplog.text
    flip_in(stored, 3)
    clock.advance(3600)
    assert await back.send() == 1
    assert [found.name for found in await there.list(scope=ALICE)] == ["a.txt"]
