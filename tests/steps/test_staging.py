"""Staging: each call gets copies of its own, and nothing a tool does to them reaches further."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from other_processes import Start

from runner.errors import CallError, Code
from runner.files.my_files import Library, MyFiles
from runner.files.sessions import Sessions
from runner.homes.homes import HomeLease, Homes
from runner.steps.staging import stage
from runner.store.local.blobs import LocalBlobs
from runner.store.protocol import Origin, Record
from runner.store.store import BlobStore

pytestmark = [pytest.mark.anyio, pytest.mark.release]


@pytest.fixture
def home(place: Path) -> Iterator[HomeLease]:
    with Homes(place / "homes", place / "state").lease("alice") as lease:
        yield lease


@pytest.fixture
def files(place: Path) -> MyFiles:
    return Library(store=BlobStore(LocalBlobs(place / "store")), sessions=Sessions(place / "sessions")).of(
        "alice"
    )


@pytest.fixture
def claims(place: Path) -> Path:
    return place / "state/claims"


@pytest.fixture
def outside(place: Path) -> Path:
    folder = place / "outside"
    folder.mkdir()
    (folder / "data.csv").write_text("precious")
    return folder


async def put(files: MyFiles, content: bytes = b"data", name: str = "data.csv") -> Record:
    return await files.put(content, name=name, origin=Origin.UPLOADED)


async def content_of(files: MyFiles, record: Record) -> bytes:
    async with files.open(record) as content:
        return b"".join([chunk async for chunk in content])


def left_in(home: HomeLease) -> list[str]:
    return sorted(str(path.relative_to(home.path)) for path in home.path.rglob("*"))


async def test_staged_file_in_input_files_until_call_ends(
    home: HomeLease, files: MyFiles, claims: Path
) -> None:
    content = os.urandom(2_500_000)
    file = await put(files, content)

    async with stage(home, files, [file], claims=claims) as staged:
        path = home.path / "input_files" / "data.csv"
        assert staged == {"data.csv": path}
        assert path.read_bytes() == content
        assert stat.S_IMODE(path.lstat().st_mode) == 0o444
        assert left_in(home) == ["input_files", "input_files/data.csv"]

    assert left_in(home) == ["input_files"]
    assert list(claims.iterdir()) == []


async def test_several_files_staged_together(home: HomeLease, files: MyFiles, claims: Path) -> None:
    names = ["a.csv", "é" * 120 + ".csv", "x" * 255, "_.hidden"]
    records = [await put(files, name.encode(), name) for name in names]

    async with stage(home, files, records, claims=claims) as staged:
        assert {name: path.read_text() for name, path in staged.items()} == {name: name for name in names}

    assert left_in(home) == ["input_files"]


async def test_empty_file_and_no_file_can_be_staged(home: HomeLease, files: MyFiles, claims: Path) -> None:
    async with stage(home, files, [await put(files, b"")], claims=claims) as staged:
        assert staged["data.csv"].read_bytes() == b""
    async with stage(home, files, [], claims=claims) as staged:
        assert staged == {}


async def test_tool_changes_to_copy_never_reach_stored_file(
    home: HomeLease, files: MyFiles, claims: Path, place: Path, start: Start
) -> None:
    file = await put(files, b"original")
    [object_file] = (place / "store/users/alice/objects").iterdir()
    stored = object_file.stat()

    async with stage(home, files, [file], claims=claims) as staged:
        path = staged["data.csv"]
        assert path.lstat().st_nlink == 1
        assert not os.path.samestat(path.lstat(), stored)
        tool = start(
            """
            import os, sys
            path = sys.argv[1]
            os.chmod(path, 0o666)
            with open(path, "r+b") as file:
                file.write(b"CHANGED!")
                file.flush()
                print(open(path, "rb").read())
                file.truncate(3)
            os.unlink(path)
            with open(path, "wb") as file:
                file.write(b"something else")
            print(open(path, "rb").read())
            """,
            path,
        )
        assert tool.communicate(timeout=120)[0] == "b'CHANGED!'\nb'something else'\n"

        assert await content_of(files, file) == b"original"

    assert await content_of(files, file) == b"original"
    assert left_in(home) == ["input_files"]


async def test_two_calls_each_have_own_copy(home: HomeLease, files: MyFiles, claims: Path) -> None:
    file = await put(files)
    inputs = home.path / "input_files"

    async with stage(home, files, [file], claims=claims) as first:
        async with stage(home, files, [file], claims=claims) as second:
            assert (first["data.csv"], second["data.csv"]) == (inputs / "data.csv", inputs / "2/data.csv")
            second["data.csv"].unlink()
            second["data.csv"].write_text("changed by the second call")
            assert first["data.csv"].read_text() == "data"
        assert first["data.csv"].read_text() == "data"
        async with stage(home, files, [file], claims=claims) as third:
            assert third["data.csv"] == inputs / "2/data.csv"

    async with stage(home, files, [file], claims=claims) as fourth:
        assert fourth["data.csv"] == inputs / "data.csv"


async def test_call_of_another_process_respected_until_killed(
    home: HomeLease, files: MyFiles, claims: Path, place: Path, start: Start
) -> None:
    file = await put(files)
    other = start(
        """
        import asyncio, sys
        from pathlib import Path
        from other_processes import files_in
        from runner.homes.homes import Homes
        from runner.steps.staging import stage
        place = Path(sys.argv[1])
        async def main():
            files = files_in(place)
            with Homes(place / "homes", place / "state").lease("alice") as home:
                async with stage(home, files, await files.all(), claims=place / "state/claims") as staged:
                    print(staged["data.csv"], flush=True)
                    sys.stdin.readline()
        asyncio.run(main())
        """,
        place,
    )
    assert other.stdout is not None
    assert other.stdout.readline() == f"{home.path}/input_files/data.csv\n"

    async with stage(home, files, [file], claims=claims) as staged:
        assert staged["data.csv"] == home.path / "input_files/2/data.csv"
    other.kill()
    other.wait()

    assert (home.path / "input_files/data.csv").exists()
    async with stage(home, files, [file], claims=claims) as staged:
        assert staged["data.csv"] == home.path / "input_files/data.csv"
        assert staged["data.csv"].read_text() == "data"
    assert not (home.path / "input_files/data.csv").exists()


async def test_file_named_like_numbered_folder_does_not_block(
    home: HomeLease, files: MyFiles, claims: Path
) -> None:
    records = [await put(files), await put(files, b"two", "2")]

    async with (
        stage(home, files, records, claims=claims) as first,
        stage(home, files, records, claims=claims) as second,
    ):
        paths = [*first.values(), *second.values()]

        assert [path.read_bytes() for path in paths] == [b"data", b"two"] * 2
        assert len(set(paths)) == 4


@pytest.mark.parametrize("instead", ["link", "dangling", "file", "nothing", "fifo"])
async def test_replaced_input_folder_gives_way_to_new_one(
    home: HomeLease, files: MyFiles, claims: Path, outside: Path, instead: str
) -> None:
    inputs = home.path / "input_files"
    inputs.rmdir()
    match instead:
        case "link":
            inputs.symlink_to(outside)
        case "dangling":
            inputs.symlink_to("../nowhere")
        case "file":
            inputs.write_text("x")
        case "fifo":
            os.mkfifo(inputs)

    async with stage(home, files, [await put(files)], claims=claims) as staged:
        assert staged["data.csv"].read_text() == "data"
        assert stat.S_ISDIR(inputs.lstat().st_mode)

    assert left_in(home) == ["input_files"]
    assert {path.name: path.read_text() for path in outside.iterdir()} == {"data.csv": "precious"}


@pytest.mark.parametrize("instead", ["link", "folder", "file"])
async def test_obstacle_at_place_of_copy_gives_way(
    home: HomeLease, files: MyFiles, claims: Path, outside: Path, instead: str
) -> None:
    path = home.path / "input_files/data.csv"
    match instead:
        case "link":
            path.symlink_to(outside / "data.csv")
        case "folder":
            (path / "a/b").mkdir(parents=True)
        case "file":
            path.write_text("older")

    async with stage(home, files, [await put(files)], claims=claims) as staged:
        assert staged["data.csv"].read_text() == "data"

    assert left_in(home) == ["input_files"]
    assert (outside / "data.csv").read_text() == "precious"


@pytest.mark.parametrize("instead", ["link to a file", "link to the folder", "folder", "nothing"])
async def test_removal_of_copies_never_follows_links_of_tool(
    home: HomeLease, files: MyFiles, claims: Path, outside: Path, instead: str
) -> None:
    inputs = home.path / "input_files"

    async with stage(home, files, [await put(files)], claims=claims) as staged:
        staged["data.csv"].unlink()
        match instead:
            case "link to a file":
                staged["data.csv"].symlink_to(outside / "data.csv")
            case "link to the folder":
                inputs.rmdir()
                inputs.symlink_to(outside)
            case "folder":
                (inputs / "data.csv/a").mkdir(parents=True)

    assert (outside / "data.csv").read_text() == "precious"
    assert not (inputs / "data.csv").is_symlink()
    assert left_in(home) == ["input_files"]


def test_removed_modes_do_not_block_removal(start: Start) -> None:
    # pytest's folders are closed to nobody, so nobody makes its own.
    process = start(
        """
        import asyncio, concurrent.futures.thread, os, tempfile
        from pathlib import Path
        from other_processes import become_nobody, files_in
        from runner.homes.homes import Homes
        from runner.steps.staging import stage
        from runner.store.protocol import Origin
        become_nobody()
        async def main(place):
            (place / "homes").mkdir()
            files = files_in(place)
            file = await files.put(b"data", name="data.csv", origin=Origin.UPLOADED)
            with Homes(place / "homes", place / "state").lease("alice") as home:
                inputs = home.path / "input_files"
                inputs.chmod(0)
                home.path.chmod(0)
                try:
                    os.listdir(inputs)
                except PermissionError:
                    print("locked")
                async with stage(home, files, [file], claims=place / "claims") as staged:
                    print(staged["data.csv"].read_text())
                    inputs.chmod(0)
                print(os.listdir(inputs))
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(main(Path(folder)))
        """
    )

    assert process.communicate(timeout=120)[0] == "locked\ndata\n[]\n"


async def test_one_unstageable_file_stages_none(
    home: HomeLease, files: MyFiles, claims: Path, place: Path
) -> None:
    good, bad = await put(files), await put(files, b"lost", "lost.csv")
    for path in (place / "store/users/alice/objects").iterdir():
        if path.read_bytes() == b"lost":
            path.unlink()

    with pytest.raises(CallError, match=r"lost\.csv") as raised:
        await stage(home, files, [good, bad], claims=claims).__aenter__()

    assert raised.value.code is Code.E_STORE
    assert left_in(home) == ["input_files"]
    assert list(claims.iterdir()) == []


async def test_unmakeable_claims_are_internal_error(home: HomeLease, files: MyFiles, claims: Path) -> None:
    claims.symlink_to("a disk that is not there")

    with pytest.raises(CallError, match=r"'data\.csv' cannot be put into input_files") as raised:
        await stage(home, files, [await put(files)], claims=claims).__aenter__()

    assert raised.value.code is Code.E_STORE


async def test_calls_in_many_processes_never_share_a_copy(place: Path, files: MyFiles, start: Start) -> None:
    await put(files, b"x" * 100_000)
    code = """
        import asyncio, os, sys
        from pathlib import Path
        from other_processes import files_in
        from runner.homes.homes import Homes
        from runner.steps.staging import stage
        place = Path(sys.argv[1])
        sys.stdin.readline()
        async def main():
            files = files_in(place)
            with Homes(place / "homes", place / "state").lease("alice") as home:
                for _ in range(40):
                    async with stage(home, files, await files.all(), claims=place / "state/claims") as staged:
                        path = staged["data.csv"]
                        assert path.read_bytes() == b"x" * 100_000
                        path.unlink()
                        path.write_text(str(os.getpid()))
                        assert path.read_text() == str(os.getpid())
        asyncio.run(main())
        print("good")
    """
    calls = [start(code, place) for _ in range(4)]

    for call in calls:
        assert call.stdin is not None
        call.stdin.write("\n")
        call.stdin.flush()

    assert [call.communicate(timeout=180)[0] for call in calls] == ["good\n"] * 4
    assert list((place / "state/claims").iterdir()) == []
