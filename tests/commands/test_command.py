"""The commands as a shell uses them: output, exit status, and that they leave no process behind."""

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import SAMPLES, TOOLS, Ran, alive, strongest_tier, until

pytestmark = [pytest.mark.kernel, pytest.mark.release]

CSV = SAMPLES / "data" / "sales.csv"
RUNNER = [sys.executable, "-m", "runner.cli.app"]


@pytest.fixture
def start(environment: dict[str, str], folder: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Start `runner ARGUMENT...` and let it run; it is killed at the end of the test."""
    started: list[subprocess.Popen[str]] = []

    def start_runner(*arguments: str | Path) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [*RUNNER, *map(str, arguments)],
            env=environment,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start_runner
    for process in started:
        process.kill()
        process.communicate()


def below(host: int) -> set[int]:
    """Return the forkserver of a host, its zygotes and their workers: all have one command line."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"sandbox.inside.forkserver_main" in words and str(host).encode() in words:
            found.add(int(path.parent.name))
    return {pid for pid in found if alive(pid)}


def left_in(home: Path) -> set[str]:
    """Return what lies in a home, where there still is one, beside what every home has."""
    return set(os.listdir(home)) - {"input_files"} if home.exists() else set()


def serve_and_call(process: "subprocess.Popen[str]", tool: str) -> None:
    """Shake hands with a server on stdio and start a call without waiting for its end."""
    assert process.stdin is not None
    assert process.stdout is not None
    hello = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }
    send(process, id=1, method="initialize", params=hello)
    assert json.loads(process.stdout.readline())["result"]["serverInfo"]["name"] == "ends"
    send(process, method="notifications/initialized")
    send(process, id=2, method="tools/call", params={"name": tool, "arguments": {}})


def send(process: "subprocess.Popen[str]", **message: Any) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    process.stdin.flush()


def test_call_prints_document_writes_artifacts_shows_progress(
    run: Callable[..., Ran], folder: Path, user: str
) -> None:
    out = folder / "out"

    ran = run(
        *("call", SAMPLES / "sales_report.py", "sales_report", f"filename=@{CSV}"),
        *("--json", "--out", out, "--user", user),
    )

    artifacts = ran.json["artifacts"]
    assert ran.status == 0
    assert ran.json["results"]["rows"] == len(CSV.read_bytes().splitlines()) - 1
    assert [artifact["name"] for artifact in artifacts] == ["sales_report.html", "revenue_by_month.png"]
    assert not [artifact for artifact in artifacts if "path" in artifact]
    assert {artifact["name"]: base64.b64decode(artifact["b64"]) for artifact in artifacts} == {
        path.name: path.read_bytes() for path in out.iterdir()
    }
    assert "100%" in ran.err


def test_call_prints_for_people_and_leaves_folder_unchanged(
    run: Callable[..., Ran], folder: Path, user: str
) -> None:
    before = sorted(os.listdir(folder))

    ran = run("call", TOOLS / "files.py", "make", "name=a.txt", "size=1536", "--user", user)

    assert ran.status == 0
    assert ran.out == '{\n  "written": 1536\n}\na.txt  (1.5KB, text/plain)\n'
    assert ran.err == ""
    assert set(os.listdir(folder)) - {*before} <= {"state", "store"}


@pytest.mark.parametrize(
    ("status", "code", "tool_file", "arguments"),
    [
        (1, "E_TOOL", "every.py", ["fails", "reason=no luck"]),
        (3, "E_TIMEOUT", "ends.py", ["sleeps", "--timeout", "0.2"]),
        (3, "E_TIMEOUT", "ends.py", ["chatty", "seconds=60", "--total-timeout", "0.5"]),
        (4, "E_INVALID_PATH", "files.py", ["write", "path=/tmp/outside-of-every-home"]),
        (6, "E_FILE_TOO_LARGE", "odd_files.py", ["hands_back", f"filename=@{CSV}"]),
    ],
)
def test_exit_status_reports_how_call_ended(
    run: Callable[..., Ran], user: str, status: int, code: str, tool_file: str, arguments: list[str]
) -> None:
    ran = run(
        *("call", TOOLS / tool_file, *arguments, "--json", "--user", user),
        RUNNER_MAX_ARTIFACT_BYTES="1000",
    )

    assert ran.json["meta_data"]["error_code"] == code
    assert ran.status == status
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("status", "path"), [(4, "/etc/hostname"), (1, "missing.txt")], ids=["outside", "missing"]
)
def test_call_with_refused_artifact_sets_exit_status(
    run: Callable[..., Ran], user: str, status: int, path: str
) -> None:
    ran = run("call", TOOLS / "files.py", "claim", f'paths:=["{path}"]', "--user", user)

    assert ran.status == status
    assert ran.out.startswith('{\n  "user": "')
    assert "not delivered: 0.txt: " in ran.out


def test_interrupted_call_leaves_nothing_running(
    start: Callable[..., "subprocess.Popen[str]"], user: str
) -> None:
    process = start("call", TOOLS / "ends.py", "chatty", "seconds=60", "--user", user)
    assert process.stderr is not None
    running = process.stderr.readline()
    before = below(process.pid)

    process.send_signal(signal.SIGINT)
    _out, err = process.communicate(timeout=180)

    assert running == "report 1\n"
    assert len(before) >= 3
    assert process.returncode == 130
    assert err.splitlines()[-1] == "interrupted; nothing is left running"
    assert below(process.pid) == set()


@pytest.mark.parametrize("way", ["end of input", "SIGTERM"])
def test_stdio_server_ends_cleanly_during_call(
    start: Callable[..., "subprocess.Popen[str]"], user: str, way: str
) -> None:
    process = start("serve", TOOLS / "ends.py", "--transport", "stdio", "--user", user)
    serve_and_call(process, "leaves_partial")
    home = Path(f"/tmp/{user}")
    assert until((home / "partial.txt").exists)
    before = below(process.pid)

    if way == "end of input":
        process.communicate(timeout=180)
    else:
        process.terminate()
        process.wait(timeout=180)

    assert len(before) >= 4
    assert process.returncode == 0
    assert until(lambda: not below(process.pid))
    assert left_in(home) == set()


def test_killed_host_takes_all_processes_along(
    start: Callable[..., "subprocess.Popen[str]"], user: str
) -> None:
    process = start("serve", TOOLS / "ends.py", "--transport", "stdio", "--user", user)
    serve_and_call(process, "leaves_partial")
    assert until(Path(f"/tmp/{user}/partial.txt").exists)
    before = below(process.pid)

    process.kill()
    process.wait()

    assert len(before) >= 4
    assert until(lambda: not below(process.pid))


def test_config_shows_values_and_their_sources(run: Callable[..., Ran], folder: Path) -> None:
    (folder / "runner.toml").write_text("max_calls = 3\n")
    ignored = run("config", "--json")
    run("trust")

    text = run("config", "--user", "ann", RUNNER_PORT="9000")
    document = run("config", "--json", "--user", "ann", RUNNER_PORT="9000")

    assert ignored.json["max_calls"] == {"value": 16, "origin": "default"}
    assert "max_calls is ignored" in ignored.err
    assert (text.status, document.status) == (0, 0)
    assert {name: document.json[name] for name in ("user", "port", "max_calls", "host")} == {
        "user": {"value": "ann", "origin": "flag"},
        "port": {"value": 9000, "origin": "environment RUNNER_PORT"},
        "max_calls": {"value": 3, "origin": "runner.toml"},
        "host": {"value": "127.0.0.1", "origin": "default"},
    }
    assert {line.partition(" ")[0] for line in text.out.splitlines()} == document.json.keys()


def test_doctor_confirms_this_machine_can_confine(run: Callable[..., Ran]) -> None:
    text = run("doctor")
    document = run("doctor", "--json")

    assert (text.status, document.status) == (0, 0)
    assert (document.json["ok"], document.json["tier"]) == (True, strongest_tier())
    assert "landlock" in text.out
    assert text.err == document.err == ""
