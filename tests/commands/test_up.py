"""`runner up` through the command line: the files that it writes, and the server that a unit starts."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
from ports import free_port
from support import environment_in, server_url, stop, until
from unprivileged import run_here

pytestmark = pytest.mark.kernel

TOOLS = """
from fastmcp import FastMCP

mcp = FastMCP("who")
"""


def up(folder: Path, users: dict[str, Any], *more: str) -> "subprocess.CompletedProcess[str]":
    (folder / "tool.py").write_text(TOOLS)
    file = folder / "users.json"
    file.write_text(json.dumps({"ports": "9100-9109", "defaults": {"tools": ["tool.py"]}, "users": users}))
    return run_here(["up", "--users", str(file), "--out", str(folder / "out"), *more])


def written(folder: Path) -> list[str]:
    return sorted(
        str(path.relative_to(folder / "out")) for path in (folder / "out").rglob("*") if path.is_file()
    )


@pytest.mark.release
def test_up_writes_units_and_removes_departed_users(tmp_path: Path) -> None:
    first = json.loads(up(tmp_path, {"ann": {}, "bob": {}}, "--json").stdout)
    second = json.loads(up(tmp_path, {"new": {}, "bob": {}}, "--json").stdout)

    assert [one["port"] for one in first["servers"]] == [9100, 9101]
    assert {one["user"]: one["port"] for one in second["servers"]} == {"new": 9100, "bob": 9101}
    drop_ins = [f"units/toolcell@{name}.service.d/up.conf" for name in ("bob", "new")]
    assert written(tmp_path) == ["units/toolcell.slice", "units/toolcell@.service", *drop_ins, "up.json"]
    assert second["commands"][-1] == "systemctl enable --now toolcell@new toolcell@bob"


def test_up_writes_compose_file(tmp_path: Path) -> None:
    ran = up(tmp_path, {"ann": {}}, "--format", "compose")

    assert ran.returncode == 0, ran.stderr
    assert written(tmp_path) == ["compose.yaml", "up.json"]
    assert f"docker compose --file {tmp_path}/out/compose.yaml up" in ran.stdout


def test_up_leaves_folder_of_other_files_alone(tmp_path: Path) -> None:
    (tmp_path / "out" / "units").mkdir(parents=True)
    (tmp_path / "out" / "units" / "mine").touch()

    ran = up(tmp_path, {"ann": {}})

    assert ran.returncode == 2
    assert "did not write; choose an empty folder" in ran.stderr
    assert written(tmp_path) == ["units/mine"]


@pytest.mark.release
def test_unit_command_starts_server_of_its_user(tmp_path: Path) -> None:
    port = free_port()
    ran = up(tmp_path, {"ann b": {"port": port}}, "--json")
    (unit,) = (tmp_path / "out" / "units").glob("*/up.conf")
    command = re.findall(r"(?m)^ExecStart=(.+)$", unit.read_text())[0]

    assert ran.returncode == 0, ran.stderr
    with subprocess.Popen(
        shlex.split(command), stderr=subprocess.PIPE, text=True, env=environment_in(tmp_path), cwd="/"
    ) as process:
        try:
            url = server_url(process)
            is_ready = until(
                lambda: httpx2.get(f"http://127.0.0.1:{port}/readyz", timeout=180).status_code == 200
            )
        finally:
            stop(process)

    assert shlex.split(command)[0] == sys.executable
    assert f":{port}/" in url
    assert is_ready
