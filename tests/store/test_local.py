"""The local store on disk: what lies where, what a crash leaves, what repairs find."""

import fcntl
import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from store_world import ALICE, BOB, NOBODY, Clock, content_of, keep, observe, root_of, run

from runner.doctor.report import DoctorLine, Level, examine
from runner.errors import CallError, Code
from runner.store.local.blobs import LocalBlobs
from runner.store.protocol import Put, Reason, Scope
from runner.store.reports import Damage, StoreFacts, measured
from runner.store.store import BlobStore
from sandbox.policy import MIB

pytestmark = pytest.mark.anyio


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(LocalBlobs(tmp_path / "store"))


def objects(store: BlobStore) -> list[Path]:
    return sorted(root_of(store).glob("*/*/objects/*"))


async def test_equal_content_is_stored_once_for_each_user(store: BlobStore) -> None:
    await keep(store, b"same", "a.txt", ALICE)
    await keep(store, b"same", "b.txt", ALICE)
    await observe(store, b"same", ALICE)
    assert len(objects(store)) == 1

    await keep(store, b"same", "a.txt", BOB)
    await observe(store, b"same", Scope(session_id="s"))
    await observe(store, b"same", NOBODY)

    assert len(objects(store)) == 4


async def test_what_is_kept_is_added_up_by_owner_and_once_a_minute(store: BlobStore) -> None:
    await keep(store, b"same", "a.txt", ALICE)
    await keep(store, b"same", "b.txt", ALICE)
    await observe(store, b"same", ALICE)
    await keep(store, b"same", "a.txt", BOB)

    assert await measured(store) == StoreFacts(stored_bytes=8)
    await keep(store, b"more", "c.txt", BOB)
    assert await measured(store) == StoreFacts(stored_bytes=8)
    # Another process has looked at nothing yet.
    assert await measured(BlobStore(LocalBlobs(root_of(store)))) == StoreFacts(stored_bytes=12)


async def test_removal_deletes_bytes_and_spares_an_open_file(store: BlobStore) -> None:
    record = await keep(store, b"x", "a.txt")

    async with store.open(record, scope=ALICE) as content:
        assert await store.delete(record.id, scope=ALICE)
        left = objects(store)
        read = [chunk async for chunk in content]

    assert (left, read) == ([], [b"x"])


def test_a_file_takes_no_more_of_the_disk_than_where_it_was_made(tmp_path: Path) -> None:
    size, places = 64 * MIB + 100, (0, 5 * MIB + 7, 40 * MIB, 64 * MIB + 50)
    with (tmp_path / "sparse.bin").open("w+b") as sparse:
        sparse.truncate(size)
        for place in places:
            sparse.seek(place)
            sparse.write(b"data")
        sparse.flush()
        sparse.seek(0)
        blobs = LocalBlobs(tmp_path)
        with blobs.receive("users/alice/", sparse.fileno(), Put(), ALICE) as incoming:
            incoming.place()
        stored_bytes = (tmp_path / incoming.key).read_bytes()
        taken = 512 * (tmp_path / incoming.key).stat().st_blocks
        sparse.seek(0)
        assert stored_bytes == sparse.read()

    assert (incoming.size, incoming.sha256) == (size, hashlib.sha256(stored_bytes).hexdigest())
    assert taken <= len(places) * 64 * 1024
    with blobs.receive("users/alice/", b"\1" * MIB, Put(), ALICE) as dense:
        dense.place()
    assert 512 * (tmp_path / dense.key).stat().st_blocks >= MIB


async def test_copies_of_a_sparse_file_keep_its_holes(store: BlobStore, tmp_path: Path) -> None:
    (tmp_path / "sparse.bin").write_bytes(b"data")
    os.truncate(tmp_path / "sparse.bin", 64 * MIB)
    with (tmp_path / "sparse.bin").open("r+b") as sparse:
        sparse.seek(40 * MIB + 7)
        sparse.write(b"more")
    record = await store.put_file(tmp_path / "sparse.bin", Put(name="sparse.bin"), scope=ALICE)

    # The first copy is verified, the second is not.
    for name in ("one", "two"):
        async with store.open(record, scope=ALICE) as content:
            with (tmp_path / name).open("wb") as copy:
                await content.copy_to(copy.fileno())

    for name in ("one", "two"):
        assert (tmp_path / name).read_bytes() == (tmp_path / "sparse.bin").read_bytes()
        assert 512 * (tmp_path / name).stat().st_blocks <= 2 * 64 * 1024


@pytest.mark.parametrize(
    ("damage", "problem"), [("missing", "its bytes are missing"), ("cut", "3 of its 7 bytes are there")]
)
async def test_missing_or_damaged_bytes_are_an_error_and_reported(
    store: BlobStore, damage: str, problem: str
) -> None:
    record = await keep(store, b"content", "a.txt")
    assert list(store.missing()) == []
    [path] = objects(store)
    path.unlink() if damage == "missing" else os.truncate(path, 3)

    with pytest.raises(CallError, match=r"'a.txt' is listed but .*put it again") as raised:
        await content_of(store, record)

    assert (raised.value.code, raised.value.retryable) == (Code.E_STORE, False)
    assert store.missing() == [Damage(shown="a.txt", area="users/alice", problem=problem)]
    assert await content_of(store, await keep(store, b"content", "a.txt")) == b"content"
    assert store.missing() == []


async def test_unusable_store_is_a_retryable_error(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    store = BlobStore(LocalBlobs(tmp_path / "store"))

    for act in (keep(store, b"x", "a"), store.find("a", scope=ALICE), store.sweep()):
        with pytest.raises(CallError, match="My Files") as raised:
            await act
        assert (raised.value.code, raised.value.retryable) == (Code.E_STORE, True)


async def test_everything_stored_is_readable_for_its_owner_only(store: BlobStore) -> None:
    before = os.umask(0)
    try:
        await keep(store, b"x", "a.txt")
    finally:
        os.umask(before)

    modes = {stat.S_IMODE(path.stat().st_mode) for path in root_of(store).rglob("*") if path.is_file()}
    folders = {stat.S_IMODE(path.stat().st_mode) for path in root_of(store).rglob("*") if path.is_dir()}
    assert modes == {0o600}
    assert folders == {0o700}


async def test_a_sweep_removes_what_was_left_behind_and_nothing_else(store: BlobStore) -> None:
    record = await keep(store, b"kept", "a.txt")
    [path] = objects(store)
    unknown = path.with_name("of-a-lost-record")
    unknown.write_text("whose")
    area = root_of(store) / "users/alice"
    # As a writer leaves them that dies before the record, or while it still writes.
    (area / "incoming/placed").write_text("no record")
    (area / "objects/placed").hardlink_to(area / "incoming/placed")
    (area / "incoming/half").write_text("writer died")
    (area / "incoming/half.json").write_text("{")

    removed = await store.sweep()

    assert [(one.what, one.size, one.reason) for one in removed] == [
        ("users/alice/objects/half", 11, Reason.LEFT_BEHIND),
        ("users/alice/objects/half.json", 1, Reason.LEFT_BEHIND),
        ("users/alice/objects/placed", 9, Reason.LEFT_BEHIND),
    ]
    assert objects(store) == sorted([path, unknown])
    assert list((area / "incoming").iterdir()) == []
    assert await content_of(store, record) == b"kept"
    assert await store.sweep() == []
    assert [blob.key for blob in store.orphans()] == ["users/alice/objects/of-a-lost-record"]


async def test_sweep_finishes_a_removal_unless_content_was_put_again(store: BlobStore) -> None:
    await keep(store, b"content", "a.txt")
    stays = await keep(store, b"stays", "b.txt")
    records = root_of(store) / "users/alice/records/all/files"
    removed = root_of(store) / "users/alice/removed"
    removed.mkdir(mode=0o700)
    # As a process leaves it that dies between the record and the bytes.
    (records / "a.txt").rename(removed / "note")
    shutil.copy(records / "b.txt", removed / "other")

    swept = await store.sweep()

    assert [(one.size, one.reason) for one in swept] == [(7, Reason.LEFT_BEHIND)]
    assert [record.name for record in await store.list(scope=ALICE)] == ["b.txt"]
    assert await content_of(store, stays) == b"stays"
    assert list(removed.iterdir()) == []
    assert store.orphans() == []


async def test_unreadable_record_costs_no_other_file_and_no_byte(store: BlobStore) -> None:
    await keep(store, b"content", "a.txt")
    other = await keep(store, b"content", "b.txt")
    torn = root_of(store) / "users/alice/records/all/files/a.txt"
    whole = torn.read_bytes()
    torn.write_bytes(whole[:40])
    fresh = BlobStore(LocalBlobs(root_of(store)))

    listed = [record.name for record in await fresh.list(scope=ALICE)]
    again = await keep(fresh, b"new", "a.txt")
    assert await fresh.delete(other.id, scope=ALICE)
    await fresh.sweep()

    assert listed == ["b.txt"]
    assert again.name == "a_2.txt"
    assert [found.problem for found in fresh.missing()] == ["its record is damaged"]
    torn.write_bytes(whole)
    back = await BlobStore(LocalBlobs(root_of(store))).find("a.txt", scope=ALICE)
    assert back is not None
    assert await content_of(store, back) == b"content"


async def test_examine_names_torn_records_and_orphan_bytes_only(store: BlobStore) -> None:
    nothing = [*examine(root_of(store))]
    await keep(store, b"content", "a.txt")
    sound = [*examine(root_of(store))]
    [path] = objects(store)
    path.with_name("unknown").write_text("whose?")
    unknown = {finding.name: finding.detail for finding in examine(root_of(store))}
    (root_of(store) / "users/alice/records/all/files/a.txt").write_text("torn")
    before = sorted(path for path in root_of(store).rglob("*"))
    torn = [*examine(root_of(store))]

    assert nothing == []
    assert sound == [DoctorLine(section="store", name="records", level=Level.OK, detail="sound")]
    assert unknown["bytes"] == "users/alice/objects: 1 files of 6 bytes that no record knows"
    assert (torn[0].detail, torn[0].level) == (
        "users/alice/records/all/files/a.txt cannot be read",
        Level.MISSING,
    )
    assert sorted(path for path in root_of(store).rglob("*")) == before


async def test_another_process_sees_every_change_at_once(store: BlobStore) -> None:
    other = BlobStore(LocalBlobs(root_of(store)))
    for number in range(30):
        record = await keep(store, b"%d" % number, "a.txt")
        assert [found.sha256 for found in await other.list(scope=ALICE)] == [record.sha256]
        await other.delete(record.id, scope=ALICE)
        assert await store.list(scope=ALICE) == []


def test_a_sweep_leaves_what_is_still_being_written(store: BlobStore) -> None:
    counts = run(
        """
import asyncio, os, sys
from pathlib import Path
from runner.store.local.blobs import LocalBlobs
from runner.store.store import BlobStore
from runner.store.protocol import Put, Scope
store = BlobStore(LocalBlobs(Path(sys.argv[1])))
folder = store.blobs.root / "users/alice/incoming"
with store.blobs.receive("users/alice/", b"half", Put(), Scope()):
    print(len(asyncio.run(store.sweep())), len(list(folder.iterdir())))
if os.fork() == 0:
    held = store.blobs.receive("users/alice/", b"half", Put(), Scope())
    held.__enter__()
    os._exit(0)
os.wait()
print(len(asyncio.run(store.sweep())), len(list(folder.iterdir())))
        """,
        root_of(store),
    )

    assert counts == "0 1\n1 0\n"


async def test_no_writer_gets_the_lock_of_a_leftover_being_removed(store: BlobStore) -> None:
    class Watched(LocalBlobs):
        def delete(self, key: str) -> None:
            with (self.root / key).open() as file, pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            super().delete(key)

    store.blobs = Watched(root_of(store))
    folder = root_of(store) / "users/alice/incoming"
    folder.mkdir(parents=True)
    for name in ("a", "b"):
        (folder / name).write_bytes(b"half")

    await store.sweep()

    assert list(folder.iterdir()) == []


async def test_what_ended_takes_its_bytes_along(tmp_path: Path) -> None:
    clock = Clock()
    store = BlobStore(LocalBlobs(tmp_path / "store"), clock=clock)
    await keep(store, b"ends", "a.txt", expires_at=clock.now)
    stays = await keep(store, b"stays", "b.txt")
    clock.advance(1)

    [removal] = await store.sweep()

    assert (removal.name, removal.reason) == ("a.txt", Reason.EXPIRED)
    assert [path.read_bytes() for path in objects(store)] == [b"stays"]
    assert await content_of(store, stays) == b"stays"


def test_concurrent_puts_and_removals_leave_every_file_whole(store: BlobStore) -> None:
    answers = run(
        """
import asyncio, os, sys
from pathlib import Path
from store_world import ALICE, content_of, keep
from runner.store.local.blobs import LocalBlobs
from runner.store.store import BlobStore
store = BlobStore(LocalBlobs(Path(sys.argv[1])))
async def work():
    for number in range(15):
        shared = await keep(store, b"shared", "shared.txt")
        content = f"{os.getpid()} {number}".encode()
        own = await keep(store, content, "own.txt")
        assert await content_of(store, own) == content
        await store.delete(shared.id, scope=ALICE)
        await store.sweep()
for _ in range(4):
    if os.fork() == 0:
        asyncio.run(work())
        os.write(1, b"good\\n")
        os._exit(0)
for _ in range(4):
    os.wait()
async def look():
    records = [record for record in await store.list(scope=ALICE) if record.name != "shared.txt"]
    assert len({r.name for r in records}) == len({r.sha256 for r in records}) == 60
    for record in await store.list(scope=ALICE):
        await content_of(store, record)
    assert list(store.missing()) == []
asyncio.run(look())
        """,
        root_of(store),
    )

    assert answers.split() == ["good"] * 4


async def test_killed_writers_leave_every_acknowledged_file_whole(store: BlobStore) -> None:
    # One process forks the writers, since starting Python hundreds of times would take most of the time.
    output = run(
        """
import asyncio, os, random, signal, sys, time
from pathlib import Path
from store_world import ALICE, keep
from runner.store.local.blobs import LocalBlobs
from runner.store.store import BlobStore
store = BlobStore(LocalBlobs(Path(sys.argv[1])))
choice = random.Random(7)
async def write(life, acknowledge):
    for number in range(1000):
        name = f"{life}-{number}"
        record = await keep(store, name.encode() * choice.randrange(1, 50_000), name)
        os.write(acknowledge, f"put {record.name} {record.sha256}\\n".encode())
        if number % 3 == 2:
            os.write(acknowledge, f"away {record.name} -\\n".encode())
            await store.delete(record.id, scope=ALICE)
for life in range(200):
    reading, writing = os.pipe()
    choice.seed(life)
    writer = os.fork()
    if writer == 0:
        asyncio.run(write(life, writing))
    os.close(writing)
    acknowledged = os.read(reading, 4096) if life % 4 else b""
    time.sleep(choice.random() * 0.012)
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)
    while more := os.read(reading, 4096):
        acknowledged += more
    os.close(reading)
    sys.stdout.write(acknowledged.decode())
        """,
        root_of(store),
        timeout=100,
    )

    lines = [line.split() for line in output.splitlines()]
    removed = {name for act, name, _ in lines if act == "away"}
    promised = {name: digest for act, name, digest in lines if act == "put" and name not in removed}
    stored = {str(record.name): record for record in await store.list(scope=ALICE)}
    assert len(promised) > 100
    assert {name: stored[name].sha256 for name in promised} == promised
    for record in stored.values():
        assert hashlib.sha256(await content_of(store, record)).hexdigest() == record.sha256
    assert list(store.missing()) == []
    assert {removal.reason for removal in await store.sweep()} <= {Reason.LEFT_BEHIND}
    found = {hashlib.sha256(path.read_bytes()).hexdigest() for path in objects(store)}
    assert found == {record.sha256 for record in stored.values()}
    assert store.orphans() == []
    assert [
        path for path in root_of(store).glob("*/*/*/*") if path.parent.name in ("incoming", "removed")
    ] == []


def test_put_syncs_bytes_then_record_before_it_returns(
    store: BlobStore,
) -> None:
    strace = shutil.which("strace")
    assert strace is not None, "strace is needed to see the order of system calls: apt-get install strace"
    code = """
import asyncio, os, sys
from pathlib import Path
from store_world import keep
from runner.store.local.blobs import LocalBlobs
from runner.store.store import BlobStore
store = BlobStore(LocalBlobs(Path(sys.argv[1])))
asyncio.run(keep(store, b"first", "a.txt"))
os.write(2, b"SECOND")
asyncio.run(keep(store, b"content" * 1000, "b.txt"))
os.write(2, b"DONE")
    """
    trace = root_of(store).parent / "trace"
    calls = "openat,write,fsync,link,linkat"
    command = [
        strace,
        "-f",
        "-y",
        "-s",
        "8",
        "-e",
        f"trace={calls}",
        "-o",
        str(trace),
        sys.executable,
        "-c",
        code,
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(
        [*command, str(root_of(store))], check=True, timeout=180, env=environment, capture_output=True
    )

    text = trace.read_text()
    second = text[text.index('"SECOND"') : text.index('"DONE"')]
    order = [
        r"write\(\d+<[^>]*/incoming/\w+>",
        r"fsync\(\d+<[^>]*/incoming/\w+>",
        r"link\([^)]*/incoming/\w+[^)]*/objects/",
        r"fsync\(\d+<[^>]*/users/alice/objects>",
        r"write\(\d+<[^>]*/incoming/\w+\.json>",
        r"fsync\(\d+<[^>]*/incoming/\w+\.json>",
        r"link\([^)]*/incoming/\w+\.json[^)]*/records/all/files/b\.txt",
        r"fsync\(\d+<[^>]*/records/all/files>",
    ]
    position = 0
    for step in order:
        found = re.compile(step).search(second, position)
        assert found is not None, f"{step} is missing after\n{second[:position][-300:]}"
        position = found.end()
