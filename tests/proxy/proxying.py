"""Shared by the tests of the proxy: a proxy in this process in front of real servers, and a client of it."""

import contextlib
import json
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from fastmcp import Client
from mcp.shared.exceptions import MCPError
from support import ROOT, server_url, settings_in, stop

from runner.protocol.internals.proxy import HttpAnswer, ask_remote
from runner.proxy.server import make_proxy
from runner.proxy.targets import Target
from runner.proxy.upstreams import Upstreams, ways_to

REMOTE = Path(__file__).parent / "remote.py"
BARE = Path(__file__).parent / "bare.py"
PAGED = Path(__file__).parent / "paged.py"


def over_stdio(name: str = "bare", server: Path = BARE, **more: Any) -> Target:
    return Target(name=name, command=(sys.executable, str(server)), folder=server.parent, **more)


def over_http(url: str, name: str = "remote") -> Target:
    return Target(name=name, url=url)


@asynccontextmanager
async def upstreams_for(
    folder: Path, user: str, *targets: Target, **settings: Any
) -> AsyncIterator[Upstreams]:
    effective = settings_in(folder, user=user, **settings)
    async with Upstreams.open(effective, ways_to(effective, targets)) as upstreams:
        yield upstreams


@asynccontextmanager
async def proxied(
    folder: Path, user: str, *targets: Target, mode: str = "auto", client: Any = None, **settings: Any
) -> AsyncIterator[Any]:
    async with (
        upstreams_for(folder, user, *targets, **settings) as upstreams,
        Client(make_proxy(upstreams, transport="stdio"), mode=mode, **(client or {})) as it,
    ):
        yield it


async def unreachable(folder: Path, user: str, *targets: Target, **settings: Any) -> str:
    """Return the answer to the handshake of a client, none of whose servers can be reached."""
    with pytest.raises(MCPError) as refused:
        async with proxied(folder, user, *targets, mode="legacy", **settings):
            pass
    return str(refused.value)


@contextmanager
def proxy_command(folder: Path, *servers: str) -> Iterator[str]:
    """Run the command over HTTP in front of servers, and yield its address."""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "RUNNER_STATE_DIR": str(folder / "state"),
        "RUNNER_STORE": (folder / "store").as_uri(),
    }
    options = ["--transport", "http", "--port", "0", "--user", f"t-{uuid.uuid4().hex[:12]}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "runner", "proxy", *options, *servers],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield server_url(process)
    stop(process)


def messages_of_call(
    url: str, tool: str, arguments: dict[str, Any], **meta_of_call: Any
) -> list[dict[str, Any]]:
    """Call a tool over HTTP in the later era without a client library; return all messages."""
    where = urlsplit(url)
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "progressToken": "steps",
        **meta_of_call,
    }
    params = {"name": tool, "arguments": arguments, "_meta": meta}
    message = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    headers = {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": tool,
    }
    with contextlib.closing(HTTPConnection(str(where.hostname), where.port)) as connection:
        connection.request("POST", where.path, message, headers)
        response = connection.getresponse()
        body = response.read()
    if response.headers["content-type"] == "application/json":
        return [json.loads(body)]
    return [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: ")]


@dataclass(frozen=True)
class RawSession:
    """A client that sends requests as they are, and gets results as they are."""

    client: Any

    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        http = HttpAnswer()
        return await ask_remote(
            self.client.session, method, dict(params or {}), timeout_s=600, progress=None, http=http
        )


async def result(client: Any, tool: str, **arguments: Any) -> Any:
    called = await client.call_tool(tool, arguments)
    value = called.structured_content
    if value is None:
        return json.loads(called.content[0].text)
    return value["result"] if value is not None and set(value) == {"result"} else value
