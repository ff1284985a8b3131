"""Resources of a remote server: `resources` of the conformance README, against a server in this process."""

import asyncio
import contextlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import mcp_types
from fastmcp import Client, FastMCP
from mcp.shared.exceptions import MCPError

from runner.output_guard.config import from_mapping
from runner.protocol.internals.proxy import HttpAnswer, ask_remote
from runner.protocol.resource_tools import Reader, Remote, RemoteError, RemoteResources, resource_tools
from runner.store.protocol import Scope
from runner.store.store import BlobStore
from runner.worker.internals.low_level import low_level

__all__ = ["OPERATIONS"]

Observation = dict[str, Any]

_SCOPE = Scope(user_id="alice", session_id="session", trace_id="call")


class _Fake:
    """The server that a case describes; it writes down what it is asked."""

    def __init__(self, case: Mapping[str, Any]) -> None:
        self.case = case
        self.calls: list[str] = []
        self.version = 1
        self.server: FastMCP[Any] = FastMCP("fake")
        for method, handler in (
            ("resources/list", self._list),
            ("resources/templates/list", self._templates),
            ("resources/read", self._read),
        ):
            params = (
                mcp_types.ReadResourceRequestParams
                if method == "resources/read"
                else mcp_types.PaginatedRequestParams
            )
            low_level(self.server).add_request_handler(method, params, handler)

    async def _list(self, _ctx: Any, params: Any) -> Any:
        self._count("resources/list")
        pages = self.case.get("pages") or [{"resources": []}]
        cursors = [None, *(page.get("nextCursor") for page in pages)]
        page = pages[cursors.index(params.cursor if params else None)]
        resources = [{"name": item["uri"], **item} for item in page.get("resources", [])]
        return mcp_types.ListResourcesResult.model_validate({**page, "resources": resources})

    async def _templates(self, _ctx: Any, _params: Any) -> Any:
        self._count("resources/templates/list")
        return mcp_types.ListResourceTemplatesResult(resource_templates=[])

    async def _read(self, _ctx: Any, _params: Any) -> Any:
        self._count("resources/read")
        contents = self.case.get(f"contents_{self.version}", self.case.get("contents", []))
        return mcp_types.ReadResourceResult.model_validate({"contents": contents})

    def _count(self, method: str) -> None:
        self.calls.append(method)
        error = self.case.get("server_error")
        if error:
            raise MCPError(code=error["code"], message=error.get("message", "no"))


async def _resources(case: Mapping[str, Any]) -> Observation:
    fake, store = _Fake(case), BlobStore()
    events: list[Mapping[str, Any]] = []
    config = {"resources": dict(case.get("config", {}))}
    ours = RemoteResources(
        server=case.get("server", "fake"), config=from_mapping(config), publish=events.append
    )
    reader = Reader(store=store, scope=_SCOPE)
    async with Client(fake.server, mode="legacy") as client:
        ask: Any = partial(ask_remote, client.session, timeout_s=30, progress=None, http=HttpAnswer())
        output = await _output(case, ours, Remote(ask), reader, fake)
    records = await store.list(scope=_SCOPE)
    return {
        "output": output,
        "stored": [{"mime_type": r.mime, "size_bytes": r.size, "sha256": r.sha256} for r in records],
        "calls": fake.calls,
        "events": [dict(event) for event in events],
        "error": None,
    }


async def _output(
    case: Mapping[str, Any], ours: RemoteResources, remote: Remote, reader: Reader, fake: _Fake
) -> Any:
    match case["call"]:
        case "connect":
            return {"resources_supported": await _has_any(ours, remote)}
        case "list":
            return await ours.all(remote)
        case "tool_result_link":
            return await ours.linked(remote, case["link"], reader)
        case "tools":
            return [tool["name"] for tool in resource_tools(case["server"])]
        case _:
            return await _reads(case, ours, remote, reader, fake)


async def _has_any(ours: RemoteResources, remote: Remote) -> bool:
    for ask in (ours.all, ours.templates):
        with contextlib.suppress(RemoteError):
            await ask(remote)
            return True
    return False


async def _reads(
    case: Mapping[str, Any], ours: RemoteResources, remote: Remote, reader: Reader, fake: _Fake
) -> Any:
    first = await ours.read(remote, case["uri"], reader)
    match case["call"]:
        case "read":
            return first
        case "read_evict_read":
            for record in await reader.store.list(scope=reader.scope):
                await reader.store.delete(record.id, scope=reader.scope)
        case "read_update_read":
            fake.version = 2
            ours.updated(case["uri"])
    return await ours.read(remote, case["uri"], reader)


OPERATIONS = {"resources": lambda case: asyncio.run(_resources(case))}
