"""Files that a call wrote into its home and did not return: kept, told of, or left alone."""

import asyncio
import fcntl
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from somebody import somebody
from support import TOOLS, Ran, becomes, call, open_toolset

from runner.call import Completed
from runner.formats.database_logs import MOST_LOG_BYTES
from runner.settings.settings import Settings
from runner.store.protocol import Origin, Record, Scope
from runner.store.store import BlobStore
from runner.toolset.toolset import Toolset
from runner.users.identity import User

pytestmark = [pytest.mark.release, pytest.mark.anyio, pytest.mark.kernel]

FILE = TOOLS / "leaves.py"


def open_leaves(folder: Path, **more: Any) -> AbstractAsyncContextManager[Toolset]:
    return open_toolset(FILE, folder, **({"generated": "keep"} | more))


@pytest.fixture(scope="module")
async def toolset(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Toolset]:
    async with open_leaves(tmp_path_factory.mktemp("leaves")) as it:
        yield it


def listed_files(completed: Completed) -> list[dict[str, Any]]:
    """Return what a result says of files that were not returned."""
    return list(completed.processed.value.get("meta_data", {}).get("generated_files", []))


async def stored_files(toolset: Toolset, user: str) -> dict[str, str]:
    """Return the contents of the user's files by name."""
    files = toolset.files(User(user))
    found = {}
    for record in await files.all():
        async with files.open(record) as content:
            found[record.shown] = b"".join([part async for part in content]).decode()
    return found


async def test_unreturned_file_stored_and_listed(toolset: Toolset, user: str) -> None:
    """Source: S1-24 and S1-27."""
    completed = await call(toolset, user, "leaves_write", files={"out/report.csv": "a,b\n"})

    [entry] = listed_files(completed)
    assert await stored_files(toolset, user) == {"report.csv": "a,b\n"}
    uri = entry.pop("uri")
    assert entry == {
        "name": "report.csv", "file": "out/report.csv", "size": 4, "mime": "text/csv", "kept": True
    }  # fmt: skip
    assert uri.startswith("artifact://art_")


async def test_returned_file_not_listed_again(toolset: Toolset, user: str) -> None:
    files = {"a.txt": "returned", "b.txt": "not returned"}

    completed = await call(toolset, user, "leaves_write", files=files, returned=["a.txt"])

    assert [entry["name"] for entry in listed_files(completed)] == ["b.txt"]
    assert await stored_files(toolset, user) == {"a.txt": "returned", "b.txt": "not returned"}


async def test_returned_and_unreturned_files_share_budget_of_logs(toolset: Toolset, user: str) -> None:
    await call(toolset, user, "leaves_write", files={})
    home = Path(f"/tmp/{user}")
    for name in ("x.db-wal", "y.db-wal"):
        (home / name).touch()
        os.truncate(home / name, MOST_LOG_BYTES // 2 + 1)
        os.chown(home / name, home.stat().st_uid, -1)

    completed = await call(toolset, user, "leaves_write", files={"x.db": "x", "y.db": "y"}, returned=["x.db"])

    assert await stored_files(toolset, user) == {"x.db": "x"}
    assert [entry["name"] for entry in listed_files(completed) if not entry["kept"]] == ["y.db"]


async def test_next_call_does_not_list_files_of_previous_call(toolset: Toolset, user: str) -> None:
    for number in range(20):
        name = f"{number}.txt"
        wrote = await call(toolset, user, "leaves_write", files={name: "mine"}, returned=[name])
        nothing = await call(toolset, user, "leaves_nothing")

        assert listed_files(wrote) == []
        assert listed_files(nothing) == []


async def test_plain_result_unchanged_and_its_file_stored(toolset: Toolset, user: str) -> None:
    completed = await call(toolset, user, "leaves_plain", name="notes.md")

    assert completed.processed.value["results"] == "written"
    assert completed.processed.is_own
    assert await stored_files(toolset, user) == {"notes.md": "plain"}


@pytest.mark.parametrize(
    "name",
    [
        ".hidden", ".cache/fontconfig/a.txt", "__pycache__/a.pyc", "db.sqlite-wal", "db.sqlite-journal",
        "a.lock", "tmp/a.txt", "cache/a.txt", "fontlist-v390.json", "half.part",
    ],
)  # fmt: skip
async def test_non_output_file_left_alone(toolset: Toolset, user: str, name: str) -> None:
    beside = await call(toolset, user, "leaves_write", files={"output.txt": "shown"})
    completed = await call(toolset, user, "leaves_write", files={name: "not shown"})

    assert [entry["name"] for entry in listed_files(beside)] == ["output.txt"]
    assert listed_files(completed) == []
    assert await stored_files(toolset, user) == {"output.txt": "shown"}


async def test_file_changed_by_each_call_stored_once_as_current(toolset: Toolset, user: str) -> None:
    for number in range(3):
        await call(toolset, user, "leaves_write", files={"state.json": f"{number}"})

    assert await stored_files(toolset, user) == {"state.json": "2"}


async def test_unreturned_file_does_not_replace_users_own(toolset: Toolset, user: str) -> None:
    await call(toolset, user, "leaves_write", files={"data.txt": "returned"}, returned=["data.txt"])

    await call(toolset, user, "leaves_write", files={"data.txt": "changed since"})

    assert await stored_files(toolset, user) == {"data.txt": "returned", "data_2.txt": "changed since"}


async def test_renamed_file_found_under_new_name(toolset: Toolset, user: str) -> None:
    await call(toolset, user, "leaves_write", files={"first.txt": "content"})

    completed = await call(toolset, user, "leaves_renamed", old="first.txt", new="second.txt")

    assert [entry["name"] for entry in listed_files(completed)] == ["second.txt"]


async def test_link_out_of_home_or_hard_link_not_read(toolset: Toolset, user: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")

    completed = await call(toolset, user, "leaves_odd", outside=str(secret))

    assert completed.processed.value["results"] == "made"
    assert {entry["name"]: entry["reason"] for entry in listed_files(completed)} == {
        "one.txt": "invalid_path", "two.txt": "invalid_path"
    }  # fmt: skip
    assert await stored_files(toolset, user) == {}


async def test_overlapping_calls_last_collects_complete_files_of_both(toolset: Toolset, user: str) -> None:
    slow = asyncio.create_task(call(toolset, user, "leaves_slowly", name="slow.txt"))
    assert await becomes(lambda: Path(f"/tmp/{user}/slow.txt").exists())
    assert await becomes(lambda: Path(f"/tmp/{user}/slow.txt").stat().st_size > 0)

    beside = await call(toolset, user, "leaves_look")
    while_one_writes = await stored_files(toolset, user)
    go = await call(toolset, user, "leaves_go")
    last = await slow

    assert listed_files(beside) == []
    assert while_one_writes == {}
    listed = {entry["name"] for completed in (go, last) for entry in listed_files(completed)}
    assert listed == {"beside.txt", "look.txt", "slow.txt"}
    assert await stored_files(toolset, user) == {
        "beside.txt": "whole", "look.txt": "whole", "slow.txt": "first half, second half"
    }  # fmt: skip


async def test_file_locks_of_tool_do_not_block_host(
    toolset: Toolset, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Source: SECURITY.md, "What is a bug here", on a host that waits."""
    holding = asyncio.create_task(call(toolset, user, "leaves_locked", count=200))
    assert await becomes(Path(f"/tmp/{user}/begun.lock").exists)
    looks: list[object] = []
    ask = fcntl.fcntl

    def counted(*arguments: Any) -> Any:
        if arguments[1] in (fcntl.F_OFD_SETLK, fcntl.F_OFD_GETLK):
            looks.append(arguments[1])
        return ask(*arguments)

    monkeypatch.setattr(fcntl, "fcntl", counted)

    beside = await call(toolset, user, "leaves_write", files={"beside.txt": "whole"})

    # However many locks a tool holds, the host's is set once for all calls in the home.
    assert len(looks) <= 2, looks
    Path(f"/tmp/{user}/.go").touch()
    last = await holding
    assert listed_files(beside) == []
    assert [entry["name"] for entry in listed_files(last)] == ["beside.txt"]


@pytest.mark.parametrize(
    ("how", "code"), [("raise", "E_TOOL"), ("crash", "E_CRASHED"), ("hang", "E_TIMEOUT")]
)
async def test_last_call_fails_keeps_files_of_others_not_its_own(tmp_path: Path, how: str, code: str) -> None:
    limits = {"tools": {"leaves_failing": {"idle_timeout_s": 15}}} if how == "hang" else {}
    with somebody() as user:
        async with open_leaves(tmp_path, **limits) as toolset:
            home = Path(f"/tmp/{user}")
            failing = asyncio.create_task(call(toolset, user, "leaves_failing", how=how))
            assert await becomes((home / "begun.lock").exists)

            beside = await call(toolset, user, "leaves_look")
            (home / ".go").touch()
            failed = await failing

            assert failed.processed.value["meta_data"]["error_code"] == code
            assert listed_files(beside) == []
            assert [(entry["name"], entry["kept"]) for entry in listed_files(failed)] == [("look.txt", True)]
            assert await stored_files(toolset, user) == {"look.txt": "whole"}
            # The control: a call that fails alone has nothing to keep.
            alone = await call(toolset, user, "leaves_failing", how=how)
            assert listed_files(alone) == []
            assert await stored_files(toolset, user) == {"look.txt": "whole"}


async def test_file_changed_by_failing_call_reported_not_kept(toolset: Toolset, user: str) -> None:
    home = Path(f"/tmp/{user}")
    failing = asyncio.create_task(call(toolset, user, "leaves_failing", how="raise"))
    assert await becomes((home / "begun.lock").exists)

    await call(toolset, user, "leaves_write", files={"late.txt": "good"})
    (home / ".go").touch()
    failed = await failing

    assert [(entry["name"], entry["reason"]) for entry in listed_files(failed)] == [
        ("late.txt", "changed_meanwhile")
    ]
    assert await stored_files(toolset, user) == {}


async def test_last_call_with_ignored_files_keeps_those_of_others(toolset: Toolset, user: str) -> None:
    home = Path(f"/tmp/{user}")
    ignored = asyncio.create_task(call(toolset, user, "leaves_unminded_slowly"))
    assert await becomes((home / "begun.lock").exists)

    await call(toolset, user, "leaves_look")
    (home / ".go").touch()
    last = await ignored

    assert [entry["name"] for entry in listed_files(last)] == ["look.txt"]
    assert await stored_files(toolset, user) == {"look.txt": "whole"}


async def test_files_beside_abandoned_call_collected_by_next_call(toolset: Toolset, user: str) -> None:
    home = Path(f"/tmp/{user}")
    abandoned = asyncio.create_task(call(toolset, user, "leaves_failing", how="hang"))
    assert await becomes((home / "begun.lock").exists)

    await call(toolset, user, "leaves_look")
    abandoned.cancel()
    await asyncio.wait({abandoned})
    following = await call(toolset, user, "leaves_nothing")

    assert [entry["name"] for entry in listed_files(following)] == ["look.txt"]
    assert await stored_files(toolset, user) == {"look.txt": "whole"}


async def test_file_over_quota_reported_and_call_succeeds(tmp_path: Path) -> None:
    with somebody() as user:
        async with open_leaves(tmp_path, max_user_bytes=10) as toolset:
            completed = await call(
                toolset, user, "leaves_write", files={"large.txt": "x" * 11, "small.txt": "x"}
            )

            assert completed.processed.value["results"] == 2
            assert "is_error" not in completed.processed.value["meta_data"]
            reasons = {entry["name"]: entry.get("reason") for entry in listed_files(completed)}
            assert reasons == {"large.txt": "quota_exceeded", "small.txt": None}
            assert await stored_files(toolset, user) == {"small.txt": "x"}


async def test_quota_exceeded_keeps_earlier_version(tmp_path: Path) -> None:
    with somebody() as user:
        async with open_leaves(tmp_path, max_user_bytes=12) as toolset:
            for text in ("first", "second", "x" * 11):
                completed = await call(toolset, user, "leaves_write", files={"state.txt": text})

            assert [entry.get("reason") for entry in listed_files(completed)] == ["quota_exceeded"]
            assert list((await stored_files(toolset, user)).values()) == ["second"]


async def test_same_names_in_two_folders_stored_once_each(toolset: Toolset, user: str) -> None:
    for round_ in ("1", "2", "3"):
        await call(
            toolset, user, "leaves_write", files={"a/out.txt": f"a{round_}", "b/out.txt": f"b{round_}"}
        )

    assert sorted((await stored_files(toolset, user)).values()) == ["a3", "b3"]


class CountingStore(BlobStore):
    """A store in memory that counts how often it is asked for one file, and for all."""

    finds = lists = 0

    async def find(self, name: str, *, scope: Scope) -> Record | None:
        self.finds += 1
        return await super().find(name, scope=scope)

    async def list(self, *, scope: Scope) -> Sequence[Record]:
        self.lists += 1
        return await super().list(scope=scope)


async def test_collected_file_found_without_listing_store(tmp_path: Path) -> None:
    store = CountingStore()
    settings = Settings(state_dir=tmp_path / "state", store="memory:")
    with somebody() as user:
        async with Toolset.open(settings, [str(FILE)], store=store) as toolset:
            for number in range(50):
                other = toolset.files(User(user))
                await other.put(f"{number}".encode(), name=f"{number}.csv", origin=Origin.UPLOADED)
            requests = []
            for text in ("first", "second", "third"):
                before = store.finds
                await call(toolset, user, "leaves_write", files={"state.json": text})
                requests.append(store.finds - before)

            assert store.lists == 0
            assert max(requests) <= 5
            found = await stored_files(toolset, user)
            # The control counts: to see all of them is a list.
            assert store.lists == 1
            assert [text for name, text in found.items() if name.startswith("state")] == ["third"]


async def test_non_utf8_name_costs_nothing_of_result(toolset: Toolset, user: str) -> None:
    completed = await call(toolset, user, "leaves_unreadable_name")

    assert completed.processed.value["results"] == "written"
    assert json.loads(json.dumps(listed_files(completed), ensure_ascii=False).encode())[0]["kept"] is True
    assert list((await stored_files(toolset, user)).values()) == ["old"]


@pytest.mark.parametrize(
    ("settings", "tool", "names", "stored"),
    [
        ({"generated": "report"}, "leaves_plain", ["a.txt"], []),
        ({"generated": "ignore"}, "leaves_plain", [], []),
        ({}, "leaves_unminded", [], []),
    ],
)
async def test_settings_and_author_decide_about_unreturned_files(
    tmp_path: Path, settings: dict[str, Any], tool: str, names: list[str], stored: list[str]
) -> None:
    with somebody() as user:
        async with open_leaves(tmp_path, **settings) as toolset:
            completed = await call(toolset, user, tool, name="a.txt")

            assert [entry["name"] for entry in listed_files(completed)] == names
            assert list(await stored_files(toolset, user)) == stored


async def test_new_file_among_ten_thousand_old_ones_found_alone(tmp_path: Path) -> None:
    with somebody() as user:
        async with open_leaves(tmp_path) as toolset:
            await call(toolset, user, "leaves_old", count=10_000)

            completed = await call(toolset, user, "leaves_write", files={"new.txt": "new"})

            assert [entry["name"] for entry in listed_files(completed)] == ["new.txt"]


async def test_too_many_files_keeps_some_and_reports_rest_count(tmp_path: Path) -> None:
    with somebody() as user:
        async with open_leaves(tmp_path) as toolset:
            completed = await call(
                toolset, user, "leaves_write", files={f"{n}.txt": f"{n}" for n in range(1100)}
            )

            meta = completed.processed.value["meta_data"]
            assert meta["generated_files_not_looked_at"] == 100
            assert len(meta["generated_files"]) + meta["generated_files_unlisted"] == 1000
            assert 1 <= len(await stored_files(toolset, user)) <= 100
            assert "meta_data_truncated" not in completed.processed.value


def test_command_line_lists_unreturned_files_in_my_files(run: Callable[..., Ran], user: str) -> None:
    plain = run("call", FILE, "leaves_plain", "name=notes.md", "--user", user)
    called = run("call", FILE, "leaves_write", 'files:={"report.csv": "a,b"}', "--user", user, "--json")
    listed = run("files", "ls", "--user", user, "--json")

    assert plain.out.splitlines() == [
        "written", "notes.md  (5B, not returned by the tool; kept in My Files)"
    ]  # fmt: skip
    assert called.json["meta_data"]["generated_files"][0]["name"] == "report.csv"
    assert {"notes.md", "report.csv"} <= {file["name"] for file in listed.json["files"]}


async def test_client_notified_of_unreturned_files_and_reads_them(tmp_path: Path, user: str) -> None:
    state = ["--state-dir", str(tmp_path / "state"), "--store", (tmp_path / "store").as_uri()]
    runner = str(Path(sys.executable).with_name("runner"))
    with (tmp_path / "log").open("w") as log:
        transport = StdioTransport(
            runner, ["serve", str(FILE), "--transport", "stdio", "--user", user, *state[2:]],
            env={"RUNNER_STATE_DIR": state[1], "PATH": "/usr/bin:/bin"}, log_file=log
        )  # fmt: skip
        async with Client(transport) as client:
            result = await client.call_tool("leaves_write", {"files": {"report.csv": "a,b"}})

            [entry] = (result.structured_content or {})["meta_data"]["generated_files"]
            [content] = await client.read_resource(entry["uri"])
    assert entry["name"] == "report.csv"
    assert content.text == "a,b"


async def test_two_runners_on_one_home_last_call_collects_both(tmp_path: Path, user: str) -> None:
    store = (tmp_path / "store").as_uri()
    states = [Settings(state_dir=tmp_path / name, store=store) for name in ("one", "other")]
    async with Toolset.open(states[0], [str(FILE)]) as one, Toolset.open(states[1], [str(FILE)]) as other:
        slow = asyncio.create_task(call(one, user, "leaves_slowly", name="slow.txt"))
        assert await becomes(lambda: Path(f"/tmp/{user}/slow.txt").exists())

        beside = await call(other, user, "leaves_look")
        while_one_writes = await stored_files(other, user)
        Path(f"/tmp/{user}/.go").touch()
        last = await slow

        assert listed_files(beside) == []
        assert while_one_writes == {}
        assert [entry["name"] for entry in listed_files(last)] == ["look.txt", "slow.txt"]
        assert await stored_files(one, user) == {"look.txt": "whole", "slow.txt": "first half, second half"}


async def test_files_beside_running_job_reported_not_read(tmp_path: Path, user: str) -> None:
    async with open_leaves(tmp_path, background_jobs=True) as toolset:
        first = await call(toolset, user, "leaves_job")

        assert [(entry["name"], entry["reason"]) for entry in listed_files(first)] == [
            ("job.txt", "job_goes_on")
        ]
        assert await stored_files(toolset, user) == {}


async def test_tool_without_home_skips_file_scan(toolset: Toolset, user: str) -> None:
    completed = await call(toolset, user, "leaves_homeless")

    assert completed.processed.value["results"] == "nothing"
    assert "meta_data" not in completed.processed.value
    assert not Path(f"/tmp/{user}").exists()
