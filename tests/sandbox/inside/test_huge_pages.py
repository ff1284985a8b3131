"""Memory on huge pages: which ranges qualify, and that a process keeps what it knew."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox.inside import huge_pages
from sandbox.inside.huge_pages import collapse, huge_ranges

MIB = 1 << 20

MAPS = """\
00200000-00900000 rw-p 00000000 00:00 0                                  [heap]
7f0000100000-7f0000700000 rw-p 00000000 00:00 0
7f0001000000-7f0001800000 r-xp 00000000 08:01 42                         /usr/lib/libc.so.6
7f0002000000-7f0002800000 rw-p 00000000 08:01 42                         /usr/lib/libc.so.6
7f0003000000-7f0003800000 rw-s 00000000 00:00 0
7f0004100000-7f0004300000 rw-p 00000000 00:00 0
7ffc00000000-7ffc00800000 rw-p 00000000 00:00 0                          [stack]
"""

PROBE = """
import hashlib
from sandbox.inside.huge_pages import collapse, open_maps

def huge_kib():
    with open("/proc/self/smaps_rollup") as facts:
        return next(int(line.split()[1]) for line in facts if line.startswith("AnonHugePages:"))

kept = [bytes([number % 256]) * 400 for number in range(100_000)]
known = hashlib.sha256(b"".join(kept)).digest()
before = huge_kib()
collapse(open_maps())
print(huge_kib() > before, hashlib.sha256(b"".join(kept)).digest() == known)
"""


def test_only_whole_huge_pages_of_private_memory_qualify() -> None:
    ranges = list(huge_ranges(MAPS))

    assert ranges == [(0x200000, 6 * MIB), (0x7F0000200000, 4 * MIB)]


def test_memory_on_huge_pages_retains_its_contents() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=False)

    assert (done.stdout, done.stderr) == ("True True\n", "")


@pytest.mark.parametrize(
    ("faults", "tried"),
    [
        ([], ["first", "second"]),
        ([errno.EAGAIN], ["first", "first", "second"]),
        ([errno.EAGAIN] * 9, ["first"] * 3 + ["second"] * 3),
        ([errno.EINVAL], ["first", "second"]),
        ([errno.ENOMEM], ["first"]),
        ([errno.EAGAIN, errno.EBUSY], ["first", "first"]),
    ],
    ids=["all goes well", "a page in use", "one that stays in use", "a hole", "no huge pages", "a limit"],
)
def test_uncollapsible_memory_does_not_stop_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: list[int], tried: list[str]
) -> None:
    names = {0x200000: "first", 0x7F0000200000: "second"}
    calls = []

    def madvise(start: int, _length: int, _advice: int) -> None:
        calls.append(names[start])
        if len(calls) <= len(faults):
            raise OSError(faults[len(calls) - 1], "no")

    monkeypatch.setattr(huge_pages, "madvise", madvise)
    (tmp_path / "maps").write_text(MAPS)
    collapse(os.open(tmp_path / "maps", os.O_RDONLY))

    assert calls == tried
