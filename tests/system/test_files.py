"""Files in and out of tools, as a cell handles them: identity, inputs, artifacts, homes, delivery."""

import asyncio
import base64
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client
from support import TOOLS, call, details, error_code, request, settings_in

from runner.call import Completed, execute
from runner.cell import Cell
from runner.host import make_host
from runner.identity import User
from runner.store.local import Origin

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]

MIB = 1024 * 1024
MAX_BYTES = 4 * MIB


@pytest.fixture(scope="module")
async def cell(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cell]:
    folder = tmp_path_factory.mktemp("files")
    settings = settings_in(folder, base64_size_limit_mb=1, max_artifact_bytes=MAX_BYTES, max_calls_per_user=2)
    files = [str(TOOLS / "files.py"), str(TOOLS / "odd_files.py")]
    async with Cell.open(settings, files) as it:
        yield it


@pytest.fixture
async def other_user() -> AsyncIterator[str]:
    name = f"t-{os.urandom(6).hex()}"
    yield name
    subprocess.run(["rm", "-rf", f"/tmp/{name}"], check=True)


def upload(cell: Cell, user: str, name: str, content: bytes = b"content") -> None:
    cell.store.put_bytes(user, content, name=name, origin=Origin.UPLOADED)


def kept(cell: Cell, user: str) -> dict[str, int]:
    """Return the sizes of the user's files by name."""
    return {file.name: file.size for file in cell.store.list_files(user)}


async def call_inline(cell: Cell, user: str, tool: str, **arguments: Any) -> Completed:
    """Call as a client that wants artifacts inline up to the limit of the settings."""
    wanted = replace(request(user, tool, arguments), inline_max_bytes=cell.settings.inline_max_bytes)
    return await execute(cell, wanted)


def results(completed: Completed) -> Any:
    return completed.processed.value["results"]


async def test_the_identity_overwrites_what_the_client_says(cell: Cell, user: str) -> None:
    said = await call(cell, user, "files_claim", paths=[], username="mallory")
    left_out = await call(cell, user, "files_claim", paths=[])

    assert results(said) == {"user": user}
    assert results(left_out) == {"user": user}


async def test_a_tool_that_declares_no_identity_is_given_none(cell: Cell, user: str) -> None:
    upload(cell, user, "a.txt")

    completed = await call(cell, user, "files_read_only", filename="a.txt", username="mallory")

    assert results(completed)["text"] == "content"


async def test_an_input_file_is_staged_as_a_read_only_copy(cell: Cell, user: str) -> None:
    upload(cell, user, "a.txt", b"words")

    completed = await call(cell, user, "files_read", filename="a.txt")

    assert results(completed) == {"path": f"/tmp/{user}/input_files/a.txt", "text": "words", "mode": "0o444"}


async def test_several_input_files_are_staged(cell: Cell, user: str) -> None:
    upload(cell, user, "a.txt", b"first")
    upload(cell, user, "b.txt", b"second")

    completed = await call(cell, user, "files_read_many", filenames=["b.txt", "a.txt"])

    assert results(completed) == {
        f"/tmp/{user}/input_files/b.txt": "second",
        f"/tmp/{user}/input_files/a.txt": "first",
    }


async def test_staged_files_are_gone_after_the_call(cell: Cell, user: str) -> None:
    upload(cell, user, "a.txt")

    with cell.homes.lease(user) as home:
        await call(cell, user, "files_read", filename="a.txt")
        left = os.listdir(home.path / "input_files")

    assert left == []


async def test_a_name_that_is_no_file_yet_is_passed_unchanged(cell: Cell, user: str) -> None:
    completed = await call(cell, user, "odd_files_makes", filename="new.txt", size=3)

    assert results(completed) == "new.txt"
    assert kept(cell, user) == {"new.txt": 3}


async def test_a_tool_that_fails_for_want_of_a_file_names_the_nearest(cell: Cell, user: str) -> None:
    upload(cell, user, "report-2026.csv")

    completed = await call(cell, user, "files_read", filename="report-2025.csv")

    assert error_code(completed) == "E_FILE_NOT_FOUND"
    assert details(completed)["name"] == "report-2025.csv"
    assert details(completed)["nearest"] == ["report-2026.csv"]


async def test_a_spoilt_copy_reaches_neither_the_store_nor_the_next_call(cell: Cell, user: str) -> None:
    upload(cell, user, "a.txt", b"original")

    spoilt = await call(cell, user, "files_spoil", filename="a.txt")
    then = await call(cell, user, "files_read", filename="a.txt")

    assert results(spoilt) == {"text": "spoilt"}
    assert results(then)["text"] == "original"


async def test_two_calls_at_once_get_their_own_copies_of_one_file(cell: Cell, user: str) -> None:
    upload(cell, user, "a.txt", b"original ")

    both = await asyncio.gather(
        call(cell, user, "odd_files_meets", filename="a.txt", me="one", other="two"),
        call(cell, user, "odd_files_meets", filename="a.txt", me="two", other="one"),
    )

    assert [results(completed)["text"] for completed in both] == ["original one", "original two"]
    assert len({results(completed)["path"] for completed in both}) == 2


async def test_a_tool_without_an_identity_reads_its_input_and_writes_nothing(cell: Cell, user: str) -> None:
    upload(cell, user, "a.txt", b"words")

    allowed = await call(cell, user, "odd_files_reads_and_writes_at_home", filename="a.txt")
    denied = await call(cell, user, "odd_files_reads_and_writes", filename="a.txt")

    assert results(allowed) == {"text": "words", "attempts": ["written"] * 3}
    assert results(denied) == {"text": "words", "attempts": ["PermissionError"] * 3}


async def test_an_artifact_of_the_limit_is_inline_and_a_larger_one_is_a_reference(
    cell: Cell, user: str
) -> None:
    small = await call_inline(cell, user, "files_make", name="small.txt", size=MIB)
    large = await call_inline(cell, user, "files_make", name="large.txt", size=MIB + 1)

    inline, referred = small.processed.value["artifacts"][0], large.processed.value["artifacts"][0]
    assert len(base64.b64decode(inline["b64"])) == inline["size"] == MIB
    assert inline.keys() == {"name", "b64", "mime", "size"}
    assert referred.keys() == {"name", "s3_ref", "mime", "size"}
    assert referred["size"] == MIB + 1
    assert kept(cell, user) == {"small.txt": MIB, "large.txt": MIB + 1}


async def test_the_size_of_an_artifact_is_measured_not_believed(cell: Cell, user: str) -> None:
    completed = await call_inline(cell, user, "odd_files_makes", filename="a.txt", size=3)

    assert completed.processed.value["artifacts"][0]["size"] == 3


async def test_a_file_above_the_hard_limit_is_too_large(cell: Cell, user: str) -> None:
    largest = await call(cell, user, "files_make", name="largest.bin", size=MAX_BYTES)
    larger = await call(cell, user, "files_make", name="larger.bin", size=MAX_BYTES + 1)

    assert results(largest) == {"written": MAX_BYTES}
    assert error_code(larger) == "E_FILE_TOO_LARGE"
    assert details(larger)["current_limit_bytes"] == MAX_BYTES
    assert kept(cell, user) == {"largest.bin": MAX_BYTES}


async def test_an_input_above_the_hard_limit_cannot_be_handed_back(cell: Cell, user: str) -> None:
    upload(cell, user, "huge.bin", b"x" * (MAX_BYTES + 1))

    completed = await call(cell, user, "odd_files_hands_back", filename="huge.bin")

    assert error_code(completed) == "E_FILE_TOO_LARGE"
    assert details(completed)["file_size_bytes"] == MAX_BYTES + 1


async def test_what_is_no_plain_file_of_the_home_is_refused_and_the_rest_delivered(
    cell: Cell, user: str, folder: Path
) -> None:
    outside = folder / "outside.txt"
    outside.write_text("not yours")

    completed = await call(cell, user, "odd_files_odd_artifacts", outside=str(outside))

    value = completed.processed.value
    refused = {entry["name"]: entry["reason"] for entry in value["meta_data"]["artifact_errors"]}
    assert value["results"] == "made"
    assert [entry["name"] for entry in value["artifacts"]] == ["good"]
    assert refused == {
        "missing": "missing_path",
        "folder": "invalid_path",
        "symlink": "invalid_path",
        "symlink-out": "invalid_path",
        "through-link": "invalid_path",
        "hardlink": "invalid_path",
        "fifo": "invalid_path",
        "device": "invalid_path",
        "outside": "invalid_path",
        "dots": "invalid_path",
    }
    assert kept(cell, user).keys() == {"good"}


async def test_a_refused_artifact_alone_is_the_result(cell: Cell, user: str, folder: Path) -> None:
    outside = folder / "outside.txt"
    outside.write_text("not yours")

    completed = await call(cell, user, "files_only_claim", path=str(outside))

    assert completed.processed.value["results"] == {"error": "File operation outside allowed directory"}
    assert error_code(completed) == "E_INVALID_PATH"
    assert details(completed)["attempted_path"] == str(outside)
    assert kept(cell, user) == {}


async def test_a_home_belongs_to_its_user_alone(cell: Cell, user: str) -> None:
    completed = await call(cell, user, "files_look")

    assert results(completed)["home"] == results(completed)["cwd"] == f"/tmp/{user}"
    assert results(completed)["user"] == user
    assert Path(f"/tmp/{user}").stat().st_mode & 0o7777 == 0o700


async def test_a_user_name_that_is_an_address_is_taken_literally(cell: Cell, user: str) -> None:
    address = f"{user}@example.com"

    try:
        completed = await call(cell, address, "files_make", name="a.txt", size=1)
        home = Path(f"/tmp/{address}")
        made = home.is_dir()
    finally:
        subprocess.run(["rm", "-rf", f"/tmp/{address}"], check=True)

    assert results(completed) == {"written": 1}
    assert made


@pytest.mark.parametrize("kind", ["folder", "link"])
async def test_a_home_that_somebody_else_made_is_refused(
    cell: Cell, user: str, folder: Path, kind: str
) -> None:
    home, theirs = Path(f"/tmp/{user}"), folder / "theirs"
    theirs.mkdir()
    (theirs / "precious.txt").write_text("precious")
    theirs.rename(home) if kind == "folder" else home.symlink_to(theirs)

    try:
        completed = await call(cell, user, "files_make", name="a.txt", size=1)
        left = os.listdir(home)
    finally:
        home.unlink() if kind == "link" else None

    assert error_code(completed) == "E_ISOLATION"
    assert str(results(completed)["error"]).startswith(f"{home} ")
    assert "neither used nor emptied" in str(results(completed)["error"])
    assert left == ["precious.txt"]


async def test_one_user_cannot_reach_the_files_of_another(cell: Cell, user: str, other_user: str) -> None:
    await call(cell, user, "files_make", name="mine.txt", size=3)
    await call(cell, other_user, "files_make", name="theirs.txt", size=3)

    denied = await call(cell, other_user, "odd_files_peeks", path=f"/tmp/{user}/mine.txt")
    allowed = await call(cell, user, "odd_files_peeks", path=f"/tmp/{user}/mine.txt")

    assert results(denied) == dict.fromkeys(("read", "list", "write", "link", "remove"), "PermissionError")
    assert results(allowed) == {
        "read": "xxx",
        "list": str(sorted(["input_files", ".tmp", "mine.txt"])),
        "write": "written",
        "link": "linked",
        "remove": "removed",
    }
    assert kept(cell, other_user) == {"theirs.txt": 3}


async def test_an_input_of_one_user_is_no_file_of_another(cell: Cell, user: str, other_user: str) -> None:
    upload(cell, user, "a.txt", b"mine")

    own = await call(cell, user, "files_read", filename="a.txt")
    others = await call(cell, other_user, "files_read", filename="a.txt")

    assert results(own)["text"] == "mine"
    assert error_code(others) == "E_FILE_NOT_FOUND"
    assert details(others)["nearest"] == []
