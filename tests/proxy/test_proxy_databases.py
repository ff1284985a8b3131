"""Servers for databases that others wrote, behind the proxy, in every tier: DuckDB's and one for SQLite."""

import json
import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from proxying import proxied

from runner.proxy.targets import Target

PATIENT_S = 150.0
"""They import much before they speak, and the machine may be busy."""

pytestmark = [
    pytest.mark.needs_root,
    pytest.mark.release,
    pytest.mark.anyio,
    pytest.mark.kernel,
    pytest.mark.timeout(400),
]


@pytest.fixture(params=["process", "user", "namespace"])
def tier(request: pytest.FixtureRequest) -> str:
    assert os.geteuid() == 0, "two of the tiers are for a runner that root starts; run these tests as root"
    return str(request.param)


@pytest.fixture
def lent() -> Iterator[Path]:
    top = Path(tempfile.mkdtemp(prefix="toolcell-databases-", dir="/srv"))
    yield top
    shutil.rmtree(top)


def installed(program: str, *arguments: str, **more: Any) -> Target:
    command = (str(Path(sys.executable).with_name(program)), *arguments)
    return Target(name="database", command=command, **more)


async def text_of_call(client: Any, tool: str, **arguments: Any) -> str:
    called = await client.call_tool(tool, arguments)
    return str(called.content[0].text)


async def test_duckdb_server_keeps_tables_in_granted_folder(
    folder: Path, user: str, lent: Path, tier: str
) -> None:
    file = lent / "numbers.duckdb"
    target = installed("mcp-server-motherduck", "--db-path", str(file), "--read-write", allow_write=(lent,))

    async with proxied(folder, user, target, isolation=tier, load_timeout_s=PATIENT_S) as client:
        table = "create table numbers as select range as n from range(1000)"
        await text_of_call(client, "execute_query", sql=table)
    async with proxied(folder, user, target, isolation=tier, load_timeout_s=PATIENT_S) as client:
        summed = await text_of_call(client, "execute_query", sql="select sum(n)::int as total from numbers")

    assert json.loads(summed)["rows"] == [[499500]], summed


async def test_sqlite_server_keeps_rows_in_granted_folder(
    folder: Path, user: str, lent: Path, tier: str
) -> None:
    database = lent / "notes.db"
    with sqlite3.connect(database) as made:
        made.execute("create table notes (id integer primary key, text text)")
    made.close()
    target = installed("mcp-alchemy", env={"DB_URL": f"sqlite:///{database}"}, allow_write=(lent,))

    async with proxied(folder, user, target, isolation=tier, load_timeout_s=PATIENT_S) as client:
        await text_of_call(client, "execute_query", query="insert into notes values (1, 'first')")
        selected = await text_of_call(client, "execute_query", query="select * from notes")

    assert "first" in selected
    with sqlite3.connect(database) as after:
        assert after.execute("select * from notes").fetchall() == [(1, "first")]
    after.close()
