"""Tasks of MCP: calls whose client does not wait for them, but asks now and then how they are.

The host keeps them, as it keeps every call that runs. What a file's own engine for tasks would do
beside other calls, in a process that never stops, each call does in a worker of its user. A tool says
that it may be a task (`task=True`), a client says in each request whether it takes one. Silence does
not end it, the limit does.

Source: MCP extension `io.modelcontextprotocol/tasks` (SEP-2663), as FastMCP 4.1 speaks it.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import mcp_types
from mcp.shared.exceptions import MCPError
from mcp_types import CLIENT_CAPABILITIES_META_KEY
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from runner.call import Request
from runner.steps.listener import PROGRESS, ClientRefusal

__all__ = ["EXTENSION", "McpTasks"]

EXTENSION = "io.modelcontextprotocol/tasks"
"""Under which name clients and servers say that they know of tasks."""

_METHODS = ("tasks/get", "tasks/update", "tasks/cancel")
_KEPT_S = 3600.0
_MOST = 1000
_MOST_OF_USER = 64

Run = Callable[[Request], Awaitable[dict[str, Any]]]


@dataclass(slots=True, eq=False, kw_only=True)
class _Task:
    """One of them. A `runner.steps.listener.Client`: it hears of its call what a client would."""

    request: Request
    poll_ms: int
    ttl_s: float
    id: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    born: float = field(default_factory=time.time)
    updated: float = field(default_factory=time.time)
    status: str = "working"
    message: str | None = None
    outcome: dict[str, Any] = field(default_factory=dict)
    state: object = None
    running: "asyncio.Task[None] | None" = None

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Keep what the tool has said last of its progress."""
        if method == PROGRESS:
            self.message = str(params.get("message") or f"{params.get('progress')} of {params.get('total')}")
            self.updated = time.time()

    async def request_of(self, method: str) -> Mapping[str, Any]:
        raise ClientRefusal(-32601, f"nobody waits for this call who could answer {method}")

    def ended(self, status: str, **outcome: Any) -> None:
        """Note how it is now."""
        self.status, self.outcome, self.updated = status, outcome, time.time()

    def told(self) -> dict[str, Any]:
        """Return it as it is told."""
        said = {"statusMessage": self.message} if self.message else {}
        return {
            "taskId": self.id,
            "status": self.status,
            "createdAt": _when(self.born),
            "lastUpdatedAt": _when(self.updated),
            "ttlMs": int(self.ttl_s * 1000),
            "pollIntervalMs": self.poll_ms,
            **said,
        }


@dataclass(frozen=True, slots=True)
class _Hearing:
    """The client of a task's call. A `runner.steps.listener.Client`."""

    task: _Task

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        await self.task.notify(method, params)

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        del params
        return await self.task.request_of(method)


class McpTasks:
    """All tasks of one server.

    Args:
        run: Answers a call.
        polls: Says how often to ask for a task of a tool, in milliseconds; None where a tool is no task.
        total_s: Says how long a call of a tool may take, in seconds.
    """

    def __init__(self, run: Run, polls: Callable[[str], int | None], total_s: Callable[[str], float]) -> None:
        self._run = run
        self._polls = polls
        self._total_s = total_s
        self._tasks: dict[str, _Task] = {}

    def takes(self, method: str) -> bool:
        """Say whether a method is one of tasks."""
        return method in _METHODS

    def wants(self, request: Request) -> bool:
        """Say whether a call is to become a task: its tool may, its client takes one, and there is room."""
        if self._polls(_tool(request)) is None or request.facts.protocol in HANDSHAKE_PROTOCOL_VERSIONS:
            return False
        self._forget_old()
        mine = sum(task.request.user.segment == request.user.segment for task in self._tasks.values())
        return _knows(request.params) and mine < _MOST_OF_USER and len(self._tasks) < _MOST

    def begin(self, request: Request) -> dict[str, Any]:
        """Begin a call in the background; return what its client gets at once."""
        tool = _tool(request)
        meta = {"progressToken": "task", **dict(request.params.get("_meta") or {})}
        own = replace(request, params={**request.params, "_meta": meta}, is_awaited=False, levels=frozenset())
        task = _Task(request=own, poll_ms=self._polls(tool) or 1000, ttl_s=self._total_s(tool) + _KEPT_S)
        self._tasks[task.id] = task
        self._go(task, own)
        return {"resultType": "task", **task.told()}

    def answer(self, request: Request) -> dict[str, Any]:
        """Answer a method of tasks.

        Raises:
            MCPError: The user has no such task, or the client has not said that it knows of tasks.
        """
        if not _knows(request.params):
            raise MCPError(
                code=mcp_types.MISSING_REQUIRED_CLIENT_CAPABILITY,
                message=f"{request.method} needs the extension {EXTENSION}, which is not declared",
                data={"requiredCapabilities": {"extensions": {EXTENSION: {}}}},
            )
        task = self._tasks.get(str(request.params.get("taskId")))
        if task is None or task.request.user.segment != request.user.segment:
            raise MCPError(code=mcp_types.INVALID_PARAMS, message="there is no such task, or it has expired")
        if request.method == "tasks/get":
            return {"resultType": "complete", **task.told(), **task.outcome}
        if request.method == "tasks/cancel":
            self._cancel(task)
        elif task.status == "input_required":
            self._go_on(task, request.params.get("inputResponses"))
        return {"resultType": "complete"}

    def _go(self, task: _Task, request: Request) -> None:
        task.ended("working")
        task.running = asyncio.create_task(self._through(task, replace(request, client=_Hearing(task))))

    def _go_on(self, task: _Task, answers: object) -> None:
        params = {**task.request.params, "inputResponses": answers}
        if task.state is not None:
            params["requestState"] = task.state
        self._go(task, replace(task.request, params=params))

    async def _through(self, task: _Task, request: Request) -> None:
        try:
            result = await self._run(request)
        except MCPError as error:
            told = error.error.model_dump(by_alias=True, mode="json", exclude_none=True)
            task.ended("failed", error=told)
            return
        if result.get("resultType") == "input_required":
            task.state = result.get("requestState")
            task.ended("input_required", inputRequests=result.get("inputRequests", {}))
        else:
            task.ended("completed", result=result)

    def _cancel(self, task: _Task) -> None:
        if task.status in ("working", "input_required"):
            if task.running is not None:
                task.running.cancel()
            task.ended("cancelled")

    def _forget_old(self) -> None:
        now = time.time()
        old = [task for task in self._tasks.values() if now > task.born + task.ttl_s]
        for task in old:
            self._cancel(task)
            del self._tasks[task.id]


def _tool(request: Request) -> str:
    return str(request.params.get("name"))


def _knows(params: Mapping[str, Any]) -> bool:
    """Say whether a request declares that its client knows of tasks."""
    value: object = params
    for key in ("_meta", CLIENT_CAPABILITIES_META_KEY, "extensions", EXTENSION):
        value = value.get(key) if isinstance(value, Mapping) else None
    return isinstance(value, Mapping)


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, tz=UTC).isoformat()
