"""The spool: files that a store cannot accept wait on this machine, and are sent later exactly once."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from s3_servers import CuttingProxy
from suite import ALICE, BOB, Clock, MakeStore, StoreSuite, read

from runner.errors import CallError, Code
from runner.store.protocol import Put, Reason, Record, Scope
from runner.store.reports import StoreFacts, measured
from runner.store.retention import Quota, RetentionRules
from runner.store.s3.bucket import BucketAddress
from runner.store.s3.store import S3Store
from runner.store.spool import Spool, SpoolingStore, delay_s
from runner.store.store import BlobStore

pytestmark = [pytest.mark.anyio, pytest.mark.needs_s3]


@pytest.fixture
def gone(rgw: BucketAddress) -> Iterator[BucketAddress]:
    """The bucket on a server that takes no connection."""
    with CuttingProxy(rgw, cut_after=0) as proxy:
        yield proxy.address


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path / "state" / "spool")


class NoServer(BlobStore):
    """A store that cannot be reached."""

    async def put_bytes(self, content: bytes, about: Put, *, scope: Scope) -> Record:
        raise CallError(Code.E_STORE, "the store is away")

    async def put_file(self, source: int | Path, about: Put, *, scope: Scope) -> Record:
        raise CallError(Code.E_STORE, "the store is away")

    async def fault(self) -> str | None:
        return "the store is away"


class Stuck(BlobStore):
    """A store that takes a file without end."""

    async def put_file(self, source: int | Path, about: Put, *, scope: Scope) -> Record:
        await asyncio.Event().wait()
        raise AssertionError


def files_in(spool: Spool) -> int:
    """Count the files on disk in the spool: records, bytes and notes."""
    return sum(1 for path in spool.folder.rglob("*") if path.is_file())


class TestSpoolingStore(StoreSuite):
    @pytest.fixture
    def make_store(self, spool: Spool) -> MakeStore:
        def make(rules: RetentionRules, clock: Clock) -> SpoolingStore:
            return SpoolingStore(BlobStore(rules=rules, clock=clock), spool, now=clock)

        return make


async def test_a_file_that_has_to_wait_is_found_listed_by_id_and_read(
    gone: BucketAddress, spool: Spool, tmp_path: Path
) -> None:
    store = SpoolingStore(S3Store(gone), spool)
    (tmp_path / "f").write_bytes(b"0123456789")

    record = await store.put_file(tmp_path / "f", Put(name="Ä.txt", facts={"rows": 1}), scope=ALICE)

    assert record.pending
    assert await store.find("Ä.txt", scope=ALICE) == record
    assert await store.stat(record.id, scope=ALICE) == record
    assert await read(store, record) == b"0123456789"
    assert await read(store, record, offset=2, length=3) == b"234"
    with (tmp_path / "copy").open("wb") as copy:
        async with store.open(record, scope=ALICE) as content:
            await content.copy_to(copy.fileno())
    assert (tmp_path / "copy").read_bytes() == b"0123456789"


async def test_pending_files_and_failed_puts_are_counted(rgw: BucketAddress, spool: Spool) -> None:
    with CuttingProxy(rgw, cut_after=0) as proxy:
        away = SpoolingStore(S3Store(proxy.address), spool)
        await away.put_bytes(b"0123456789", Put(name="a.txt"), scope=ALICE)
        await away.put_text("01234", Put(name="b.txt"), scope=BOB)

        assert await measured(away) == StoreFacts(pending_files=2, pending_bytes=15, failed_puts=2)
    back = SpoolingStore(S3Store(rgw), spool)
    assert await back.send_all(60) == 0
    assert await measured(back) == StoreFacts()


async def test_what_a_limit_refuses_is_no_failed_put_of_the_store(rgw: BucketAddress, spool: Spool) -> None:
    rules = RetentionRules(files=Quota(max_file_bytes=5))
    store = SpoolingStore(S3Store(rgw, rules=rules), spool, quota=rules.files)

    with pytest.raises(CallError, match="limit"):
        await store.put_bytes(b"0123456789", Put(name="a.txt"), scope=ALICE)

    assert await measured(store) == StoreFacts()


async def test_a_file_that_waits_is_listed_beside_what_is_stored(
    rgw: BucketAddress, gone: BucketAddress, spool: Spool
) -> None:
    stored = await S3Store(rgw).put_bytes(b"1", Put(name="b.txt"), scope=ALICE)
    waiting = await SpoolingStore(S3Store(gone), spool).put_bytes(b"2", Put(name="a.txt"), scope=ALICE)

    listed = await SpoolingStore(S3Store(rgw), spool).list(scope=ALICE)

    assert list(listed) == [waiting, stored]


async def test_a_file_that_waits_is_for_its_owner_only(gone: BucketAddress, spool: Spool) -> None:
    store = SpoolingStore(S3Store(gone), spool)
    record = await store.put_bytes(b"x", Put(name="a.txt"), scope=ALICE)

    assert await store.find("a.txt", scope=ALICE) == record
    with pytest.raises(CallError) as refused:
        await store.find("a.txt", scope=BOB)
    assert refused.value.code is Code.E_STORE


async def test_a_list_that_would_lack_files_is_an_error(gone: BucketAddress, spool: Spool) -> None:
    store = SpoolingStore(S3Store(gone), spool)
    await store.put_bytes(b"x", Put(name="a.txt"), scope=ALICE)

    with pytest.raises(CallError) as refused:
        await store.list(scope=ALICE)

    assert refused.value.code is Code.E_STORE


async def test_pending_files_are_sent_later_by_any_process(
    rgw: BucketAddress, gone: BucketAddress, spool: Spool
) -> None:
    content = os.urandom(9 * 1024 * 1024)
    about = Put(name="a.bin", facts={"rows": 1}, reason="large")
    pending = await SpoolingStore(S3Store(gone), spool).put_bytes(content, about, scope=ALICE)

    after_restart = SpoolingStore(S3Store(rgw), spool)
    assert await after_restart.send() == 1

    record = await after_restart.find("a.bin", scope=ALICE)
    assert record is not None
    assert not record.pending
    assert (record.id, record.metadata) == (pending.id, pending.metadata)
    assert await read(after_restart, record) == content
    assert await read(after_restart, pending) == content
    assert files_in(spool) == 0


async def test_pending_file_with_a_taken_name_gets_a_number(
    rgw: BucketAddress, gone: BucketAddress, spool: Spool
) -> None:
    pending = await SpoolingStore(S3Store(gone), spool).put_bytes(b"mine", Put(name="a.txt"), scope=ALICE)
    await S3Store(rgw).put_bytes(b"theirs", Put(name="a.txt"), scope=ALICE)
    store = SpoolingStore(S3Store(rgw), spool)

    await store.send()

    record = await store.stat(pending.id, scope=ALICE)
    assert record is not None
    assert record.name == "a_2.txt"
    assert await read(store, record) == b"mine"


async def test_setting_fail_gives_an_error_and_still_sends_the_file(
    rgw: BucketAddress, gone: BucketAddress, spool: Spool
) -> None:
    with pytest.raises(CallError, match="kept on this machine") as refused:
        await SpoolingStore(S3Store(gone), spool, "fail").put_bytes(b"x", Put(name="a.txt"), scope=ALICE)

    assert refused.value.code is Code.E_STORE
    assert refused.value.details["kept"] is True
    store = SpoolingStore(S3Store(rgw), spool)
    assert await store.send() == 1
    assert await store.find("a.txt", scope=ALICE) is not None


async def waiting(spool: Spool, *, files: int) -> None:
    """Put files of two users into the spool."""
    store = SpoolingStore(NoServer(), spool)
    for number in range(files):
        await store.put_bytes(b"x%d" % number, Put(name=f"{number}.txt"), scope=(ALICE, BOB)[number % 2])


async def test_first_accepted_file_ends_the_back_off_of_all_others(spool: Spool, clock: Clock) -> None:
    remote = Away()
    remote.away = True
    store = SpoolingStore(remote, spool, now=clock)
    for number in range(12):
        await store.put_bytes(b"x%d" % number, Put(name=f"{number}.txt"), scope=(ALICE, BOB)[number % 2])
    assert await store.send() == 0
    remote.away = False
    # The control: none of them is due yet.
    assert await store.send() == 0

    await store.spool.put_bytes(b"new", Put(name="new.txt"), scope=ALICE)

    assert await store.send() == 13
    assert len([*await remote.list(scope=ALICE), *await remote.list(scope=BOB)]) == 13
    assert spool.all() == []


async def test_pending_files_of_one_name_are_named_in_order(spool: Spool) -> None:
    await waiting(spool, files=1)
    names = ("b.txt", "a.txt")
    for number, name in enumerate(names * 6):
        about = Put(name=name, namespace=f"n{number}")
        await SpoolingStore(NoServer(), spool).put_bytes(b"%d" % number, about, scope=ALICE)
    wanted = {entry.record.id: entry.record.name for entry in spool.all()}
    there = BlobStore()

    assert await SpoolingStore(there, spool).send() == 13

    assert {record.id: record.name for record in await there.list(scope=ALICE)} == wanted


async def test_stopping_server_sends_and_counts_pending_files(spool: Spool) -> None:
    await waiting(spool, files=5)
    before = spool.all()

    # A store that is away is asked once, and not once for each file.
    assert await SpoolingStore(NoServer(), spool).send_all(60) == 5
    assert spool.all() == before
    assert await SpoolingStore(Stuck(), spool).send_all(0.05) == 5
    assert await SpoolingStore(BlobStore(), spool).send_all(60) == 0
    assert await SpoolingStore(NoServer(), spool).send_all(60) == 0


async def test_the_same_file_put_again_while_it_waits_is_kept_once(gone: BucketAddress, spool: Spool) -> None:
    store = SpoolingStore(S3Store(gone), spool)

    first = await store.put_bytes(b"x", Put(name="a.txt"), scope=ALICE)
    again = await store.put_bytes(b"x", Put(name="a.txt"), scope=ALICE)
    other = await store.put_bytes(b"y", Put(name="a.txt"), scope=ALICE)

    assert (again.id, again.name, again.pending) == (first.id, "a.txt", True)
    assert other.name == "a_2.txt"
    assert files_in(spool) == 4


async def test_what_is_deleted_while_it_waits_is_not_sent(
    rgw: BucketAddress, gone: BucketAddress, spool: Spool
) -> None:
    store = SpoolingStore(S3Store(gone), spool)
    record = await store.put_bytes(b"x", Put(name="a.txt"), scope=ALICE)

    assert await store.delete(record.id, scope=ALICE, name="a.txt")

    assert list(spool.folder.rglob("objects/*")) == []
    back = SpoolingStore(S3Store(rgw), spool, now=lambda: record.created + timedelta(hours=1))
    assert await back.send() == 0
    assert await back.list(scope=ALICE) == []
    assert files_in(spool) == 0


async def test_what_ends_while_it_waits_is_swept_and_said(
    rgw: BucketAddress, gone: BucketAddress, spool: Spool, clock: Clock
) -> None:
    about = Put(name="a.txt", expires_at=clock() + timedelta(hours=1))
    await SpoolingStore(S3Store(gone), spool, now=clock).put_bytes(b"x", about, scope=ALICE)
    clock.advance(3601)

    removed = await SpoolingStore(S3Store(rgw, clock=clock), spool, now=clock).sweep()

    assert [(one.name, one.reason) for one in removed] == [("a.txt", Reason.EXPIRED)]
    assert files_in(spool) == 0


@pytest.mark.parametrize("damage", ["torn", "lost"])
async def test_file_with_lost_or_damaged_record_is_kept_and_named(
    rgw: BucketAddress, gone: BucketAddress, spool: Spool, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    await SpoolingStore(S3Store(gone), spool).put_bytes(b"x", Put(name="a.txt"), scope=ALICE)
    [record], [content] = spool.folder.rglob("records/all/files/*"), spool.folder.rglob("objects/*")
    whole = record.read_bytes()
    assert spool.unsure() == []
    record.write_bytes(whole[:50]) if damage == "torn" else record.unlink()
    back = SpoolingStore(S3Store(rgw), spool)

    assert list(await back.sweep()) == []
    assert await back.send() == 0
    assert Spool(spool.folder).unsure() == [f"users/alice/objects/{content.name}"]
    assert "spool records unreadable" in caplog.messages
    # Put back, it is all that the file needs.
    record.write_bytes(whole)
    assert await SpoolingStore(S3Store(rgw), spool).send() == 1
    assert files_in(spool) == 0


NOTE = (
    '{"record":{"id":"art_0123456789ab","name":"a.csv","mime":"text/csv","size":3,'
    '"sha256":"0123456789ab0000000000000000000000000000000000000000000000000000",'
    '"scope":{"tenant_id":null,"user_id":"alice","session_id":null,"trace_id":"t"},'
    '"said":{"name":"a.csv","mime":null,"origin":"generated","retention":"files","namespace":"art",'
    '"source":{},"facts":{"rows":1},"reason":null,"expires_at":null},'
    '"created":"2026-11-28T12:00:00Z","expires_at":null,"pending":true,"key":null},'
    '"token":"tok","attempts":0,"due":"2026-11-28T12:00:00Z","deleted":DELETED}'
)


@pytest.mark.parametrize("deleted", ["null", '"2026-11-28T12:00:00Z"'])
async def test_what_an_earlier_version_left_in_the_spool_is_taken_over(spool: Spool, deleted: str) -> None:
    spool.folder.mkdir(parents=True)
    (spool.folder / "tok.json").write_text(NOTE.replace("DELETED", deleted))
    if deleted == "null":
        (spool.folder / "tok.bytes").write_bytes(b"abc")
    (spool.folder / "lost.bytes").write_bytes(b"whose")
    there = BlobStore()
    store = SpoolingStore(there, spool)

    taken = await store.send()

    found = await there.find("a.csv", scope=ALICE)
    assert taken == (deleted == "null")
    assert (found is not None and found.metadata.facts == {"rows": 1}) == (deleted == "null")
    assert [path.name for path in spool.folder.rglob("*") if path.is_file()] == ["lost.bytes"]
    assert spool.unsure() == ["lost.bytes"]


async def test_a_refusal_is_no_reason_to_wait(rgw: BucketAddress, spool: Spool) -> None:
    store = SpoolingStore(S3Store(rgw, rules=RetentionRules(files=Quota(max_file_bytes=1))), spool)

    with pytest.raises(CallError) as refused:
        await store.put_bytes(b"too large", Put(name="a.txt"), scope=ALICE)

    assert refused.value.code is Code.E_FILE_TOO_LARGE
    assert files_in(spool) == 0


async def test_a_spool_that_cannot_be_written_is_an_error_too(gone: BucketAddress, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    store = SpoolingStore(S3Store(gone), Spool(tmp_path / "file" / "spool"))

    with pytest.raises(CallError) as refused:
        await store.put_bytes(b"x", Put(name="a.txt"), scope=ALICE)

    assert refused.value.code is Code.E_STORE
    assert "kept" not in refused.value.details


async def test_failed_sends_are_retried_with_growing_back_off(spool: Spool, clock: Clock) -> None:
    remote = Away()
    remote.away = True
    store = SpoolingStore(remote, spool, now=clock)
    await store.put_bytes(b"x", Put(name="a.txt"), scope=ALICE)
    tried: list[int] = []
    for seconds in (0, 0.9, 1.1, 1.9, 2.1):
        clock.advance(seconds)
        before = remote.reached
        await store.send()
        tried.append(remote.reached - before)
    remote.away = False
    clock.advance(8)

    # At once; again after 1 to 2 s, then after 2 to 4 s.
    assert tried == [1, 0, 1, 0, 1]
    assert await store.send() == 1


def test_waits_double_up_to_a_bound_and_vary_by_half() -> None:
    assert [delay_s(attempts, 1.0) for attempts in (1, 2, 3, 9, 10, 5000)] == [2, 4, 8, 512, 600, 600]
    assert delay_s(3, 0.0) == 4


async def test_two_processes_do_not_send_the_same_file_at_once(
    rgw: BucketAddress, gone: BucketAddress, spool: Spool
) -> None:
    await SpoolingStore(S3Store(gone), spool).put_bytes(b"x", Put(name="a.txt"), scope=ALICE)
    stores = [SpoolingStore(S3Store(rgw), Spool(spool.folder)) for _ in range(4)]

    sent = await asyncio.gather(*(store.send() for store in stores))

    assert sum(sent) == 1
    assert [record.name for record in await stores[0].list(scope=ALICE)] == ["a.txt"]


async def test_the_task_of_a_server_sends_what_an_earlier_run_left(
    rgw: BucketAddress, gone: BucketAddress, spool: Spool
) -> None:
    await SpoolingStore(S3Store(gone), spool).put_bytes(b"x", Put(name="a.txt"), scope=ALICE)
    store = SpoolingStore(S3Store(rgw), spool)

    running = asyncio.create_task(store.run())
    while files_in(spool):
        await asyncio.sleep(0.02)
    running.cancel()

    assert await store.find("a.txt", scope=ALICE) is not None


def test_acknowledged_files_survive_a_kill_whole(spool: Spool) -> None:
    code = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from runner.store.protocol import Put, Scope\n"
        "from runner.store.spool import Spool\n"
        "spool = Spool(Path(sys.argv[1]))\n"
        "for number in range(10**6):\n"
        "    content = b'%d' % number * 5000\n"
        "    put = spool.put_bytes(content, Put(name=f'{number}'), scope=Scope(user_id='alice'))\n"
        "    asyncio.run(put)\n"
        "    print(number, flush=True)\n"
    )
    acknowledged: set[str] = set()
    for _ in range(4):
        command = [sys.executable, "-c", code, str(spool.folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for line in writer.stdout:
                acknowledged.add(line.strip())
                if len(acknowledged) % 7 == 6:
                    break
            writer.kill()
            acknowledged.update(writer.stdout.read().split())

    records = {each.record.metadata.name: each for each in spool.all()}
    assert acknowledged <= set(records)
    for name, each in records.items():
        assert (spool.folder / each.blob).read_bytes() == str(name).encode() * 5000


async def test_the_spool_is_its_owners_alone(gone: BucketAddress, spool: Spool) -> None:
    await SpoolingStore(S3Store(gone), spool).put_bytes(b"x", Put(name="a.txt"), scope=ALICE)

    assert spool.folder.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in spool.folder.rglob("*"))
    (note,) = spool.folder.rglob("records/all/files/*")
    assert json.loads(note.read_text())["record"]["scope"]["user_id"] == "alice"


class Away(BlobStore):
    """A store in memory that is away while `away`, and does `meanwhile` while it takes a file."""

    away = False
    reached = 0
    hangs = False
    meanwhile: Callable[[], Awaitable[object]] | None = None

    async def put_bytes(self, content: bytes, about: Put, *, scope: Scope) -> Record:
        self._reach()
        if self.hangs:
            await asyncio.Event().wait()
        if self.meanwhile is not None:
            await self.meanwhile()
        return await super().put_bytes(content, about, scope=scope)

    async def list(self, *, scope: Scope) -> Sequence[Record]:
        self._reach()
        return await super().list(scope=scope)

    async def delete(self, id_: str, *, scope: Scope, name: str | None = None) -> bool:
        self._reach()
        return await super().delete(id_, scope=scope, name=name)

    async def put_file(self, source: int | Path, about: Put, *, scope: Scope) -> Record:
        return await self.put_bytes(os.pread(source, 10**6, 0), about, scope=scope)  # type: ignore[arg-type]

    def _reach(self) -> None:
        self.reached += 1
        if self.away:
            raise CallError(Code.E_STORE, "away")


async def test_what_waits_of_a_user_counts_against_the_quota(spool: Spool) -> None:
    remote = Away()
    remote.away = True
    store = SpoolingStore(remote, spool, quota=Quota(max_user_bytes=1_000_000))
    await store.put_bytes(b"1" * 600_000, Put(name="1"), scope=ALICE)

    with pytest.raises(CallError) as refused:
        await store.put_bytes(b"2" * 600_000, Put(name="2"), scope=replace(ALICE, session_id="s"))

    assert refused.value.code is Code.E_QUOTA
    assert files_in(spool) == 2
    assert (await store.put_bytes(b"1" * 600_000, Put(name="same content"), scope=ALICE)).pending
    assert (await store.put_bytes(b"3" * 400_000, Put(name="fits"), scope=ALICE)).pending
    assert (await store.put_bytes(b"4" * 600_000, Put(name="4"), scope=BOB)).pending


async def twice(spool: Spool) -> tuple[Away, SpoolingStore]:
    """A store with a file that both it and its spool have; it is reachable."""
    remote = Away()
    store = SpoolingStore(remote, spool)
    await store.put_bytes(b"x", Put(name="a.txt"), scope=ALICE)
    remote.away = True
    assert (await store.put_bytes(b"x", Put(name="a.txt"), scope=ALICE)).pending
    remote.away = False
    return remote, store


async def test_stored_and_pending_file_is_listed_once_and_deleted(spool: Spool) -> None:
    remote, store = await twice(spool)
    (record,) = await store.list(scope=ALICE)

    assert await store.delete(record.id, scope=ALICE, name="a.txt")

    assert await remote.list(scope=ALICE) == []
    assert await store.list(scope=ALICE) == []
    assert files_in(spool) == 0


async def test_file_renamed_by_the_store_is_listed_once(spool: Spool) -> None:
    remote = Away()
    store = SpoolingStore(remote, spool)
    other = await store.put_bytes(b"other", Put(name="a.txt"), scope=ALICE)
    await store.put_bytes(b"x", Put(name="a.txt"), scope=ALICE)
    remote.away = True
    await store.put_bytes(b"x", Put(name="a.txt"), scope=ALICE)
    remote.away = False
    listed = await store.list(scope=ALICE)

    assert await store.delete(listed[1].id, scope=ALICE, name=listed[1].name)

    assert [record.name for record in listed] == ["a.txt", "a_2.txt"]
    assert await store.list(scope=ALICE) == [other]
    assert files_in(spool) == 0


class Digest(str):
    """A digest that counts its comparisons."""

    comparisons = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Digest.comparisons += 1
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other


class Counted(Away):
    """A store whose records have such digests."""

    async def list(self, *, scope: Scope) -> Sequence[Record]:
        found = await super().list(scope=scope)
        return [replace(record, sha256=Digest(record.sha256)) for record in found]


async def test_list_compares_no_pending_file_with_every_stored_one(spool: Spool) -> None:
    remote = Counted()
    store = SpoolingStore(remote, spool)
    for remote.away in (False, True):
        for number in range(30):
            content = b"%d %d" % (number, remote.away)
            await store.put_bytes(content, Put(name=f"{number}"), scope=ALICE)
    remote.away, Digest.comparisons = False, 0

    assert len(await store.list(scope=ALICE)) == 60
    assert Digest.comparisons <= 60


async def test_failed_delete_hides_the_file_and_is_repeated_later(spool: Spool) -> None:
    remote, store = await twice(spool)
    (record,) = await store.list(scope=ALICE)
    remote.away = True
    assert await store.delete(record.id, scope=ALICE, name="a.txt")
    remote.away = False

    found = await store.list(scope=ALICE), await store.find("a.txt", scope=ALICE)
    by_id = await store.stat(record.id, scope=ALICE)
    there = len(await remote.list(scope=ALICE))
    await store.send()

    assert (found, by_id, there) == (([], None), None, 1)
    assert await remote.list(scope=ALICE) == []
    assert files_in(spool) == 0


async def test_what_is_put_again_after_it_was_deleted_stays(spool: Spool) -> None:
    remote, store = await twice(spool)
    (record,) = await store.list(scope=ALICE)
    remote.away = True
    await store.delete(record.id, scope=ALICE)
    remote.away = False

    again = await store.put_bytes(b"x", Put(name="a.txt"), scope=ALICE)
    await store.send()

    assert await store.list(scope=ALICE) == [again]


@pytest.mark.parametrize("fails", [False, True])
async def test_what_is_deleted_while_it_is_sent_does_not_come_back(spool: Spool, fails: bool) -> None:
    remote = Away()
    store = SpoolingStore(remote, spool)
    remote.away = True
    record = await store.put_bytes(b"x", Put(name="a.txt"), scope=ALICE)
    remote.away = False

    async def delete() -> None:
        assert await store.delete(record.id, scope=ALICE, name="a.txt")
        if fails:
            raise CallError(Code.E_STORE, "away")

    remote.meanwhile = delete
    sent = await store.send()

    assert sent == 0
    assert await store.list(scope=ALICE) == []
    assert await remote.list(scope=ALICE) == []
    assert files_in(spool) == 0


async def test_hanging_store_is_waited_for_within_patience(spool: Spool, tmp_path: Path) -> None:
    remote = Away()
    remote.hangs = True
    store = SpoolingStore(remote, spool, patience_s=0.05)
    (tmp_path / "f").write_bytes(b"y")

    first = await store.put_bytes(b"x", Put(name="a.txt"), scope=ALICE)
    second = await store.put_file(tmp_path / "f", Put(name="b.txt"), scope=ALICE)

    assert (first.pending, second.pending) == (True, True)
    remote.hangs = False
    assert await store.send() == 2
