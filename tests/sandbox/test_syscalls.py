"""Thin wrappers keep their promises, and the pure parts of small layers decide rightly."""

import errno
import os
import resource
from pathlib import Path

import pytest

from sandbox.layers.descriptors import gaps
from sandbox.layers.rlimits import narrowed, worker_limits, zygote_limits
from sandbox.policy import MIB, Limits
from sandbox.syscalls import Resolve, openat2, prctl

LAST = 0xFFFF_FFFF


def test_openat2_opens_below_a_folder_and_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("file")
    folder = os.open(tmp_path, os.O_PATH)
    how = Resolve.BENEATH | Resolve.NO_SYMLINKS

    opened = openat2("file", os.O_RDONLY, directory=folder, resolve=how)
    text = os.read(opened, 10)
    os.close(opened)
    with pytest.raises(OSError, match="openat2: ") as link:
        openat2("link", os.O_RDONLY, directory=folder, resolve=how)
    with pytest.raises(OSError, match="openat2: ") as above:
        openat2("../file", os.O_RDONLY, directory=folder, resolve=how)
    os.close(folder)

    assert text == b"text"
    assert (link.value.errno, above.value.errno) == (errno.ELOOP, errno.EXDEV)


def test_a_failed_call_names_itself_and_its_error() -> None:
    with pytest.raises(OSError, match="prctl 9999: Invalid argument") as failed:
        prctl(9999)

    assert failed.value.errno == errno.EINVAL


@pytest.mark.parametrize(
    ("keep", "closed"),
    [
        ([], [(0, LAST)]),
        ([0, 1, 2], [(3, LAST)]),
        ([7, 2, 7, 3], [(0, 1), (4, 6), (8, LAST)]),
    ],
)
def test_gaps_cover_all_descriptors_except_kept_ones(keep: list[int], closed: list[tuple[int, int]]) -> None:
    assert list(gaps(keep)) == closed


def test_a_limit_is_never_raised_above_the_present_one() -> None:
    assert narrowed((5, 9), 7) == (5, 7)
    assert narrowed((8, 9), 7) == (7, 7)
    assert narrowed((5, 9), resource.RLIM_INFINITY) == (5, 9)


def test_worker_memory_fits_the_rest_of_its_zygote() -> None:
    limits = Limits(memory_bytes=100 * MIB, cpu_s=7)

    zygote = zygote_limits(limits, data=1000 * MIB)
    worker = worker_limits(limits, data=1100 * MIB)

    assert zygote[resource.RLIMIT_DATA] == (1100 * MIB, 1200 * MIB)
    assert worker == {resource.RLIMIT_DATA: (1200 * MIB, 1200 * MIB), resource.RLIMIT_CPU: (7, 8)}


def test_memory_limit_is_whole_mib_and_never_below_the_grant() -> None:
    limits = Limits(memory_bytes=100 * MIB, cpu_s=7)

    zygote = zygote_limits(limits, data=1)
    worker = worker_limits(limits, data=MIB + 4096, renewable=True)

    assert zygote[resource.RLIMIT_DATA] == (101 * MIB, 201 * MIB)
    assert worker[resource.RLIMIT_DATA] == (102 * MIB, 202 * MIB)
