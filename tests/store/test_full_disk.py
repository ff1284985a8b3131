"""A disk that is full or takes nothing: files are listed, read and removed, and put again with room."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from disks import fill, read_only, small_disk
from suite import ALICE, BOB, Clock, read

from runner.errors import CallError, Code
from runner.store.local.blobs import LocalBlobs
from runner.store.protocol import Put, Record, Retention
from runner.store.reports import measured
from runner.store.store import BlobStore

pytestmark = [pytest.mark.anyio, pytest.mark.needs_root]

OBSERVED = Put(mime="text/plain", retention=Retention.OBSERVATIONS)


@pytest.fixture(params=["tmpfs", "ext4"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", kind=request.param) as folder:
        yield folder


async def filled(store: BlobStore) -> list[Record]:
    records = [await store.put_bytes(os.urandom(9000), Put(name=f"{n}.bin"), scope=ALICE) for n in range(20)]
    records.append(await store.put_bytes(b"seen", OBSERVED, scope=ALICE))
    await store.put_bytes(b"bob's", Put(name="b.txt"), scope=BOB)
    return records


async def test_on_a_full_disk_files_are_listed_read_and_removed(disk: Path) -> None:
    store = BlobStore(LocalBlobs(disk / "store"))
    records = await filled(store)
    fill(disk)

    assert len(await store.list(scope=ALICE)) == 21
    assert await store.find("3.bin", scope=ALICE) == records[3]
    assert await store.stat(records[4].id, scope=ALICE) == records[4]
    assert len(await read(store, records[5])) == 9000
    assert await read(store, records[-1]) == b"seen"
    for record in records:
        assert await store.delete(record.id, scope=ALICE)
    assert list(await store.list(scope=ALICE)) == []
    assert [record.name for record in await store.list(scope=BOB)] == ["b.txt"]
    await store.sweep()


async def test_on_a_disk_that_others_keep_full_every_file_is_removed(disk: Path) -> None:
    store = BlobStore(LocalBlobs(disk / "store"))
    records = await filled(store)

    for record in records:
        fill(disk)
        assert await BlobStore(LocalBlobs(disk / "store")).delete(record.id, scope=ALICE)

    assert list(await store.list(scope=ALICE)) == []
    assert store.orphans() == []


async def test_what_ended_is_swept_from_a_full_disk(disk: Path, clock: Clock) -> None:
    store = BlobStore(LocalBlobs(disk / "store"), clock=clock)
    about = Put(name="a.bin", expires_at=clock())
    await store.put_bytes(os.urandom(9000), about, scope=ALICE)
    fill(disk)
    clock.advance(1)

    assert [removal.size for removal in await store.sweep()] == [9000]
    assert list(disk.glob("store/*/*/objects/*")) == []


async def test_put_on_full_disk_is_refused_and_leaves_nothing(disk: Path) -> None:
    store = BlobStore(LocalBlobs(disk / "store"))
    records = await filled(store)
    fill(disk)

    with pytest.raises(CallError) as refused:
        await store.put_bytes(os.urandom(3_000_000), Put(name="new.bin"), scope=ALICE)

    assert refused.value.code is Code.E_STORE
    assert "full" in refused.value.message
    assert "remove files" in refused.value.message
    assert "/" not in refused.value.message
    assert len(await store.list(scope=ALICE)) == len(records)
    assert not list(disk.glob("store/*/*/incoming/*"))
    assert len(list(disk.glob("store/users/alice/objects/*"))) == len(records)
    assert (await measured(store)).failed_puts == 1


async def test_put_whose_record_does_not_fit_leaves_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", options="nr_inodes=150") as disk:
        store = BlobStore(LocalBlobs(disk / "store"))
        records = await filled(store)
        with pytest.raises(OSError, match="No space left"):
            take_inodes(disk)
        # One inode for the bytes, and none for their record.
        (disk / "taken-0").unlink()

        with pytest.raises(CallError, match="full"):
            await store.put_bytes(b"new", Put(name="new.bin"), scope=ALICE)

        assert len(await store.list(scope=ALICE)) == len(records)
        assert not list(disk.glob("store/*/*/incoming/*"))
        assert len(list(disk.glob("store/users/alice/objects/*"))) == len(records)


async def test_a_disk_without_room_for_one_more_file_lets_files_go(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", options="nr_inodes=150") as disk:
        store = BlobStore(LocalBlobs(disk / "store"))
        records = await filled(store)
        with pytest.raises(OSError, match="No space left"):
            take_inodes(disk)

        assert len(await store.list(scope=ALICE)) == 21
        assert await store.delete(records[0].id, scope=ALICE)
        assert await read(store, records[-1]) == b"seen"


async def test_on_a_disk_that_takes_nothing_files_are_listed_and_read(disk: Path) -> None:
    store = BlobStore(LocalBlobs(disk / "store"))
    records = await filled(store)

    with read_only(disk):
        assert len(await store.list(scope=ALICE)) == 21
        assert await store.find("3.bin", scope=ALICE) == records[3]
        assert len(await read(store, records[5])) == 9000
        assert await read(store, records[-1]) == b"seen"
        with pytest.raises(CallError) as refused:
            await store.delete(records[0].id, scope=ALICE)
        assert refused.value.code is Code.E_STORE

    assert await store.delete(records[0].id, scope=ALICE)


def take_inodes(disk: Path) -> None:
    for number in range(1000):
        (disk / f"taken-{number}").touch()
