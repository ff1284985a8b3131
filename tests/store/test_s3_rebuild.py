"""Records of a bucket that are lost are made anew from what lies beside the bytes."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest
from suite import ALICE, BOB, NOTE, read

from runner.store.protocol import Origin, Put, Record, Scope
from runner.store.s3.bucket import Bucket, BucketAddress
from runner.store.s3.entry import BucketEntry
from runner.store.s3.index import S3Index
from runner.store.s3.keys import keys_of
from runner.store.s3.store import S3Store

pytestmark = [pytest.mark.anyio, pytest.mark.needs_s3, pytest.mark.release]

ODD = Scope(user_id="Zoë / Ünal")
IN_SESSION = Scope(user_id="alice", session_id="s1")
OF_TENANT = Scope(tenant_id="acme", user_id="alice")
AT_ONCE = timedelta(seconds=-1)


def keys_in(address: BucketAddress, part: str) -> list[str]:
    return [item.key for item in Bucket(address).list(address.prefix) if f"/{part}/" in item.key]


def lose(address: BucketAddress, part: str) -> None:
    for key in keys_in(address, part):
        Bucket(address).delete(key)


def entry_of(address: BucketAddress, record: Record, scope: Scope = ALICE) -> BucketEntry:
    (entry,) = S3Index(Bucket(address), address.prefix).with_id(record.id, scope=scope)
    return entry


async def test_all_records_are_made_anew_after_the_index_of_a_bucket_was_lost(
    s3: BucketAddress, caplog: pytest.LogCaptureFixture
) -> None:
    store = S3Store(s3, stale_after=AT_ONCE)
    about = Put(name="a b.csv", origin=Origin.UPLOADED, facts={"rows": 3}, source={"tool": "t"})
    kept = {
        scope: [
            await store.put_bytes(b"1,2", about, scope=scope),
            await store.put_bytes(b"else", about, scope=scope),
            await store.put_bytes(b"note", NOTE, scope=scope),
        ]
        for scope in (ALICE, BOB, ODD, IN_SESSION, OF_TENANT)
    }

    lose(s3, "index")
    assert await store.list(scope=ALICE) == []
    assert list(await store.sweep()) == []

    assert "lost records were made anew" in caplog.messages
    for scope, records in kept.items():
        files = [record for record in await store.list(scope=scope) if record.scope.owner == scope]
        assert [record for record in files if record.name is not None] == records[:2]
        contents = [await read(store, record, scope) for record in records]
        assert contents == [b"1,2", b"else", b"note"]
        # A note is found as long as any other that is put now.
        note = await store.stat(records[2].id, scope=scope)
        assert note is not None
        assert note.expires_at is not None
    # It is done once, and another host finds nothing left to do.
    caplog.clear()
    await S3Store(s3, stale_after=AT_ONCE).sweep()
    assert "lost records were made anew" not in caplog.messages


async def test_bytes_of_which_nothing_more_is_known_stay(
    s3: BucketAddress, caplog: pytest.LogCaptureFixture
) -> None:
    store = S3Store(s3, stale_after=AT_ONCE)
    await store.put_bytes(b"x", Put(name="a.txt"), scope=ALICE)

    lose(s3, "index")
    lose(s3, "ids")

    assert list(await store.sweep()) == []
    assert await store.list(scope=ALICE) == []
    assert len(keys_in(s3, "artifacts")) == 1
    assert "objects without a record are kept" in caplog.messages


async def test_what_was_removed_is_not_brought_back(s3: BucketAddress) -> None:
    store = S3Store(s3, stale_after=timedelta(days=7))
    sweeping = S3Store(s3, stale_after=AT_ONCE)
    cut_short = await store.put_bytes(b"cut", Put(name="cut.txt"), scope=ALICE)
    removed = await store.put_bytes(b"gone", Put(name="gone.txt"), scope=ALICE)
    kept = await store.put_bytes(b"kept", Put(name="kept.txt"), scope=ALICE)
    entry = entry_of(s3, cut_short)

    assert await store.delete(removed.id, scope=ALICE)
    # As far as a removal got that was interrupted: noted, and the record deleted.
    Bucket(s3).put(keys_of(s3.prefix, ALICE).life(entry.token), b"")
    Bucket(s3).delete(entry.at)
    # The control is beside them: a record that is merely lost comes back.
    Bucket(s3).delete(entry_of(s3, kept).at)
    await sweeping.sweep()

    assert [record.name for record in await store.list(scope=ALICE)] == ["kept.txt"]


def _empty(address: BucketAddress) -> None:
    for key in keys_in(address, "ids"):
        Bucket(address).put(key, b"")


async def test_with_markers_of_earlier_versions_what_their_keys_say_is_made_anew(s3: BucketAddress) -> None:
    store = S3Store(s3, stale_after=AT_ONCE)
    plain = await store.put_bytes(b"plain", Put(name="a b+.csv", mime="text/x-odd"), scope=ALICE)
    for scope in (ODD, IN_SESSION):
        await store.put_bytes(b"other", Put(name="a.csv"), scope=scope)

    _empty(s3)
    lose(s3, "index")
    await store.sweep()

    (found,) = await store.list(scope=IN_SESSION)
    assert (found.id, found.name, found.mime, found.size) == (plain.id, "a b+.csv", "text/x-odd", 5)
    assert await read(store, found) == b"plain"
    # Nobody can say whose the others are: their bytes stay.
    assert await store.list(scope=ODD) == []
    assert len(keys_in(s3, "artifacts")) == 3


async def test_a_sweep_writes_records_into_markers_of_earlier_versions(s3: BucketAddress) -> None:
    store = S3Store(s3, stale_after=AT_ONCE)
    record = await store.put_bytes(b"x", Put(name="a.csv", facts={"rows": 1}), scope=IN_SESSION)

    _empty(s3)
    await store.sweep()
    lose(s3, "index")
    await store.sweep()

    assert await store.list(scope=IN_SESSION) == [record]


@pytest.mark.parametrize(
    ("content", "names"),
    [(b"new", {"a.txt": b"new", "a_2.txt": b"old"}), (b"old", {"a.txt": b"old"})],
    ids=["other content", "the same"],
)
async def test_a_name_that_was_given_away_meanwhile_gets_a_number(
    s3: BucketAddress, content: bytes, names: dict[str, bytes]
) -> None:
    store = S3Store(s3, stale_after=AT_ONCE)
    await store.put_bytes(b"old", Put(name="a.txt"), scope=ALICE)
    lose(s3, "index")
    await store.put_bytes(content, Put(name="a.txt"), scope=ALICE)

    await store.sweep()
    await store.sweep()

    found = {str(record.name): await read(store, record) for record in await store.list(scope=ALICE)}
    assert found == names


async def test_the_later_state_counts_and_without_it_a_file_has_no_end(s3: BucketAddress) -> None:
    store = S3Store(s3, stale_after=AT_ONCE)
    ending = Put(name="a.txt", expires_at=Bucket(s3).now() + timedelta(hours=1), reason="later")
    record = await store.put_bytes(b"x", ending, scope=ALICE)
    later = Bucket(s3).now() + timedelta(hours=5)
    assert await store.touch(record.id, scope=ALICE, expires_at=later)

    Bucket(s3).delete(entry_of(s3, record).at)
    await store.sweep()
    (first,) = await store.list(scope=ALICE)
    lose(s3, "index")
    await store.sweep()
    (second,) = await store.list(scope=ALICE)

    assert (first.expires_at, first.said.reason) == (later, "later")
    # Nobody knows until when it was prolonged.
    assert second.expires_at is None


async def test_two_hosts_that_sweep_at_once_make_one_record(s3: BucketAddress) -> None:
    store = S3Store(s3, stale_after=AT_ONCE)
    for number in range(4):
        await store.put_bytes(b"%d" % number, Put(name="a.txt"), scope=ALICE)
    before = await store.list(scope=ALICE)
    lose(s3, "index")

    hosts = [S3Store(s3, stale_after=AT_ONCE) for _ in range(3)]
    await asyncio.gather(*(host.sweep() for host in hosts))
    # Where hosts only see each other's tickets, all may have withdrawn.
    await store.sweep()

    assert await store.list(scope=ALICE) == before


async def test_what_was_put_a_moment_ago_is_left_to_its_writer(s3: BucketAddress) -> None:
    store = S3Store(s3)
    record = await store.put_bytes(b"x", Put(name="a.txt"), scope=ALICE)
    lost = Bucket(s3).get(entry_of(s3, record).at)
    assert lost
    lose(s3, "index")

    await store.sweep()

    assert await store.list(scope=ALICE) == []
    # The control: once it has settled.
    await S3Store(s3, stale_after=AT_ONCE).sweep()
    assert await store.list(scope=ALICE) == [record]


def _torn(content: bytes) -> bytes:
    return content[: len(content) // 2]


@pytest.mark.parametrize(
    "damage", [_torn, lambda _: b"{}", lambda _: b"\xff"], ids=["torn", "other", "garbage"]
)
async def test_a_damaged_marker_is_taken_for_an_empty_one(
    rgw: BucketAddress, damage: Callable[[bytes], bytes]
) -> None:
    store = S3Store(rgw, stale_after=AT_ONCE)
    record = await store.put_bytes(b"x", Put(name="a.txt", facts={"rows": 1}), scope=ALICE)
    (marker,) = keys_in(rgw, "ids")
    Bucket(rgw).put(marker, damage(Bucket(rgw).get(marker) or b""))

    lose(rgw, "index")
    await store.sweep()

    (found,) = await store.list(scope=ALICE)
    assert (found.id, found.name, found.said.facts) == (record.id, "a.txt", {})


async def test_a_marker_that_speaks_of_other_bytes_gives_nobody_theirs(rgw: BucketAddress) -> None:
    store = S3Store(rgw, stale_after=AT_ONCE)
    await store.put_bytes(b"mine", Put(name="a.txt"), scope=ALICE)
    await store.put_bytes(b"his", Put(name="a.txt"), scope=BOB)
    mine, his = sorted(keys_in(rgw, "ids"))
    Bucket(rgw).put(his, Bucket(rgw).get(mine) or b"")

    lose(rgw, "index")
    await store.sweep()

    contents = [
        await read(store, record, scope) for scope in (ALICE, BOB) for record in await store.list(scope=scope)
    ]
    assert contents == [b"mine", b"his"]


async def test_the_place_of_a_damaged_record_is_not_taken(s3: BucketAddress) -> None:
    store = S3Store(s3, stale_after=AT_ONCE)
    record = await store.put_bytes(b"x", Put(name="a.txt"), scope=ALICE)
    entry = entry_of(s3, record)
    whole = Bucket(s3).get(entry.at)
    assert whole
    Bucket(s3).put(entry.at, whole[:-20])

    await store.sweep()
    Bucket(s3).put(entry.at, whole)

    assert await S3Store(s3).list(scope=ALICE) == [record]
