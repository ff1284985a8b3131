"""HTTP only: tokens and identities, downloads, health, disconnects."""

import json
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from fastmcp import Client
from fastmcp.client.auth import BearerAuth
from support import TOOLS, becomes, environment_in, held, serving_over_http, strongest_tier

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]

ANN, BOB = (f"t-{uuid.uuid4().hex[:8]}@example.com" for _ in range(2))
TOKENS = {"ann-token-ann-token-ann": ANN, "bob-token-bob-token-bob": BOB}
ANNS, BOBS = TOKENS


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("http")
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps(TOKENS))
    tokens.chmod(0o600)
    for name in ("acts", "files", "ends", "every"):
        shutil.copy(TOOLS / f"{name}.py", folder)
    both = folder / "both.py"
    both.write_text(
        "from fastmcp import FastMCP\n"
        "import files, ends, every\n"
        "mcp = FastMCP('both')\n"
        "for one in (files, ends, every):\n"
        "    mcp.mount(one.mcp)\n"
    )
    environment = environment_in(folder, RUNNER_AUTH__KIND="static", RUNNER_AUTH__TOKENS_FILE=str(tokens))
    with serving_over_http(both, environment) as address:
        yield address


def client(url: str, token: str, **options: Any) -> "Client[Any]":
    return Client(url, auth=BearerAuth(token), **options)


async def test_token_names_user_over_model_argument(url: str) -> None:
    """Source: S0-55, S0-69, S0-73 and S1-32."""
    async with client(url, ANNS) as ann, client(url, BOBS) as bob:
        hers = await ann.call_tool("whoami", {"username": BOB})
        his = await bob.call_tool("whoami", {})

    assert hers.structured_content["username"] == ANN
    assert his.structured_content["username"] == BOB


@pytest.mark.parametrize("token", [None, "no-such-token-at-all-here"])
async def test_request_without_valid_token_refused(url: str, token: str | None) -> None:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}

    async with httpx2.AsyncClient(timeout=180) as http:
        answer = await http.post(url, json=body, headers=headers)

    assert answer.status_code == 401


async def test_tools_see_token_and_headers(url: str) -> None:
    from fastmcp.client.transports import StreamableHttpTransport

    transport = StreamableHttpTransport(url, auth=BearerAuth(ANNS), headers={"X-Asked-By": "a test"})
    async with Client(transport) as ann:
        facts = (await ann.call_tool("whoami", {})).structured_content

    assert facts["subject"] == ANN
    assert facts["header"] == "a test"
    assert facts["transport"] == "streamable-http"


async def test_files_of_another_user_unreachable(url: str) -> None:
    async with client(url, ANNS) as ann, client(url, BOBS) as bob:
        made = await ann.call_tool("make", {"name": "secret.txt", "size": 5})
        link = next(block for block in made.content if block.type == "resource_link")
        own = await ann.read_resource(str(link.uri))
        mine = await ann.call_tool("read", {"filename": "secret.txt"})
        foreign = await bob.call_tool("read", {"filename": "secret.txt"}, raise_on_error=False)
        direct = await bob.call_tool("only_claim", {"path": f"/tmp/{ANN}/secret.txt"}, raise_on_error=False)
        with pytest.raises(Exception, match="not a file of this user"):
            await bob.read_resource(str(link.uri))

    assert own[0].text == "xxxxx"
    assert mine.structured_content["text"] == "xxxxx"
    assert '"E_FILE_NOT_FOUND"' in foreign.content[0].text
    assert '"E_INVALID_PATH"' in direct.content[0].text


async def test_file_downloaded_by_its_own_link_only(url: str) -> None:
    """Source: S0-52 and S0-53."""
    async with client(url, ANNS) as ann:
        made = await ann.call_tool("make", {"name": "report.txt", "size": 1000})
    link = next(block for block in made.content if block.type == "resource_link")
    address = link.meta["toolcell/download"]

    async with httpx2.AsyncClient(timeout=180) as http:
        whole = await http.get(address)
        part = await http.get(address, headers={"Range": "bytes=10-19"})
        forged = await http.get(re.sub(r"token=.", "token=A", address))
        other = await http.get(re.sub(r"art_[0-9a-f]+", "art_000000000000", address))

    assert (whole.status_code, whole.content) == (200, b"x" * 1000)
    assert whole.headers["content-disposition"] == 'attachment; filename="report.txt"'
    assert (part.status_code, len(part.content)) == (206, 10)
    assert forged.status_code == 403
    assert other.status_code == 403


async def test_file_bytes_absent_from_model_text(url: str) -> None:
    async with client(url, ANNS) as ann:
        made = await ann.call_tool("make", {"name": "big.txt", "size": 3000})
        inline = await ann.call_tool(
            "make", {"name": "b.txt", "size": 30}, meta={"toolcell/artifacts": "inline"}
        )

    texts = [block.text for block in (*made.content, *inline.content) if block.type == "text"]
    assert not any("eHh4" in text or "/tmp/" in text for text in texts)
    (artifact,) = made.structured_content["artifacts"]
    assert artifact["uri"].startswith("artifact://art_")
    assert artifact["size"] == 3000
    assert "b64" not in artifact
    assert inline.structured_content["artifacts"][0]["b64"] == "eHh4" * 10


async def test_health_answers_without_token_rejects_unknown_hosts(url: str) -> None:
    base = url.removesuffix("/mcp")

    async with httpx2.AsyncClient(timeout=180) as http:
        health = await http.get(f"{base}/healthz")
        strange = await http.get(f"{base}/healthz", headers={"Host": "evil.example"})

    assert (health.status_code, health.json()["status"]) == (200, "ok")
    assert health.json()["tier"] == strongest_tier()
    assert await becomes(lambda: httpx2.get(f"{base}/readyz", timeout=180).status_code == 200)
    assert strange.status_code in (400, 403, 421)


async def test_disconnecting_client_ends_its_call(url: str) -> None:
    mark = Path(f"/tmp/{ANN}/mark")
    prefix = "io.modelcontextprotocol/"
    meta = {
        prefix + "protocolVersion": "2026-07-28",
        prefix + "clientInfo": {"name": "test", "version": "1"},
        prefix + "clientCapabilities": {},
    }
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "marks", "arguments": {}, "_meta": meta},
    }
    headers = {
        "Authorization": f"Bearer {ANNS}",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/call",
        "Mcp-Name": "marks",
    }

    async with httpx2.AsyncClient(timeout=180) as http, anyio.create_task_group() as group:
        group.start_soon(lambda: http.post(url, json=body, headers=headers))
        while not held(mark):
            await anyio.sleep(0.01)
        group.cancel_scope.cancel()
    while held(mark):
        await anyio.sleep(0.01)


async def test_cancelling_client_ends_its_call(url: str) -> None:
    mark = Path(f"/tmp/{BOB}/mark")

    async with client(url, BOBS, mode="legacy") as bob:
        async with anyio.create_task_group() as group:
            group.start_soon(bob.call_tool, "marks", {})
            while not held(mark):
                await anyio.sleep(0.01)
            group.cancel_scope.cancel()
        while held(mark):
            await anyio.sleep(0.01)
        after = await bob.call_tool("fine", {})

    assert after.data == "fine"
