"""System calls of our own: each does what it says and refuses what it should."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.system.openat import CONFINED, open_folder, openat2
from sandbox.syscalls import birth_ns, rename_noreplace


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    yield fd
    os.close(fd)


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("../beside", errno.EXDEV),
        ("/etc/passwd", errno.EXDEV),
        ("link", errno.ELOOP),
        ("folder-link/file", errno.ELOOP),
        ("missing", errno.ENOENT),
    ],
)
def test_a_confined_path_stays_below_its_folder(tmp_path: Path, fd: int, path: str, number: int) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "folder-link").symlink_to(".")

    opened = openat2(fd, "file", os.O_RDONLY, resolve=CONFINED)
    assert os.read(opened, 9) == b"x"
    assert not os.get_inheritable(opened)
    os.close(opened)
    with pytest.raises(OSError, match=path) as refused:
        openat2(fd, path, os.O_RDONLY, resolve=CONFINED)
    assert refused.value.errno == number


def test_a_confined_path_does_not_cross_a_mount() -> None:
    root = os.open("/", os.O_PATH)
    try:
        with pytest.raises(OSError, match="proc") as refused:
            openat2(root, "proc/version", os.O_RDONLY, resolve=CONFINED)
    finally:
        os.close(root)
    assert refused.value.errno == errno.EXDEV


def test_a_path_with_a_null_character_is_refused(fd: int) -> None:
    with pytest.raises(ValueError, match="null"):
        openat2(fd, "file\0", os.O_RDONLY, resolve=CONFINED)


def test_a_folder_is_opened_for_listing_and_nothing_else_is(tmp_path: Path, fd: int) -> None:
    (tmp_path / "folder").mkdir(mode=0o500)
    (tmp_path / "folder" / "x").write_text("")
    (tmp_path / "link").symlink_to("folder")
    (tmp_path / "file").write_text("")

    opened = open_folder(fd, "folder")
    assert os.listdir(opened) == ["x"]
    assert os.fstat(opened).st_mode & 0o777 == 0o700
    os.close(opened)
    for name in ("link", "file"):
        with pytest.raises(NotADirectoryError):
            open_folder(fd, name)


def test_a_rename_never_replaces(tmp_path: Path, fd: int) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()

    with pytest.raises(FileExistsError):
        rename_noreplace("a", "b", directory=fd)
    rename_noreplace("a", "c", directory=fd)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "c"]


def test_the_birth_of_a_folder_does_not_change(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_PATH)
    try:
        before = birth_ns(fd)
        os.utime(tmp_path, (0, 0))
        (tmp_path / "x").mkdir()

        assert birth_ns(fd) == before
    finally:
        os.close(fd)
