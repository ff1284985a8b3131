"""Properties of a store in S3: its keys, concurrent hosts, damage and leftovers."""

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
from runner.store.entries import Entry
from runner.store.protocol import Put, Reason, Record, Scope
from runner.store.s3.bucket import Bucket, BucketAddress
from runner.store.s3.store import S3Store

pytestmark = [pytest.mark.anyio, pytest.mark.needs_s3]


def keys_in(address: BucketAddress) -> list[str]:
    return [item.key.removeprefix(address.prefix) for item in Bucket(address).list(address.prefix)]


async def test_key_of_a_file_has_user_artifacts_day_and_name(
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

    await here.put_bytes(b"x", Put(name="a.txt", facts={"rows": 1}), scope=ALICE)

    (seen,) = await there.list(scope=ALICE)
    assert seen.metadata.facts == {"rows": 1}
    await there.delete(record.id, scope=ALICE)
    assert list(await here.list(scope=ALICE)) == []
    assert await here.find("a.txt", scope=ALICE) is None


async def test_concurrent_hosts_get_different_names_for_one_name(s3: BucketAddress) -> None:
    hosts = [S3Store(s3) for _ in range(6)]

    records = await asyncio.gather(
        *(host.put_bytes(os.urandom(8), Put(name="same.txt"), scope=ALICE) for host in hosts)
    )

    assert len({record.name for record in records}) == len(hosts)
    listed = await S3Store(s3).list(scope=ALICE)
    assert {(r.name, r.sha256) for r in listed} == {(r.name, r.sha256) for r in records}


def record_key(address: BucketAddress, name: str) -> str:
    return f"{address.prefix}alice/records/all/files/{name}"


def test_a_condition_lets_one_of_many_hosts_through(rgw: BucketAddress) -> None:
    bucket, probe = Bucket(rgw), f"{rgw.prefix}=probe"
    etag: str | None = None
    for match in (None, "first", "second"):
        # An etag is a digest: with the content of the round before, its condition would still hold.
        content = str(match)
        start = threading.Barrier(6)
        through: list[str] = []

        def want(
            number: int,
            held: str | None = etag,
            content: str = content,
            start: threading.Barrier = start,
            seen: list[str] = through,
        ) -> None:
            start.wait()
            body = f"{content} {number}".encode()
            got = bucket.put_if(f"{rgw.prefix}n", body, absent=held is None, match=held, probe=probe)
            seen.extend([] if got is None else [got])

        hosts = [threading.Thread(target=want, args=(number,)) for number in range(6)]
        for host in hosts:
            host.start()
        for host in hosts:
            host.join()
        assert len(through) == 1, match
        (etag,) = through


async def test_a_server_that_ignores_conditions_is_refused_and_named(juicefs_bucket: BucketAddress) -> None:
    store = S3Store(juicefs_bucket)

    with pytest.raises(CallError, match="takes no notice of If-None-Match") as refused:
        await store.put_bytes(b"x", Put(name="a.txt"), scope=ALICE)

    assert not refused.value.retryable
    assert "takes no notice of If-None-Match" in str(await store.fault())
    assert [key for key in keys_in(juicefs_bucket) if "a.txt" in key] == []


async def test_hosts_that_delete_one_file_at_once_delete_no_later_one(s3: BucketAddress) -> None:
    hosts = [S3Store(s3) for _ in range(4)]
    for number in range(6):
        record = await hosts[0].put_bytes(b"%d" % number, Put(name="a.txt"), scope=ALICE)

        async def delete_and_put(host: S3Store, mine: bytes, id_: str = record.id) -> Record | None:
            if not await host.delete(id_, scope=ALICE, name="a.txt"):
                return None
            return await host.put_bytes(mine, Put(name="a.txt"), scope=ALICE)

        new = await asyncio.gather(
            *(delete_and_put(h, b"new %d %d" % (number, n)) for n, h in enumerate(hosts))
        )
        (survivor,) = [each for each in new if each is not None]
        assert await read(hosts[1], survivor) == await read(hosts[2], survivor)
        assert [each.id for each in await hosts[3].list(scope=ALICE)] == [survivor.id]
        await hosts[0].delete(survivor.id, scope=ALICE)


async def test_put_and_delete_at_once_leave_no_record_without_bytes(
    s3: BucketAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine takes longer for four at once than a caller waits.
    monkeypatch.setattr("runner.store.s3.store._ASK_S", 180.0)
    monkeypatch.setattr("runner.store.s3.bucket._ANSWER_S", 60.0)
    hosts = [S3Store(s3) for _ in range(4)]

    async def work(host: S3Store, number: int) -> None:
        for turn in range(6):
            record = await host.put_bytes(b"shared", Put(name="a.txt"), scope=ALICE)
            if (turn + number) % 2:
                await host.delete(record.id, scope=ALICE)
            else:
                await host.put_bytes(b"shared", Put(name="a.txt", facts={"turn": turn}), scope=ALICE)

    await asyncio.gather(*(work(host, number) for number, host in enumerate(hosts)))

    for record in await hosts[0].list(scope=ALICE):
        assert await read(hosts[1], record) == b"shared"
    contents = [key for key in keys_in(s3) if "/artifacts/" in key]
    assert len(contents) == len(await hosts[0].list(scope=ALICE))


async def test_more_than_one_page_is_listed(rgw: BucketAddress) -> None:
    bucket = Bucket(rgw)
    for number in range(5):
        bucket.put(f"{rgw.prefix}pages/{number}", b"x")
    requests: list[object] = []

    def two_a_page(params: dict[str, object], **_: object) -> dict[str, object]:
        requests.append(params)
        return {**params, "MaxKeys": 2}

    with watching("provide-client-params.s3.ListObjectsV2", two_a_page):
        paging = Bucket(rgw)

    keys = [item.key for item in paging.list(f"{rgw.prefix}pages/")]

    assert keys == [f"{rgw.prefix}pages/{number}" for number in range(5)]
    assert len(requests) == 3


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


async def test_missing_bytes_are_reported_and_repaired_by_a_new_put(
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
    await store.put_bytes(b"x", Put(name="a.txt", facts={"rows": 1}), scope=ALICE)
    assert any("alice" in key for key in keys_in(s3))

    await store.delete(record.id, scope=ALICE)

    assert [key for key in keys_in(s3) if "alice" in key] == []


async def test_interrupted_delete_is_final_and_a_sweep_finishes_it(s3: BucketAddress) -> None:
    store = S3Store(s3, stale_after=timedelta(seconds=-1))
    file = await store.put_bytes(b"kept", Put(name="kept.txt"), scope=ALICE)
    record = await store.put_bytes(b"x", Put(name="a.txt"), scope=ALICE)
    found = Bucket(s3).get(record_key(s3, "a.txt"))
    assert found is not None
    gone = replace(Entry.read(found[0]), is_gone=True)
    Bucket(s3).put(record_key(s3, "a.txt"), gone.written())

    assert await store.find("a.txt", scope=ALICE) is None
    assert await store.stat(record.id, scope=ALICE) is None
    young = await S3Store(s3).sweep()
    removed = await store.sweep()

    assert list(young) == []
    assert [(one.reason, one.size) for one in removed] == [(Reason.LEFT_BEHIND, 1)]
    assert [key for key in keys_in(s3) if "a.txt" in key] == []
    assert await read(store, file) == b"kept"


async def test_lost_record_costs_no_byte_and_restores_its_file(s3: BucketAddress) -> None:
    store = S3Store(s3, stale_after=timedelta(seconds=-1))
    record = await store.put_bytes(b"x", Put(name="a.txt"), scope=ALICE)
    lost = Bucket(s3).get(record_key(s3, "a.txt"))
    assert lost is not None
    Bucket(s3).delete(record_key(s3, "a.txt"))

    assert list(await store.sweep()) == []
    Bucket(s3).put(record_key(s3, "a.txt"), lost[0])

    assert await read(store, record) == b"x"


async def test_damaged_record_costs_no_other_file_and_no_byte(
    s3: BucketAddress,
) -> None:
    store = S3Store(s3, stale_after=timedelta(seconds=-1))
    record = await store.put_bytes(b"x", Put(name="a.txt"), scope=ALICE)
    file = await store.put_bytes(b"kept", Put(name="kept.txt"), scope=ALICE)
    whole = Bucket(s3).get(record_key(s3, "a.txt"))
    assert whole is not None
    Bucket(s3).put(record_key(s3, "a.txt"), whole[0][:-9])

    assert [each.name for each in await store.list(scope=ALICE)] == ["kept.txt"]
    assert await read(store, file) == b"kept"
    assert list(await store.sweep()) == []
    assert [found.problem for found in (await store.verify()).damaged] == ["its record is damaged"]
    Bucket(s3).put(record_key(s3, "a.txt"), whole[0])

    assert await read(store, record) == b"x"


async def test_parts_of_an_upload_that_nobody_finished_are_swept(s3: BucketAddress) -> None:
    store = S3Store(s3, stale_after=timedelta(seconds=-1))
    bucket = Bucket(s3)
    key = f"{s3.prefix}alice/artifacts/20240827/t/a.bin"
    client = raw_client(s3)
    upload = client.create_multipart_upload(Bucket=s3.bucket, Key=key)["UploadId"]
    client.upload_part(Bucket=s3.bucket, Key=key, UploadId=upload, PartNumber=1, Body=b"x")
    # JuiceFS lists uploads only by their whole key.
    assert list(bucket.uploads(key))

    await store.sweep()

    assert not list(bucket.uploads(s3.prefix))


async def test_hosts_with_different_clocks_use_the_server_time(rgw: BucketAddress) -> None:
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


async def test_file_changed_during_a_put_is_refused_and_leaves_nothing(
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
