"""Tool files within another program: called from it, served by its server, with a store that it brings."""

import base64
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from held_objects import open_descriptors
from somebody import somebody
from support import ROOT

from runner.api import Runner
from runner.errors import CallError, Code, UsageError
from runner.toolset import toolset

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]

PREFIX = "io.modelcontextprotocol/"
TOOLS = '''
from fastmcp import FastMCP

mcp = FastMCP("embedded")


@mcp.tool
def make(text: str, username: str) -> dict:
    """Make a file."""
    with open(f"/tmp/{username}/made.txt", "w") as file:
        file.write(text)
    return {"results": "made", "artifacts": [{"name": "made.txt", "path": f"/tmp/{username}/made.txt"}]}


@mcp.tool
def reach(path: str, username: str) -> str:
    """Write somewhere."""
    with open(path, "w") as file:
        file.write("x")
    return "written"
'''


class Keeper:
    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}

    async def put_artifact(self, content: bytes, *, artifact_id: str, **fields: Any) -> None:
        self.held[artifact_id] = content

    async def get_artifact(self, artifact_id: str) -> bytes | None:
        return self.held.get(artifact_id)

    async def delete_artifact(self, artifact_id: str) -> None:
        self.held.pop(artifact_id, None)


class Having:
    def __init__(self, store: object) -> None:
        self.artifact_store = store


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    file = tmp_path / "embedded.py"
    file.write_text(TOOLS)
    return file


def own(folder: Path) -> dict[str, object]:
    return {"state_dir": str(folder / "state"), "generated": "ignore"}


def test_documented_example_prints_documented_output(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "serving.md").read_text().partition("## From a Python program")[2]
    report, program, *_ = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    (printed,) = re.findall(r"^It prints `(.*)`\.$", text, re.MULTILINE)
    (tmp_path / "report.py").write_text(report)
    (tmp_path / "program.py").write_text(program)

    ran = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env={**os.environ, "RUNNER_STATE_DIR": str(tmp_path / "state"), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert (ran.returncode, ran.stdout.strip()) == (0, printed), ran.stderr


async def test_call_confined_and_file_in_given_store(tools: Path, tmp_path: Path) -> None:
    """Source: S4-64."""
    keeper, outside = Keeper(), tmp_path / "outside.txt"
    with somebody() as user:
        async with Runner(tools, store=keeper, identity=user, settings=own(tmp_path)) as runner:
            made = await runner.call("make", {"text": "hi"})
            refused = await runner.call("reach", {"path": str(outside)})
            allowed = await runner.call("reach", {"path": f"/tmp/{user}/inside.txt"})
            (file,) = await runner.files().all()
            async with runner.files().open(file) as content:
                read = b"".join([chunk async for chunk in content])

    assert (made["results"], base64.b64decode(made["artifacts"][0]["b64"])) == ("made", b"hi")
    assert allowed["results"] == "written"
    assert refused["meta_data"]["is_error"] is True
    assert not outside.exists()
    assert (file.name, read, list(keeper.held.values())) == ("made.txt", b"hi", [b"hi"])


@pytest.mark.release
async def test_store_of_object_is_used(tools: Path, tmp_path: Path) -> None:
    """Source: S4-64 and S4-68."""
    with somebody() as user:
        async with Runner(tools, store="memory:", identity=user, settings=own(tmp_path)) as first:
            await first.call("make", {"text": "hi"})
            having = Having(first.files().library.store)
            async with Runner(tools, store=having, identity=user, settings=own(tmp_path)) as second:
                found = [file.name for file in await second.files().all()]

    assert found == ["made.txt"]
    assert not list((tmp_path / "state").rglob("*.sqlite"))


@pytest.mark.parametrize("store", [object(), Having("store"), 5])
def test_object_without_store_refused_by_name(tools: Path, tmp_path: Path, store: object) -> None:
    with pytest.raises(UsageError, match=f"{type(store).__name__} has no store: .*put_artifact"):
        Runner(tools, store=store, settings=own(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"store": "s3://b"}, "argument store of Runner: 's3://b' will not do for store: 'b' is "),
        ({"identity": ""}, "argument identity of Runner: '' will not do for user: "),
        ({"settings": {"max_calls": 0}}, "settings['max_calls'] of Runner: 0 will not do for max_calls: "),
    ],
)
def test_usage_error_names_argument_as_written(tools: Path, arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(sentence)}"):
        Runner(tools, **arguments)


async def test_http_application_answers_user_of_identity(tools: Path, tmp_path: Path) -> None:
    meta = {"protocolVersion": "2026-07-28", "clientInfo": {"name": "t", "version": "1"}}
    meta["clientCapabilities"] = {}
    params = {
        "name": "make",
        "arguments": {"text": "hi"},
        "_meta": {PREFIX + key: value for key, value in meta.items()},
    }
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": "make",
    }
    with somebody() as user:
        async with Runner(tools, store="memory:", identity=user, settings=own(tmp_path)) as runner:
            app = runner.app
            transport = httpx2.ASGITransport(app=app)
            async with (
                app.router.lifespan_context(app),
                httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client,
            ):
                message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
                answered = await client.post("/mcp", json=message, headers=headers)
            files = [file.name for file in await runner.files().all()]

    assert answered.status_code == 200, answered.text
    body = answered.text.split("data: ", 1)[-1]
    assert json.loads(body)["result"]["structuredContent"]["results"] == "made"
    assert files == ["made.txt"]


async def test_application_without_possible_callers_refused(tools: Path, tmp_path: Path) -> None:
    async with Runner(tools, store="none:", settings=own(tmp_path)) as runner:
        with pytest.raises(UsageError, match="nothing says who may call"):
            _ = runner.app


async def test_application_without_tls_refuses_gateway_certificate(tools: Path, tmp_path: Path) -> None:
    by_address = {"kind": "gateway", "gateway_addresses": ["127.0.0.1"]}
    tls = {"gateway_tls": str(tmp_path / "tls"), "gateway_names": ["gateway.example.com"]}
    by_certificate = {**by_address, **tls}

    async with Runner(tools, store="none:", settings={**own(tmp_path), "auth": by_address}) as runner:
        known = runner.app
    async with Runner(tools, store="none:", settings={**own(tmp_path), "auth": by_certificate}) as runner:
        with pytest.raises(UsageError, match=r"auth\.gateway_tls is for a server"):
            _ = runner.app

    assert known is not None


@pytest.mark.parametrize("text", [Path("/a"), b"bytes", {1, 2}, float("nan")])
async def test_non_json_arguments_are_callers_fault(tools: Path, tmp_path: Path, text: object) -> None:
    with somebody() as user:
        async with Runner(tools, store="memory:", identity=user, settings=own(tmp_path)) as runner:
            control = await runner.call("make", {"text": "hi"})
            refused = await runner.call("make", {"text": text})

    assert control["results"] == "made"
    assert refused["meta_data"]["error_code"] == "E_INVALID_ARGUMENT"
    assert "JSON" in refused["results"]["error"]


@pytest.mark.release
async def test_runner_is_in_one_block_at_a_time(tools: Path, tmp_path: Path) -> None:
    with somebody() as user:
        runner = Runner(tools, store="memory:", identity=user, settings=own(tmp_path))
        async with runner:
            with pytest.raises(UsageError, match="in use; make another"):
                await runner.__aenter__()
            still = await runner.call("make", {"text": "hi"})
        async with runner:
            again = await runner.call("make", {"text": "hi"})

    assert (still["results"], again["results"]) == ("made", "made")


def test_store_class_and_empty_name_refused(tools: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Keeper is a class; give an instance"):
        Runner(tools, store=Keeper, settings=own(tmp_path))
    with pytest.raises(UsageError, match="'' will not do for store"):
        Runner(tools, store="", settings=own(tmp_path))


async def test_failed_start_leaves_no_process_or_descriptor(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise CallError(Code.E_STORE, "it is away")

    monkeypatch.setattr(toolset, "open_library", fails)
    settings = {**own(tmp_path), "audit_dir": str(tmp_path / "audit")}
    # What is opened once in the life of a process is open from then on.
    with pytest.raises(CallError, match="it is away"):
        await _enter(tools, settings)
    processes, descriptors = set(psutil.Process().children()), open_descriptors()
    for _ in range(3):
        with pytest.raises(CallError):
            await _enter(tools, settings)

    assert set(psutil.Process().children()) == processes
    assert open_descriptors() <= descriptors


async def _enter(tools: Path, settings: dict[str, object]) -> None:
    async with Runner(tools, settings=settings):
        pass


async def test_call_outside_block_refused(tools: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="async with Runner"):
        await Runner(tools, settings=own(tmp_path)).call("make", {"text": "hi"})
