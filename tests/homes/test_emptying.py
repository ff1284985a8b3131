"""Emptying: everything inside goes, nothing outside is touched, and nothing makes it raise."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from other_processes import Start

from runner.homes.emptying import Emptied, empty, remove

pytestmark = pytest.mark.release


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    folder = tmp_path / "inside"
    folder.mkdir()
    return folder


@pytest.fixture
def fd(inside: Path) -> Iterator[int]:
    fd = os.open(inside, os.O_PATH | os.O_DIRECTORY)
    yield fd
    os.close(fd)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "precious").write_text("precious")
    return folder


def test_folder_is_emptied_and_stays(inside: Path, fd: int) -> None:
    (inside / "file").write_text("x")
    (inside / ".hidden").write_text("x")
    os.mkfifo(inside / "fifo")
    (inside / "a/b/c").mkdir(parents=True)
    (inside / "a/b/c/file").write_text("x")
    os.link(inside / "file", inside / "a/link")
    with socket.socket(socket.AF_UNIX) as bound:
        here = os.open(".", os.O_RDONLY)
        os.chdir(inside)
        try:
            bound.bind("socket")
        finally:
            os.fchdir(here)
            os.close(here)

    result = empty(fd)

    assert result == Emptied(removed=9)
    assert list(inside.iterdir()) == []


def test_links_are_removed_and_never_followed(inside: Path, fd: int, outside: Path) -> None:
    (inside / "folder").symlink_to(outside)
    (inside / "file").symlink_to(outside / "precious")
    (inside / "a").mkdir()
    (inside / "a" / "up").symlink_to("../../outside")
    (inside / "dangling").symlink_to("nowhere")

    assert (inside / "a/up/precious").read_text() == "precious"
    assert empty(fd).reasons == {}
    assert list(inside.iterdir()) == []
    assert (outside / "precious").read_text() == "precious"


def test_names_that_are_not_text_are_removed(inside: Path, fd: int) -> None:
    for name in (b"\xff\xfe", b"new\nline", b"x" * 255, b"-rf"):
        os.close(os.open(os.path.join(os.fsencode(inside), name), os.O_CREAT | os.O_WRONLY))

    assert empty(fd) == Emptied(removed=4)


def test_tree_5000_levels_deep_is_removed_with_few_descriptors(inside: Path, start: Start) -> None:
    process = start(
        """
        import os, resource, sys
        from runner.homes.emptying import empty
        resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
        top = os.open(sys.argv[1], os.O_PATH)
        os.chdir(sys.argv[1])
        for _ in range(5000):
            os.mkdir("d")
            open("file", "w").close()
            os.chdir("d")
        print(empty(top))
        """,
        inside,
    )

    output, _ = process.communicate(timeout=180)

    assert output == "Emptied(removed=10000, reasons={})\n"
    assert list(inside.iterdir()) == []


def test_a_folder_of_very_many_folders_is_emptied(inside: Path, fd: int) -> None:
    for number in range(2500):
        (inside / "wide" / str(number)).mkdir(parents=True)

    assert empty(fd) == Emptied(removed=2501)


def test_tree_with_closed_modes_is_removed_by_owner(tmp_path: Path, start: Start) -> None:
    process = start(
        """
        import os, sys
        from other_processes import become_nobody
        from runner.homes.emptying import empty
        os.chmod(sys.argv[1], 0o777)
        top = os.open(sys.argv[1], os.O_PATH)
        os.chdir(sys.argv[1])
        become_nobody()
        os.makedirs("home/a/b/c")
        open("home/a/b/c/file", "w").close()
        home = os.open("home", os.O_PATH)
        for path in ("home/a/b/c", "home/a/b", "home/a", "home"):
            os.chmod(path, 0)
        try:
            os.listdir("home")
        except PermissionError:
            print("locked")
        print(empty(home), os.listdir("home"))
        """,
        tmp_path,
    )

    output, _ = process.communicate(timeout=180)

    assert output == "locked\nEmptied(removed=4, reasons={}) []\n"


def test_unremovable_file_is_reported() -> None:
    # In procfs nothing can be unlinked by any user.
    fd = os.open("/proc/self/fdinfo", os.O_PATH | os.O_DIRECTORY)
    try:
        result = empty(fd)
    finally:
        os.close(fd)

    assert result.removed == 0
    assert "Operation not permitted" in result.reasons.values()
    assert os.listdir("/proc/self/fdinfo")


def test_non_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    fd = os.open(tmp_path / "file", os.O_PATH)
    try:
        assert empty(fd) == Emptied(reasons={".": "Not a directory"})
    finally:
        os.close(fd)


def test_emptying_during_folder_link_swaps_stays_inside(
    inside: Path, fd: int, outside: Path, start: Start
) -> None:
    hostile = start(
        """
        import contextlib, os, sys
        inside, outside = sys.argv[1:]
        os.chdir(inside)
        print("running", flush=True)
        while True:
            with contextlib.suppress(OSError):
                os.makedirs("a/b")
            for name in ("a", "a/b"):
                with contextlib.suppress(OSError):
                    os.rename(name, "away")
                    os.symlink(outside, name)
                    os.unlink(name)
                    os.rename("away", name)
        """,
        inside,
        outside,
    )
    assert hostile.stdout is not None
    assert hostile.stdout.readline() == "running\n"

    removed = 0
    while removed < 500:
        removed += empty(fd).removed

    hostile.kill()
    hostile.wait()
    assert (outside / "precious").read_text() == "precious"
    assert empty(fd).reasons == {}


def test_one_name_is_removed_with_all_below_it(inside: Path, fd: int, outside: Path) -> None:
    (inside / "tree/a/b").mkdir(parents=True)
    (inside / "tree/a/link").symlink_to(outside)
    (inside / "other").write_text("x")

    result = remove(fd, "tree")

    assert result == Emptied(removed=4)
    assert [path.name for path in inside.iterdir()] == ["other"]
    assert (outside / "precious").exists()


def test_removing_missing_name_is_not_a_fault(fd: int) -> None:
    assert remove(fd, "nothing") == Emptied()
