"""`runner test`: the requests of a set, one after the other, through the server that MCP clients meet."""

import sys
import time
from collections.abc import Mapping
from typing import Any

from fastmcp import Client
from mcp.shared.exceptions import MCPError

from runner.cli.request_set import SavedRequest, faults_of
from runner.errors import UsageError
from runner.formats.terminal_text import json_text
from runner.server.host import make_host
from runner.settings.settings import Settings
from runner.toolset.toolset import Toolset
from runner.users.identity import User
from sandbox.host.launch import Launched

__all__ = ["run_set"]


async def run_set(
    settings: Settings,
    user: User,
    target: str,
    requests: list[SavedRequest],
    *,
    server: str | None = None,
    as_json: bool = False,
    launched: Launched | None = None,
) -> int:
    """Make the requests, say of each whether it gave what was expected, and return the exit status.

    Args:
        settings: The effective settings.
        user: Who asks.
        target: The tool file.
        requests: The requests.
        server: The server of which requests are made, where they are of several.
        as_json: Print exactly one JSON document.
        launched: A forkserver's process that was started before, if there is one.

    Raises:
        UsageError: It is not said whose requests are made.
        LoadError: The tool file is at fault.
        ConfinementError: A layer could not be put in place.
    """
    chosen = _of_server(requests, server)
    told = []
    async with Toolset.open(settings, [target], user=user, launched=launched) as toolset:
        app = make_host(toolset, transport="stdio", download_url=None)
        async with Client(app) as client:
            for request in chosen:
                told.append(await _made(client, request))
                if not as_json:
                    _print(told[-1])
    passed = sum(each["passed"] for each in told)
    if as_json:
        print(json_text({"passed": passed, "failed": len(told) - passed, "requests": told}))  # noqa: T201
    else:
        print(f"{passed} of {len(told)} passed")  # noqa: T201
    return 0 if passed == len(told) else 1


def _of_server(requests: list[SavedRequest], server: str | None) -> list[SavedRequest]:
    names = {request.server for request in requests}
    if server is None and len(names) == 1:
        return requests
    listed = ", ".join(sorted(name or '""' for name in names))
    if server is None:
        raise UsageError(f"the requests are of several servers ({listed}); say with --server whose are made")
    if server not in names:
        raise UsageError(f"there is no request of the server {server}; they are of {listed}")
    return [request for request in requests if request.server == server]


async def _made(client: "Client[Any]", request: SavedRequest) -> dict[str, Any]:
    began = time.monotonic()
    try:
        result, problem = await _asked(client, request), ""
    except MCPError as error:
        result, problem = None, error.error.message
    faults = faults_of(request, result, problem)
    return {
        "name": request.name,
        "kind": request.kind,
        "target": request.target,
        "passed": not faults,
        "took_ms": round((time.monotonic() - began) * 1000),
        "faults": faults,
    }


async def _asked(client: "Client[Any]", request: SavedRequest) -> Mapping[str, Any]:
    if request.kind == "tool":
        answer: Any = await client.call_tool_mcp(request.target, dict(request.arguments))
    elif request.kind == "prompt":
        answer = await client.get_prompt_mcp(request.target, dict(request.arguments))
    else:
        answer = await client.read_resource_mcp(request.target)
    value: Mapping[str, Any] = answer.model_dump(mode="json", by_alias=True, exclude_none=True)
    return value


def _print(told: Mapping[str, Any]) -> None:
    word = "passed" if told["passed"] else "failed"
    print(f"{word}  {told['name']}  ({told['took_ms']} ms)")  # noqa: T201
    for fault in told["faults"]:
        print(f"        {fault}")  # noqa: T201
    sys.stdout.flush()
