"""`runner test`: a set of requests that the Playground saved, made against a tool file in its sandbox.

Source: `docs/cli.md`, "test"; `docs/playground.md`, "Work that is kept".
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runner.cli.request_set import faults_of, read_requests

pytestmark = [pytest.mark.kernel, pytest.mark.release]

TOOLS = '''
from pathlib import Path

from fastmcp import FastMCP

mcp = FastMCP("kinds")


@mcp.tool
def add(one: int, other: int) -> int:
    """Add."""
    return one + other


@mcp.tool
def report(username: str) -> dict:
    """Write a file."""
    file = Path("/tmp") / username / "report 2026.csv"
    file.write_text("a,b\\n1,2\\n")
    return {"results": "written", "artifacts": [{"name": file.name, "path": str(file)}]}


@mcp.tool
def raises() -> str:
    """Fail."""
    raise ValueError("the moon is full")


@mcp.prompt
def summary(text: str) -> str:
    """Sum up."""
    return f"Sum up: {text}"


@mcp.resource("data://towns")
def towns() -> str:
    """Name towns."""
    return "Ulm, Trier"
'''


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    file = tmp_path / "kinds.py"
    file.write_text(TOOLS)
    return file


def a(kind: str, target: str, arguments: dict[str, Any] | None = None, **expected: Any) -> dict[str, Any]:
    """Return a request as the page saves one."""
    named = {"folder": "", "name": f"{kind} {target}", "server": "kinds"}
    return {**named, "kind": kind, "target": target, "args": arguments or {}, "expect": expected}


def run(
    tools: Path, *requests: dict[str, Any], text: str | None = None, more: tuple[str, ...] = ("--json",)
) -> "subprocess.CompletedProcess[str]":
    folder = tools.parent
    (folder / "homes").mkdir(mode=0o700, exist_ok=True)
    environment = {
        **os.environ,
        "RUNNER_STATE_DIR": str(folder / "state"),
        "RUNNER_STORE": (folder / "store").as_uri(),
        "RUNNER_HOMES": str(folder / "homes"),
        "RUNNER_USER": "t-set",
    }
    saved = {"format": "toolcell-requests", "version": 1, "requests": list(requests)}
    return subprocess.run(
        [sys.executable, "-m", "runner", "test", str(tools), "-", *more],
        input=json.dumps(saved) if text is None else text,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def faults(done: "subprocess.CompletedProcess[str]") -> list[list[str]]:
    assert done.stdout, done.stderr
    return [each["faults"] for each in json.loads(done.stdout)["requests"]]


def test_each_kind_of_request_that_gives_what_is_expected_passes(tools: Path) -> None:
    done = run(
        tools,
        a("tool", "add", {"one": 2, "other": 3}, text="5", schema={"required": ["result"]}),
        a("tool", "report", artifact="report *.csv", text="/WRITTEN/i"),
        a("tool", "raises", status="failed", text="the moon is full"),
        a("prompt", "summary", {"text": "Faust"}, text="Sum up: Faust"),
        a("resource", "data://towns", text="/^Ulm, [A-Z]/"),
        a("resource", "data://nowhere", status="failed"),
    )

    assert (done.returncode, faults(done)) == (0, [[]] * 6)


def test_what_is_not_as_expected_is_said(tools: Path) -> None:
    done = run(
        tools,
        a("tool", "raises"),
        a("tool", "add", {"one": 2, "other": 3}, status="failed"),
        a("tool", "add", {"one": 2, "other": 3}, text="6", artifact="*.png"),
        a("tool", "add", {"one": 2, "other": 3}, schema={"properties": {"result": {"type": "string"}}}),
        a("tool", "add", {"one": 2, "other": 3}, schema={"type": "nothing"}),
        # Only the star stands for something.
        a("tool", "report", artifact="report ????.csv"),
        a("resource", "data://towns", text="/Bonn/"),
    )

    assert done.returncode == 1
    raised, ended, lacking, unlike, unusable, marks, towns = faults(done)
    assert raised[0].startswith("it is failed, expected done: ")
    assert "the moon is full" in raised[0]
    assert ended == ["it is done, expected failed"]
    assert lacking == ["its text lacks “6”", "no file *.png among none"]
    assert unlike == ["$.result: 5 is not of type 'string'"]
    assert unusable[0].startswith("the schema cannot be used: ")
    assert marks == ["no file report ????.csv among report 2026.csv"]
    assert towns == ["its text lacks “/Bonn/”"]


def test_people_read_which_requests_passed(tools: Path) -> None:
    done = run(
        tools, {**a("tool", "add", text="x"), "folder": "sums"}, a("resource", "data://towns"), more=()
    )

    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert lines[0].startswith("failed  sums/tool add  (")
    assert "        its text lacks “x”" in lines
    assert lines[-1] == "1 of 2 passed"


def test_of_several_servers_it_is_said_whose_requests_are_made(tools: Path) -> None:
    requests = [a("resource", "data://towns"), {**a("tool", "away"), "server": "others"}]

    refused = run(tools, *requests)
    done = run(tools, *requests, more=("--json", "--server", "kinds"))
    unknown = run(tools, *requests, more=("--server", "nobody"))

    assert (refused.returncode, unknown.returncode) == (2, 2)
    assert "kinds, others" in refused.stderr
    assert "--server" in refused.stderr
    assert "nobody" in unknown.stderr
    assert (done.returncode, faults(done)) == (0, [[]])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no json", "no JSON"),
        ('{"requests": []}', "Save as file"),
        ('{"format": "toolcell-requests", "requests": []}', "no requests"),
        ('{"format": "toolcell-requests", "requests": [{"kind": "tool"}]}', "request 1 lacks"),
        (
            '{"format": "toolcell-requests", "requests": [{"kind": "tool", "target": "x", "args": 1}]}',
            "request 1 (x): args",
        ),
        (
            '{"format": "toolcell-requests", "requests": '
            '[{"kind": "tool", "target": "x", "expect": {"status": "ok"}}]}',
            "status is one of done, failed",
        ),
    ],
)
def test_what_is_no_set_of_requests_is_refused_in_a_sentence(tools: Path, text: str, said: str) -> None:
    done = run(tools, text=text)

    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


# The library says that it is about to read elsewhere, which is not what keeps it from it.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_schema_of_a_set_reads_no_file_and_fetches_no_address(tmp_path: Path) -> None:
    elsewhere = tmp_path / "schema.json"
    elsewhere.write_text("{}")
    wanted = {"kind": "tool", "target": "x", "expect": {"schema": {"$ref": elsewhere.as_uri()}}}
    [request] = read_requests(json.dumps({"format": "toolcell-requests", "requests": [wanted]}))

    [fault] = faults_of(request, {"structuredContent": {"a": 1}})

    assert fault.startswith("the schema cannot be used: ")
