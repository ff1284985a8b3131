"""My Files on the local disk: found again by name and id, whole or not at all, and by their owner only."""

import hashlib
import os
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest
from other_processes import Start

from runner.errors import CallError, Code
from runner.store.local import LocalStore, Origin, StoredFile

NOON = datetime(2024, 8, 27, 12, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def put(store: LocalStore, content: bytes, name: str, user: str = "alice") -> StoredFile:
    return store.put_bytes(user, content, name=name, origin=Origin.UPLOADED)


def content_of(store: LocalStore, file: StoredFile) -> bytes:
    with open(store.open(file), "rb") as opened:
        return opened.read()


def objects(store: LocalStore) -> list[Path]:
    return sorted(store.root.glob("users/*/objects/*/*"))


def test_a_file_is_found_by_its_name_with_all_that_is_known_of_it(store: LocalStore) -> None:
    put_file = store.put_bytes("alice", b"a,b\n", name="../data.csv", origin=Origin.UPLOADED, now=NOON)

    digest = hashlib.sha256(b"a,b\n").hexdigest()
    assert put_file == StoredFile(
        user="alice",
        name="data.csv",
        id=f"art_{digest[:12]}",
        size=4,
        sha256=digest,
        mime="text/csv",
        origin=Origin.UPLOADED,
        created=NOON,
    )
    assert store.find("alice", "data.csv") == put_file
    assert store.find("alice", "some/folder/data.csv") == put_file
    assert store.by_id("alice", put_file.id) == put_file
    assert store.list_files("alice") == (put_file,)
    assert content_of(store, put_file) == b"a,b\n"


def test_an_artifact_has_the_key_of_the_contract(store: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("<h1>")
    fd = os.open(tmp_path / "report.html", os.O_RDONLY)

    artifact = store.put_artifact("alice", fd, name="report.html", mime=None, now=NOON)

    os.close(fd)
    assert artifact.s3_key == "alice/artifacts/20240827/report.html"
    assert (artifact.mime, artifact.origin) == ("text/html", Origin.GENERATED)
    assert content_of(store, artifact) == b"<h1>"


def test_a_descriptor_is_read_from_its_start_and_stays_where_it_is(store: LocalStore, tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    (tmp_path / "big").write_bytes(content)
    fd = os.open(tmp_path / "big", os.O_RDONLY)
    os.lseek(fd, 1000, os.SEEK_SET)

    file = store.put_file("alice", fd, name="big", origin=Origin.UPLOADED)

    assert os.lseek(fd, 0, os.SEEK_CUR) == 1000
    os.close(fd)
    assert content_of(store, file) == content


def test_a_stored_file_does_not_change_with_its_source(store: LocalStore, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_text("before")

    file = store.put_file("alice", source, name="a.txt", origin=Origin.UPLOADED)
    source.write_text("after!")

    assert content_of(store, file) == b"before"


def test_an_empty_file_is_a_file(store: LocalStore) -> None:
    file = put(store, b"", "empty")

    assert (file.size, content_of(store, file)) == (0, b"")


@pytest.mark.parametrize("kind", ["fifo", "folder", "missing"])
def test_what_is_no_regular_file_is_refused_at_once(store: LocalStore, tmp_path: Path, kind: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()

    with pytest.raises(OSError, match=r"not a regular file|No such file"):
        store.put_file("alice", tmp_path / kind, name="x", origin=Origin.UPLOADED)

    assert store.list_files("alice") == ()


def test_the_same_file_put_again_is_the_same_file(store: LocalStore) -> None:
    put(store, b"one", "a.csv")
    second = put(store, b"two", "a.csv")

    again = [put(store, b"one", "a.csv"), put(store, b"two", "a.csv"), put(store, b"two", "a_2.csv")]

    assert second.name == "a_2.csv"
    assert [(file.name, file.sha256) for file in again] == [
        ("a.csv", hashlib.sha256(b"one").hexdigest()),
        ("a_2.csv", second.sha256),
        ("a_2.csv", second.sha256),
    ]
    assert len(store.list_files("alice")) == 2


def test_other_content_under_a_taken_name_gets_a_number(store: LocalStore) -> None:
    names = [put(store, content, "r.tar.gz").name for content in (b"1", b"2", b"3")]

    assert names == ["r.tar.gz", "r_2.tar.gz", "r_3.tar.gz"]


def test_equal_content_of_one_user_is_stored_once(store: LocalStore) -> None:
    one, other = put(store, b"same", "a.txt"), put(store, b"same", "b.txt")

    assert one.id == other.id
    assert len(objects(store)) == 1
    assert store.by_id("alice", one.id) == other


def test_equal_content_of_two_users_is_stored_twice(store: LocalStore) -> None:
    put(store, b"same", "a.txt", "alice")
    put(store, b"same", "a.txt", "bob")

    assert len(objects(store)) == 2


def test_no_user_sees_a_file_of_another(store: LocalStore) -> None:
    file = put(store, b"secret", "plan.txt", "alice")

    assert store.find("alice", "plan.txt") == file
    for other in ("bob", "Alice", "alice\0", "../alice"):
        assert store.find(other, "plan.txt") is None
        assert store.by_id(other, file.id) is None
        assert store.list_files(other) == ()
        assert store.nearest(other, "plan.txt") == []
        assert not store.remove(other, "plan.txt")
    assert content_of(store, file) == b"secret"


def test_content_whose_first_digits_clash_has_an_id_of_its_own(store: LocalStore) -> None:
    # Found by trying: their SHA-256 digests begin with the same twelve hex digits.
    contents = (b"c6007198", b"c8086181")
    one, other = (put(store, content, f"{content.decode()}.txt") for content in contents)

    assert one.sha256[:12] == other.sha256[:12]
    assert (len(one.id), len(other.id)) == (16, 20)
    assert store.by_id("alice", one.id) == one
    assert store.by_id("alice", other.id) == other
    assert put(store, contents[1], "again.txt").id == other.id


@pytest.mark.parametrize(
    "name", ["", ".", "..", "/", "\ud800", "x" * 10_000, "art", "'; DROP TABLE files; --"]
)
def test_a_name_of_no_file_finds_nothing(store: LocalStore, name: str) -> None:
    put(store, b"x", "file")

    assert store.find("alice", name) is None
    assert store.by_id("alice", name) is None
    assert not store.remove("alice", name)
    assert [file.name for file in store.list_files("alice")] == ["file"]


@pytest.mark.parametrize("name", ["👨\u200d👩\u200d👧", "👍.png", "日本語.csv", "---"])
def test_a_file_is_found_by_any_name_it_was_put_under(store: LocalStore, name: str) -> None:
    file = put(store, b"x", name)

    assert store.find("alice", file.name) == file


def test_the_nearest_names_are_offered_best_first(store: LocalStore) -> None:
    for name in ("sales.csv", "sales_2024.csv", "sale.csv", "sales.tsv", "photo.png"):
        put(store, name.encode(), name)

    assert store.nearest("alice", "seles.csv") == ["sales.csv", "sale.csv", "sales.tsv"]
    assert store.nearest("alice", "zzz") == []


def test_a_removed_file_is_gone_with_its_bytes(store: LocalStore) -> None:
    put(store, b"x", "a.txt")

    assert store.remove("alice", "a.txt")
    assert store.find("alice", "a.txt") is None
    assert objects(store) == []
    assert not store.remove("alice", "a.txt")


def test_bytes_stay_as_long_as_a_name_stands_for_them(store: LocalStore) -> None:
    put(store, b"same", "a.txt")
    other = put(store, b"same", "b.txt")

    assert store.remove("alice", "a.txt")

    assert content_of(store, other) == b"same"


def test_an_open_file_outlives_its_removal(store: LocalStore) -> None:
    file = put(store, b"x", "a.txt")
    fd = store.open(file)
    store.remove("alice", "a.txt")

    assert os.read(fd, 9) == b"x"
    os.close(fd)


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_missing_and_damaged_bytes_are_a_clear_error(store: LocalStore, damage: str) -> None:
    file = put(store, b"content", "a.txt")
    [path] = objects(store)
    path.unlink() if damage == "missing" else os.truncate(path, 3)

    with pytest.raises(CallError, match=r"'a.txt' is listed but .*put it again") as raised:
        store.open(file)

    assert raised.value.code is Code.E_STORE
    assert not raised.value.retryable
    assert content_of(store, put(store, b"content", "a.txt")) == b"content"


def test_a_store_that_cannot_be_used_is_an_error_that_can_be_retried(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    store = LocalStore(tmp_path / "store")

    for act in (lambda: put(store, b"x", "a"), lambda: store.find("alice", "a")):
        with pytest.raises(CallError, match="My Files") as raised:
            act()
        assert (raised.value.code, raised.value.retryable) == (Code.E_STORE, True)


def test_an_index_that_is_none_is_named(store: LocalStore) -> None:
    store.root.mkdir()
    (store.root / "index.sqlite").write_text("no database, " * 100)

    with pytest.raises(CallError, match="the index of My Files cannot be used: file is not a database"):
        store.list_files("alice")


def test_everything_stored_is_readable_for_its_owner_only(store: LocalStore) -> None:
    before = os.umask(0)
    try:
        put(store, b"x", "a.txt")
    finally:
        os.umask(before)

    modes = {stat.S_IMODE(path.stat().st_mode) for path in store.root.rglob("*") if path.is_file()}
    folders = {stat.S_IMODE(path.stat().st_mode) for path in (store.root, store.root / "users/alice")}
    assert modes == {0o600}
    assert folders == {0o700}


def test_a_sweep_takes_what_was_left_behind_and_nothing_else(store: LocalStore) -> None:
    file = put(store, b"kept", "a.txt")
    [path] = objects(store)
    orphan = path.parent.parent / "ab" / ("ab" + "0" * 62)
    orphan.parent.mkdir(exist_ok=True)
    orphan.write_text("no row")
    incoming = store.root / "users/alice/incoming"
    (incoming / "young").write_text("still written")
    (incoming / "old").write_text("writer died")
    os.utime(incoming / "old", (0, 0))

    assert store.sweep() == 2

    assert objects(store) == [path]
    assert [left.name for left in incoming.iterdir()] == ["young"]
    assert content_of(store, file) == b"kept"


def test_processes_that_put_and_remove_at_once_end_with_every_file_whole(
    store: LocalStore, start: Start
) -> None:
    code = """
        import os, sys
        from pathlib import Path
        from runner.store.local import LocalStore, Origin
        store = LocalStore(Path(sys.argv[1]))
        sys.stdin.readline()
        for number in range(15):
            shared = store.put_bytes("alice", b"shared", name="shared.txt", origin=Origin.UPLOADED)
            content = f"{os.getpid()} {number}".encode()
            own = store.put_bytes("alice", content, name="own.txt", origin=Origin.UPLOADED)
            with open(store.open(own), "rb") as file:
                assert file.read() == content
            store.remove("alice", "shared.txt")
        print("good")
    """
    writers = [start(code, store.root) for _ in range(4)]

    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    answers = [writer.communicate(timeout=60)[0] for writer in writers]

    assert answers == ["good\n"] * 4
    files = [file for file in store.list_files("alice") if file.name != "shared.txt"]
    assert len({file.name for file in files}) == len({file.sha256 for file in files}) == 60
    for file in store.list_files("alice"):
        assert hashlib.sha256(content_of(store, file)).hexdigest() == file.sha256


def test_writers_killed_at_any_moment_leave_every_acknowledged_file_whole(
    store: LocalStore, start: Start
) -> None:
    # One process forks the writers, since starting Python fifty times would take most of the time.
    killer = start(
        """
        import os, random, signal, sys
        from pathlib import Path
        from runner.store.local import LocalStore, Origin
        store = LocalStore(Path(sys.argv[1]))
        choice = random.Random(7)
        for life in range(50):
            reading, writing = os.pipe()
            writer = os.fork()
            if writer == 0:
                for number in range(1000):
                    name = f"{life}-{number}"
                    content = name.encode() * random.randrange(1, 200_000)
                    file = store.put_bytes("alice", content, name=name, origin=Origin.UPLOADED)
                    os.write(writing, f"{file.name} {file.sha256}\\n".encode())
            os.close(writing)
            acknowledged = b""
            while acknowledged.count(b"\\n") < life % 3:
                acknowledged += os.read(reading, 4096)
            for _ in range(choice.randrange(100_000)):
                pass
            os.kill(writer, signal.SIGKILL)
            os.waitpid(writer, 0)
            while more := os.read(reading, 4096):
                acknowledged += more
            os.close(reading)
            sys.stdout.write(acknowledged.decode())
        """,
        store.root,
    )

    output, _ = killer.communicate(timeout=100)

    assert killer.returncode == 0
    acknowledged = dict(line.split() for line in output.splitlines())
    stored = {file.name: file for file in store.list_files("alice")}
    assert len(acknowledged) >= 49
    assert {name: stored[name].sha256 for name in acknowledged} == acknowledged
    for file in stored.values():
        assert hashlib.sha256(content_of(store, file)).hexdigest() == file.sha256
