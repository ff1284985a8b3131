"""`runner check`, `runner init` and `runner install` as a shell uses them."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from specimens import FAULTY, SANDBOXED, SLOW, expected
from support import ROOT, SAMPLES, Ran

from runner.cli.commands.init import FILES

pytestmark = [pytest.mark.kernel, pytest.mark.release]

SPECIMENS = {file.stem: file for file in FAULTY}
Run = Callable[..., Ran]


def findings(ran: Ran) -> set[tuple[int, str]]:
    return {(found["line"], found["rule"]) for found in ran.json["findings"]}


def test_faults_seen_in_sandbox_found_at_their_lines(run: Run) -> None:
    """Source: S1-48, S1-108, S1-109 and S1-111."""
    checked = run("check", SANDBOXED, "--json")

    assert findings(checked) == expected(SANDBOXED)
    assert checked.status == 1
    assert checked.err == ""
    runs = {called["tool"]: called for called in checked.json["dry_run"]}
    assert runs["read"]["read"] == ["input_files/example.csv"]
    assert runs["returned"]["wrote"] == ["chart.csv"]
    assert runs["homeless"]["denied"] == [{"operation": "os.open", "path": "example", "layer": "guard"}]
    assert runs["careful"]["denied"][0]["path"] == "/var/cache/example"
    assert runs["careful"]["error"] is None
    assert runs["typed"] == {
        "tool": "typed",
        "arguments": {"text": "example"},
        "error": None,
        "wrote": [],
        "read": [],
        "denied": [],
    }


def test_slow_import_and_its_thread_found_at_their_lines(run: Run) -> None:
    checked = run("check", SLOW, "--json")

    assert findings(checked) == expected(SLOW)
    assert checked.status == 0
    assert checked.json["runs"]["forked"] is False


def test_check_longest_sample_reports_needs_without_faults(run: Run) -> None:
    checked = run("check", SAMPLES / "sales_report.py", "--json")

    assert checked.status == 0
    assert checked.json == {
        "file": "sales_report.py",
        "loads": True,
        "error": None,
        "runs": {"forked": True, "why": "every call is forked from a process that has loaded the file"},
        "tools": [{"name": "sales_report", "arguments": ["filename", "username"], "home": "write"}],
        "needs": [],
        "dry_run": [
            {
                "tool": "sales_report",
                "arguments": {"filename": "example.csv"},
                "error": "The table has no column date, region, product, revenue; it has name, value.",
                "wrote": [],
                "read": ["input_files/example.csv"],
                "denied": [],
            }
        ],
        "background_refused": [],
        "secrets": {},
        "not_looked_at": [],
        "findings": [],
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"# coding: rot13\nimport os\n", "odd.py"),
        (f"x = {'-' * 200_000}1\n".encode(), "odd.py"),
        (b"import nowhere_to_be_found\n", "needs the module 'nowhere_to_be_found'"),
    ],
    ids=["no-coding-of-text", "nests-without-end", "no-such-module"],
)
def test_unloadable_file_exits_2(run: Run, folder: Path, text: bytes, reason: str) -> None:
    (folder / "odd.py").write_bytes(text)

    checked = run("check", folder / "odd.py")

    assert checked.status == 2
    assert reason in checked.err
    assert "Traceback" not in checked.err
    assert "fault of the runner" not in checked.out + checked.err


NAMED_OTHERWISE = '''"""Notes."""

from pathlib import Path

from fastmcp import FastMCP

mcp = FastMCP("notes")


@mcp.tool
def note(text: str, who: str) -> dict:
    """Keep a note."""
    file = Path(f"/tmp/{who}/notes.txt")
    file.write_text(text)
    return {"artifacts": [{"name": "notes.txt", "path": str(file)}]}


@mcp.tool
def lose(text: str, username: str) -> str:
    """Keep a note of somebody who is named."""
    Path("/tmp/{}/notes.txt".format(username)).write_text(text)
    return "kept"


@mcp.tool
def count(who: int) -> int:
    """Count."""
    return who
'''


def test_username_parameter_of_settings_gives_home(run: Run, tmp_path: Path) -> None:
    file, config = tmp_path / "notes.py", tmp_path / "other.toml"
    file.write_text(NAMED_OTHERWISE)
    config.write_text('username_parameter = "who"\n')

    named = run("check", file, "--config", config, "--json")

    assert findings(named) == {(21, "write-without-username"), (26, "username-type")}
    cures = [found["cure"] for found in named.json["findings"]]
    assert cures == ["write in a tool that takes `who: str`, below `/tmp/{who}/`", "write `who: str`"]
    assert [tool["home"] for tool in named.json["tools"]] == ["write", "none", "write"]


def test_check_secrets_listed_and_missing_one_reported(run: Run, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.write_text("a-value-of-length")
    there.chmod(0o600)
    config = tmp_path / "with_secrets.toml"
    config.write_text(
        f'[secrets.GONE]\nfile = "gone"\ntools = ["sales_report"]\n'
        f'[secrets.THERE]\nfile = "{there}"\ntools = ["sales_report"]\n'
        f'[secrets.OTHER]\nfile = "gone"\ntools = ["of_another_file"]\n'
    )

    checked = run("check", SAMPLES / "sales_report.py", "--config", config)

    assert f"secret GONE: secrets.GONE.file {tmp_path}/gone does not exist" in checked.out
    assert "secret THERE: can be read" in checked.out
    assert "OTHER" not in checked.out
    assert checked.status == 0


def test_check_write_at_import_reports_rule_and_load_error(run: Run) -> None:
    checked = run("check", SPECIMENS["import_makes_folder"], "--json")

    assert checked.status == 2
    assert findings(checked) == expected(SPECIMENS["import_makes_folder"])
    assert checked.json["loads"] is False
    assert "cache-of-a-tool" in checked.json["error"]
    assert "import_makes_folder.py cannot be served: " in checked.err
    assert not Path("/tmp/cache-of-a-tool").exists()


def test_check_tools_of_another_module_listed_as_skipped(run: Run, folder: Path) -> None:
    (folder / "parts.py").write_text(
        "from fastmcp import FastMCP\napp = FastMCP('a')\n@app.tool\ndef far(x): ...\n"
    )
    (folder / "whole.py").write_text("from parts import app as mcp\n")

    checked = run("check", folder / "whole.py")

    assert checked.status == 0
    assert "not looked at, because not defined in this file: far" in checked.out


def test_init_output_works_and_passes_its_own_test(
    run: Run, folder: Path, environment: dict[str, str]
) -> None:
    made = run("init", folder / "new")
    called = run("call", "new/my_tool.py", "count_words", "filename=@new/runner.toml", "--json")
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
        "-p",
        "no:xdist",
    ]
    tested = subprocess.run(
        [*words, "--rootdir", folder / "new", folder / "new"],
        cwd=folder / "new",
        env=environment,
        capture_output=True,
        text=True,
    )

    assert made.status == 0
    assert sorted(path.name for path in (folder / "new").glob("*.*")) == sorted(FILES)
    assert called.status == 0, called.err
    assert called.json["results"]["words"] > 10
    assert [item["name"] for item in called.json["artifacts"]] == ["words.csv"]
    assert tested.returncode == 0, tested.stdout
    assert "2 passed" in tested.stdout


def test_init_overwrites_nothing_and_then_writes_nothing(run: Run, folder: Path) -> None:
    (folder / "my_tool.py").write_text("mine")

    refused = run("init")

    assert refused.status == 2
    assert "this folder already has my_tool.py; nothing was written" in refused.err
    assert (folder / "my_tool.py").read_text() == "mine"
    assert not (folder / "runner.toml").exists()


def test_init_into_non_folder_reports_a_sentence(run: Run, folder: Path) -> None:
    (folder / "file").write_text("mine")

    refused = run("init", folder / "file" / "new")

    assert refused.status == 2
    assert "cannot be written: Not a directory" in refused.err


def test_install_entry_starts_server_that_answers(
    run: Run, folder: Path, environment: dict[str, str]
) -> None:
    shutil.copy(SAMPLES / "hello.py", folder)
    installed = run("install", "cursor", "hello.py", "--user", environment["RUNNER_USER"])
    entry = json.loads((folder / ".cursor" / "mcp.json").read_text())["mcpServers"]["hello"]
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}

    answered = subprocess.run(
        [entry["command"], *entry["args"]],
        input=json.dumps(message) + "\n",
        cwd="/",
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
    )

    assert installed.status == 0, installed.err
    assert json.loads(answered.stdout.splitlines()[0])["result"]["serverInfo"]["name"] == "shout"
    assert entry["args"][:2] == ["serve", str(folder / "hello.py")]


def test_mcp_json_printed_and_nothing_written(run: Run, folder: Path) -> None:
    printed = run("install", "mcp-json", SAMPLES / "hello.py", "--name", "greeter")

    assert printed.status == 0
    assert printed.json["mcpServers"]["greeter"]["args"][-2:] == ["--transport", "stdio"]
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["emacs", SAMPLES / "hello.py"],
            "'emacs' is not one of 'claude-desktop', 'claude-code', 'cursor', 'vscode', 'mcp-json'",
        ),
        (["cursor", "nowhere.py"], "there is no file nowhere.py"),
        (["cursor", ROOT / "README.md"], "its name must end in .py"),
        (["cursor", ROOT / "tests/support.py"], "support.py cannot be served: "),
    ],
)
def test_wrong_install_argument_reports_a_sentence(run: Run, words: list[str | Path], says: str) -> None:
    refused = run("install", *words)

    assert refused.status == 2
    assert says in refused.err


def test_check_failed_warmup_reports_cause_and_rule_findings(run: Run, folder: Path) -> None:
    (folder / "life.py").write_text(
        "from contextlib import asynccontextmanager\nfrom fastmcp import FastMCP\n"
        "@asynccontextmanager\nasync def life(server):\n    raise OSError('no database')\n    yield\n"
        "mcp = FastMCP('t', lifespan=life)\n@mcp.tool\ndef act(): print(1)\n"
    )

    checked = run("check", folder / "life.py", "--json")

    assert checked.status == 2
    assert findings(checked) == {(9, "print-to-stdout")}
    assert "no database" in checked.json["error"]
    assert "no database" in checked.err
