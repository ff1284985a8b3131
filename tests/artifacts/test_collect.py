"""Files of a home are opened, and nothing else, whatever a tool left there."""

import os
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from result_fakes import FakeHome

from runner.artifacts.named_file import collect, relative_to_home
from runner.artifacts.put_while_running import RunningPuts
from runner.errors import CallError, Code
from runner.files.my_files import Library
from runner.files.sessions import Unkept
from runner.formats.database_logs import MOST_LOG_BYTES, LogBudget
from runner.store.store import BlobStore

MAX = 1000
ALICE = Path("/tmp/alice")


def content(path: object, home: FakeHome) -> bytes:
    with collect(path, home, max_bytes=MAX, logs=LogBudget()) as found:
        return os.read(found.fd, found.size + 1)


def refusal(path: object, home: FakeHome) -> CallError:
    with pytest.raises(CallError) as caught, collect(path, home, max_bytes=MAX, logs=LogBudget()):
        pass
    return caught.value


@pytest.mark.parametrize(
    "shape",
    [
        *("{home}/a/b.txt", "{home}/a/../a//b.txt", "/{home}/a/b.txt", "a/b.txt", "./a/b.txt"),
        *("file://{home}/a/b%2Etxt", "file://localhost{home}/a/b.txt"),
    ],
)
def test_plain_file_of_home_is_opened(shape: str, home: FakeHome) -> None:
    """Source: S1-61 and S1-68."""
    (home.path / "a").mkdir()
    (home.path / "a/b.txt").write_bytes(b"hi")

    assert content(shape.format(home=home.path), home) == b"hi"


@pytest.fixture
def notes(home: FakeHome) -> Iterator[sqlite3.Connection]:
    """A database in WAL mode with a row that stands in its log only."""
    path = home.path / "a/notes.db"
    path.parent.mkdir()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE notes(body)")
        connection.execute("INSERT INTO notes VALUES('one')")
        yield connection


def rows(path: str, home: FakeHome, made: Path) -> list[Any]:
    with collect(path, home, max_bytes=100_000, logs=LogBudget()) as found:
        made.write_bytes(os.read(found.fd, found.size + 1))
        assert found.inode == (home.path / "a/notes.db").stat().st_ino
        assert found.changed_ns == (home.path / "a/notes.db-wal").stat().st_ctime_ns
    with closing(sqlite3.connect(f"{made.as_uri()}?immutable=1", uri=True)) as connection:
        return connection.execute("SELECT body FROM notes").fetchall()


def test_database_comes_with_content_of_its_log(
    home: FakeHome, notes: sqlite3.Connection, tmp_path: Path
) -> None:
    (home.path / "latest.db").symlink_to("a/notes.db")
    before, open_before = sorted(home.path.rglob("*")), len(os.listdir("/proc/self/fd"))

    assert rows("a/notes.db", home, tmp_path / "made.db") == [("one",)]
    assert rows("latest.db", home, tmp_path / "made.db") == [("one",)]
    assert sorted(home.path.rglob("*")) == before
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_database_too_large_with_its_log_refused(home: FakeHome, notes: sqlite3.Connection) -> None:
    path = home.path / "a/notes.db"
    with collect("a/notes.db", home, max_bytes=8192, logs=LogBudget()) as found:
        assert found.size == 8192
    with (
        pytest.raises(CallError) as caught,
        collect("a/notes.db", home, max_bytes=path.stat().st_size, logs=LogBudget()),
    ):
        pass
    assert caught.value.code is Code.E_FILE_TOO_LARGE


def test_log_is_subtracted_from_budget_even_without_a_commit(home: FakeHome) -> None:
    (home.path / "x.db").write_bytes(b"x")
    _sparse(home.path / "x.db-wal", 5000)
    logs = LogBudget(left_bytes=9999)

    with collect("x.db", home, max_bytes=MAX, logs=logs):
        pass
    with pytest.raises(CallError, match="the logs of a call's databases"):
        collect("x.db", home, max_bytes=MAX, logs=logs).__enter__()


@pytest.mark.anyio
async def test_puts_of_running_tool_share_budget_of_logs(home: FakeHome) -> None:
    (home.path / "x.db").write_bytes(b"x")
    _sparse(home.path / "x.db-wal", MOST_LOG_BYTES // 2 + 1)
    library = Library(store=BlobStore(), sessions=Unkept())
    puts = RunningPuts(files=library.of("alice"), home=home, max_bytes=MAX, logs=LogBudget())

    first, second = [await puts.put({"path": "x.db", "name": "x.db"}) for _ in range(2)]

    assert first["size_bytes"] == 1
    assert "the logs of a call's databases" in second["refused"]


@pytest.mark.parametrize("trick", ["link", "fifo", "hard link", "folder", "garbage"])
def test_file_that_is_not_a_log_left_alone(home: FakeHome, trick: str) -> None:
    (home.path / "x.db").write_bytes(b"as it is")
    log, other = home.path / "x.db-wal", home.path.with_name("other")
    other.write_bytes(b"of somebody else")
    match trick:
        case "link":
            log.symlink_to(other)
        case "fifo":
            os.mkfifo(log)
        case "hard link":
            log.hardlink_to(other)
        case "folder":
            log.mkdir()
        case _:
            log.write_bytes(b"x" * 5000)

    assert content("x.db", home) == b"as it is"


@pytest.mark.parametrize(
    ("head", "ending", "beside"),
    [
        (bytes(8) + b"DUCK", ".wal", b"changes"),
        (b"KUZU", ".wal", b"changes"),
        (b"SQLite format 3\0", "-journal", bytes.fromhex("d9d505f920a163d700000003")),
    ],
)
def test_incomplete_database_refused(home: FakeHome, head: bytes, ending: str, beside: bytes) -> None:
    (home.path / "x.db").write_bytes(head)
    assert content("x.db", home) == head
    log = home.path / f"x.db{ending}"
    log.write_bytes(beside)

    error = refusal("x.db", home)

    assert (error.code, error.details["refused_for"]) == (Code.E_INVALID_RESULT, "not_whole")
    assert "is not whole" in error.message
    assert "close the connection" in error.details["suggestion"]
    log.write_bytes(b"")
    assert content("x.db", home) == head


def test_descriptor_closed_afterwards(home: FakeHome) -> None:
    (home.path / "b.txt").write_bytes(b"hi")
    before = os.listdir("/proc/self/fd")

    content("b.txt", home)
    refusal("gone.txt", home)

    assert len(os.listdir("/proc/self/fd")) == len(before)


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "{home}",
        "{home}/",
        "{home}/.",
        "{home}2/x.txt",
        "{home}/../x.txt",
        "../x.txt",
        "{home}/a/../../x.txt",
        "/",
        "",
        "a\0b",
        "x" * 5000,
        "\ud800",
        "//etc/passwd",
    ],
    ids=repr,
)
def test_collect_path_outside_home_refused_unread(path: str, home: FakeHome) -> None:
    home.path.with_name("x.txt").write_text("of somebody else")

    error = refusal(path.format(home=home.path), home)

    assert error.code is Code.E_INVALID_PATH
    assert error.details["allowed_prefix"] == f"{home.path}/"


@pytest.mark.parametrize("path", [None, 5, ["a"], {"a": 1}], ids=repr)
def test_non_text_path_refused(path: Any, home: FakeHome) -> None:
    error = refusal(path, home)

    assert (error.code, error.details["attempted_path"]) == (Code.E_INVALID_PATH, repr(path))


def _link_to_file(home: Path) -> None:
    home.with_name("secret.txt").write_text("secret")
    (home / "x").symlink_to("../secret.txt")


def _hard_link(home: Path) -> None:
    home.with_name("secret.txt").write_text("secret")
    (home / "x").hardlink_to(home.with_name("secret.txt"))


def _socket(home: Path) -> None:
    folder = os.open(home, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"/proc/self/fd/{folder}/x")
    os.close(folder)


@pytest.mark.parametrize(
    ("leave", "says"),
    [
        (_link_to_file, "link"),
        (_hard_link, "2 names"),
        (lambda home: (home / "x").mkdir(), "folder"),
        (lambda home: os.mkfifo(home / "x"), "FIFO"),
        (_socket, "socket"),
        (lambda home: (home / "x").symlink_to("/proc/self/fd/0"), "link"),
        (lambda home: (home / "x").symlink_to("x"), "link"),
    ],
    ids=["link out", "hard link", "folder", "fifo", "socket", "magic link", "loop"],
)
def test_non_plain_file_refused_without_waiting(
    leave: Callable[[Path], Any], says: str, home: FakeHome
) -> None:
    (home.path / "plain").write_bytes(b"hi")
    assert content("plain", home) == b"hi"
    leave(home.path)

    error = refusal(f"{home.path}/x", home)

    assert error.code is Code.E_INVALID_PATH
    assert says in error.details["problem"]
    # What lies inside is not told as lying outside.
    assert ("outside" in error.message) == (says == "link")
    assert says in error.message or says == "link"


def test_symlinked_folder_on_path_refused(home: FakeHome) -> None:
    home.path.with_name("bob").mkdir()
    home.path.with_name("bob").joinpath("x.txt").write_text("bob's")
    (home.path / "sub").symlink_to("../bob")

    assert refusal(f"{home.path}/sub/x.txt", home).code is Code.E_INVALID_PATH


def test_swapped_home_does_not_matter(home: FakeHome) -> None:
    (home.path / "x.txt").write_text("mine")
    home.path.rename(home.path.with_name("moved"))
    home.path.mkdir()
    (home.path / "x.txt").write_text("planted")

    assert content(f"{home.path}/x.txt", home) == b"mine"


@pytest.mark.parametrize("path", ["gone.txt", "plain/gone.txt"])
def test_missing_file_reported_as_missing(path: str, home: FakeHome) -> None:
    (home.path / "plain").write_bytes(b"")

    error = refusal(path, home)

    assert (error.code, error.details["attempted_path"]) == (Code.E_INVALID_RESULT, path)


def _sparse(path: Path, size: int) -> None:
    path.touch()
    os.truncate(path, size)


def test_file_at_hard_cap_allowed_one_byte_more_refused(home: FakeHome) -> None:
    _sparse(home.path / "at", MAX)
    _sparse(home.path / "above", 100 * 1024**3)

    error = refusal("above", home)

    assert len(content("at", home)) == MAX
    assert (error.code, error.details["file_size_bytes"]) == (Code.E_FILE_TOO_LARGE, 100 * 1024**3)


@given(st.text(alphabet=st.sampled_from("./ab\\\0 \ud800é"), max_size=20))
def test_no_text_leads_out_of_home(path: str) -> None:
    relative = relative_to_home(path, ALICE)

    if relative is not None:
        assert not relative.startswith("/")
        assert ".." not in relative.split("/")
        assert relative not in ("", ".")
