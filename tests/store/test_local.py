"""The local store on disk: what lies where, what a crash leaves, what repairs find."""

import hashlib
import os
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from store_world import ALICE, BOB, NOBODY, Clock, content_of, keep, observe, run

from runner.errors import CallError, Code
from runner.observation.store_facts import StoreFacts
from runner.store.local.journal import Journal
from runner.store.local.objects import Objects
from runner.store.local.store import LocalStore, MissingBytes
from runner.store.measuring import measured
from runner.store.protocol import Origin, Reason, Removal, Scope
from sandbox.policy import MIB

pytestmark = pytest.mark.anyio


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def objects(store: LocalStore) -> list[Path]:
    return sorted(store.root.glob("*/*/objects/*/*"))


async def test_equal_content_is_stored_once_for_a_user_and_twice_for_two(store: LocalStore) -> None:
    await keep(store, b"same", "a.txt", ALICE)
    await keep(store, b"same", "b.txt", ALICE)
    await observe(store, b"same", ALICE)
    assert len(objects(store)) == 1

    await keep(store, b"same", "a.txt", BOB)
    await observe(store, b"same", Scope(session_id="s"))
    await observe(store, b"same", NOBODY)

    assert len(objects(store)) == 4


async def test_what_is_kept_is_added_up_by_owner_and_once_a_minute(store: LocalStore) -> None:
    await keep(store, b"same", "a.txt", ALICE)
    await keep(store, b"same", "b.txt", ALICE)
    await observe(store, b"same", ALICE)
    await keep(store, b"same", "a.txt", BOB)

    assert await measured(store) == StoreFacts(kept_bytes=8)
    await keep(store, b"more", "c.txt", BOB)
    assert await measured(store) == StoreFacts(kept_bytes=8)
    # Another process has looked at nothing yet.
    assert await measured(LocalStore(store.root)) == StoreFacts(kept_bytes=12)


async def test_a_removed_file_is_gone_with_its_bytes_and_an_open_one_outlives_it(store: LocalStore) -> None:
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
        with Objects(tmp_path).receive("users/alice", sparse.fileno()) as incoming:
            with incoming.path.open("rb") as stored:
                stored_bytes = stored.read()
            taken = 512 * incoming.path.stat().st_blocks
        sparse.seek(0)
        assert stored_bytes == sparse.read()

    assert (incoming.size, incoming.sha256) == (size, hashlib.sha256(stored_bytes).hexdigest())
    assert taken <= len(places) * 64 * 1024
    with Objects(tmp_path).receive("users/alice", b"\1" * MIB) as dense:
        assert 512 * dense.path.stat().st_blocks >= MIB


@pytest.mark.parametrize(
    ("damage", "problem"), [("missing", "its bytes are missing"), ("cut", "3 of its 7 bytes are there")]
)
async def test_missing_and_damaged_bytes_are_a_clear_error_and_are_reported(
    store: LocalStore, damage: str, problem: str
) -> None:
    record = await keep(store, b"content", "a.txt")
    assert store.missing() == []
    [path] = objects(store)
    path.unlink() if damage == "missing" else os.truncate(path, 3)

    with pytest.raises(CallError, match=r"'a.txt' is listed but .*put it again") as raised:
        await content_of(store, record)

    assert (raised.value.code, raised.value.retryable) == (Code.E_STORE, False)
    assert store.missing() == [MissingBytes(shown="a.txt", area="users/alice", problem=problem)]
    assert await content_of(store, await keep(store, b"content", "a.txt")) == b"content"
    assert store.missing() == []


async def test_a_store_that_cannot_be_used_is_an_error_that_can_be_retried(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    store = LocalStore(tmp_path / "store")

    for act in (keep(store, b"x", "a"), store.find("a", scope=ALICE), store.sweep()):
        with pytest.raises(CallError, match="My Files") as raised:
            await act
        assert (raised.value.code, raised.value.retryable) == (Code.E_STORE, True)


async def test_an_index_of_a_later_version_is_named_and_left_alone(store: LocalStore) -> None:
    await keep(store, b"x", "a")
    index = store.root / "index.sqlite"
    with closing(sqlite3.connect(index)) as connection:
        connection.execute("PRAGMA user_version = 4")

    for act in (store.list(scope=ALICE), keep(store, b"y", "b"), store.check()):
        with pytest.raises(CallError, match="it has version 4, and this program knows up to 3"):
            await act

    assert sorted(path.name for path in store.root.glob("index*")) == ["index.sqlite"]


async def test_everything_stored_is_readable_for_its_owner_only(store: LocalStore) -> None:
    before = os.umask(0)
    try:
        await keep(store, b"x", "a.txt")
    finally:
        os.umask(before)

    modes = {stat.S_IMODE(path.stat().st_mode) for path in store.root.rglob("*") if path.is_file()}
    folders = {stat.S_IMODE(path.stat().st_mode) for path in store.root.rglob("*") if path.is_dir()}
    assert modes == {0o600}
    assert folders == {0o700}


async def test_a_sweep_takes_what_was_left_behind_and_nothing_else(store: LocalStore) -> None:
    record = await keep(store, b"kept", "a.txt")
    [path] = objects(store)
    orphan = path.parent.parent / "ab" / ("ab" + "0" * 62)
    orphan.parent.mkdir(exist_ok=True)
    orphan.write_text("no row")
    # As a writer leaves it that dies between the two.
    Journal(store.root, "users/alice").announce(orphan.name)
    (store.root / "users/alice/incoming/dead").write_text("writer died")

    removed = await store.sweep()

    left_behind = Reason.LEFT_BEHIND
    assert list(removed) == [
        Removal(what=f"users/alice/{orphan.name}", name=None, size=6, reason=left_behind),
        Removal(what="users/alice/incoming/dead", name=None, size=11, reason=left_behind),
    ]
    assert objects(store) == [path]
    assert await content_of(store, record) == b"kept"
    assert await store.sweep() == []


def test_a_sweep_leaves_what_is_still_being_written(store: LocalStore) -> None:
    counts = run(
        """
import asyncio, os, sys
from pathlib import Path
from runner.store.local.store import LocalStore
from runner.store.local.objects import Objects
store = LocalStore(Path(sys.argv[1]))
with Objects(store.root).receive("users/alice", b"half") as incoming:
    print(len(asyncio.run(store.sweep())), incoming.path.exists())
if os.fork() == 0:
    held = Objects(store.root).receive("users/alice", b"half")
    held.__enter__()
    os._exit(0)
os.wait()
print(len(asyncio.run(store.sweep())), len(list(incoming.path.parent.iterdir())))
        """,
        store.root,
    )

    assert counts == "0 True\n1 0\n"


async def test_what_ended_takes_its_bytes_along(tmp_path: Path) -> None:
    clock = Clock()
    store = LocalStore(tmp_path / "store", clock=clock)
    await keep(store, b"ends", "a.txt", expires_at=clock.now)
    stays = await keep(store, b"stays", "b.txt")
    clock.advance(1)

    [removal] = await store.sweep()

    assert (removal.name, removal.reason) == ("a.txt", Reason.EXPIRED)
    assert [path.name for path in objects(store)] == [stays.sha256]


_VERSION_1 = """
CREATE TABLE files (
    segment TEXT NOT NULL, name TEXT NOT NULL, wanted TEXT NOT NULL, id TEXT NOT NULL, size INTEGER NOT NULL,
    sha256 TEXT NOT NULL, mime TEXT NOT NULL, origin TEXT NOT NULL, created REAL NOT NULL,
    PRIMARY KEY (segment, name)
) WITHOUT ROWID;
CREATE INDEX files_by_content ON files (segment, sha256);
CREATE INDEX files_by_id ON files (segment, id);
PRAGMA user_version = 1;
"""


def version_1(root: Path, count: int) -> dict[str, bytes]:
    """Lay out a store as version 1 did; return the contents by name."""
    contents = {f"{number}.csv": b"row\n" * number for number in range(1, count + 1)}
    root.mkdir()
    with closing(sqlite3.connect(root / "index.sqlite")) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(_VERSION_1)
        for number, (name, content) in enumerate(contents.items()):
            digest = hashlib.sha256(content).hexdigest()
            place = root / "users/alice/objects" / digest[:2] / digest
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
            row = ("alice", name, name, f"art_{digest[:12]}", len(content), digest, "text/csv")
            values = (*row, "uploaded", 1.7e9 + number)
            connection.execute("INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
        connection.commit()
    return contents


async def test_a_store_of_version_1_is_brought_up_with_every_file(tmp_path: Path) -> None:
    contents = version_1(tmp_path / "store", 40)
    store = LocalStore(tmp_path / "store")

    records = await store.list(scope=ALICE)

    assert {record.name: await content_of(store, record) for record in records} == contents
    assert {record.said.origin for record in records} == {Origin.UPLOADED}
    assert {record.expires_at for record in records} == {None}
    newest = await store.find("40.csv", scope=ALICE)
    assert newest is not None
    assert newest.created.timestamp() == 1.7e9 + 39
    assert await store.sweep() == []
    assert (await keep(store, b"row\n", "1.csv")).id == records[0].id
    assert (await keep(store, b"other", "1.csv")).name == "1_2.csv"


def test_processes_that_meet_an_old_store_at_once_all_find_it_whole(tmp_path: Path) -> None:
    version_1(tmp_path / "store", 20)

    answers = run(
        """
import asyncio, os, sys
from pathlib import Path
from runner.store.local.store import LocalStore
from runner.store.protocol import Scope
store = LocalStore(Path(sys.argv[1]))
for _ in range(8):
    if os.fork() == 0:
        found = len(asyncio.run(store.list(scope=Scope(user_id="alice"))))
        os.write(1, b"%d\\n" % found)
        os._exit(0)
for _ in range(8):
    os.wait()
        """,
        tmp_path / "store",
    )

    assert answers.split() == ["20"] * 8


def test_processes_that_put_and_remove_at_once_end_with_every_file_whole(store: LocalStore) -> None:
    answers = run(
        """
import asyncio, os, sys
from pathlib import Path
from store_world import ALICE, content_of, keep
from runner.store.local.store import LocalStore
store = LocalStore(Path(sys.argv[1]))
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
    assert store.missing() == []
asyncio.run(look())
        """,
        store.root,
    )

    assert answers.split() == ["good"] * 4


async def test_writers_killed_at_any_moment_leave_every_acknowledged_file_whole(store: LocalStore) -> None:
    # One process forks the writers, since starting Python hundreds of times would take most of the time.
    output = run(
        """
import asyncio, os, random, signal, sys, time
from pathlib import Path
from store_world import ALICE, keep
from runner.store.local.store import LocalStore
store = LocalStore(Path(sys.argv[1]))
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
        store.root,
        timeout=100,
    )

    said = [line.split() for line in output.splitlines()]
    removed = {name for act, name, _ in said if act == "away"}
    promised = {name: digest for act, name, digest in said if act == "put" and name not in removed}
    stored = {str(record.name): record for record in await store.list(scope=ALICE)}
    assert len(promised) > 100
    assert {name: stored[name].sha256 for name in promised} == promised
    for record in stored.values():
        assert hashlib.sha256(await content_of(store, record)).hexdigest() == record.sha256
    assert store.missing() == []
    assert {removal.reason for removal in await store.sweep()} <= {Reason.LEFT_BEHIND}
    assert {path.name for path in objects(store)} == {record.sha256 for record in stored.values()}
    assert list(store.root.glob("*/*/incoming/*")) == []


def test_a_put_is_on_disk_before_it_has_its_name_and_its_row_and_those_before_it_is_acknowledged(
    store: LocalStore,
) -> None:
    strace = shutil.which("strace")
    assert strace is not None, "strace is needed to see the order of system calls: apt-get install strace"
    code = """
import asyncio, os, sys
from pathlib import Path
from store_world import keep
from runner.store.local.store import LocalStore
store = LocalStore(Path(sys.argv[1]))
asyncio.run(keep(store, b"first", "a.txt"))
os.write(2, b"SECOND")
asyncio.run(keep(store, b"content" * 1000, "b.txt"))
os.write(2, b"DONE")
    """
    trace = store.root.parent / "trace"
    calls = "openat,write,pwrite64,fsync,fdatasync,rename,renameat,renameat2"
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
    subprocess.run([*command, str(store.root)], check=True, timeout=60, env=environment, capture_output=True)

    text = trace.read_text()
    second = text[text.index('"SECOND"') : text.index('"DONE"')]
    order = [
        r"write\(\d+<[^>]*/incoming/\w+>",
        r"fsync\(\d+<[^>]*/incoming/\w+>",
        r"rename\w*\([^)]*/incoming/\w+[^)]*/objects/",
        r"fsync\(\d+<[^>]*/objects/\w\w>",
        r"write\(\d+<[^>]*/users/alice/journal>",
        r"fdatasync\(\d+<[^>]*/users/alice/journal>",
        r"pwrite64\(\d+<[^>]*index\.sqlite-wal>",
    ]
    position = 0
    for step in order:
        found = re.compile(step).search(second, position)
        assert found is not None, f"{step} is missing after\n{second[:position][-300:]}"
        position = found.end()
