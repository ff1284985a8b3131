"""Unnamed files that a process has mapped: as the kernel answers, and as it lists them."""

import errno
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandbox.host import mapped_files as module
from sandbox.host.mapped_files import MappedFile, mapped_files, shared_files

pytestmark = pytest.mark.kernel

MIB = 1 << 20

MAPS = """
import mmap, os, sys, threading

def made(name, size, flags, protection=mmap.PROT_READ | mmap.PROT_WRITE, length=None, unlinked=True):
    fd = os.open(name, os.O_RDWR | os.O_CREAT)
    os.truncate(fd, size)
    kept.append(mmap.mmap(fd, length or size, flags, protection))
    if unlinked:
        os.unlink(name)
    print(os.fstat(fd).st_ino, flush=True)
    os.close(fd)

kept = []
os.chdir(sys.argv[1])
made("shared", 3 << 20, mmap.MAP_SHARED)
made("in part", 3 << 20, mmap.MAP_SHARED, length=1 << 20)
made("read only", 2 << 20, mmap.MAP_SHARED, mmap.PROT_READ)
made("private", 2 << 20, mmap.MAP_PRIVATE)
made("named", 2 << 20, mmap.MAP_SHARED, unlinked=False)
made("a line\\nbreak", 1 << 20, mmap.MAP_SHARED)
if sys.argv[2] == "many":
    fd = os.open("named", os.O_RDWR)
    # Each second page, so that the kernel cannot join them.
    kept += [mmap.mmap(fd, 4096, mmap.MAP_SHARED, offset=8192 * number) for number in range(200)]
kept.append(mmap.mmap(-1, 1 << 20, mmap.MAP_SHARED))
if sys.argv[2] == "first thread ends":
    import ctypes
    threading.Thread(target=lambda: (print("on", flush=True), sys.stdin.read(), os._exit(0))).start()
    ctypes.CDLL(None).pthread_exit(None)
print("on", flush=True)
sys.stdin.read()
"""


@contextmanager
def mapping(folder: Path, how: str = "") -> Iterator[tuple[int, list[int]]]:
    """Start a process that maps files; yields it, and the numbers of the files."""
    command = [sys.executable, "-c", MAPS, str(folder), how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            lines = [line.strip() for line in iter(process.stdout.readline, "on\n")]
            yield process.pid, [int(line) for line in lines]
        finally:
            process.kill()


@pytest.fixture(params=["asked", "listed", "a kernel without the ioctl"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Way to find the files: as this kernel answers, or as one before Linux 6.11, or another, has it."""
    refused = {"listed": errno.ENOTTY, "a kernel without the ioctl": errno.EINVAL}.get(request.param)

    def refuse(*_: object) -> bytes:
        raise OSError(refused, "no such question")

    if refused is not None:
        monkeypatch.setattr("sandbox.host.mapped_files.fcntl.ioctl", refuse)
    return str(request.param)


def test_writable_unnamed_mapped_files_are_found_and_no_others(tmp_path: Path, way: str) -> None:
    with mapping(tmp_path) as (pid, (shared, in_part, read_only, _private, _named, broken)):
        found = shared_files(pid, tmp_path.stat().st_dev)
        elsewhere = shared_files(pid, os.makedev(0, 0))

    assert sorted(found) == sorted(
        MappedFile(inode, size, private=False)
        for inode, size in ((shared, 3 * MIB), (in_part, MIB), (read_only, 2 * MIB), (broken, MIB))
    )
    assert elsewhere == []


def test_kernel_answer_equals_its_listing(tmp_path: Path) -> None:
    with mapping(tmp_path) as (pid, _):
        device = tmp_path.stat().st_dev
        listed = [file for file in mapped_files(pid, device) if not file.private]

        assert sorted(shared_files(pid, device)) == sorted(listed)


def test_private_files_are_listed_as_that(tmp_path: Path) -> None:
    with mapping(tmp_path) as (pid, (_shared, _in_part, _read_only, private, *_)):
        found = list(mapped_files(pid, tmp_path.stat().st_dev))

    assert MappedFile(private, 2 * MIB, private=True) in found


def test_a_process_whose_first_thread_has_ended_hides_nothing(tmp_path: Path, way: str) -> None:
    with mapping(tmp_path, "first thread ends") as (pid, (shared, *_)):
        while Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z":
            os.sched_yield()
        found = shared_files(pid, tmp_path.stat().st_dev)

    assert MappedFile(shared, 3 * MIB, private=False) in found


def test_ended_process_has_no_mapped_files(tmp_path: Path, way: str) -> None:
    with mapping(tmp_path) as (pid, _):
        pass

    assert shared_files(pid, tmp_path.stat().st_dev) == []


def test_a_file_with_a_longer_path_than_we_ask_for_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_NAME_BYTES", 8)
    with mapping(tmp_path) as (pid, (shared, *_)):
        found = shared_files(pid, tmp_path.stat().st_dev)

    assert MappedFile(shared, 3 * MIB, private=False) in found


def test_very_many_are_listed(tmp_path: Path) -> None:
    with mapping(tmp_path, "many") as (pid, (shared, *_)):
        found = shared_files(pid, tmp_path.stat().st_dev)

    assert MappedFile(shared, 3 * MIB, private=False) in found


def test_kernel_query_is_used_where_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the tests above would say twice how files are listed."""
    release = tuple(int(number) for number in os.uname().release.split(".")[:2])
    assert release >= (6, 11), "PROCMAP_QUERY is new in Linux 6.11: run the tests on that or a later one"
    monkeypatch.setattr(module, "mapped_files", lambda *_: pytest.fail("they were listed"))
    with (tmp_path / "file").open("w+b") as file:
        file.truncate(MIB)
        with mmap.mmap(file.fileno(), MIB):
            (tmp_path / "file").unlink()
            found = shared_files(os.getpid(), tmp_path.stat().st_dev)

    assert [one.size for one in found] == [MIB]
