"""What is special about a store in S3: its keys, hosts that share it, damage, and what is left behind."""

import asyncio
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest
from s3_servers import raw_client, watching
from suite import ALICE, BOB, Clock, read

from runner.errors import CallError, Code
from runner.store.protocol import Put, Reason, Record, Scope
from runner.store.s3.bucket import Bucket, BucketAddress
from runner.store.s3.index import S3Index
from runner.store.s3.keys import keys_of
from runner.store.s3.names import take_name
from runner.store.s3.store import S3Store

pytestmark = [pytest.mark.anyio, pytest.mark.needs_s3]


def keys_in(address: BucketAddress) -> list[str]:
    return [item.key.removeprefix(address.prefix) for item in Bucket(address).list(address.prefix)]


async def test_the_key_of_a_file_begins_with_user_artifacts_and_day_and_ends_with_its_name(
    s3: BucketAddress,
) -> None:
    """Source: S1-10, S1-73 and S1-74."""
    store = S3Store(s3, clock=lambda: datetime(2024, 8, 27, 23, 59, tzinfo=UTC))

    record = await store.put_bytes(b"x", Put(name="quarterly_report.html"), scope=ALICE)

    assert record.key is not None
    user, kind, day, _, name = record.key.removeprefix(s3.prefix).split("/")
    assert (user, kind, day, name) == ("alice", "artifacts", "20240827", "quarterly_report.html")
    assert await read(store, record) == b"x"


async def test_the_object_itself_says_what_it_is(s3: BucketAddress) -> None:
    record = await S3Store(s3).put_bytes(b"x", Put(name="Ä.csv", mime="text/csv"), scope=ALICE)

    head = raw_client(s3).head_object(Bucket=s3.bucket, Key=record.key)

    assert head["ContentType"] == "text/csv"
    assert head["Metadata"]["sha256"] == record.sha256
    assert unquote(head["Metadata"]["name"]) == "Ä.csv"


async def test_another_host_finds_everything_in_the_bucket_alone(s3: BucketAddress) -> None:
    about = Put(name="a.csv", facts={"rows": 3}, source={"tool": "t"}, reason="large")
    record = await S3Store(s3).put_bytes(b"x", about, scope=ALICE)

    other = S3Store(s3)

    assert await other.find("a.csv", scope=ALICE) == record
    assert await other.stat(record.id, scope=ALICE) == record
    assert list(await other.list(scope=ALICE)) == [record]
    assert await read(other, record) == b"x"


async def test_what_one_host_changes_another_sees_at_once(s3: BucketAddress) -> None:
    here, there = S3Store(s3), S3Store(s3)
    record = await here.put_bytes(b"x", Put(name="a.txt"), scope=ALICE)
    assert len(await there.list(scope=ALICE)) == 1
    ends = datetime.now(UTC) + timedelta(hours=5)

    await here.touch(record.id, scope=ALICE, expires_at=ends)

    (seen,) = await there.list(scope=ALICE)
    assert seen.expires_at == ends
    await there.delete(record.id, scope=ALICE)
    assert list(await here.list(scope=ALICE)) == []
    assert await here.find("a.txt", scope=ALICE) is None


async def test_hosts_that_put_the_same_name_at_once_get_names_of_their_own(s3: BucketAddress) -> None:
    hosts = [S3Store(s3) for _ in range(6)]

    records = await asyncio.gather(
        *(host.put_bytes(os.urandom(8), Put(name="same.txt"), scope=ALICE) for host in hosts)
    )

    assert len({record.name for record in records}) == len(hosts)
    listed = await S3Store(s3).list(scope=ALICE)
    assert {(r.name, r.sha256) for r in listed} == {(r.name, r.sha256) for r in records}


@pytest.mark.parametrize("conditions", [True, False], ids=["refusing server", "any server"])
def test_a_name_is_given_to_at_most_one_of_many_who_want_it_at_once(
    rgw: BucketAddress, conditions: bool
) -> None:
    bucket = Bucket(rgw)
    winners: list[str] = []
    for name in (f"n{number}" for number in range(6)):
        start = threading.Barrier(6)
        wanting = [
            threading.Thread(
                target=_want, args=(bucket, rgw.prefix, name, f"{host:024x}", conditions, start, winners)
            )
            for host in range(6)
        ]
        for thread in wanting:
            thread.start()
        for thread in wanting:
            thread.join()

    keys = keys_of(rgw.prefix, ALICE)
    for name in (f"n{number}" for number in range(6)):
        records = [item for item in bucket.list(keys.name(name)) if item.size]
        assert len(records) == winners.count(name) <= 1
    assert winners


def _want(
    bucket: Bucket,
    prefix: str,
    name: str,
    token: str,
    conditions: bool,
    start: threading.Barrier,
    winners: list[str],
) -> None:
    keys = keys_of(prefix, ALICE)
    start.wait()
    if take_name(bucket, keys, name, token=token, record=b"{}", conditions=conditions):
        winners.append(name)


def test_each_server_is_found_out(rgw_bucket: BucketAddress, juicefs_bucket: BucketAddress) -> None:
    assert Bucket(rgw_bucket).has_conditions(f"{rgw_bucket.prefix}=probe")
    assert not Bucket(juicefs_bucket).has_conditions(f"{juicefs_bucket.prefix}=probe")


async def test_more_than_one_page_is_listed(rgw: BucketAddress) -> None:
    bucket = Bucket(rgw)
    for number in range(5):
        bucket.put(f"{rgw.prefix}pages/{number}", b"x")
    asked: list[object] = []

    def two_a_page(params: dict[str, object], **_: object) -> dict[str, object]:
        asked.append(params)
        return {**params, "MaxKeys": 2}

    with watching("provide-client-params.s3.ListObjectsV2", two_a_page):
        paging = Bucket(rgw)

    keys = [item.key for item in paging.list(f"{rgw.prefix}pages/")]

    assert keys == [f"{rgw.prefix}pages/{number}" for number in range(5)]
    assert len(asked) == 3


async def test_bytes_that_changed_in_the_bucket_never_look_complete(s3: BucketAddress) -> None:
    store = S3Store(s3)
    content = os.urandom(3 * 1024 * 1024)
    record = await store.put_bytes(content, Put(name="a.bin"), scope=ALICE)
    assert await read(store, record) == content
    changed = content[:-1] + bytes([content[-1] ^ 1])
    raw_client(s3).put_object(Bucket=s3.bucket, Key=record.key, Body=changed)

    got = bytearray()
    with pytest.raises(CallError, match="not the ones that were put") as refused:
        await _read_into(got, store, record)

    assert refused.value.code is Code.E_STORE
    assert 0 < len(got) < len(content)


async def _read_into(got: bytearray, store: S3Store, record: Record) -> None:
    async with store.open(record, scope=ALICE) as stream:
        async for chunk in stream:
            got += chunk


async def test_bytes_that_went_missing_are_said_to_be_and_putting_them_again_mends_it(
    s3: BucketAddress,
) -> None:
    store = S3Store(s3)
    record = await store.put_bytes(b"x", Put(name="a.txt"), scope=ALICE)
    raw_client(s3).delete_object(Bucket=s3.bucket, Key=record.key)

    with pytest.raises(CallError, match="missing") as refused:
        await read(store, record)

    assert refused.value.code is Code.E_STORE
    assert not refused.value.retryable
    again = await store.put_bytes(b"x", Put(name="a.txt"), scope=ALICE)
    assert await read(store, again) == b"x"


async def test_deleting_leaves_no_object_behind(s3: BucketAddress) -> None:
    store = S3Store(s3)
    record = await store.put_bytes(b"x", Put(name="a.txt"), scope=ALICE)
    await store.touch(record.id, scope=ALICE, expires_at=datetime.now(UTC) + timedelta(hours=1))
    assert any("alice" in key for key in keys_in(s3))

    await store.delete(record.id, scope=ALICE)

    assert [key for key in keys_in(s3) if "alice" in key] == []


async def test_a_delete_that_was_cut_short_is_a_delete_and_a_sweep_finishes_it(s3: BucketAddress) -> None:
    store = S3Store(s3, stale_after=timedelta(seconds=-1))
    kept = await store.put_bytes(b"kept", Put(name="kept.txt"), scope=ALICE)
    record = await store.put_bytes(b"x", Put(name="a.txt"), scope=ALICE)
    (entry,) = S3Index(Bucket(s3), s3.prefix).with_id(record.id, scope=ALICE)
    Bucket(s3).put(keys_of(s3.prefix, ALICE).life(entry.token), b"")
    Bucket(s3).delete(entry.at)

    assert await store.find("a.txt", scope=ALICE) is None
    assert await store.stat(record.id, scope=ALICE) is None
    removed = await store.sweep()

    assert {one.reason for one in removed} == {Reason.LEFT_BEHIND}
    assert 1 in {one.size for one in removed}
    assert [key for key in keys_in(s3) if "a.txt" in key] == []
    assert await read(store, kept) == b"kept"


async def test_a_lost_record_costs_no_byte_and_the_record_put_back_is_all_it_takes(
    s3: BucketAddress, caplog: pytest.LogCaptureFixture
) -> None:
    store = S3Store(s3, stale_after=timedelta(seconds=-1))
    record = await store.put_bytes(b"x", Put(name="a.txt"), scope=ALICE)
    (entry,) = S3Index(Bucket(s3), s3.prefix).with_id(record.id, scope=ALICE)
    lost = Bucket(s3).get(entry.at)
    assert lost is not None
    Bucket(s3).delete(entry.at)
    # What it could be made anew from is gone as well.
    for marker in Bucket(s3).list(keys_of(s3.prefix, ALICE).all_ids):
        Bucket(s3).delete(marker.key)

    assert list(await store.sweep()) == []
    Bucket(s3).put(entry.at, lost)

    assert "objects without a record are kept" in caplog.messages
    assert await read(store, record) == b"x"


async def test_a_removal_that_was_cut_short_before_its_record_went_changes_nothing(s3: BucketAddress) -> None:
    store = S3Store(s3, stale_after=timedelta(seconds=-1))
    record = await store.put_bytes(b"x", Put(name="a.txt"), scope=ALICE)
    (entry,) = S3Index(Bucket(s3), s3.prefix).with_id(record.id, scope=ALICE)
    Bucket(s3).put(keys_of(s3.prefix, ALICE).life(entry.token), b"")

    assert list(await store.sweep()) == []

    assert await store.find("a.txt", scope=ALICE) == record
    assert await read(store, record) == b"x"


async def test_a_damaged_record_keeps_nobody_from_the_other_files_and_costs_no_byte(
    s3: BucketAddress, caplog: pytest.LogCaptureFixture
) -> None:
    store = S3Store(s3, stale_after=timedelta(seconds=-1))
    record = await store.put_bytes(b"x", Put(name="a.txt"), scope=ALICE)
    kept = await store.put_bytes(b"kept", Put(name="kept.txt"), scope=ALICE)
    (entry,) = S3Index(Bucket(s3), s3.prefix).with_id(record.id, scope=ALICE)
    whole = Bucket(s3).get(entry.at)
    assert whole is not None
    Bucket(s3).put(entry.at, whole[:-9])

    assert [each.name for each in await store.list(scope=ALICE)] == ["kept.txt"]
    assert await read(store, kept) == b"kept"
    assert list(await store.sweep()) == []
    assert [found.problem for found in (await store.verify()).damaged] == ["its record is damaged"]
    Bucket(s3).put(entry.at, whole)

    assert "damaged records are passed over" in caplog.messages
    assert await read(store, record) == b"x"


async def test_a_damaged_later_state_keeps_its_artifact(s3: BucketAddress) -> None:
    store = S3Store(s3, stale_after=timedelta(seconds=-1))
    about = Put(name="a.txt", expires_at=datetime.now(UTC) + timedelta(seconds=1), reason="asked")
    record = await store.put_bytes(b"x", about, scope=ALICE)
    other = await store.put_bytes(b"y", replace(about, name="b.txt"), scope=ALICE)
    (entry,) = S3Index(Bucket(s3), s3.prefix).with_id(record.id, scope=ALICE)
    Bucket(s3).put(keys_of(s3.prefix, ALICE).life(entry.token), b"{damaged")
    await asyncio.sleep(1.1)

    removed = await store.sweep()

    # The control: one without a later state has ended.
    assert [removal.what for removal in removed] == [other.id]
    assert [each.name for each in await store.list(scope=ALICE)] == ["a.txt"]
    assert await store.delete(record.id, scope=ALICE)


async def test_a_sweep_leaves_what_is_young_alone(s3: BucketAddress) -> None:
    store = S3Store(s3)
    record = await store.put_bytes(b"x", Put(name="a.txt"), scope=ALICE)
    (entry,) = S3Index(Bucket(s3), s3.prefix).with_id(record.id, scope=ALICE)
    Bucket(s3).delete(entry.at)

    assert list(await store.sweep()) == []

    assert any("artifacts" in key for key in keys_in(s3))


async def test_parts_of_an_upload_that_nobody_finished_are_swept(s3: BucketAddress) -> None:
    store = S3Store(s3, stale_after=timedelta(seconds=-1))
    bucket = Bucket(s3)
    key = f"{s3.prefix}alice/artifacts/20240827/t/a.bin"
    bucket.put_part(key, bucket.begin(key, mime="text/plain", metadata={}), 1, b"x")
    # JuiceFS lists uploads only by their whole key.
    assert list(bucket.uploads(key))

    await store.sweep()

    assert not list(bucket.uploads(s3.prefix))


async def test_equal_digits_of_other_content_get_a_longer_id(rgw: BucketAddress) -> None:
    store = S3Store(rgw)
    record = await store.put_bytes(b"x", Put(name="a.txt"), scope=ALICE)
    keys = keys_of(rgw.prefix, ALICE)
    index = S3Index(Bucket(rgw), rgw.prefix)

    assert index.free_id(keys, f"art_{record.sha256}") == record.id

    other = record.sha256[:13] + ("0" if record.sha256[13] != "0" else "1") * 51
    assert index.free_id(keys, f"art_{other}") == f"art_{other[:16]}"


async def test_hosts_whose_clocks_differ_agree_on_the_time_of_the_server(rgw: BucketAddress) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Ahead) as server:
        threading.Thread(target=server.serve_forever).start()
        ahead = Bucket(replace(rgw, endpoint=f"http://127.0.0.1:{server.server_port}"))
        assert ahead.size("nothing") is None
        server.shutdown()
    with_rgw = Bucket(rgw)
    assert with_rgw.size("nothing") is None

    assert ahead.now().year == 2040
    assert abs((with_rgw.now() - datetime.now(UTC)).total_seconds()) < 60


class _Ahead(BaseHTTPRequestHandler):
    """A server that has nothing, and whose clock is years ahead."""

    def do_HEAD(self) -> None:
        self.send_response(404)
        self.end_headers()

    def date_time_string(self, timestamp: float | None = None) -> str:
        return "Sun, 01 Jan 2040 00:00:00 GMT"

    def log_message(self, *_: object) -> None:
        pass


async def test_scopes_of_tenants_and_of_nobody_are_apart(s3: BucketAddress, clock: Clock) -> None:
    store = S3Store(s3, clock=clock)
    scopes = [Scope(tenant_id="t", user_id="alice"), ALICE, Scope(session_id="alice"), Scope()]

    for number, scope in enumerate(scopes):
        await store.put_bytes(b"%d" % number, Put(name="a.txt"), scope=scope)

    for number, scope in enumerate(scopes):
        record = await store.find("a.txt", scope=scope)
        assert record is not None
        assert await read(store, record, scope) == b"%d" % number
    assert await store.find("a.txt", scope=BOB) is None


async def test_a_file_that_changes_while_it_is_stored_is_refused_and_leaves_nothing(
    rgw: BucketAddress, tmp_path: Path, clock: Clock
) -> None:
    path = tmp_path / "growing"
    path.write_bytes(b"x" * 100)
    store = S3Store(rgw, clock=_meddling(clock, lambda: path.write_bytes(b"y" * 100)))

    with pytest.raises(CallError, match="changed while") as refused:
        await store.put_file(path, Put(name="a.txt"), scope=ALICE)

    assert refused.value.code is Code.E_STORE
    assert not any("a.txt" in key for key in keys_in(rgw))


def _meddling(clock: Clock, meddle: Callable[[], object]) -> Callable[[], datetime]:
    """A clock that is looked at after the digest is made and before the bytes are sent."""

    def now() -> datetime:
        meddle()
        return clock()

    return now
