"""Databases as tools of others use them: DuckDB, and a server for SQLite written by somebody else."""

import os
import shutil
import signal
import sqlite3
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attack_support import interpreter_for_anybody, opened
from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from support import TOOLS

pytestmark = [pytest.mark.needs_root, pytest.mark.release, pytest.mark.anyio, pytest.mark.kernel]

TIERS = ("process", "user", "namespace")
SERVER = "mcp_alchemy.server"


@pytest.fixture(scope="module")
def anybody() -> Iterator[tuple[Path, Path]]:
    """An interpreter for every user id, and a folder beside it that every user id can enter."""
    assert os.geteuid() == 0, "the tier user is for a server that root starts; run these tests as root"
    top = Path(tempfile.mkdtemp(prefix="toolcell-databases-", dir="/srv"))
    top.chmod(0o755)
    yield interpreter_for_anybody(top), top
    shutil.rmtree(top)


def served(python: Path, folder: Path, target: str, *options: str, **more: str) -> Client[Any]:
    """Return a client of `runner serve` over stdio."""
    environment = {
        "PATH": "/usr/bin:/bin",
        "RUNNER_USER": f"t-{uuid.uuid4().hex[:12]}",
        "RUNNER_STATE_DIR": f"{folder}/state",
        "RUNNER_STORE": f"file://{folder}/store",
        **more,
    }
    arguments = ["-m", "runner", "serve", target, "--transport", "stdio", *options]
    transport = StdioTransport(
        str(python), arguments, env=environment, cwd="/", keep_alive=False, log_file=folder / "log"
    )
    return Client(transport)


@pytest.mark.parametrize("tier", TIERS)
async def test_duckdb_with_default_threads_works_instead_of_aborting(
    anybody: tuple[Path, Path], tmp_path: Path, tier: str
) -> None:
    python, top = anybody
    file = opened(TOOLS, top / "tools") / "databases.py"

    async with served(python, tmp_path, str(file), "--isolation", tier) as client:
        reply = (await client.call_tool("with_limits", {})).data
        status = (await client.call_tool("without_limits", {})).data

    assert reply == {"sum": 499500, "threads": len(os.sched_getaffinity(0))}
    # With namespaces it may read the file at which it would fail.
    assert os.WIFSIGNALED(status) is (tier != "namespace")
    assert status == 0 or os.WTERMSIG(status) in (signal.SIGABRT, signal.SIGSEGV)


async def results_of(client: Client[Any]) -> list[Any]:
    """Run the server on its database; return all of its output."""
    statements = (
        "insert into notes values (2, 'second')",
        "select * from notes order by id",
        "select * from nowhere",
    )
    calls: list[tuple[str, dict[str, Any]]] = [
        ("all_table_names", {}),
        *(("execute_query", {"query": statement}) for statement in statements),
        ("schema_definitions", {"table_names": ["notes"]}),
    ]
    # The server is the same behind the runner, which adds tools of its own.
    replies: list[Any] = [
        (tool.name, tool.description, tool.input_schema)
        for tool in await client.list_tools()
        if not tool.name.startswith("artifact_")
    ]
    for tool, arguments in calls:
        called = await client.call_tool_mcp(tool, arguments)
        replies.append(
            (called.is_error, [block.model_dump() for block in called.content], called.structured_content)
        )
    return replies


@pytest.mark.parametrize("tier", TIERS)
async def test_third_party_sqlite_server_works_on_granted_database(
    anybody: tuple[Path, Path], tmp_path: Path, tier: str
) -> None:
    python, top = anybody
    replies: list[Any] = []
    lent = top / f"lent-{tier}"
    for plain in (True, False):
        lent.mkdir()
        database = lent / "notes.db"
        with sqlite3.connect(database) as made:
            made.execute("create table notes (id integer primary key, text text)")
            made.execute("insert into notes values (1, 'first')")
        made.close()
        address = f"sqlite:///{database}"
        options = ("--isolation", tier, "--allow-env", "DB_URL", "--allow-write", str(lent))
        if plain:
            transport = StdioTransport(
                str(python), ["-m", SERVER], env={"DB_URL": address}, log_file=tmp_path / "plain"
            )
            client: Client[Any] = Client(transport)
        else:
            client = served(python, tmp_path, SERVER, *options, DB_URL=address)
        async with client:
            replies.append(await results_of(client))
        with sqlite3.connect(database) as after:
            replies.append(after.execute("select id, text from notes").fetchall())
        after.close()
        shutil.rmtree(lent)

    assert replies[1] == [(1, "first"), (2, "second")]
    assert replies[2:] == replies[:2]
