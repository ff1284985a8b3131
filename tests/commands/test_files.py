"""Files in and out of tools, as a toolset handles them: identity, inputs, artifacts, homes, delivery."""

import asyncio
import base64
import hashlib
import os
import shutil
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from answer_parts import contract_of, plain_of, structured_of
from fastmcp import Client
from support import TOOLS, call, details, error_code, request, settings_in

from runner.call import Completed, execute
from runner.server.host import make_host
from runner.store.protocol import Origin
from runner.toolset.toolset import Toolset
from runner.users.identity import User
from sandbox.probe.machine import Tier

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]

MIB = 1024 * 1024
MAX_BYTES = 4 * MIB


@pytest.fixture(scope="module")
async def toolset(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Toolset]:
    folder = tmp_path_factory.mktemp("files")
    settings = settings_in(folder, base64_size_limit_mb=1, max_artifact_bytes=MAX_BYTES, max_calls_per_user=2)
    files = [str(TOOLS / "files.py"), str(TOOLS / "odd_files.py")]
    async with Toolset.open(settings, files) as it:
        yield it


@pytest.fixture
def other_user() -> Iterator[str]:
    name = f"t-{os.urandom(6).hex()}"
    yield name
    shutil.rmtree(f"/tmp/{name}", ignore_errors=True)


async def upload(toolset: Toolset, user: str, name: str, content: bytes = b"content") -> None:
    await toolset.files(User(user)).put(content, name=name, origin=Origin.UPLOADED)


async def stored_sizes(toolset: Toolset, user: str) -> dict[str, int]:
    """Return the sizes of the user's files by name."""
    return {file.shown: file.size for file in await toolset.files(User(user)).all()}


async def call_inline(toolset: Toolset, user: str, tool: str, **arguments: Any) -> Completed:
    """Call as a client that wants artifacts inline up to the limit of the settings."""
    wanted = replace(request(user, tool, arguments), inline_max_bytes=toolset.settings.inline_max_bytes)
    return await execute(toolset, wanted)


def results(completed: Completed) -> Any:
    return completed.processed.value["results"]


def odd_files(home: Path, outside: Path) -> dict[str, str]:
    """Make what no tool may hand out; return the reason of each refusal by path."""
    (home / "folder").mkdir()
    (home / "original").write_text("two names")
    (home / "hard_link").hardlink_to(home / "original")
    (home / "link").symlink_to(home / "original")
    (home / "link_out").symlink_to(outside)
    (home / "linked_folder").symlink_to(outside.parent)
    os.mkfifo(home / "fifo")
    names = ("folder", "hard_link", "original", "link", "link_out", f"linked_folder/{outside.name}", "fifo")
    wrong = [str(home / name) for name in names]
    wrong += ["/dev/zero", str(outside), f"{home}/../{outside.name}", f"{home}/"]
    return {**dict.fromkeys(wrong, "invalid_path"), f"{home}/missing.txt": "missing_path"}


def refused_path(entry: Mapping[str, Any]) -> str:
    return str(entry["error"]["meta_data"]["details"]["attempted_path"])


async def test_identity_overwrites_value_of_client(toolset: Toolset, user: str) -> None:
    """Source: S0-56, S1-31 to S1-33, S1-104 and S1-105."""
    result = await call(toolset, user, "files_claim", paths=[], username="mallory")
    left_out = await call(toolset, user, "files_claim", paths=[])

    assert results(result) == {"user": user}
    assert results(left_out) == {"user": user}


async def test_tool_without_declared_identity_gets_none(toolset: Toolset, user: str) -> None:
    """Source: S0-57 and S0-59."""
    await upload(toolset, user, "a.txt")

    completed = await call(toolset, user, "files_read_only", filename="a.txt", username="mallory")

    assert results(completed)["text"] == "content"


async def test_input_file_staged_as_read_only_copy(toolset: Toolset, user: str) -> None:
    """Source: S1-35 to S1-37 and S1-107."""
    await upload(toolset, user, "a.txt", b"words")

    completed = await call(toolset, user, "files_read", filename="a.txt")

    assert results(completed) == {"path": f"/tmp/{user}/input_files/a.txt", "text": "words", "mode": "0o444"}


async def test_several_input_files_are_staged(toolset: Toolset, user: str) -> None:
    await upload(toolset, user, "a.txt", b"first")
    await upload(toolset, user, "b.txt", b"second")

    completed = await call(toolset, user, "files_read_many", filenames=["b.txt", "a.txt"])

    assert results(completed) == {
        f"/tmp/{user}/input_files/b.txt": "second",
        f"/tmp/{user}/input_files/a.txt": "first",
    }


async def test_staged_files_removed_after_call(toolset: Toolset, user: str) -> None:
    """Source: S1-103."""
    await upload(toolset, user, "a.txt")

    with toolset.homes.lease(user) as home:
        await call(toolset, user, "files_read", filename="a.txt")
        left = os.listdir(home.path / "input_files")

    assert left == []


async def test_name_of_no_stored_file_passed_unchanged(toolset: Toolset, user: str) -> None:
    """Source: S0-51."""
    completed = await call(toolset, user, "odd_files_makes", filename="new.txt", size=3)

    assert results(completed) == "new.txt"
    assert await stored_sizes(toolset, user) == {"new.txt": 3}


async def test_tool_failing_on_missing_file_names_nearest(toolset: Toolset, user: str) -> None:
    await upload(toolset, user, "report-2026.csv")

    completed = await call(toolset, user, "files_read", filename="report-2025.csv")

    assert error_code(completed) == "E_FILE_NOT_FOUND"
    assert details(completed)["name"] == "report-2025.csv"
    assert details(completed)["nearest"] == ["report-2026.csv"]


async def test_corrupted_input_copy_not_stored_or_passed_on(toolset: Toolset, user: str) -> None:
    await upload(toolset, user, "a.txt", b"original")

    spoilt = await call(toolset, user, "files_spoil", filename="a.txt")
    then = await call(toolset, user, "files_read", filename="a.txt")

    assert results(spoilt) == {"text": "spoilt"}
    assert results(then)["text"] == "original"


async def test_concurrent_calls_get_own_copies_of_one_file(toolset: Toolset, user: str) -> None:
    await upload(toolset, user, "a.txt", b"original ")

    both = await asyncio.gather(
        call(toolset, user, "odd_files_meets", filename="a.txt", me="one", other="two"),
        call(toolset, user, "odd_files_meets", filename="a.txt", me="two", other="one"),
    )

    assert [results(completed)["text"] for completed in both] == ["original one", "original two"]
    assert len({results(completed)["path"] for completed in both}) == 2


async def test_tool_without_identity_reads_input_writes_nothing(toolset: Toolset, user: str) -> None:
    await upload(toolset, user, "a.txt", b"words")

    allowed = await call(toolset, user, "odd_files_reads_and_writes_at_home", filename="a.txt")
    denied = await call(toolset, user, "odd_files_reads_and_writes", filename="a.txt")

    assert results(allowed) == {"text": "words", "attempts": ["written"] * 3}
    assert results(denied) == {"text": "words", "attempts": ["EACCES"] * 3}


async def test_artifact_at_inline_limit_inline_above_is_reference(toolset: Toolset, user: str) -> None:
    """Source: S1-15, S1-17 and S1-112."""
    small = await call_inline(toolset, user, "files_make", name="small.txt", size=MIB)
    large = await call_inline(toolset, user, "files_make", name="large.txt", size=MIB + 1)

    inline, referred = small.processed.value["artifacts"][0], large.processed.value["artifacts"][0]
    assert len(base64.b64decode(inline["b64"])) == inline["size"] == MIB
    assert inline.keys() == {"name", "b64", "mime", "size"}
    assert referred.keys() == {"name", "s3_ref", "mime", "size"}
    assert referred["size"] == MIB + 1
    assert await stored_sizes(toolset, user) == {"small.txt": MIB, "large.txt": MIB + 1}


async def test_artifact_size_measured_not_trusted(toolset: Toolset, user: str) -> None:
    """Source: S1-63."""
    completed = await call_inline(toolset, user, "odd_files_makes", filename="a.txt", size=3)

    assert completed.processed.value["artifacts"][0]["size"] == 3


async def test_file_at_hard_limit_written_above_is_too_large(toolset: Toolset, user: str) -> None:
    """Source: S1-112 and S1-135 to S1-137."""
    largest = await call(toolset, user, "files_make", name="largest.bin", size=MAX_BYTES)
    larger = await call(toolset, user, "files_make", name="larger.bin", size=MAX_BYTES + 1)

    assert results(largest) == {"written": MAX_BYTES}
    assert error_code(larger) == "E_FILE_TOO_LARGE"
    assert details(larger)["current_limit_bytes"] == MAX_BYTES
    assert await stored_sizes(toolset, user) == {"largest.bin": MAX_BYTES}


async def test_input_above_hard_limit_cannot_be_returned(toolset: Toolset, user: str) -> None:
    await upload(toolset, user, "huge.bin", b"x" * (MAX_BYTES + 1))

    completed = await call(toolset, user, "odd_files_hands_back", filename="huge.bin")

    assert error_code(completed) == "E_FILE_TOO_LARGE"
    assert details(completed)["file_size_bytes"] == MAX_BYTES + 1


async def test_artifact_not_regular_file_refused_others_delivered(
    toolset: Toolset, user: str, folder: Path
) -> None:
    outside = folder / "outside.txt"
    outside.write_text("not yours")
    with toolset.homes.lease(user) as home:
        refused = odd_files(home.path, outside)
        good = home.path / "good.txt"
        good.write_text("good")
        # In a tier with user ids a file of anybody else's is refused.
        os.chown(good, home.path.stat().st_uid, -1)

        completed = await call(toolset, user, "files_claim", paths=[*refused, f"{home.path}/good.txt"])

    errors = completed.processed.value["meta_data"]["artifact_errors"]
    assert results(completed) == {"user": user}
    assert {refused_path(entry): entry["reason"] for entry in errors} == refused
    assert [entry["size"] for entry in completed.processed.value["artifacts"]] == [4]
    assert list((await stored_sizes(toolset, user)).values()) == [4]


async def test_refused_artifact_alone_is_the_result(toolset: Toolset, user: str, folder: Path) -> None:
    outside = folder / "outside.txt"
    outside.write_text("not yours")

    completed = await call(toolset, user, "files_only_claim", path=str(outside))

    assert completed.processed.value["results"] == {"error": "File operation outside allowed directory"}
    assert error_code(completed) == "E_INVALID_PATH"
    assert details(completed)["attempted_path"] == str(outside)
    assert await stored_sizes(toolset, user) == {}


async def test_home_belongs_to_its_user_alone(toolset: Toolset, user: str) -> None:
    completed = await call(toolset, user, "files_look")

    assert results(completed)["home"] == results(completed)["cwd"] == f"/tmp/{user}"
    assert results(completed)["user"] == user
    assert Path(f"/tmp/{user}").stat().st_mode & 0o7777 == 0o700


async def test_address_as_user_name_taken_literally(toolset: Toolset, user: str) -> None:
    address = f"{user}@example.com"

    try:
        completed = await call(toolset, address, "files_make", name="a.txt", size=1)
        home = Path(f"/tmp/{address}")
        made = home.is_dir()
    finally:
        shutil.rmtree(f"/tmp/{address}", ignore_errors=True)

    assert results(completed) == {"written": 1}
    assert made


@pytest.mark.parametrize("kind", ["folder", "link"])
async def test_home_made_by_another_owner_refused(
    toolset: Toolset, user: str, folder: Path, kind: str
) -> None:
    home, theirs = Path(f"/tmp/{user}"), folder / "theirs"
    theirs.mkdir()
    (theirs / "precious.txt").write_text("precious")
    theirs.rename(home) if kind == "folder" else home.symlink_to(theirs)

    try:
        completed = await call(toolset, user, "files_make", name="a.txt", size=1)
        left = os.listdir(home)
    finally:
        home.unlink() if kind == "link" else None

    assert error_code(completed) == "E_ISOLATION"
    assert str(results(completed)["error"]).startswith(f"{home} ")
    assert "neither used nor emptied" in str(results(completed)["error"])
    assert left == ["precious.txt"]


async def test_files_of_another_user_unreachable(toolset: Toolset, user: str, other_user: str) -> None:
    """Source: S1-49."""
    await call(toolset, user, "files_make", name="mine.txt", size=3)
    await call(toolset, other_user, "files_make", name="theirs.txt", size=3)

    denied = await call(toolset, other_user, "odd_files_peeks", path=f"/tmp/{user}/mine.txt")
    allowed = await call(toolset, user, "odd_files_peeks", path=f"/tmp/{user}/mine.txt")

    # In tier `namespace` the other home is not there at all.
    closed = "ENOENT" if toolset.tier is Tier.NAMESPACE else "EACCES"
    link = "ENOENT" if toolset.tier is Tier.NAMESPACE else "EXDEV"
    assert results(denied) == {
        "read": closed,
        "list": closed,
        "write": "EACCES",
        "link": link,
        "remove": closed,
    }
    assert results(allowed) == {
        "read": "xxx",
        "list": str(sorted(["input_files", ".tmp", "mine.txt"])),
        "write": "written",
        "link": "linked",
        "remove": "removed",
    }
    assert await stored_sizes(toolset, other_user) == {"theirs.txt": 3}


async def test_input_of_another_user_not_found(toolset: Toolset, user: str, other_user: str) -> None:
    await upload(toolset, user, "a.txt", b"mine")

    own = await call(toolset, user, "files_read", filename="a.txt")
    others = await call(toolset, other_user, "files_read", filename="a.txt")

    assert results(own)["text"] == "mine"
    assert error_code(others) == "E_FILE_NOT_FOUND"
    assert details(others)["nearest"] == []


@pytest.fixture(scope="module")
async def bound(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Toolset]:
    """A toolset that serves one user on every connection."""
    name = f"t-{os.urandom(6).hex()}"
    settings = settings_in(tmp_path_factory.mktemp("bound"), user=name)
    async with Toolset.open(settings, [str(TOOLS / "odd_files.py")], user=User(name)) as it:
        yield it
    shutil.rmtree(f"/tmp/{name}", ignore_errors=True)


@pytest.fixture
async def client(bound: Toolset) -> AsyncIterator["Client[Any]"]:
    async with Client(make_host(bound, transport="stdio", download_url=None)) as it:
        yield it


async def test_artifact_reaches_client_as_readable_reference(client: "Client[Any]", bound: Toolset) -> None:
    """Source: S0-23, S1-71 and S2-12."""
    result = await client.call_tool("makes", {"filename": "reference.txt", "size": 3})

    artifact = structured_of(result)["artifacts"][0]
    link = next(block for block in result.content if block.type == "resource_link")
    contents = await client.read_resource(artifact["uri"])
    assert artifact == {
        "name": "reference.txt",
        "mime": "text/plain",
        "size": 3,
        "uri": artifact["uri"],
        "sha256": hashlib.sha256(b"xxx").hexdigest(),
    }
    assert (str(link.uri), link.name, link.mime_type, link.size) == (
        artifact["uri"], "reference.txt", "text/plain", 3,
    )  # fmt: skip
    assert plain_of(contents[0]) == "xxx"
    assert f"/tmp/{bound.settings.user}" not in str(result)


async def test_client_requesting_inline_gets_inline_artifact(client: "Client[Any]") -> None:
    content = base64.b64encode(b"x" * 300).decode()

    result = await client.call_tool(
        "makes", {"filename": "inline.txt", "size": 300}, meta={"toolcell/artifacts": "inline"}
    )

    assert structured_of(result)["artifacts"] == [
        {"name": "inline.txt", "b64": content, "mime": "text/plain", "size": 300}
    ]
    assert content not in str(result.content)


async def test_inline_artifacts_above_message_size_become_references(client: "Client[Any]") -> None:
    result = await client.call_tool(
        "makes", {"filename": "large.txt", "size": 800_000}, meta={"toolcell/artifacts": "inline"}
    )

    artifact, meta_data = (structured_of(result)[key] for key in ("artifacts", "meta_data"))
    assert artifact[0].keys() == {"name", "mime", "size", "uri", "sha256"}
    assert meta_data["delivery"] == "reference"
    assert "too large" in meta_data["delivery_reason"]


async def test_closed_schema_result_kept_with_uris_for_paths(client: "Client[Any]") -> None:
    result = await client.call_tool("report")

    contract = contract_of(result)
    uri = contract["artifacts"][0]["uri"]
    assert result.structured_content == {
        "results": "done",
        "artifacts": [{"name": "report.txt", "path": uri, "mime": "text/plain"}],
    }
    assert contract["results"] == "done"
    assert plain_of((await client.read_resource(uri))[0]) == "the report"


async def test_delivered_artifacts_are_all_in_my_files(client: "Client[Any]", bound: Toolset) -> None:
    """Source: S0-22, S1-2, S1-9, S1-27 and S2-3."""
    result = await client.call_tool("makes", {"filename": "kept.txt", "size": 5})

    user = str(bound.settings.user)
    file = await bound.files(User(user)).find("kept.txt")
    assert file is not None
    assert f"artifact://{file.id}" == structured_of(result)["artifacts"][0]["uri"]
    assert (file.size, file.metadata.origin) == (5, Origin.GENERATED)
