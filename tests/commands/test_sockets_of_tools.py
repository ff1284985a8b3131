"""UNIX sockets of tools: in the home, among the processes of one user, where the operator allows them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import TOOLS, call, details, error_code, open_toolset

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]

FILE = TOOLS / "sockets.py"


async def test_processes_share_list_through_manager(tmp_path: Path, user: str) -> None:
    async with open_toolset(FILE, tmp_path, isolation="namespace", allow_sockets=True) as toolset:
        completed = await call(toolset, user, "shares")

    assert completed.processed.value["results"] == [0, 1, 2]


@pytest.mark.parametrize("tier", ["namespace", "process"])
@pytest.mark.parametrize("tool", ["shares", "listens"])
async def test_denied_socket_names_option(tier: str, tool: str, tmp_path: Path, user: str) -> None:
    arguments = {"name": "own"} if tool == "listens" else {}
    async with open_toolset(FILE, tmp_path, isolation=tier) as toolset:
        completed = await call(toolset, user, tool, **arguments)

    assert details(completed)["flag"] == "--allow-sockets"
    assert "--allow-sockets" in details(completed)["suggestion"]


async def test_tool_with_own_right_has_sockets_others_do_not(tmp_path: Path, user: str) -> None:
    tools = {"visits": {"allow_sockets": True}, "listens": {"allow_sockets": True}}
    async with open_toolset(FILE, tmp_path, isolation="namespace", tools=tools) as toolset:
        listening = await call(toolset, user, "listens", name="own")
        visiting = await call(toolset, user, "visits", name="own")
        sharing = await call(toolset, user, "shares")

    assert error_code(listening) is None
    assert visiting.processed.value["results"] == "let in"
    assert details(sharing)["flag"] == "--allow-sockets"


async def test_other_user_refused_at_socket_and_home_emptied(tmp_path: Path, user: str) -> None:
    other = f"{user}-b"
    async with open_toolset(FILE, tmp_path, isolation="namespace", allow_sockets=True) as toolset:
        await call(toolset, user, "listens", name="own")
        own = await call(toolset, user, "visits", name="own")
        foreign = await call(toolset, other, "visits", name=f"/tmp/{user}/own")
        assert Path(f"/tmp/{user}/own").is_socket()

    assert own.processed.value["results"] == "let in"
    assert error_code(foreign) is not None
    assert not Path(f"/tmp/{user}").exists()


async def test_socket_is_not_collected_as_file(tmp_path: Path, user: str) -> None:
    async with open_toolset(
        FILE, tmp_path, isolation="namespace", allow_sockets=True, generated="keep"
    ) as toolset:
        completed = await call(toolset, user, "calls_it_a_file")

    value = completed.processed.value
    assert "artifacts" not in value
    assert "generated_files" not in value["meta_data"]
    assert value["meta_data"]["artifact_errors"][0]["reason"] == "invalid_path"


def test_sockets_refused_in_tier_with_shared_names(tmp_path: Path) -> None:
    words = ["call", str(FILE), "shares", "--isolation", "process", "--allow-sockets"]
    environment = {"PATH": os.environ["PATH"], "RUNNER_STATE_DIR": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-m", "runner", *words],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 5
    assert "allow_sockets cannot be given in tier process" in ended.stderr
