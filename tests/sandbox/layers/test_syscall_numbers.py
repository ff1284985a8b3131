"""The tables of system calls against the headers of the kernel, for both architectures.

The headers are those of the distribution, older than the tables: of a call that they do not know, the one
numbering of all architectures since Linux 5.1 is asked for instead.
"""

import re
from pathlib import Path

import pytest

from sandbox.layers.syscall_table import ARCHITECTURES, Architecture
from sandbox.selftest.calls import MORE

HEADERS = {
    "x86_64": (
        ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/x86_64-linux-gnu/include/asm/unistd_64.h"),
        "linux-libc-dev, or linux-libc-dev-amd64-cross elsewhere",
    ),
    "aarch64": (
        (
            "/usr/include/aarch64-linux-gnu/asm-generic/unistd.h",
            "/usr/aarch64-linux-gnu/include/asm-generic/unistd.h",
        ),
        "linux-libc-dev-arm64-cross",
    ),
}

each_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.name)


def in_headers(architecture: str) -> dict[str, int]:
    places, package = HEADERS[architecture]
    found = next((Path(place) for place in places if Path(place).exists()), None)
    assert found is not None, (
        f"the kernel's numbers for {architecture} are missing: apt-get install {package}"
    )
    # What has another name where a word has 32 bits stands there as 3264.
    numbers = re.findall(r"#define\s+__NR(?:3264)?_(\w+)\s+(\d+)", found.read_text())
    return {name: int(number) for name, number in numbers}


@each_architecture
def test_numbers_are_those_of_the_kernels_headers(architecture: Architecture) -> None:
    known = in_headers(architecture.name)

    differing = {
        name: (number, known[name])
        for name, number in architecture.numbers.items()
        if name in known and known[name] != number
    }
    unknown = {
        name
        for name, number in architecture.numbers.items()
        if name not in known and number <= max(known.values())
    }

    assert differing == {}
    assert unknown == set()
    assert len(architecture.numbers.keys() & known.keys()) > 80


def test_syscalls_absent_on_aarch64_are_absent_in_headers() -> None:
    x86_64, aarch64 = (set(architecture.numbers) for architecture in ARCHITECTURES)

    assert (x86_64 - aarch64) & set(in_headers("aarch64")) == set()


@pytest.mark.parametrize("at", [0, 1], ids=["x86_64", "aarch64"])
def test_the_self_test_calls_by_the_kernels_numbers(at: int) -> None:
    known = in_headers(("x86_64", "aarch64")[at])

    numbers = {name: numbers[at] for name, numbers in MORE.items()}

    assert {name: known.get(name) for name in numbers} == numbers
