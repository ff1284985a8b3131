"""A disk that is full or takes nothing: files are listed, read and removed, and put again with room."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from disks import fill, read_only, small_disk
from suite import ALICE, BOB, read

from runner.errors import CallError, Code
from runner.store.local.reserve import Reserve
from runner.store.local.store import LocalStore
from runner.store.measuring import measured
from runner.store.protocol import Put, Record, Retention, Scope

pytestmark = [pytest.mark.anyio, pytest.mark.needs_root]

OBSERVED = Put(mime="text/plain", retention=Retention.OBSERVATIONS)


@pytest.fixture(params=["tmpfs", "ext4"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", kind=request.param) as folder:
        yield folder


async def filled(store: LocalStore) -> list[Record]:
    kept = [await store.put_bytes(os.urandom(9000), Put(name=f"{n}.bin"), scope=ALICE) for n in range(20)]
    kept.append(await store.put_bytes(b"seen", OBSERVED, scope=ALICE))
    await store.put_bytes(b"bob's", Put(name="b.txt"), scope=BOB)
    return kept


def write_and_die(store: LocalStore) -> None:
    """Leave a log and no shared memory, as a power cut does."""
    index = str(store.root / "index.sqlite")
    script = (
        "import os, sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "c.execute('UPDATE artifacts SET used = used + 1'); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", script, index], check=True)
    (store.root / "index.sqlite-shm").unlink()


def forget_reserve(store: LocalStore) -> None:
    while Reserve(store.root).give():
        pass


async def test_on_a_full_disk_files_are_listed_read_and_removed(disk: Path) -> None:
    store = LocalStore(disk / "store")
    kept = await filled(store)
    fill(disk)

    assert len(await store.list(scope=ALICE)) == 21
    assert await store.find("3.bin", scope=ALICE) == kept[3]
    assert await store.stat(kept[4].id, scope=ALICE) == kept[4]
    assert len(await read(store, kept[5])) == 9000
    assert await read(store, kept[-1]) == b"seen"
    for record in kept:
        assert await store.delete(record.id, scope=ALICE)
    assert list(await store.list(scope=ALICE)) == []
    assert [record.name for record in await store.list(scope=BOB)] == ["b.txt"]
    await store.sweep()


async def test_without_the_reserve_nothing_is_removed_from_a_full_disk_and_still_it_is_read(
    disk: Path,
) -> None:
    store = LocalStore(disk / "store")
    kept = await filled(store)
    forget_reserve(store)
    fill(disk)

    with pytest.raises(CallError) as refused:
        await store.delete(kept[0].id, scope=ALICE)

    assert refused.value.code is Code.E_STORE
    assert len(await store.list(scope=ALICE)) == 21
    assert len(await read(store, kept[0])) == 9000
    assert await read(store, kept[-1]) == b"seen"


async def test_what_is_freed_and_taken_again_by_others_is_freed_as_often_as_there_is_reserve(
    disk: Path,
) -> None:
    store = LocalStore(disk / "store")
    kept = await filled(store)

    for record in kept[:4]:
        fill(disk)
        assert await store.delete(record.id, scope=ALICE)

    assert len(await store.list(scope=ALICE)) == 17


async def test_a_put_on_a_full_disk_is_refused_in_words_and_leaves_nothing(disk: Path) -> None:
    store = LocalStore(disk / "store")
    kept = await filled(store)
    fill(disk)

    with pytest.raises(CallError) as refused:
        await store.put_bytes(os.urandom(3_000_000), Put(name="new.bin"), scope=ALICE)

    assert refused.value.code is Code.E_STORE
    assert "full" in refused.value.message
    assert "remove files" in refused.value.message
    assert "/" not in refused.value.message
    assert len(await store.list(scope=ALICE)) == len(kept)
    assert not list(disk.glob("store/*/*/incoming/*"))
    assert (await measured(store)).failed_puts == 1


async def test_puts_leave_the_reserve_alone_and_it_is_taken_again_with_room(disk: Path) -> None:
    store = LocalStore(disk / "store")
    kept = await filled(store)
    whole = reserved(store)
    taken = fill(disk)
    with pytest.raises(CallError):
        await store.put_bytes(os.urandom(3_000_000), Put(name="new.bin"), scope=ALICE)
    assert reserved(store) == whole > 0

    await store.delete(kept[0].id, scope=ALICE)
    assert 0 < reserved(store) < whole
    taken.unlink()
    await store.put_bytes(b"more", Put(name="more.txt"), scope=ALICE)

    assert reserved(store) == whole


async def test_a_new_host_reads_and_removes_on_a_full_disk_that_a_killed_one_left(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        store = LocalStore(disk / "store")
        kept = await filled(store)
        write_and_die(store)
        fill(disk)

        assert len(await store.list(scope=ALICE)) == 21
        assert await store.delete(kept[0].id, scope=ALICE)


async def test_a_disk_without_room_for_one_more_file_lets_files_go(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", options="nr_inodes=150") as disk:
        store = LocalStore(disk / "store")
        kept = await filled(store)
        with pytest.raises(OSError, match="No space left"):
            take_inodes(disk)

        assert len(await store.list(scope=ALICE)) == 21
        assert await store.delete(kept[0].id, scope=ALICE)
        assert await read(store, kept[-1]) == b"seen"


async def test_on_a_disk_that_takes_nothing_files_are_listed_and_read(disk: Path) -> None:
    store = LocalStore(disk / "store")
    kept = await filled(store)

    with read_only(disk):
        assert len(await store.list(scope=ALICE)) == 21
        assert await store.find("3.bin", scope=ALICE) == kept[3]
        assert len(await read(store, kept[5])) == 9000
        assert await read(store, kept[-1]) == b"seen"
        with pytest.raises(CallError) as refused:
            await store.delete(kept[0].id, scope=ALICE)
        assert refused.value.code is Code.E_STORE

    assert await store.delete(kept[0].id, scope=ALICE)


def take_inodes(disk: Path) -> None:
    for number in range(1000):
        (disk / f"taken-{number}").touch()


def reserved(store: LocalStore) -> int:
    return sum(path.stat().st_size for path in (store.root / "reserve").iterdir())


async def test_the_reserve_is_no_artifact_and_survives_a_sweep(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    await store.put_bytes(b"x", Put(name="x.txt"), scope=Scope(user_id="alice"))
    whole = reserved(store)

    assert list(await store.sweep()) == []
    assert reserved(store) == whole == 8 * 1024 * 1024
