"""A folder that somebody else filled: its configuration gives nothing, runs nothing, and starts no server."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support import Ran

pytestmark = [pytest.mark.kernel, pytest.mark.release]

Run = Callable[..., Ran]
TOOL = """
import os
from fastmcp import FastMCP
import fastmcp

mcp = FastMCP("t")


@mcp.tool
def sees() -> str:
    return str(os.environ.get("CANARY"))
"""
# A command leaves a file beside the configuration, and so does the operator's own code.
CONFIG = """
allow_env = ["CANARY"]

[secrets.KEY]
command = ["sh", "-c", "touch {folder}/ran; echo a-long-value"]
tools = ["sees"]
"""
CODE = "open({ran!r}, 'w').close()\n\n\ndef shorten(tool, result, ctx):\n    return None\n"


@pytest.fixture
def cloned(folder: Path) -> Path:
    (folder / "tool.py").write_text(TOOL)
    (folder / "runner.toml").write_text(CONFIG.format(folder=folder))
    return folder


def test_call_gets_rights_of_a_file_only_once_trusted(run: Run, cloned: Path) -> None:
    before = run("call", "tool.py", "sees", CANARY="sk-canary")
    ran_before = (cloned / "ran").exists()
    trusted = run("trust")
    after = run("call", "tool.py", "sees", CANARY="sk-canary")

    assert (before.status, "None" in before.out, ran_before) == (0, True, False)
    assert f"{cloned}/runner.toml is not trusted, so allow_env, " in before.err
    assert 'secrets.KEY.command = ["sh", "-c", "touch' in trusted.out
    assert "sk-canary" in after.out
    assert (cloned / "ran").exists()


@pytest.mark.parametrize(
    "words", [("check", "tool.py"), ("doctor",), ("config",), ("install", "mcp-json", "tool.py"), ("trust",)]
)
def test_command_that_reports_runs_none_of_a_trusted_file(
    words: tuple[str, ...], run: Run, cloned: Path
) -> None:
    run("trust")

    done = run(*words)

    assert (done.status, done.err.count("is not trusted")) == (0, 0)
    assert not (cloned / "ran").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("serve", "tool.py", "--transport", "stdio"),
        ("dev", "tool.py"),
        ("proxy", "--", "true"),
        ("users", "list"),
    ],
)
def test_server_refuses_start_beside_untrusted_file(words: tuple[str, ...], run: Run, cloned: Path) -> None:
    refused = run(*words)

    assert refused.status == 2
    assert f"run `runner trust {cloned}`" in refused.err
    assert not (cloned / "ran").exists()


def test_module_beside_a_trusted_file_is_trusted_with_it(run: Run, cloned: Path) -> None:
    (cloned / "own.py").write_text(CODE.format(ran=str(cloned / "imported")))
    (cloned / "runner.toml").write_text('[output_guard]\noutput_transformer = "own:shorten"\n')
    trusted = run("trust")
    served = run("serve", "tool.py", "--transport", "stdio")
    imported = (cloned / "imported").exists()
    (cloned / "own.py").write_text(CODE.format(ran=str(cloned / "again")))
    refused = run("serve", "tool.py", "--transport", "stdio")

    assert f"trusted {cloned}/own.py, which runs unconfined" in trusted.out
    assert (served.status, imported) == (0, True)
    assert (refused.status, (cloned / "again").exists()) == (2, False)
    assert "own.py is not trusted for output_transformer" in refused.err


def test_init_output_trusted_until_changed(run: Run, folder: Path) -> None:
    made = run("init")
    listed = run("trust", "--list")
    (folder / "runner.toml").write_text("max_calls = 3\n")

    assert f"trusted {folder}/runner.toml" in made.out.replace(
        "trusted runner.toml", f"trusted {folder}/runner.toml"
    )
    assert listed.out == f"{folder}/runner.toml  unchanged\n"
    assert run("trust", "--list").out == f"{folder}/runner.toml  changed: not trusted\n"
    assert run("trust", "--remove").status == 0
    assert run("trust", "--list").out == "no file is trusted\n"


def test_host_of_fastmcp_json_needs_trust(run: Run, folder: Path) -> None:
    (folder / "tool.py").write_text(TOOL)
    target = folder / "fastmcp.json"
    document = {"source": {"path": "tool.py"}, "deployment": {"transport": "stdio"}}
    target.write_text(json.dumps(document))
    local = run("serve", "fastmcp.json")
    document["deployment"]["host"] = "0.0.0.0"
    target.write_text(json.dumps(document))
    wide = run("serve", "fastmcp.json")
    run("trust", "fastmcp.json")

    assert local.status == 0
    assert wide.status == 2
    assert f"is not trusted for its host: read it, then run `runner trust {target}`" in wide.err
    assert run("serve", "fastmcp.json").status == 0


def test_grants_of_mcp_json_need_trust(run: Run, folder: Path) -> None:
    lent = folder / "lent"
    lent.mkdir()
    server = {"command": "true", "allow_write": [str(lent)]}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"own": server}}))

    refused = run("proxy", "mcp.json", "--transport", "stdio")
    run("trust", "mcp.json")
    trusted = run("proxy", "mcp.json", "--transport", "stdio")

    assert refused.status == 2
    assert "is not trusted for what it lends to own" in refused.err
    assert "is not trusted" not in trusted.err


def test_env_file_of_the_folder_configures_no_library(environment: dict[str, str], folder: Path) -> None:
    (folder / ".env").write_text("FASTMCP_LOG_LEVEL=CRITICAL\n")
    shown = "import fastmcp; print(fastmcp.settings.log_level)"
    # A test that has imported the command line in this process has set it.
    environment = {name: value for name, value in environment.items() if name != "FASTMCP_ENV_FILE"}

    def level(program: str) -> str:
        command = [sys.executable, "-c", program]
        ended = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, check=True
        )
        return ended.stdout.strip()

    assert level(shown) == "CRITICAL"
    assert level(f"import runner.cli.app; {shown}") == "INFO"
