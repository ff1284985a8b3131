"""Tricks with links, swaps, names, sparse and growing files: what is collected is the home's, and bounded."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from other_processes import Start, files_in
from result_fakes import FakeHome

from runner.artifacts.accept import process_artifacts
from runner.artifacts.named_file import collect
from runner.contract.intake import FILES_MAX
from runner.contract.normalise import normalise
from runner.errors import CallError, Code
from runner.formats.database_logs import LogBudget
from runner.homes.homes import Homes
from runner.steps.staging import stage
from runner.store.protocol import Origin, Record

MIB = 1024 * 1024
PATIENCE_S = 180


@pytest.fixture
def home(tmp_path: Path) -> Iterator[FakeHome]:
    path = tmp_path / "alice"
    path.mkdir(mode=0o700)
    fd = os.open(path, os.O_PATH | os.O_DIRECTORY)
    yield FakeHome(path, fd)
    os.close(fd)


@pytest.fixture
def bob(tmp_path: Path) -> Path:
    folder = tmp_path / "bob"
    (folder / "sub").mkdir(parents=True)
    for name in ("x.txt", "sub/x.txt"):
        (folder / name).write_text("bob's")
    return folder


def content(path: str, home: FakeHome) -> bytes:
    with collect(path, home, max_bytes=MIB, logs=LogBudget()) as found:
        return os.read(found.fd, found.size + 1)


def refusal(path: str, home: FakeHome) -> CallError:
    with pytest.raises(CallError) as caught, collect(path, home, max_bytes=MIB, logs=LogBudget()):
        pass
    return caught.value


@pytest.mark.parametrize(
    ("link", "target", "path"),
    [
        ("x", "own.txt", "x"),
        ("x", "{home}/own.txt", "x"),
        ("x", "//{home}//./sub/../own.txt", "x"),
        ("sub/x", "../own.txt", "sub/x"),
        ("x", "sub", "x/deep.txt"),
        ("x", ".", "x/x/x/own.txt"),
        ("x", "{home}", "x/own.txt"),
        ("x", "sub/y", "x"),
    ],
)
def test_a_link_that_stays_in_the_home_is_followed(link: str, target: str, path: str, home: FakeHome) -> None:
    (home.path / "sub").mkdir()
    (home.path / "own.txt").write_text("mine")
    (home.path / "sub" / "deep.txt").write_text("mine")
    (home.path / "sub" / "y").symlink_to("deep.txt")

    (home.path / link).symlink_to(target.format(home=home.path))

    assert content(path, home) == b"mine"
    assert content(f"{home.path}/{path}", home) == b"mine"


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("../bob/x.txt", "x"),
        ("{home}/../bob/x.txt", "x"),
        ("{home}2/x.txt", "x"),
        ("sub/../../bob/x.txt", "x"),
        ("../bob", "x/x.txt"),
        ("..", "x/bob/x.txt"),
        ("../alice/own.txt", "x"),
        ("/", "x/etc/passwd"),
        ("/etc/passwd", "x"),
        ("/proc/self/cwd", "x"),
        ("/proc/self/root{home}/own.txt", "x"),
    ],
)
def test_link_leaving_home_is_refused_wherever_it_returns(
    target: str, path: str, home: FakeHome, bob: Path
) -> None:
    (home.path / "sub").mkdir()
    (home.path / "own.txt").write_text("mine")
    home.path.with_name("alice2").mkdir()
    home.path.with_name("alice2").joinpath("x.txt").write_text("alice2's")

    (home.path / "x").symlink_to(target.format(home=home.path))

    assert (home.path / path).exists()
    assert refusal(path, home).code is Code.E_INVALID_PATH


def test_a_home_that_is_reached_by_a_link_is_known_by_both_names(home: FakeHome, bob: Path) -> None:
    (home.path / "own.txt").write_text("mine")
    named = FakeHome(home.path.with_name("named"), home.fd)
    named.path.symlink_to(home.path)

    for number, target in enumerate((home.path, named.path)):
        (home.path / f"x{number}").symlink_to(target / "own.txt")

    assert [content(f"{named.path}/x{number}", named) for number in range(2)] == [b"mine"] * 2
    (home.path / "out").symlink_to(bob / "x.txt")
    assert refusal(f"{named.path}/out", named).code is Code.E_INVALID_PATH


def test_endless_links_are_refused(home: FakeHome) -> None:
    (home.path / "own.txt").write_text("mine")
    for number in range(50):
        (home.path / f"{number}").symlink_to(f"{number + 1}" if number < 49 else "own.txt")
    (home.path / "round").symlink_to("round/round")
    (home.path / "long").symlink_to("/".join(["."] * 2000))

    assert content("20", home) == b"mine"
    assert refusal("0", home).code is Code.E_INVALID_PATH
    assert refusal("round", home).code is Code.E_INVALID_PATH
    assert refusal("long/long/long", home).code is Code.E_INVALID_PATH


_SWAPS = """
import ctypes, os, sys
home, outside = sys.argv[1:]
os.chdir(home)
libc = ctypes.CDLL(None, use_errno=True)
os.makedirs("real")
open("real/x.txt", "w").write("mine")
os.symlink(outside, "false")
print("running", flush=True)
while True:
    # RENAME_EXCHANGE: at every moment one of the two is there under the name.
    libc.renameat2(-100, b"real", -100, b"false", 2)
"""


def test_collection_during_folder_link_swaps_stays_in_home(home: FakeHome, bob: Path, start: Start) -> None:
    hostile = start(_SWAPS, home.path, bob)
    assert hostile.stdout is not None
    assert hostile.stdout.readline() == "running\n"
    careful: set[bytes | Code] = set()
    careless: set[bytes] = set()
    deadline = time.monotonic() + PATIENCE_S

    while len(careless) < 2 or len(careful) < 2 or hostile.poll() is not None:
        assert time.monotonic() < deadline, (careful, careless)
        careless.add((home.path / "real" / "x.txt").read_bytes())
        try:
            careful.add(content("real/x.txt", home))
        except CallError as error:
            careful.add(error.code)
    for _ in range(2000):
        try:
            assert content("real/x.txt", home) == b"mine"
        except CallError as error:
            assert error.code is Code.E_INVALID_PATH  # noqa: PT017 - either way is right, no other is

    # The control: who just opens the path reads the other's file.
    assert careless == {b"mine", b"bob's"}
    assert careful == {b"mine", Code.E_INVALID_PATH}


@pytest.mark.anyio
async def test_staging_during_folder_link_swaps_writes_nothing_outside(place: Path, start: Start) -> None:
    outside = place / "outside"
    outside.mkdir()
    files = files_in(place)
    file = await files.put(b"given", name="x.txt", origin=Origin.UPLOADED)
    with Homes(place / "homes", place / "state").lease("alice") as lease:
        hostile = start(
            """
            import contextlib, os, sys
            home, outside = sys.argv[1:]
            os.chdir(home)
            print("running", flush=True)
            while True:
                with contextlib.suppress(OSError):
                    os.rename("input_files", "away")
                with contextlib.suppress(OSError):
                    os.symlink(outside, "input_files")
                with contextlib.suppress(OSError):
                    os.unlink("input_files")
                with contextlib.suppress(OSError):
                    os.rename("away", "input_files")
            """,
            lease.path,
            outside,
        )
        assert hostile.stdout is not None
        assert hostile.stdout.readline() == "running\n"

        for _ in range(60):
            try:
                async with stage(lease, files, [file], claims=place / "state" / "claims"):
                    pass
            except CallError as error:
                assert error.code is Code.E_STORE  # noqa: PT017 - either way is right, no other is
            assert os.listdir(outside) == []

        hostile.kill()
        hostile.wait()
    assert await files.find("x.txt") is not None


NAMES = [
    "n" * 255,
    "new\nline.txt",
    "\u202egnp.exe",
    "a\x1b[31m.txt",
    "é.txt",
    "e\u0301.txt",
    "%2e%2e",
    " .txt",
    "-rf",
]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
@pytest.mark.anyio
async def test_file_of_any_name_is_stored_under_a_safe_one(name: str, place: Path, home: FakeHome) -> None:
    (home.path / name).write_bytes(b"mine")
    files = files_in(place)
    wire = {"structuredContent": {"results": 1, "artifacts": [{"name": name, "path": f"{home.path}/{name}"}]}}

    async def keep(fd: int, *, name: str, mime: str, deferral: object, temporary: bool) -> Record:
        return await files.put(fd, name=name, mime=mime, origin=Origin.GENERATED)

    taken = await process_artifacts(
        normalise(wire, wrapped=False), home=home, inline_max_bytes=MIB, max_bytes=MIB, keep=keep
    )

    (record,) = await files.all()
    assert (record.size, taken.errors, [file.name for file in taken.files]) == (4, (), [record.name])
    assert record.name is not None
    assert all(character.isprintable() and character not in "/\\\u202e" for character in record.name)


def test_path_with_nul_or_lone_surrogate_is_refused(home: FakeHome) -> None:
    (home.path / "a").write_text("mine")

    for path in ("a\0", "a\0/../../bob", "\ud800", f"{home.path}/a\0b", "n" * 256, "x/" * 3000):
        assert refusal(path, home).code in (Code.E_INVALID_PATH, Code.E_INVALID_RESULT)


def test_a_sparse_terabyte_is_refused_by_its_length(home: FakeHome) -> None:
    (home.path / "sparse").touch()
    os.truncate(home.path / "sparse", 1 << 40)

    error = refusal("sparse", home)

    assert (error.code, error.details["file_size_bytes"]) == (Code.E_FILE_TOO_LARGE, 1 << 40)
    assert (home.path / "sparse").stat().st_blocks == 0


@pytest.mark.anyio
async def test_file_growing_during_storage_is_stored_as_it_was(place: Path, start: Start) -> None:
    growing = place / "growing"
    growing.write_bytes(b"x" * MIB)
    writer = start(
        """
        import sys
        with open(sys.argv[1], "ab", buffering=0) as file:
            print("running", flush=True)
            while file.tell() < 1 << 33:
                file.write(b"y" * (1 << 20))
        """,
        growing,
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "running\n"
    files = files_in(place)
    with growing.open("rb") as source:
        before = os.fstat(source.fileno()).st_size

        record = await files.put(source.fileno(), name="g", origin=Origin.GENERATED)

        after = os.fstat(source.fileno()).st_size
    running = writer.poll() is None
    writer.kill()
    growing.unlink()
    assert running
    assert before <= record.size < after


@pytest.mark.anyio
async def test_files_above_the_count_limit_are_not_examined(home: FakeHome) -> None:
    (home.path / "x.txt").write_text("mine")
    entries = [{"name": "x.txt", "path": "x.txt", "mime": "text/plain"}] * 100_000
    taken: list[str] = []

    async def keep(fd: int, *, name: str, mime: str, deferral: object, temporary: bool) -> Record:
        taken.append(name)
        raise CallError(Code.E_STORE, "a shelf that only counts")

    wire = {"structuredContent": {"results": 1, "artifacts": entries, "deferred_artifacts": entries}}
    result = await process_artifacts(
        normalise(wire, wrapped=False), home=home, inline_max_bytes=MIB, max_bytes=MIB, keep=keep
    )

    assert len(set(taken)) == FILES_MAX
    reasons = [refused.reason for refused in result.errors]
    assert reasons.count("too_many_files") == 1
    assert len(reasons) == FILES_MAX + 1
