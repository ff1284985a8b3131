import asyncio
import os
import resource
from pathlib import Path

import pytest

from runner.homes.leftovers import Leftovers
from sandbox.policy import Limits


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home" / "deep" / "er").mkdir(parents=True)
    (tmp_path / "home" / "deep" / "earlier.txt").write_text("kept")
    return tmp_path / "home"


def files(home: Path) -> list[str]:
    return sorted(str(path.relative_to(home)) for path in home.rglob("*") if not path.is_dir())


def test_only_files_of_the_ended_call_are_discarded(home: Path) -> None:
    fd = os.open(home, os.O_PATH)
    before = asyncio.run(Leftovers.before(fd))
    (home / "partial.txt").write_text("half")
    (home / "deep" / "er" / "partial.txt").write_text("half")
    (home / "deep" / "earlier.txt").write_text("changed")

    removed = before.discard(fd)

    os.close(fd)
    assert removed == 2
    assert files(home) == ["deep/earlier.txt"]


def test_nothing_outside_the_home_is_reached_through_a_link(home: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    fd = os.open(home, os.O_PATH)
    before = asyncio.run(Leftovers.before(fd))
    (outside / "precious.txt").write_text("x")
    (home / "way-out").symlink_to(outside)

    before.discard(fd)

    os.close(fd)
    assert (outside / "precious.txt").exists()
    assert files(home) == ["deep/earlier.txt"]


def test_one_new_folder_at_a_time_is_open(home: Path) -> None:
    for number in range(300):
        (home / f"folder-{number}").mkdir()
    fd = os.open(home, os.O_PATH)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = len(os.listdir("/proc/self/fd")) + 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(room, fd + 20), hard))

    try:
        known = asyncio.run(Leftovers.before(fd)).known
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(fd)

    assert known is not None
    assert len(known) == 303


def test_a_home_with_very_many_entries_is_left_alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.homes.leftovers._MAX_ENTRIES", 3)
    for number in range(5):
        (home / f"{number}.txt").write_text("x")
    fd = os.open(home, os.O_PATH)

    before = asyncio.run(Leftovers.before(fd))
    (home / "new.txt").write_text("x")
    removed = before.discard(fd)

    os.close(fd)
    assert removed == 0
    assert "new.txt" in files(home)


def test_cleanup_removes_deep_new_folders_and_leaves_moved_files(home: Path) -> None:
    fd = os.open(home, os.O_PATH)
    before = asyncio.run(Leftovers.before(fd))
    deep = os.open(home / "deep", os.O_RDONLY)
    for _ in range(30):
        os.mkdir("d" * 250, dir_fd=deep)
        inner = os.open("d" * 250, os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = inner
    os.close(deep)
    (home / "new").mkdir()
    (home / "new" / "half.txt").write_text("half")
    (home / "deep" / "earlier.txt").rename(home / "new" / "earlier.txt")

    before.discard(fd)

    os.close(fd)
    assert sorted(os.listdir(home / "deep")) == ["er"]
    assert files(home) == ["new/earlier.txt"]


def test_a_home_too_full_before_a_call_is_measured_after_it(home: Path) -> None:
    (home / "large").write_bytes(os.urandom(1_000_000))
    limits = Limits(home_bytes=500_000)
    fd = os.open(home, os.O_PATH)
    before = asyncio.run(Leftovers.before(fd))

    unchanged = asyncio.run(before.overfilled(fd, limits))
    (home / "more").write_bytes(os.urandom(10_000))
    larger = asyncio.run(before.overfilled(fd, limits))
    (home / "large").unlink()
    smaller = asyncio.run(before.overfilled(fd, limits))

    os.close(fd)
    assert unchanged is None
    assert larger is not None
    assert larger.limit == "home_bytes"
    assert smaller is None
    assert before.room(limits).home_bytes > 1_000_000
    assert before.room(Limits()) == Limits()


@pytest.mark.parametrize(("many", "size", "limit"), [(1, 1_000_000, "home_bytes"), (200, 0, "home_entries")])
def test_a_home_that_was_not_too_full_is_measured_too(home: Path, many: int, size: int, limit: str) -> None:
    limits = Limits(home_bytes=500_000, home_entries=100)
    fd = os.open(home, os.O_PATH)
    before = asyncio.run(Leftovers.before(fd))
    (home / "small").touch()

    small = asyncio.run(before.overfilled(fd, limits))
    for number in range(many):
        (home / f"file-{number}").write_bytes(os.urandom(size))
    much = asyncio.run(before.overfilled(fd, limits))

    os.close(fd)
    assert small is None
    assert much is not None
    assert much.limit == limit
